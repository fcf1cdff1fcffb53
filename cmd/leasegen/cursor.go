package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"regexp"
	"slices"

	"github.com/leasegen/leasegen/runtime/operate"
)

func cursorCommand() command {
	const usage = "cursor show|reset|set [flags] consumer"
	return command{
		name: "cursor", usage: usage, short: "show and move how far a consumer has got",
		run: func(ctx context.Context, e *env, args []string) int {
			var (
				db database
				c  cursor
			)
			fs := flag.NewFlagSet("cursor", flag.ContinueOnError)
			db.flags(fs)
			fs.StringVar(&c.resource, "resource", "", "only this topic, slot or stream; all without it")
			fs.StringVar(&c.to, "to", "", "set: beginning, now, or the `id` of the last message to count as handled")
			fs.IntVar(&c.limit, "limit", 50, "show: how many resources, the furthest behind first")
			fs.StringVar(&c.format, "format", "text", "show: text or json")
			fs.BoolVar(&c.yes, "yes", false, "do it: without -yes, reset and set only say what they would do")
			return carryOut(e, fs, usage, args, func(rest []string) error {
				if err := c.arguments(rest); err != nil {
					return err
				}
				return db.withOperator(ctx, e, func(op operate.Operator) error { return c.do(ctx, e.Stdout, op) })
			})
		},
	}
}

// cursor is what leasegen cursor was asked for.
type cursor struct {
	verb, consumer, resource string
	to                       string
	limit                    int
	format                   string
	yes                      bool
}

// messageID is a number, on streams of Redis two.
var messageID = regexp.MustCompile(`^[0-9]+(-[0-9]+)?$`)

func (c *cursor) arguments(rest []string) error {
	verbs := "show, reset, set"
	switch {
	case len(rest) == 0:
		return usagef("say what to do: %s", verbs)
	case !slices.Contains([]string{"show", "reset", "set"}, rest[0]):
		return usagef("%q is unknown; known: %s", rest[0], verbs)
	case len(rest) == 1:
		return usagef("%s needs the name of a consumer", rest[0])
	case len(rest) > 2:
		return usagef("one consumer at a time, not %q", rest[1:])
	case c.limit < 1:
		return usagef("-limit %d is below 1", c.limit)
	case c.format != "text" && c.format != "json":
		return usagef("-format %q is unknown; known: text, json", c.format)
	}
	c.verb, c.consumer = rest[0], rest[1]
	switch {
	case c.verb == "set" && c.to == "":
		return usagef("set needs -to: beginning, now, or the id of a message")
	case c.verb == "set" && c.to != "beginning" && c.to != "now" && !messageID.MatchString(c.to):
		return usagef("-to %q is neither beginning, now, nor the id of a message", c.to)
	case c.verb != "set" && c.to != "":
		return usagef("-to goes with set only")
	case c.verb == "show" && c.yes:
		return usagef("-yes goes with reset and set only")
	case c.verb != "show" && c.format != "text":
		return usagef("-format goes with show only")
	}
	return nil
}

func (c *cursor) target() operate.CursorTarget {
	switch {
	case c.verb == "reset" || c.to == "beginning":
		return operate.CursorTarget{Beginning: true}
	case c.to == "now":
		return operate.CursorTarget{Now: true}
	}
	return operate.CursorTarget{After: c.to}
}

func (c *cursor) do(ctx context.Context, w io.Writer, op operate.Operator) error {
	s, err := known(ctx, op, c.consumer)
	if err != nil {
		return err
	}
	if c.verb == "show" {
		return c.show(ctx, w, op)
	}
	return c.move(ctx, w, s, op)
}

type cursorJSON struct {
	Resource     string  `json:"resource"`
	Session      string  `json:"session"`
	Epoch        int64   `json:"epoch"`
	Position     string  `json:"position"`
	Lag          int64   `json:"lag"`
	OldestUnread float64 `json:"oldest_unread"`
}

// show lists cursors, the furthest behind first.
func (c *cursor) show(ctx context.Context, w io.Writer, op operate.Operator) error {
	list, err := op.Cursors(ctx, c.consumer, c.resource, c.limit+1) // to see whether there are more
	if err != nil {
		return err
	}
	more := len(list) > c.limit
	list = list[:min(c.limit, len(list))]
	if c.format == "json" {
		out := make([]cursorJSON, len(list))
		for i, s := range list {
			out[i] = cursorJSON{s.Resource, s.Session, s.Epoch, s.Position, s.Lag, s.OldestUnread.Seconds()}
		}
		return printJSON(w, map[string]any{"cursors": out, "more": more})
	}
	if len(list) == 0 {
		return c.nothing()
	}
	members, err := op.Members(ctx, c.consumer)
	if err != nil {
		return err
	}
	who := map[string]string{}
	for _, m := range members {
		who[m.Session] = process(m)
	}
	t := newTable("resource", "owner", ">epoch", ">position", ">lag", "oldest unread")
	for _, s := range list {
		t.add(printable(s.Resource, 80), owner(who, s.Session), fmt.Sprint(s.Epoch), position(s.Position), number(s.Lag), ageOr(s.OldestUnread))
	}
	if err := t.print(w); err != nil {
		return err
	}
	if more {
		_, err = fmt.Fprintln(w, "there are more; -limit n shows n")
	}
	return err
}

func position(id string) string {
	if id == "" {
		return "beginning"
	}
	return printable(id, 40)
}

func (c *cursor) nothing() error {
	if c.resource != "" {
		return usagef("%s has no resource %q: leasegen cursor show %[1]s lists them", c.consumer, c.resource)
	}
	return usagef("%s has no resources yet", c.consumer)
}

// move sets cursors: first it only says what that means.
func (c *cursor) move(ctx context.Context, w io.Writer, s operate.ConsumerStatus, op operate.Operator) error {
	to := c.target()
	place := "behind message " + to.After
	switch {
	case to.Beginning:
		place = "to the beginning of the log"
	case to.Now:
		place = "to the present"
	}
	if c.yes {
		n, err := op.SetCursor(ctx, c.consumer, c.resource, to)
		if err != nil {
			return err
		}
		if n == 0 && c.resource != "" {
			return c.nothing()
		}
		_, err = fmt.Fprintf(w, "moved %s of %s %s\n", plural(n, "cursor"), c.consumer, place)
		return err
	}
	list, err := op.Cursors(ctx, c.consumer, c.resource, mostCounted)
	if err != nil {
		return err
	}
	if len(list) == 0 && c.resource != "" {
		return c.nothing()
	}
	var (
		owned int
		lag   int64
	)
	for _, s := range list {
		if s.Session != "" {
			owned++
		}
		lag += s.Lag
	}
	effect := "what lies behind it and was handled is handled again"
	switch {
	case to.Beginning && c.resource == "":
		effect = fmt.Sprintf("all messages of the log are handled again, %s and %s are dropped",
			plural(s.ParkedKeys, "parked key"), plural(s.DeadLetters, "dead letter"))
	case to.Beginning:
		effect = "all its messages in the log are handled again, its parked messages and dead letters are dropped"
	case to.Now:
		effect = fmt.Sprintf("%s unread now would never be handled", plural(lag, "message"))
	}
	_, err = fmt.Fprintf(w, "would move %s of %s %s (%s owned now, taken from their owners): %s; run again with -yes\n",
		plural(len(list), "cursor"), c.consumer, place, number(owned), effect)
	return err
}

package main

import (
	"context"
	"flag"
	"fmt"
	"regexp"

	"github.com/leasegen/leasegen/runtime/operate"
)

// mostCounted bounds what a dry run reads to count it.
const mostCounted = 100_000

// cursor is what leasegen cursor was asked for.
type cursor struct {
	verb, consumer, resource string
	to                       string
	limit                    int
	format                   string
	yes                      bool
}

func (c *cursor) flags(fs *flag.FlagSet) {
	fs.StringVar(&c.resource, "resource", "", "only this topic, slot or stream; all without it")
	fs.StringVar(&c.to, "to", "", "set: beginning, now, or the `id` of the last message to count as handled")
	fs.IntVar(&c.limit, "limit", 50, "show: how many resources, the furthest behind first")
	fs.StringVar(&c.format, "format", "text", "show: text or json")
	fs.BoolVar(&c.yes, "yes", false, "do it: without -yes, reset and set only say what they would do")
}

// messageID is a number, on streams of Redis two.
var messageID = regexp.MustCompile(`^[0-9]+(-[0-9]+)?$`)

func (c *cursor) lasts() bool { return c.yes }

func (c *cursor) arguments(rest []string) error {
	if err := verbAndConsumer(rest, "show", "reset", "set"); err != nil {
		return err
	}
	if c.limit < 1 {
		return usagef("-limit %d is below 1", c.limit)
	}
	if err := checkFormat(c.format); err != nil {
		return err
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

func (c *cursor) do(ctx context.Context, w *output, on target) error {
	s, err := known(ctx, on, c.consumer)
	if err != nil {
		return err
	}
	if c.verb == "show" {
		return c.show(ctx, w, on)
	}
	return c.move(ctx, w, s, on)
}

type cursorJSON struct {
	Resource     string  `json:"resource"`
	Session      string  `json:"session"`
	Epoch        int64   `json:"epoch"`
	Position     string  `json:"position"`
	Lag          int64   `json:"lag"`
	OldestUnread float64 `json:"oldest_unread_seconds"`
}

// show lists cursors, the furthest behind first.
func (c *cursor) show(ctx context.Context, w *output, on target) error {
	list, err := on.Cursors(ctx, c.consumer, c.resource, c.limit+1) // to see whether there are more
	if err != nil {
		return err
	}
	list, more := atMost(list, c.limit)
	if c.format == "json" {
		out := make([]cursorJSON, len(list))
		for i, s := range list {
			out[i] = cursorJSON{s.Resource, s.Session, s.Epoch, s.Position, s.Lag, s.OldestUnread.Seconds()}
		}
		return printJSON(w, map[string]any{"cursors": out, "more": more})
	}
	if len(list) == 0 {
		return c.nothing(on)
	}
	members, err := on.Members(ctx, c.consumer)
	if err != nil {
		return err
	}
	owner := ownerAmong(members)
	t := newTable("=resource", "owner", "?>epoch", "?>position", ">lag", "oldest unread")
	for _, s := range list {
		t.add(printable(s.Resource, 80), owner(s.Session), fmt.Sprint(s.Epoch), position(s.Position), number(s.Lag), ageOr(s.OldestUnread))
	}
	return t.printMore(w, more, "")
}

func position(id string) string {
	if id == "" {
		return "beginning"
	}
	return printable(id, 40)
}

func (c *cursor) nothing(on target) error {
	if c.resource != "" {
		return usagef("%s has no resource %q; %s", c.consumer, c.resource, hint("see those there are", on.command("cursor show %s", c.consumer)))
	}
	return usagef("%s has no resources yet", c.consumer)
}

// move sets cursors: first it only says what that means.
func (c *cursor) move(ctx context.Context, w *output, s operate.ConsumerStatus, on target) error {
	to := c.target()
	place := "behind message " + to.After
	switch {
	case to.Beginning:
		place = "to the beginning of the log"
	case to.Now:
		place = "to the present"
	}
	if c.yes {
		return c.moveNow(ctx, w, s, on, to, place)
	}
	list, err := on.Cursors(ctx, c.consumer, c.resource, mostCounted)
	if err != nil {
		return err
	}
	if len(list) == 0 && c.resource != "" {
		return c.nothing(on)
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
	_, err = fmt.Fprintf(w, "would move %s of %s %s, in %s (%s owned now, taken from their owners): %s; run again with -yes\n",
		plural(len(list), "cursor"), named(c.consumer), place, on.where, number(owned), effect)
	return err
}

// moveNow moves cursors. Dead letters that go with them are dropped before, step by step: there may be many.
func (c *cursor) moveNow(ctx context.Context, w *output, s operate.ConsumerStatus, on target, to operate.CursorTarget, place string) error {
	if to.Beginning && c.resource == "" && s.DeadLetters > 0 {
		if _, err := on.Cursors(ctx, c.consumer, "", 1); err != nil { // without a cursor none is dropped
			return err
		}
		n, err := w.progress.inSteps(ctx, "dropped", s.DeadLetters, func(ctx context.Context, most int) (int, bool, error) {
			n, err := on.Purge(ctx, operate.DeadLetterFilter{Consumer: c.consumer, Limit: most})
			return n, n == most, err
		})
		so := fmt.Sprintf("dropped %s of %s of %s, in %s, and moved no cursor", number(n), plural(s.DeadLetters, "dead letter"), named(c.consumer), on.where)
		switch {
		case err != nil && ctx.Err() != nil:
			return fmt.Errorf("interrupted: %s; the same command goes on", so)
		case err != nil && n > 0:
			return fmt.Errorf("%s; then: %w", so, err)
		case err != nil:
			return err
		}
	}
	stop := w.progress.clock(fmt.Sprintf("moving cursors of %s, in %s", named(c.consumer), on.where))
	var n int
	err := lasting(ctx, func(ctx context.Context) (err error) {
		n, err = on.SetCursor(ctx, c.consumer, c.resource, to)
		return err
	})
	stop()
	so := fmt.Sprintf("moved %s of %s %s, in %s", plural(n, "cursor"), named(c.consumer), place, on.where)
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("interrupted: %s; the same command moves all of them", so)
	case err != nil && n > 0:
		return fmt.Errorf("%s; then: %w", so, err)
	case err != nil:
		return err
	case n == 0 && c.resource != "":
		return c.nothing(on)
	}
	_, err = fmt.Fprintln(w, so)
	return err
}

package main

import (
	"context"
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

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
	Gone         string  `json:"gone"` // see operate.CursorStatus
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
			out[i] = cursorJSON{s.Resource, s.Session, s.Epoch, s.Position, s.Lag, s.OldestUnread.Seconds(), s.Gone}
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
		effect = fmt.Sprintf("all messages that the log still has are handled again, %s and %s are dropped",
			plural(s.ParkedKeys, "parked key"), plural(s.DeadLetters, "dead letter"))
	case to.Beginning:
		effect = "all its messages that the log still has are handled again, its parked messages and dead letters are dropped"
	case to.Now:
		effect = fmt.Sprintf("%s unread now would never be handled", plural(lag, "message"))
	}
	_, err = fmt.Fprintf(w, "would move %s of %s %s, in %s (%s owned now, taken from their owners): %s; run again with -yes\n",
		plural(len(list), "cursor"), named(c.consumer), place, on.where, number(owned), effect)
	if err != nil {
		return err
	}
	notes := c.lost(s, on, to, list)
	back := func(of operate.CursorStatus) bool {
		return to.Beginning || to.After != "" && before(to.After, of.Position)
	}
	if slices.ContainsFunc(list, back) {
		notes = append(notes, c.rebuild(s, on, owned)...)
	}
	if len(notes) == 0 {
		return nil
	}
	return on.next(w, notes...)
}

// lost says what a move back does not bring back, and what it drops.
func (c *cursor) lost(s operate.ConsumerStatus, on target, to operate.CursorTarget, list []operate.CursorStatus) (notes []string) {
	cut, upto := 0, ""
	for _, of := range list {
		if of.Gone != "" && (to.Beginning || to.After != "" && before(to.After, of.Gone)) {
			if cut++; upto == "" || before(upto, of.Gone) {
				upto = of.Gone
			}
		}
	}
	switch {
	case cut == 1 || cut > 0 && !slices.ContainsFunc(list, func(of operate.CursorStatus) bool { return of.Gone != upto }):
		notes = append(notes, fmt.Sprintf("the log has no messages up to %s any more: they are not handled again, and a projection that is rebuilt lacks them",
			printable(upto, 40)))
	case cut > 0:
		notes = append(notes, hint(fmt.Sprintf("for %s of %s the log lacks older messages, at most up to %s: they are not handled again, and a projection that is rebuilt lacks them; see gone of each",
			number(cut), plural(len(list), "cursor"), printable(upto, 40)), on.command("cursor show %s -format json", c.consumer)))
	}
	if to.Beginning && s.DeadLetters > 0 {
		of := "dead letters that are dropped"
		if c.resource == "" {
			of = plural(s.DeadLetters, "dead letter") + " would be dropped, and"
		}
		notes = append(notes, hint(of+" are lost where the log has not kept their messages; export them before",
			on.command("dlq list %s -format json", c.consumer)))
	}
	return notes
}

// rebuild says how to move back exactly, while processes of the consumer live.
func (c *cursor) rebuild(s operate.ConsumerStatus, on target, owned int) []string {
	wait := hint("wait until all its resources are unowned", on.command("status %s", c.consumer))
	switch {
	case s.Paused && owned > 0:
		return []string{"it is paused, but has owners still: before you empty a projection, " + wait}
	case s.Paused || s.Members == 0:
		return nil
	}
	words, names := c.verb+" %s", []any{c.consumer}
	if c.to != "" {
		words += " -to " + c.to
	}
	if c.resource != "" {
		words, names = words+" -resource %s", append(names, c.resource)
	}
	return []string{
		fmt.Sprintf("it is not paused and has %s: what they do after a projection is emptied, and before the cursors move, is counted twice; to rebuild one exactly:",
			plural(s.Members, "live member")),
		hint("1. pause", on.command("pause %s", c.consumer)),
		"2. " + wait,
		"3. empty the tables of the projection",
		hint("4. move the cursors", on.command("cursor "+words+" -yes", names...)),
		hint("5. resume", on.command("resume %s", c.consumer)),
	}
}

// before reports whether a message comes before another one, by their ids: a number, or two.
func before(a, b string) bool {
	n, of := idNumbers(a)
	m, than := idNumbers(b)
	return n < m || n == m && of < than
}

func idNumbers(id string) (first, second uint64) {
	id, _, _ = strings.Cut(id, "/") // the stream, of an application's
	head, tail, _ := strings.Cut(id, "-")
	first, _ = strconv.ParseUint(head, 10, 64)
	second, _ = strconv.ParseUint(tail, 10, 64)
	return first, second
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

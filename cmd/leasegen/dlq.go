package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// dlq is what leasegen dlq was asked for.
type dlq struct {
	verb   string
	filter operate.DeadLetterFilter
	format string
	yes    bool
	now    time.Time
}

func (q *dlq) flags(fs *flag.FlagSet) {
	fs.Func("id", "only these dead letters; ids with commas between, may be repeated", func(v string) error {
		q.filter.IDs = append(q.filter.IDs, strings.Split(v, ",")...)
		return nil
	})
	fs.StringVar(&q.filter.Topic, "topic", "", "only those of topics that match; * is any run of characters")
	fs.StringVar(&q.filter.Key, "key", "", "only those of this key")
	fs.StringVar(&q.filter.Kind, "kind", "", "only those of this kind of event")
	fs.StringVar(&q.filter.Reason, "reason", "", "only those whose reason matches; * is any run of characters")
	fs.StringVar(&q.filter.Text, "text", "", "only those whose reason or key contains this; A to Z are like a to z")
	fs.DurationVar(&q.filter.MinAge, "older", 0, "only dead letters at least so old")
	fs.DurationVar(&q.filter.MaxAge, "newer", 0, "only dead letters at most so old")
	fs.StringVar(&q.filter.After, "after", "", "only those listed after this id, the last one of a list before")
	fs.StringVar(&q.filter.Through, "through", "", "only those listed up to this id, and it: none that died since")
	fs.IntVar(&q.filter.Limit, "limit", 0, "at most so many, the oldest first (default: list 100, else all)")
	fs.StringVar(&q.format, "format", "text", "text or json, of list, show and groups")
	fs.BoolVar(&q.yes, "yes", false, "do it: without -yes, replay and purge only say what they would do")
}

func (q *dlq) lasts() bool { return q.yes }

func (q *dlq) arguments(rest []string) error {
	all := slices.Equal(rest, []string{"list"}) || slices.Equal(rest, []string{"groups"}) // of all consumers
	if err := verbAndConsumer(rest, "list", "show", "groups", "replay", "purge"); err != nil && !all {
		return err
	}
	if q.filter.Limit < 0 {
		return usagef("-limit %d is below 0", q.filter.Limit)
	}
	if err := checkFormat(q.format); err != nil {
		return err
	}
	q.verb, q.filter.Consumer = rest[0], strings.Join(rest[1:], "")
	switch {
	case q.filter.MinAge < 0 || q.filter.MaxAge < 0:
		return usagef("-older and -newer say how long ago, from 0 on")
	case slices.Contains(q.filter.IDs, ""):
		return usagef("-id has an empty id")
	case q.verb == "show" && len(q.filter.IDs) != 1:
		return usagef("show needs one id: leasegen dlq show %s -id ID", q.filter.Consumer)
	case q.yes && q.verb != "replay" && q.verb != "purge":
		return usagef("-yes goes with replay and purge only")
	}
	return nil
}

func (q *dlq) do(ctx context.Context, out *output, on target) error {
	switch {
	case q.filter.Consumer == "" && q.verb == "groups":
		return q.groups(ctx, out, on)
	case q.filter.Consumer == "":
		return q.list(ctx, out, on)
	}
	c, err := known(ctx, on, q.filter.Consumer)
	if err != nil {
		return err
	}
	switch q.verb {
	case "list":
		return q.list(ctx, out, on, c)
	case "show":
		return q.show(ctx, out, on)
	case "groups":
		return q.groups(ctx, out, on, c)
	case "replay":
		return q.change(ctx, out, on, c, "replay", "replayed", on.Replay)
	}
	return q.change(ctx, out, on, c, "purge", "purged", on.Purge)
}

// list lists those of one consumer, or of all.
func (q *dlq) list(ctx context.Context, out *output, on target, of ...operate.ConsumerStatus) error {
	f := q.filter
	limit := cmp.Or(f.Limit, 100)
	f.Limit = limit + 1 // to see whether there are more
	letters, err := on.DeadLetters(ctx, f)
	if err != nil {
		return err
	}
	letters, more := atMost(letters, limit)
	if q.format == "json" {
		list := make([]letterJSON, len(letters))
		for i, l := range letters {
			list[i] = jsonOf(l, false)
		}
		return printJSON(out, map[string]any{"dead_letters": list, "more": more})
	}
	if len(letters) == 0 {
		return q.none(ctx, out, on, of)
	}
	titles := []string{"=consumer", "=id", "topic", "key", "?>attempts", "?first failed", "reason"}
	t := newTable(titles[len(of):]...)
	for _, l := range letters {
		row := []string{named(l.Consumer), printable(l.ID, 60), printable(l.Topic, 60), printable(l.Key, 40), number(l.Attempts), moment(l.FirstFailed, q.now), printable(l.Reason, 100)}
		t.add(row[len(of):]...)
	}
	if err := t.printMore(out, more, letters[len(letters)-1].ID); err != nil {
		return err
	}
	hints := []string{hint("see one whole", on.command("dlq show %s -id %s", letters[0].Consumer, letters[0].ID))}
	if len(of) == 1 {
		again := "handle them again, when the cause is gone"
		if q.selects() {
			again = "handle all of it again, when the cause is gone, or these with the same filter"
		}
		hints = append(hints, hint(again, on.command("dlq replay %s", q.filter.Consumer)))
	}
	return on.next(out, hints...)
}

// selects reports whether the filter leaves out any of a consumer's.
func (q *dlq) selects() bool {
	f := q.filter
	f.Consumer, f.Limit = "", 0
	return !reflect.DeepEqual(f, operate.DeadLetterFilter{})
}

// groupJSON is a group of dead letters in -format json. Fields are only ever added.
type groupJSON struct {
	Consumer string    `json:"consumer"`
	Kind     string    `json:"kind"`
	Reason   string    `json:"reason"`
	Count    int       `json:"count"`
	Oldest   time.Time `json:"oldest"`
	Newest   time.Time `json:"newest"`
	Example  string    `json:"example"`
}

// groups counts dead letters by reason.
func (q *dlq) groups(ctx context.Context, out *output, on target, of ...operate.ConsumerStatus) error {
	all, err := on.DeadLetterGroups(ctx, q.filter)
	if err != nil {
		return err
	}
	if q.format == "json" {
		list := make([]groupJSON, len(all.Groups))
		for i, g := range all.Groups {
			list[i] = groupJSON(g)
		}
		return printJSON(out, map[string]any{"groups": list, "total": all.Total, "more": all.More})
	}
	if len(all.Groups) == 0 {
		return q.none(ctx, out, on, of)
	}
	titles := []string{"=consumer", ">count", "?kind", "?first died", "?last died", "=example", "reason"}
	t := newTable(titles[len(of):]...)
	for _, g := range all.Groups {
		row := []string{named(g.Consumer), number(g.Count), printable(g.Kind, 40), moment(g.Oldest, q.now), moment(g.Newest, q.now), printable(g.Example, 60), printable(g.Reason, 300)}
		t.add(row[len(of):]...)
	}
	if err := t.print(out); err != nil {
		return err
	}
	if all.More {
		fmt.Fprintf(out, "there are more; these are of the newest %s dead letters\n", number(all.Total))
	}
	first := all.Groups[0]
	return on.next(out, hint("see one whole", on.command("dlq show %s -id %s", first.Consumer, first.Example)),
		hint("handle the first group again, when its cause is gone", on.command("dlq replay %s -reason %s", first.Consumer, first.Reason)))
}

// none says that a list is empty.
func (q *dlq) none(ctx context.Context, out *output, on target, of []operate.ConsumerStatus) (err error) {
	if len(of) == 0 {
		if of, err = on.Status(ctx); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintln(out, none(of))
	return err
}

// none says that consumers have no dead letters, or none that the filter selects.
func none(of []operate.ConsumerStatus) string {
	n, whose := 0, "all consumers"
	for _, c := range of {
		n += c.DeadLetters
	}
	switch {
	case len(of) == 1:
		whose = named(of[0].Consumer)
	case n == 0:
		return "no consumer has dead letters"
	}
	if n == 0 {
		return whose + " has no dead letters"
	}
	return fmt.Sprintf("none of the %s dead letters of %s match", number(n), whose)
}

// letterJSON is a dead letter in -format json. Fields are only ever added.
type letterJSON struct {
	ID          string            `json:"id"`
	Consumer    string            `json:"consumer"`
	Resource    string            `json:"resource"`
	MessageID   string            `json:"message_id"`
	Topic       string            `json:"topic"`
	Key         string            `json:"key"`
	Kind        string            `json:"kind"`
	Size        int               `json:"size_bytes"`
	Headers     map[string]string `json:"headers,omitempty"`
	PublishedAt time.Time         `json:"published_at"`
	FirstFailed time.Time         `json:"first_failed"`
	DeadAt      time.Time         `json:"dead_at"`
	Attempts    int               `json:"attempts"`
	Reason      string            `json:"reason"`
	Payload     []byte            `json:"payload_base64,omitempty"`
}

func jsonOf(l operate.DeadLetterInfo, payload bool) letterJSON {
	j := letterJSON{
		ID: l.ID, Consumer: l.Consumer, Resource: l.Resource, MessageID: l.MessageID, Topic: l.Topic, Key: l.Key, Kind: l.Kind,
		Size: l.Size, Headers: l.Headers, PublishedAt: l.PublishedAt, FirstFailed: l.FirstFailed, DeadAt: l.DeadAt,
		Attempts: l.Attempts, Reason: l.Reason,
	}
	if payload {
		j.Payload = l.Payload
	}
	return j
}

// show prints one dead letter, and its payload as it is, but for bytes that could
// steer a terminal.
func (q *dlq) show(ctx context.Context, w *output, on target) error {
	letters, err := on.DeadLetters(ctx, q.filter)
	if err != nil {
		return err
	}
	if len(letters) == 0 {
		return q.unknown(on)
	}
	l := letters[0]
	if q.format == "json" {
		return printJSON(w, jsonOf(l, true))
	}
	line := func(name, value string) { printField(w, name, value) }
	line("id", printable(l.ID, 200))
	line("message", printable(l.MessageID, 200))
	line("topic", printable(l.Topic, 500))
	line("key", printable(l.Key, 500))
	line("kind", printable(l.Kind, 500))
	line("published", l.PublishedAt.Local().Format(time.RFC3339))
	line("first failed", l.FirstFailed.Local().Format(time.RFC3339))
	line("dead since", l.DeadAt.Local().Format(time.RFC3339))
	line("attempts", number(l.Attempts))
	line("reason", printable(l.Reason, 2000))
	for _, name := range slices.Sorted(maps.Keys(l.Headers)) {
		line("header", printable(name, 200)+": "+printable(l.Headers[name], 1000))
	}
	line("payload", number(l.Size)+" bytes")
	if again := on.command("dlq replay %s -id %s -yes", l.Consumer, l.ID); again != "" {
		fmt.Fprintln(w)
		if err := on.next(w, "handle it again, when the cause is gone: "+again); err != nil {
			return err
		}
	}
	fmt.Fprintln(w)
	text := strings.Split(string(l.Payload), "\n")
	for i := range text {
		text[i] = printable(text[i], len(text[i]))
	}
	_, err = fmt.Fprintln(w, strings.Join(text, "\n"))
	return err
}

// printField prints a line of what is shown whole.
func printField(w io.Writer, name, value string) { fmt.Fprintf(w, "%-14s%s\n", name, value) }

// whatBecomes says how to see what becomes of messages that are tried again.
func (on target) whatBecomes(w io.Writer, c operate.ConsumerStatus) error {
	when := "see what becomes of them"
	switch {
	case c.Paused:
		when = "they wait until it is resumed"
		return on.next(w, hint(when, on.command("resume %s", c.Consumer)))
	case c.Members == 0:
		when = "they wait until a process runs it; see what becomes of them"
	}
	return on.next(w, hint(when, on.command("status %s", c.Consumer)))
}

// change replays or purges: first it only says how many.
func (q *dlq) change(ctx context.Context, out *output, on target, c operate.ConsumerStatus, verb, done string, do func(context.Context, operate.DeadLetterFilter) (int, error)) error {
	if q.format != "text" {
		return usagef("-format goes with list, show and groups only")
	}
	of := fmt.Sprintf("dead letters of %s, in %s", named(c.Consumer), on.where)
	if q.yes {
		began, most := time.Now(), c.DeadLetters
		if q.filter.Limit > 0 {
			most = min(most, q.filter.Limit)
		}
		n, err := out.progress.inSteps(ctx, done, most, func(ctx context.Context, most int) (int, bool, error) {
			f := asOf(q.filter, time.Since(began)) // what is replayed may die again at once
			f.Limit = most
			n, err := do(ctx, f)
			return n, n == most, err
		})
		so := fmt.Sprintf("%s %s of %s %s", done, number(n), number(c.DeadLetters), of)
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted: %s; the same command goes on", so)
		}
		if err != nil && n > 0 {
			return fmt.Errorf("%s; then: %w", so, err)
		}
		if err != nil {
			return err
		}
		if n == 0 && len(q.filter.IDs) > 0 {
			return q.unknown(on)
		}
		if _, err := fmt.Fprintln(out, so); err != nil || verb != "replay" || n == 0 {
			return err
		}
		return on.whatBecomes(out, c)
	}
	all, err := on.DeadLetterGroups(ctx, q.filter)
	if err != nil {
		return err
	}
	n, over := all.Total, ""
	if all.More && n >= backend.GroupedDeadLetters {
		over = "more than "
	}
	if n == 0 && len(q.filter.IDs) > 0 {
		return q.unknown(on)
	}
	if n == 0 {
		_, err = fmt.Fprintf(out, "no dead letter to %s: %s\n", verb, none([]operate.ConsumerStatus{c}))
		return err
	}
	_, err = fmt.Fprintf(out, "would %s %s%s of %s %s; run again with -yes\n", verb, over, number(n), number(c.DeadLetters), of)
	return err
}

// unknown is the error where the consumer has no dead letter with the ids asked for.
func (q *dlq) unknown(on target) error {
	return usagef("%s has no dead letter %s; a dead letter has an id of its own, which is not that of its message; %s",
		q.filter.Consumer, strings.Join(q.filter.IDs, ", "), hint("see those there are", on.command("dlq list %s", q.filter.Consumer)))
}

// asOf is a filter as it was a while ago: it selects what had died then, and was of the ages asked for.
func asOf(f operate.DeadLetterFilter, ago time.Duration) operate.DeadLetterFilter {
	f.MinAge += ago
	if f.MaxAge > 0 {
		f.MaxAge += ago
	}
	return f
}

package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/leasegen/leasegen/runtime/operate"
)

// parked is what leasegen parked was asked for.
type parked struct {
	filter operate.ParkedFilter
	format string
	retry  bool
	yes    bool
	now    time.Time
}

func (p *parked) flags(fs *flag.FlagSet) {
	fs.StringVar(&p.filter.Resource, "resource", "", "only those of this topic, slot or stream")
	fs.StringVar(&p.filter.Key, "key", "", "only those of this key")
	fs.Func("id", "only these messages; ids with commas between, may be repeated", func(v string) error {
		p.filter.IDs = append(p.filter.IDs, strings.Split(v, ",")...)
		return nil
	})
	fs.StringVar(&p.filter.After, "after", "", "only those listed after this place, which -format json and a list that has more tell")
	fs.IntVar(&p.filter.Limit, "limit", 0, "at most so many (default: list 100, else all)")
	fs.BoolVar(&p.retry, "retry", false, "make them due now, with their attempts kept")
	fs.BoolVar(&p.yes, "yes", false, "do it: without -yes, -retry only says what it would do")
	fs.StringVar(&p.format, "format", "text", "text or json")
}

func (p *parked) lasts() bool { return p.retry && p.yes }

func (p *parked) arguments(rest []string) error {
	switch {
	case len(rest) == 0:
		return usagef("name a consumer; leasegen status lists them")
	case len(rest) > 1:
		return usagef("one consumer at a time, not %q", rest)
	case p.filter.Limit < 0:
		return usagef("-limit %d is below 0", p.filter.Limit)
	case slices.Contains(p.filter.IDs, ""):
		return usagef("-id has an empty id")
	case p.yes && !p.retry:
		return usagef("-yes goes with -retry only")
	case p.retry && p.format != "text":
		return usagef("-format goes with a list, not with -retry")
	}
	p.filter.Consumer = rest[0]
	return checkFormat(p.format)
}

// parkedJSON is a parked message in -format json. Fields are only ever added.
type parkedJSON struct {
	Place       string    `json:"place"`
	Resource    string    `json:"resource"`
	MessageID   string    `json:"message_id"`
	Topic       string    `json:"topic"`
	Key         string    `json:"key"`
	Kind        string    `json:"kind"`
	Size        int       `json:"size_bytes"`
	Attempts    int       `json:"attempts"`
	Due         time.Time `json:"due"`
	FirstFailed time.Time `json:"first_failed,omitzero"`
	Behind      bool      `json:"behind"`
	Error       string    `json:"error"`
}

func (p *parked) do(ctx context.Context, w *output, on target) error {
	c, err := known(ctx, on, p.filter.Consumer)
	if err != nil {
		return err
	}
	if p.retry {
		return p.again(ctx, w, on, c)
	}
	f := p.filter
	limit := cmp.Or(f.Limit, 100)
	f.Limit = limit + 1 // to see whether there are more
	list, err := on.Parked(ctx, f)
	if err != nil {
		return err
	}
	list, more := atMost(list, limit)
	if p.format == "json" {
		out := make([]parkedJSON, len(list))
		for i, m := range list {
			out[i] = parkedJSON(m)
		}
		return printJSON(w, map[string]any{"parked": out, "more": more})
	}
	if len(list) == 0 {
		_, err := fmt.Fprintf(w, "%s has no parked messages\n", p.what())
		return err
	}
	if len(p.filter.IDs) == 1 && len(list) == 1 {
		return p.show(w, on, list[0])
	}
	t := newTable("=message", "?resource", "topic", "key", "?>attempts", "?first failed", "next attempt", "error")
	for _, m := range list {
		t.add(printable(m.MessageID, 60), printable(m.Resource, 60), printable(m.Topic, 60), printable(m.Key, 40), number(m.Attempts),
			p.moment(m.FirstFailed), p.next(m), printable(m.Error, 100))
	}
	if err := t.printMore(w, more, list[len(list)-1].Place); err != nil {
		return err
	}
	first := list[0]
	return on.next(w, hint("see one whole", on.command("parked %s -id %s", p.filter.Consumer, first.MessageID)),
		hint("try it now, when the cause is gone", on.command("parked %s -id %s -retry -yes", p.filter.Consumer, first.MessageID)))
}

func (p *parked) moment(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return moment(at, p.now)
}

// next is when a message is tried next.
func (p *parked) next(m operate.ParkedInfo) string {
	switch {
	case m.Behind:
		return "behind another"
	case !m.Due.After(p.now):
		return "due"
	}
	return moment(m.Due, p.now)
}

// show prints one message with all of its error.
func (p *parked) show(w *output, on target, m operate.ParkedInfo) error {
	for _, field := range [][2]string{
		{"message", printable(m.MessageID, 200)}, {"resource", printable(m.Resource, 500)}, {"topic", printable(m.Topic, 500)},
		{"key", printable(m.Key, 500)}, {"kind", printable(m.Kind, 500)}, {"payload", number(m.Size) + " bytes"},
		{"attempts", number(m.Attempts)}, {"first failed", p.moment(m.FirstFailed)}, {"next attempt", p.next(m)}, {"error", printable(m.Error, 2000)},
	} {
		printField(w, field[0], field[1])
	}
	fmt.Fprintln(w)
	if m.Behind {
		return on.next(w, hint("the one before it in its lane comes first; see all of this key", on.command("parked %s -key %s", p.filter.Consumer, m.Key)))
	}
	return on.next(w, hint("try it now, when the cause is gone", on.command("parked %s -id %s -retry -yes", p.filter.Consumer, m.MessageID)))
}

// countedAtATime is how many messages -retry reads at once.
const countedAtATime = 10_000

// retryNow makes messages due, step by step. Ids on a command line are few.
func (p *parked) retryNow(ctx context.Context, w *output, on target) (int, error) {
	f := p.filter
	if len(f.IDs) > 0 {
		var n int
		err := lasting(ctx, func(ctx context.Context) (err error) {
			n, err = on.RetryParked(ctx, f)
			return err
		})
		return n, err
	}
	return w.progress.inSteps(ctx, "made due", cmp.Or(p.filter.Limit, math.MaxInt), func(ctx context.Context, most int) (int, bool, error) {
		f.Limit = min(most, countedAtATime)
		some, err := on.Parked(ctx, f)
		if err != nil || len(some) == 0 {
			return 0, false, err
		}
		more := len(some) == f.Limit
		f.Limit = len(some)
		n, err := on.RetryParked(ctx, f)
		f.After = some[len(some)-1].Place
		return n, more, err
	})
}

// again makes messages due: first it only says how many.
func (p *parked) again(ctx context.Context, w *output, on target, c operate.ConsumerStatus) error {
	if p.yes {
		n, err := p.retryNow(ctx, w, on)
		so := fmt.Sprintf("made %s of %s due now, in %s", plural(n, "parked message"), p.what(), on.where)
		switch {
		case err != nil && ctx.Err() != nil:
			return fmt.Errorf("interrupted: %s; the same command makes the others due, too", so)
		case err != nil && n > 0:
			return fmt.Errorf("%s; then: %w", so, err)
		case err != nil:
			return err
		}
		if _, err = fmt.Fprintln(w, so); err != nil || n == 0 {
			return err
		}
		return on.whatBecomes(w, c)
	}
	n, f, over := 0, p.filter, ""
	for most := min(cmp.Or(f.Limit, mostCounted+1), mostCounted+1); n < most; {
		f.Limit = min(most-n, countedAtATime)
		some, err := on.Parked(ctx, f)
		if err != nil {
			return err
		}
		if n += len(some); len(some) < f.Limit {
			break
		}
		f.After = some[len(some)-1].Place
	}
	if n == 0 {
		_, err := fmt.Fprintf(w, "no message to retry: %s has no parked messages\n", p.what())
		return err
	}
	if n > mostCounted {
		n, over = mostCounted, "more than "
	}
	_, err := fmt.Fprintf(w, "would make %s%s of %s due now, in %s; run again with -yes\n", over, plural(n, "parked message"), p.what(), on.where)
	return err
}

// what is what was asked about.
func (p *parked) what() string {
	what := named(p.filter.Consumer)
	if p.filter.Resource != "" {
		what += fmt.Sprintf(", resource %q,", p.filter.Resource)
	}
	if len(p.filter.IDs) > 0 {
		what += fmt.Sprintf(", id %s,", printable(strings.Join(p.filter.IDs, " "), 100))
	}
	if p.filter.Key != "" {
		what += fmt.Sprintf(", key %q,", p.filter.Key)
	}
	return what
}

package main

import (
	"context"
	"flag"
	"fmt"
	"time"

	"github.com/leasegen/leasegen/runtime/operate"
)

// parked is what leasegen parked was asked for.
type parked struct {
	filter operate.ParkedFilter
	format string
	now    time.Time
}

func (p *parked) flags(fs *flag.FlagSet) {
	fs.StringVar(&p.filter.Resource, "resource", "", "only those of this topic, slot or stream")
	fs.StringVar(&p.filter.Key, "key", "", "only those of this key")
	fs.IntVar(&p.filter.Limit, "limit", 100, "at most so many")
	fs.StringVar(&p.format, "format", "text", "text or json")
}

func (p *parked) arguments(rest []string) error {
	switch {
	case len(rest) == 0:
		return usagef("name a consumer; leasegen status lists them")
	case len(rest) > 1:
		return usagef("one consumer at a time, not %q", rest)
	case p.filter.Limit < 1:
		return usagef("-limit %d is below 1", p.filter.Limit)
	}
	p.filter.Consumer = rest[0]
	return checkFormat(p.format)
}

// parkedJSON is a parked message in -format json. Fields are only ever added.
type parkedJSON struct {
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

func (p *parked) do(ctx context.Context, w *output, op target) error {
	if _, err := known(ctx, op, p.filter.Consumer); err != nil {
		return err
	}
	f := p.filter
	f.Limit++ // to see whether there are more
	list, err := op.Parked(ctx, f)
	if err != nil {
		return err
	}
	list, more := atMost(list, p.filter.Limit)
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
	t := newTable("message", "?resource", "?topic", "key", "?>attempts", "?first failed", "next attempt", "error")
	for _, m := range list {
		failed, next := "", moment(m.Due, p.now)
		if !m.FirstFailed.IsZero() {
			failed = moment(m.FirstFailed, p.now)
		}
		switch {
		case m.Behind:
			next = "behind another"
		case !m.Due.After(p.now):
			next = "due"
		}
		t.add(m.MessageID, printable(m.Resource, 60), printable(m.Topic, 60), printable(m.Key, 40), number(m.Attempts), failed, next, printable(m.Error, 100))
	}
	return t.printMore(w, more)
}

// what is what was asked about.
func (p *parked) what() string {
	what := p.filter.Consumer
	if p.filter.Resource != "" {
		what += fmt.Sprintf(", resource %q,", p.filter.Resource)
	}
	if p.filter.Key != "" {
		what += fmt.Sprintf(", key %q,", p.filter.Key)
	}
	return what
}

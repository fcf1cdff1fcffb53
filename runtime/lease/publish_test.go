package lease_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
)

// caught is a publisher that keeps what it was given.
type caught []lease.Event

func (c *caught) Publish(_ context.Context, es []lease.Event) error {
	*c = append(*c, es...)
	return nil
}

const (
	parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	other  = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
	state  = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"
)

func TestPublishOptions(t *testing.T) {
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	traced := lease.ContextWithTrace(context.Background(), parent, state)
	typ := lease.EventType[note]{Kind: "note"}
	for _, c := range []struct {
		name string
		ctx  context.Context
		opts []lease.PublishOption
		want lease.Event
	}{
		{"none", context.Background(), nil, lease.Event{}},
		{"all", context.Background(), []lease.PublishOption{lease.At(at), lease.After(time.Hour), lease.MessageID("i"),
			lease.Headers(map[string]string{"a": "1"}), lease.Headers(map[string]string{"b": "2"})},
			lease.Event{At: at, After: time.Hour, ID: "i", Headers: map[string]string{"a": "1", "b": "2"}}},
		{"trace", traced, nil, lease.Event{Headers: map[string]string{"traceparent": parent, "tracestate": state}}},
		{"headers win", traced, []lease.PublishOption{lease.Headers(map[string]string{"traceparent": other})},
			lease.Event{Headers: map[string]string{"traceparent": other}}},
		{"trace and headers", traced, []lease.PublishOption{lease.Headers(map[string]string{"a": "1"})},
			lease.Event{Headers: map[string]string{"traceparent": parent, "tracestate": state, "a": "1"}}},
	} {
		var got caught
		if err := lease.Publish(c.ctx, lease.With(&got, c.opts...), "x", typ, []note{{7}}); err != nil {
			t.Fatal(err)
		}
		c.want.Topic, c.want.Kind, c.want.Payload = "x", "note", []byte(`{"N":7}`)
		if fmt.Sprint(got) != fmt.Sprint(caught{c.want}) {
			t.Errorf("%s:\n got %v\nwant %v", c.name, got, c.want)
		}
	}
}

func TestOptionsNestAndDoNotShareHeaders(t *testing.T) {
	var got caught
	outer := lease.With(lease.With(&got, lease.Headers(map[string]string{"a": "inner", "b": "inner"}), lease.MessageID("inner")),
		lease.Headers(map[string]string{"a": "outer"}))
	mine := map[string]string{"c": "mine"}
	if err := outer.Publish(context.Background(), []lease.Event{{Topic: "x", Headers: mine}}); err != nil {
		t.Fatal(err)
	}
	if len(mine) != 1 {
		t.Errorf("the caller's headers became %v", mine)
	}
	if h := got[0].Headers; h["a"] != "inner" || h["b"] != "inner" || h["c"] != "mine" || got[0].ID != "inner" {
		t.Errorf("published %+v", got[0])
	}
}

func TestMessageIDIsForOneEvent(t *testing.T) {
	var got caught
	for id, es := range map[string][]lease.Event{"i": {{Topic: "x"}, {Topic: "x"}}, "": {{Topic: "x"}}} {
		err := lease.With(&got, lease.MessageID(id)).Publish(context.Background(), es)
		if err == nil || !strings.Contains(err.Error(), "MessageID") || len(got) != 0 {
			t.Errorf("%d events with id %q: got error %v, published %v", len(es), id, err, got)
		}
	}
}

func TestTraceContextIsValidated(t *testing.T) {
	for _, c := range []struct{ parent, state, wantParent, wantState string }{
		{parent, state, parent, state},
		{parent, "", parent, ""},
		{parent, "bad state", parent, ""},
		{parent, "a=1,,b=2", parent, "a=1,,b=2"},
		{parent, "Upper=1", parent, ""},
		{parent, "a=" + strings.Repeat("x", 257), parent, ""},
		{parent, strings.Repeat("a=1,", 40) + "b=2", parent, ""},
		{"01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-later", state, "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-later", state},
		{parent + "-more", state, "", ""}, // of version 00
		{"ff" + parent[2:], state, "", ""},
		{strings.ToUpper(parent), state, "", ""},
		{"00-00000000000000000000000000000000-b7ad6b7169203331-01", state, "", ""},
		{"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", state, "", ""},
		{"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331", state, "", ""},
		{"", state, "", ""},
		{"\x00" + parent, state, "", ""},
	} {
		p, s := lease.TraceFromContext(lease.ContextWithTrace(context.Background(), c.parent, c.state))
		if p != c.wantParent || s != c.wantState {
			t.Errorf("%q %q became %q %q", c.parent, c.state, p, s)
		}
	}
}

func TestHandlersCarryTheTraceOfTheirMessage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		h := func(p, s string) map[string]string { return map[string]string{"traceparent": p, "tracestate": s} }
		if err := be.Publish(t.Context(), []lease.Event{
			{Topic: "x", Kind: "one", Payload: []byte("{}"), Headers: h(parent, state)},
			{Topic: "x", Kind: "one", Payload: []byte("{}"), Headers: h("nonsense", state)},
			{Topic: "x", Kind: "many", Payload: []byte("{}"), Headers: h(parent, state)},
		}); err != nil {
			t.Fatal(err)
		}
		var got []string
		note1 := func(ctx context.Context) {
			p, s := lease.TraceFromContext(ctx)
			got = append(got, p+" "+s)
		}
		start(t, newConsumer(t, be, lease.Spec{Handlers: []lease.Handler{
			lease.One("one", func(ctx context.Context, _ lease.Message[note]) error { note1(ctx); return nil }),
			lease.Batch("many", func(ctx context.Context, ms []lease.Message[note]) error {
				note1(ctx)
				got = append(got, ms[0].Headers["traceparent"])
				return nil
			}),
		}}))
		pass(time.Second)
		want := []string{parent + " " + state, " ", " ", parent}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func TestTransactionsOfTheMemoryBackendTakeOptions(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		publish(t, be, "x", 0, 1, nil)
		var s seen
		typ := lease.EventType[note]{Kind: "note", ID: func(n *note) string { return fmt.Sprint(n.N) }}
		var joined []time.Time
		start(t, newConsumer(t, be, lease.Spec{Handlers: oneTx(func(ctx context.Context, tx *leasemem.Tx, m lease.Message[note]) error {
			s.add(m.Topic, m.Payload.N)
			joined = append(joined, m.PublishedAt)
			if m.Topic == "y" {
				return nil
			}
			to := lease.With(tx, lease.After(10*time.Second))
			if err := lease.Publish(ctx, to, "y", typ, []note{{0}, {0}, {1}}); err != nil {
				return err
			}
			if m.Attempt == 1 {
				return fmt.Errorf("nothing of this is published")
			}
			return nil
		})}))
		pass(9 * time.Second)
		if n := s.count(); n != 2 {
			t.Fatalf("%d calls before the time", n)
		}
		pass(2 * time.Second)
		s.ordered(t, "y", 2)
		if d := joined[2].Sub(joined[0]); d < 10*time.Second || d > 11*time.Second {
			t.Errorf("delayed by %v", d)
		}
	})
}

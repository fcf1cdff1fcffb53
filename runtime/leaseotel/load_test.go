package leaseotel_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/leaseotel"
	"github.com/leasegen/leasegen/runtime/operate"
)

// Each message is counted, and each call timed, though the observer is too slow for most observations; nor do these push out
// what is rare.
func TestCountsUnderLoad(t *testing.T) {
	const topics, each = 30, 1000
	x := newTraced(t, leaseotel.WithTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))))
	be := leasemem.New()
	for i := range topics {
		es := make([]lease.Event, each)
		for j := range es {
			es[j] = lease.Event{Topic: fmt.Sprint("t", i), Kind: "kind", Payload: []byte("{}")}
		}
		ok(t, be.Publish(t.Context(), es))
	}
	var n atomic.Int64
	slow := make(chan struct{})
	c, err := lease.NewConsumer(be, lease.Spec{Name: "c", Per: lease.PerTopic, Topics: []string{"*"},
		Handlers: []lease.Handler{lease.One("kind", func(context.Context, lease.Message[[]byte]) error { n.Add(1); return nil })}},
		quiet, lease.WithMiddleware(x.Handle), lease.WithObserver(operate.ObserverFunc(func(o operate.Observation) {
			<-slow
			x.Observe(o)
		})))
	ok(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	eventually(t, "all are handled", func() bool { return n.Load() == topics*each })
	cancel()
	ok(t, <-ended)
	close(slow)
	eventually(t, "what was dropped is told", func() bool { return x.collect(t).sum("leasegen.observations.dropped", "", "") > 0 })
	all := x.collect(t)
	for name, want := range map[string]float64{"messaging.client.consumed.messages": topics * each, "messaging.process.duration": topics * each,
		"leasegen.delivery.latency": topics * each, "leasegen.lease.acquired": topics, "leasegen.lease.released": topics} {
		if got := all.sum(name, "", ""); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
}

// errorTypes are those of a histogram.
func (c *collected) errorTypes(name string) (all []string) {
	for _, sm := range c.ScopeMetrics {
		for _, m := range sm.Metrics {
			if h, is := m.Data.(metricdata.Histogram[float64]); is && m.Name == name {
				for _, p := range h.DataPoints {
					if v, found := p.Attributes.Value("error.type"); found {
						all = append(all, v.String())
					}
				}
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// A stuck handler's call has one error type, in its span and in the metrics.
func TestOneErrorType(t *testing.T) {
	x := newTraced(t)
	be := leasemem.New()
	var n atomic.Int64
	c, err := lease.NewConsumer(be, lease.Spec{Name: "c", Per: lease.PerTopic, Topics: []string{"*"}, Retry: lease.Retry{Min: time.Millisecond},
		Handlers: []lease.Handler{lease.One("kind", func(ctx context.Context, m lease.Message[[]byte]) error {
			if n.Add(1); m.Attempt == 1 {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})}}, append(x.Options(), quiet, lease.WithStuckAfter(50*time.Millisecond, true))...)
	ok(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	ok(t, be.Publish(t.Context(), event("kind", nil)))
	eventually(t, "it is handled", func() bool { return n.Load() == 2 })
	cancel()
	ok(t, <-ended)
	span := attr(x.named("process kind")[0], "error.type")
	if types := x.collect(t).errorTypes("messaging.process.duration"); span != "stuck" || !slices.Equal(types, []string{span}) {
		t.Errorf("the span's error.type is %q, the metric's %q, want stuck", span, types)
	}
}

type madeUp string

func (e madeUp) Error() string     { return string(e) }
func (e madeUp) ErrorType() string { return string(e) }

// Errors that make up types, or have some that are no text, have few; leasegen's own keep their names.
func TestManyErrorTypes(t *testing.T) {
	x := newTraced(t)
	var fails error
	handle := x.Handle(func(context.Context, lease.Call) error { return fails })
	publish := x.Publish(func(context.Context, lease.Publication) error { return fails })
	for i := range 200 {
		for _, e := range []error{madeUp(fmt.Sprint("customer ", i)), madeUp(fmt.Sprint("\xff", i))} {
			fails = e
			_ = handle(t.Context(), lease.Call{Consumer: "c", Kind: "kind", Messages: []lease.CallMessage{{ID: "1"}}})
			_ = publish(t.Context(), lease.Publication{Events: event("kind", nil)})
			x.Observe(operate.ObservedHeartbeat{Err: e})
		}
	}
	fails = lease.DeadLetter("bad")
	_ = handle(t.Context(), lease.Call{Consumer: "c", Kind: "kind", Messages: []lease.CallMessage{{ID: "1"}}})
	all := x.collect(t)
	for _, name := range []string{"messaging.process.duration", "messaging.client.operation.duration", "leasegen.session.heartbeat.duration"} {
		types := all.errorTypes(name)
		if len(types) < 2 || len(types) > 51 || !slices.Contains(types, "_OTHER") || slices.ContainsFunc(types, func(s string) bool { return s[0] == 0xff }) {
			t.Errorf("%s has %d types, want 51 at most: %q", name, len(types), types)
		}
	}
	if n := all.sum("messaging.process.duration", "error.type", "dead_letter"); n != 1 {
		t.Errorf("%v calls ended as dead letters, want 1", n)
	}
}

// A batch that cannot be decoded is given to no handler. A message that is tried again was delivered once.
func TestWhatIsDelivered(t *testing.T) {
	x := newTraced(t)
	be := leasemem.New()
	for range 10 {
		ok(t, be.Publish(t.Context(), []lease.Event{{Topic: "x", Kind: "bad", Payload: []byte("{")}}))
	}
	ok(t, be.Publish(t.Context(), []lease.Event{{Topic: "x", Kind: "late", Payload: []byte(`"x"`)}}))
	var given, late atomic.Int64
	done := run(t, be, x,
		lease.Batch("bad", func(context.Context, []lease.Message[string]) error { given.Add(1); return nil }),
		lease.One("late", func(context.Context, lease.Message[string]) error {
			if late.Add(1) < 4 {
				return errors.New("not yet")
			}
			return nil
		}))
	eventually(t, "the message is handled", func() bool { return late.Load() == 4 })
	done()
	all := x.collect(t)
	if n := all.sum("messaging.client.consumed.messages", "messaging.leasegen.kind", "bad"); n != 0 || given.Load() != 0 {
		t.Errorf("%v messages that cannot be decoded were counted, %d calls made", n, given.Load())
	}
	if n := all.sum("messaging.client.consumed.messages", "messaging.leasegen.kind", "late"); n != 4 {
		t.Errorf("%v attempts were counted, want 4", n)
	}
	if n := all.sum("leasegen.delivery.latency", "", ""); n != 1 {
		t.Errorf("%v deliveries were timed, want 1", n)
	}
}

// A span that middleware outside began is linked.
func TestSpanAround(t *testing.T) {
	const sent = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
	for _, parents := range []bool{false, true} {
		for _, headers := range []map[string]string{nil, {"traceparent": sent}} {
			for _, batch := range []bool{false, true} {
				t.Run(fmt.Sprint("parents=", parents, " sent=", headers != nil, " batch=", batch), func(t *testing.T) {
					var opts []leaseotel.Option
					if parents {
						opts = append(opts, leaseotel.WithParents())
					}
					x := newTraced(t, opts...)
					around := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled})
					call := x.Handle(func(context.Context, lease.Call) error { return nil })
					ok(t, call(trace.ContextWithSpanContext(t.Context(), around),
						lease.Call{Consumer: "c", Kind: "k", Batch: batch, Messages: []lease.CallMessage{{ID: "1", Headers: headers}}}))
					s := x.named("process k")[0]
					linked := map[string]int{}
					for _, l := range s.Links() {
						linked[l.SpanContext.TraceID().String()]++
					}
					want := map[string]int{around.TraceID().String(): 1}
					if continued := parents && !batch && headers != nil; continued != s.Parent().IsValid() {
						t.Errorf("the parent is %v", s.Parent())
					} else if headers != nil && !continued {
						want[sent[3:35]] = 1
					}
					if fmt.Sprint(linked) != fmt.Sprint(want) {
						t.Errorf("links to traces %v, want %v", linked, want)
					}
				})
			}
		}
	}
}

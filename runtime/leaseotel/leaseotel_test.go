package leaseotel_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/leaseotel"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/leaseredis"
	"github.com/leasegen/leasegen/runtime/operate"
)

func TestMain(m *testing.M) { redistest.Main(pgtest.Wrap(m)) }

// traced is a Telemetry whose spans and metrics a test reads.
type traced struct {
	*leaseotel.Telemetry
	spans  *tracetest.SpanRecorder
	reader *sdkmetric.ManualReader
}

func newTraced(t testing.TB, opts ...leaseotel.Option) *traced {
	t.Helper()
	x := &traced{spans: tracetest.NewSpanRecorder(), reader: sdkmetric.NewManualReader()}
	both := propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})
	var err error
	x.Telemetry, err = leaseotel.New(append([]leaseotel.Option{
		leaseotel.WithTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(x.spans))),
		leaseotel.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(x.reader))),
		leaseotel.WithPropagator(both),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// named are the ended spans of a name.
func (x *traced) named(name string) (all []sdktrace.ReadOnlySpan) {
	for _, s := range x.spans.Ended() {
		if s.Name() == name {
			all = append(all, s)
		}
	}
	return all
}

func attr(s sdktrace.ReadOnlySpan, key string) string {
	for _, a := range s.Attributes() {
		if string(a.Key) == key {
			return a.Value.String()
		}
	}
	return ""
}

var quiet = lease.WithLogger(slog.New(slog.DiscardHandler))

// run runs a consumer of raw messages until done is called.
func run(t testing.TB, be lease.Backend, x *traced, h ...lease.Handler) (done func()) {
	t.Helper()
	c, err := lease.NewConsumer(be, lease.Spec{Name: "c", Per: lease.PerTopic, Topics: []string{"*"}, Batch: 200, Retry: lease.Retry{Min: time.Millisecond}, Handlers: h},
		append(x.Options(), quiet)...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	stop := func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
	once := atomic.Bool{}
	done = func() {
		if once.CompareAndSwap(false, true) {
			stop()
		}
	}
	t.Cleanup(done)
	return done
}

func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(3 * time.Minute); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func event(kind string, headers map[string]string) []lease.Event {
	return []lease.Event{{Topic: "x", Kind: kind, Payload: []byte("{}"), Headers: headers}}
}

// One trace goes from a publisher over a handler and what that publishes to the next handler, on every backend, with the
// baggage.
func TestOneTrace(t *testing.T) {
	for name, open := range map[string]func(*testing.T, *traced) lease.Backend{
		"memory": func(_ *testing.T, x *traced) lease.Backend {
			return leasemem.New(leasemem.WithPublishMiddleware(x.Publish))
		},
		"postgres": func(t *testing.T, x *traced) lease.Backend {
			pool, err := pgxpool.New(t.Context(), pgtest.DB(t))
			ok(t, err)
			t.Cleanup(pool.Close)
			_, err = leasepg.Migrate(t.Context(), pool)
			ok(t, err)
			return leasepg.New(pool, leasepg.WithPublishMiddleware(x.Publish))
		},
		"redis": func(t *testing.T, x *traced) lease.Backend {
			return leaseredis.New(redistest.Shared(t).Client(t), leaseredis.WithNamespace(redistest.Namespace(t)), leaseredis.WithPublishMiddleware(x.Publish))
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := newTraced(t, leaseotel.WithParents())
			be := open(t, x)
			var second atomic.Bool
			var said atomic.Value
			done := run(t, be, x,
				lease.One("first", func(ctx context.Context, _ lease.Message[[]byte]) error {
					return lease.Publish(ctx, be, "x", lease.EventType[struct{}]{Kind: "second"}, []struct{}{{}})
				}),
				lease.One("second", func(ctx context.Context, _ lease.Message[[]byte]) error {
					said.Store(baggage.FromContext(ctx).Member("who").Value())
					second.Store(true)
					return nil
				}))
			member, err := baggage.NewMember("who", "me")
			ok(t, err)
			bag, err := baggage.New(member)
			ok(t, err)
			ok(t, be.Publish(baggage.ContextWithBaggage(t.Context(), bag), event("first", nil)))
			eventually(t, "the second message is handled", second.Load)
			done()
			if said.Load() != "me" {
				t.Errorf("the baggage says %q", said.Load())
			}
			var before trace.SpanContext
			for _, name := range []string{"publish first", "process first", "publish second", "process second"} {
				spans := x.named(name)
				if len(spans) != 1 {
					t.Fatalf("%d spans %q, want 1", len(spans), name)
				}
				s := spans[0]
				if before.IsValid() && (s.SpanContext().TraceID() != before.TraceID() || s.Parent().SpanID() != before.SpanID()) {
					t.Errorf("%s: trace %s, parent %s; want %s and %s", name, s.SpanContext().TraceID(), s.Parent().SpanID(), before.TraceID(), before.SpanID())
				}
				want := trace.SpanKindConsumer
				if strings.HasPrefix(name, "publish") {
					want = trace.SpanKindProducer
				}
				if s.SpanKind() != want || attr(s, "messaging.system") != "leasegen" || attr(s, "messaging.operation.name") != strings.Fields(name)[0] ||
					s.Status().Code != codes.Unset {
					t.Errorf("%s: kind %v, attributes %v, status %v", name, s.SpanKind(), s.Attributes(), s.Status())
				}
				before = s.SpanContext()
			}
		})
	}
}

// Without WithParents, and for batches always, a handler's span begins a trace that is linked to those of its messages,
// each once and at most 128.
func TestLinks(t *testing.T) {
	x := newTraced(t)
	be := leasemem.New(leasemem.WithPublishMiddleware(x.Publish))
	for range 130 {
		ok(t, be.Publish(t.Context(), event("many", nil)))
	}
	ok(t, be.Publish(t.Context(), []lease.Event{{Topic: "x", Kind: "many", Payload: []byte("{}")}, {Topic: "x", Kind: "many", Payload: []byte("{}")}}))
	ok(t, be.Publish(t.Context(), event("single", nil)))
	var single atomic.Bool
	done := run(t, be, x,
		lease.Batch("many", func(context.Context, []lease.Message[[]byte]) error { return nil }),
		lease.One("single", func(context.Context, lease.Message[[]byte]) error { single.Store(true); return nil }))
	eventually(t, "all is handled", single.Load)
	done()
	batch, one, sent := x.named("process many"), x.named("process single"), x.named("publish single")
	if len(batch) != 1 || len(one) != 1 || len(sent) != 1 {
		t.Fatalf("%d, %d and %d spans, want 1 of each", len(batch), len(one), len(sent))
	}
	if b := batch[0]; b.Parent().IsValid() || len(b.Links()) != 128 || attr(b, "messaging.leasegen.links_left_out") != "3" || attr(b, "messaging.batch.message_count") != "132" {
		t.Errorf("the batch: parent %v, %d links, %v", b.Parent(), len(b.Links()), b.Attributes())
	}
	if s := one[0]; s.Parent().IsValid() || len(s.Links()) != 1 || s.Links()[0].SpanContext.SpanID() != sent[0].SpanContext().SpanID() || attr(s, "messaging.message.id") == "" {
		t.Errorf("the single message: parent %v, links %v, %v", s.Parent(), s.Links(), s.Attributes())
	}
}

// A span that is recorded is linked to a publisher's that is not, and begins a trace; a span around it is linked, too.
func TestLinkToUnsampled(t *testing.T) {
	const sent = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-00"
	x := newTraced(t)
	ctx := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled}))
	call := x.Handle(func(context.Context, lease.Call) error { return nil })
	ok(t, call(ctx, lease.Call{Consumer: "c", Kind: "sent", Messages: []lease.CallMessage{{ID: "1", Headers: map[string]string{"traceparent": sent}}}}))
	ok(t, call(ctx, lease.Call{Consumer: "c", Kind: "alone", Messages: []lease.CallMessage{{ID: "2"}}}))
	for name, links := range map[string]int{"process sent": 2, "process alone": 1} {
		s := x.named(name)[0]
		if s.Parent().IsValid() || s.SpanContext().TraceID() == (trace.TraceID{1}) || len(s.Links()) != links || attr(s, "messaging.operation.type") != "process" {
			t.Errorf("%s: parent %v, links %v, attributes %v", name, s.Parent(), s.Links(), s.Attributes())
		}
		if links == 2 && len(s.Links()) == links && s.Links()[1].SpanContext.TraceID().String() != sent[3:35] {
			t.Errorf("the link is to %v", s.Links()[1].SpanContext)
		}
	}
}

// Counters begin at zero: Prometheus does not see the event with which a counter appears.
func TestCountersBeginAtZero(t *testing.T) {
	x := newTraced(t)
	be := leasemem.New()
	ok(t, be.Publish(t.Context(), event("kind", nil)))
	var n atomic.Int64
	done := run(t, be, x, lease.One("kind", func(context.Context, lease.Message[[]byte]) error { n.Add(1); return nil }))
	eventually(t, "the message is handled", func() bool { return n.Load() == 1 })
	done()
	all := x.collect(t)
	for name, points := range map[string]int{"leasegen.lease.fenced": 1, "leasegen.lease.lost": 1, "leasegen.lease.acquired": 2, "leasegen.messages": 4,
		"leasegen.retries": 1, "leasegen.dead_letters": 1, "leasegen.handler.stuck": 1, "leasegen.consumer.stalled": 1, "leasegen.observations.dropped": 1,
		"leasegen.stream.missed": 1, "leasegen.cursor.set_back": 1} {
		if got := all.points(name); got != points {
			t.Errorf("%s has %d series, want %d", name, got, points)
		}
	}
}

// Outcomes are counted by kind, also those that observations told of which were dropped: the sum is exact.
func TestOutcomesByKind(t *testing.T) {
	x := newTraced(t)
	kinds := func(n int) []operate.KindOutcomes {
		return []operate.KindOutcomes{{Kind: "a", Outcomes: operate.Outcomes{Handled: n, Parked: 1}}, {Kind: "b", Outcomes: operate.Outcomes{Handled: 1, Dead: 2}}}
	}
	x.Observe(operate.ObservedCommit{Consumer: "c", Outcomes: operate.Outcomes{Handled: 5, Parked: 1, Dead: 2}, Kinds: kinds(4)})
	x.Observe(operate.ObservedDropped{Consumer: "c", Dropped: 3, Outcomes: operate.Outcomes{Handled: 11, Parked: 1, Dead: 2, Skipped: 6}, Kinds: kinds(7)})
	all := x.collect(t)
	for of, want := range map[[2]string]float64{
		{"outcome", "handled"}: 16, {"outcome", "parked"}: 2, {"outcome", "dead"}: 4, {"outcome", "skipped"}: 6,
		{"messaging.leasegen.kind", "a"}: 13, {"messaging.leasegen.kind", "b"}: 6, {"messaging.leasegen.kind", "_OTHER"}: 9,
	} {
		if got := all.sum("leasegen.messages", of[0], of[1]); got != want {
			t.Errorf("messages with %s %s: %v, want %v", of[0], of[1], got, want)
		}
	}
	if got := all.sum("leasegen.observations.dropped", "messaging.consumer.group.name", "c"); got != 3 {
		t.Errorf("%v observations dropped, want 3", got)
	}
}

// Findings that backends report to their observer are counted.
func TestWhatBackendsTell(t *testing.T) {
	x := newTraced(t)
	x.Observe(operate.ObservedMissed{Consumer: "c", Resource: "s", Messages: 7})
	x.Observe(operate.ObservedMissed{Consumer: "c", Resource: "s"}) // it is not known how many
	x.Observe(operate.ObservedSetBack{Consumer: "c", Resource: "x", Reason: "r"})
	x.Observe(operate.ObservedRenew{Consumer: "c", Leases: 3, Duration: time.Millisecond})
	x.Observe(operate.ObservedRenew{Consumer: "c", Leases: 3, Duration: time.Millisecond, Err: errors.New("no answer")})
	all := x.collect(t)
	for name, want := range map[string]float64{"leasegen.stream.missed": 8, "leasegen.cursor.set_back": 1} {
		if got := all.sum(name, "messaging.consumer.group.name", "c"); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if got := all.points("leasegen.lease.renew.duration"); got != 2 {
		t.Errorf("renewals have %d series, want one that succeeded and one that failed", got)
	}
}

// A trace context that the application put into headers stays there.
func TestHeadersOfTheApplication(t *testing.T) {
	const own = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
	x := newTraced(t)
	be := leasemem.New(leasemem.WithPublishMiddleware(x.Publish))
	headers := map[string]string{"traceparent": own, "h": "v"}
	ok(t, be.Publish(t.Context(), event("kind", headers)))
	carried := lease.ContextWithTrace(t.Context(), own, "")
	ok(t, lease.Publish(carried, be, "x", lease.EventType[struct{}]{Kind: "kind"}, []struct{}{{}}))
	got := make(chan map[string]string, 2)
	done := run(t, be, x, lease.One("kind", func(_ context.Context, m lease.Message[[]byte]) error { got <- m.Headers; return nil }))
	explicit, ambient := <-got, <-got
	done()
	if explicit["traceparent"] != own || explicit["h"] != "v" || len(headers) != 2 {
		t.Errorf("the headers became %v, the caller's are %v", explicit, headers)
	}
	if p := ambient["traceparent"]; p == own || p == "" {
		t.Errorf("the trace context that leasegen carried is %q, want the publication's span", p)
	}
}

// fields is a propagator of another form than W3C's.
type fields struct{}

func (fields) Fields() []string { return []string{"x-span"} }

func (fields) Inject(ctx context.Context, c propagation.TextMapCarrier) {
	c.Set("x-span", trace.SpanContextFromContext(ctx).SpanID().String())
}

func (fields) Extract(ctx context.Context, _ propagation.TextMapCarrier) context.Context { return ctx }

// A propagator of another form adds its own headers and touches none that are there.
func TestAnotherPropagator(t *testing.T) {
	const own = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
	x := newTraced(t, leaseotel.WithPropagator(fields{}))
	be := leasemem.New(leasemem.WithPublishMiddleware(x.Publish))
	ok(t, lease.Publish(lease.ContextWithTrace(t.Context(), own, "a=b"), be, "x", lease.EventType[struct{}]{Kind: "kind"}, []struct{}{{}}))
	ok(t, be.Publish(t.Context(), event("kind", map[string]string{"x-span": "mine"})))
	got := make(chan map[string]string, 2)
	done := run(t, be, x, lease.One("kind", func(_ context.Context, m lease.Message[[]byte]) error { got <- m.Headers; return nil }))
	carried, explicit := <-got, <-got
	done()
	if len(carried) != 3 || carried["traceparent"] != own || carried["tracestate"] != "a=b" || carried["x-span"] == "" {
		t.Errorf("the headers are %v", carried)
	}
	if len(explicit) != 1 || explicit["x-span"] != "mine" {
		t.Errorf("the application's headers became %v", explicit)
	}
}

// b3 is Zipkin's propagator, in one header.
type b3 struct{}

func (b3) Fields() []string { return []string{"b3"} }

func (b3) Inject(ctx context.Context, c propagation.TextMapCarrier) {
	if sc := trace.SpanContextFromContext(ctx); sc.IsValid() {
		c.Set("b3", sc.TraceID().String()+"-"+sc.SpanID().String()+"-1")
	}
}

func (b3) Extract(ctx context.Context, c propagation.TextMapCarrier) context.Context {
	part := strings.Split(c.Get("b3")+"--", "-")
	traceID, err := trace.TraceIDFromHex(part[0])
	spanID, err2 := trace.SpanIDFromHex(part[1])
	if err != nil || err2 != nil {
		return ctx
	}
	return trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{TraceID: traceID, SpanID: spanID, TraceFlags: trace.FlagsSampled, Remote: true}))
}

// A handler that hands on the headers of its message publishes in its own name, whatever the propagator: what it hands on of
// the trace is replaced, and all else stays.
func TestHeadersThatAreHandedOn(t *testing.T) {
	const others = "0123456789abcdef0123456789abcdef-0123456789abcdef-1"
	both := func(p propagation.TextMapPropagator) propagation.TextMapPropagator {
		return propagation.NewCompositeTextMapPropagator(p, propagation.Baggage{})
	}
	for name, p := range map[string]propagation.TextMapPropagator{
		"w3c": both(propagation.TraceContext{}), "b3": both(b3{}), "w3c and b3": both(propagation.NewCompositeTextMapPropagator(b3{}, propagation.TraceContext{})),
	} {
		for _, form := range []string{"one", "batch"} {
			t.Run(name+" "+form, func(t *testing.T) {
				x := newTraced(t, leaseotel.WithPropagator(p))
				be := leasemem.New(leasemem.WithPublishMiddleware(x.Publish))
				handOn := func(ctx context.Context, headers map[string]string) error {
					return be.Publish(ctx, append(event("second", headers), event("theirs", map[string]string{"b3": others, "h": "own"})...))
				}
				h := lease.One("first", func(ctx context.Context, m lease.Message[[]byte]) error { return handOn(ctx, m.Headers) })
				if form == "batch" {
					h = lease.Batch("first", func(ctx context.Context, ms []lease.Message[[]byte]) error { return handOn(ctx, ms[1].Headers) })
				}
				bag, err := baggage.Parse("who=me")
				ok(t, err)
				ctx := baggage.ContextWithBaggage(t.Context(), bag)
				if form == "batch" {
					ok(t, be.Publish(t.Context(), event("first", map[string]string{"h": "another"})))
				}
				ok(t, be.Publish(ctx, event("first", map[string]string{"h": "v"})))
				got := make(chan map[string]string, 2)
				take := func(_ context.Context, m lease.Message[[]byte]) error { got <- m.Headers; return nil }
				done := run(t, be, x, h, lease.One("second", take), lease.One("theirs", take))
				second, theirs := <-got, <-got
				done()
				sent := trace.SpanContextFromContext(p.Extract(context.Background(), propagation.MapCarrier(second)))
				var published, process sdktrace.ReadOnlySpan
				for _, s := range x.spans.Ended() {
					switch {
					case s.Name() == "process first":
						process = s
					case s.Parent().IsValid():
						published = s
					}
				}
				if published == nil || process == nil || published.Parent().SpanID() != process.SpanContext().SpanID() || sent.SpanID() != published.SpanContext().SpanID() {
					t.Fatalf("the headers are %v, of span %v", second, sent.SpanID())
				}
				if second["h"] != "v" || second["baggage"] != "who=me" {
					t.Errorf("the headers are %v", second)
				}
				for _, f := range p.Fields() {
					if strings.Contains(second[f], sent.TraceID().String()) != (second[f] != "" && f != "baggage") {
						t.Errorf("header %s is %q", f, second[f])
					}
				}
				if strings.Contains(name, "b3") && theirs["b3"] != others || theirs["h"] != "own" {
					t.Errorf("the application's headers became %v", theirs)
				}
			})
		}
	}
}

// A program that may write to the log may make up kinds: neither metrics nor names of spans grow with them.
func TestManyKinds(t *testing.T) {
	x := newTraced(t)
	be := leasemem.New(leasemem.WithPublishMiddleware(x.Publish))
	var n atomic.Int64
	done := run(t, be, x, lease.One("", func(context.Context, lease.Message[[]byte]) error { n.Add(1); return nil }))
	for i := range 1000 {
		ok(t, be.Publish(t.Context(), event(fmt.Sprint("kind", i), nil)))
	}
	eventually(t, "all are handled", func() bool { return n.Load() == 1000 })
	done()
	names := map[string]bool{}
	for _, s := range x.spans.Ended() {
		names[s.Name()] = true
	}
	if len(names) > 402 || !names["process _OTHER"] || !names["publish _OTHER"] {
		t.Errorf("%d names of spans", len(names))
	}
	all := x.collect(t)
	if others := all.sum("messaging.client.consumed.messages", "messaging.leasegen.kind", "_OTHER"); others != 800 {
		t.Errorf("%v messages of other kinds, want 800", others)
	}
}

// The cause that ended a handler's lease is the type of its error.
func TestEndsOfLeases(t *testing.T) {
	x := newTraced(t)
	for name, cause := range map[string]error{"lease_lost": lease.ErrLost, "handover": lease.ErrHandover, "stuck": lease.ErrStuck} {
		ctx, cancel := context.WithCancelCause(t.Context())
		call := x.Handle(func(ctx context.Context, _ lease.Call) error {
			cancel(fmt.Errorf("%w: why", cause))
			<-ctx.Done()
			return ctx.Err()
		})
		_ = call(ctx, lease.Call{Consumer: "c", Kind: name, Messages: []lease.CallMessage{{ID: "1"}}})
		if got := attr(x.named("process " + name)[0], "error.type"); got != name {
			t.Errorf("the error type is %q, want %s", got, name)
		}
	}
}

// A handler's error has its type in span and metrics, and none of its text; a panic is one.
func TestErrors(t *testing.T) {
	x := newTraced(t)
	be := leasemem.New(leasemem.WithPublishMiddleware(x.Publish))
	for _, kind := range []string{"plain", "dead", "panics", "good"} {
		ok(t, be.Publish(t.Context(), event(kind, nil)))
	}
	var last atomic.Int64
	first := func(f func() error) func(context.Context, lease.Message[[]byte]) error {
		return func(_ context.Context, m lease.Message[[]byte]) error {
			last.Add(1)
			if m.Attempt > 1 {
				return nil
			}
			return f()
		}
	}
	done := run(t, be, x,
		lease.One("plain", first(func() error { return fmt.Errorf("wrapped: %w", errors.New("a secret")) })),
		lease.One("dead", first(func() error { return lease.DeadLetter("a secret") })),
		lease.One("panics", first(func() error { panic("a secret") })),
		lease.One("good", first(func() error { return nil })))
	eventually(t, "all is handled", func() bool { return last.Load() == 6 })
	done()
	types := map[string]string{}
	for _, kind := range []string{"plain", "dead", "panics", "good"} {
		s := x.named("process " + kind)[0]
		types[kind] = attr(s, "error.type")
		if failed := s.Status().Code == codes.Error; failed != (kind != "good") || strings.Contains(fmt.Sprint(s.Status(), s.Attributes(), s.Events()), "secret") {
			t.Errorf("%s: %v %v %v", kind, s.Status(), s.Attributes(), s.Events())
		}
	}
	want := map[string]string{"plain": "*errors.errorString", "dead": "dead_letter", "panics": "panic", "good": ""}
	if fmt.Sprint(types) != fmt.Sprint(want) {
		t.Errorf("error types %v, want %v", types, want)
	}
	all := x.collect(t)
	if n := all.sum("messaging.process.duration", "error.type", "panic"); n != 1 {
		t.Errorf("%v calls with a panic, want 1", n)
	}
	if n := all.sum("leasegen.retries", "", ""); n != 2 {
		t.Errorf("%v retries, want 2", n)
	}
	if n := all.sum("leasegen.dead_letters", "messaging.leasegen.kind", "dead"); n != 1 {
		t.Errorf("%v dead letters, want 1", n)
	}
}

type collected metricdata.ResourceMetrics

func (x *traced) collect(t testing.TB) *collected {
	t.Helper()
	var rm metricdata.ResourceMetrics
	ok(t, x.reader.Collect(context.Background(), &rm))
	return (*collected)(&rm)
}

// sum adds up the values of a metric, of a histogram how many there are, that have an attribute; key "" is all.
func (c *collected) sum(name, key, value string) (n float64) {
	has := func(s attribute.Set) bool {
		v, found := s.Value(attribute.Key(key))
		return key == "" || found && v.String() == value
	}
	for _, sm := range c.ScopeMetrics {
		for _, m := range sm.Metrics {
			if m.Name != name {
				continue
			}
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					if has(p.Attributes) {
						n += float64(p.Value)
					}
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					if has(p.Attributes) {
						n += float64(p.Count)
					}
				}
			case metricdata.Gauge[float64]:
				for _, p := range d.DataPoints {
					if has(p.Attributes) {
						n += p.Value
					}
				}
			}
		}
	}
	return n
}

// points is how many series a counter has.
func (c *collected) points(name string) (n int) {
	for _, sm := range c.ScopeMetrics {
		for _, m := range sm.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				if m.Name == name {
					n += len(d.DataPoints)
				}
			case metricdata.Histogram[float64]:
				if m.Name == name {
					n += len(d.DataPoints)
				}
			}
		}
	}
	return n
}

func (c *collected) keys() (all []string) {
	for _, sm := range c.ScopeMetrics {
		for _, m := range sm.Metrics {
			add := func(s attribute.Set) {
				for _, kv := range s.ToSlice() {
					all = append(all, string(kv.Key))
				}
			}
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					add(p.Attributes)
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					add(p.Attributes)
				}
			case metricdata.Gauge[float64]:
				for _, p := range d.DataPoints {
					add(p.Attributes)
				}
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// The metrics count what happens, while the consumer runs and after, and their attributes are few.
func TestMetrics(t *testing.T) {
	x := newTraced(t)
	be := leasemem.New(leasemem.WithPublishMiddleware(x.Publish))
	var n atomic.Int64
	c, err := lease.NewConsumer(be, lease.Spec{Name: "c", Per: lease.PerTopic, Topics: []string{"*"},
		Handlers: []lease.Handler{lease.One("kind", func(context.Context, lease.Message[[]byte]) error { n.Add(1); return nil })}}, append(x.Options(), quiet)...)
	ok(t, err)
	g := lease.NewGroup()
	ok(t, g.Add(c))
	health, err := x.WatchHealth(g)
	ok(t, err)
	for i := range 20 {
		ok(t, be.Publish(t.Context(), []lease.Event{{Topic: fmt.Sprint("topic", i), Key: fmt.Sprint("key", i), Kind: "kind", Payload: []byte("{}")}}))
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	eventually(t, "all is handled and stored", func() bool { return x.collect(t).sum("leasegen.messages", "outcome", "handled") == 20 })
	all := x.collect(t)
	for _, want := range []struct {
		name, key, value string
		n                float64
	}{
		{"messaging.client.sent.messages", "messaging.leasegen.kind", "kind", 20},
		{"messaging.client.consumed.messages", "messaging.consumer.group.name", "c", 20},
		{"messaging.process.duration", "", "", 20},
		{"messaging.client.operation.duration", "messaging.operation.name", "publish", 20},
		{"leasegen.delivery.latency", "", "", 20},
		{"leasegen.lease.owned", "messaging.consumer.group.name", "c", 20},
		{"leasegen.lease.acquired", "crashed", "false", 20},
		{"leasegen.lease.fenced", "", "", 0},
		{"leasegen.consumer.ready", "messaging.consumer.group.name", "c", 1},
	} {
		if got := all.sum(want.name, want.key, want.value); got != want.n {
			t.Errorf("%s{%s=%s} is %v, want %v", want.name, want.key, want.value, got, want.n)
		}
	}
	if b := all.sum("leasegen.session.belief.remaining", "", ""); b <= 0 {
		t.Errorf("belief remaining is %v", b)
	}
	if all.sum("messaging.client.operation.duration", "messaging.operation.name", "commit") == 0 {
		t.Error("no commit was timed")
	}
	cancel()
	ok(t, <-ended)
	all = x.collect(t)
	if owned, released := all.sum("leasegen.lease.owned", "", ""), all.sum("leasegen.lease.released", "", ""); owned != 0 || released != 20 {
		t.Errorf("after Run %v leases are owned, %v released; want 0 and 20", owned, released)
	}
	if r := all.sum("leasegen.consumer.ready", "", ""); r != 0 {
		t.Errorf("after Run ready is %v", r)
	}
	few := []string{"crashed", "error.type", "messaging.consumer.group.name", "messaging.leasegen.kind", "messaging.operation.name", "messaging.operation.type", "messaging.system", "outcome"}
	for _, k := range all.keys() {
		if !slices.Contains(few, k) {
			t.Errorf("a metric has the attribute %s", k)
		}
	}
	ok(t, health.Unregister())
}

// asked counts how often a status is asked for.
type asked struct {
	operate.Operator
	n int
}

func (a *asked) Status(context.Context) ([]operate.ConsumerStatus, error) {
	a.n++
	return []operate.ConsumerStatus{{Consumer: "c", Per: "group", LagMax: 3, LagTotal: 7, OldestUnread: 90 * time.Second, Resources: 5, Unowned: 1,
		Members: 4, Standbys: 2, ParkedKeys: 6, DeadLetters: 8, Paused: true}}, nil
}

// The status is asked for once in a while, however often metrics are collected, and its gauges tell what it says.
func TestStatus(t *testing.T) {
	x := newTraced(t)
	var a asked
	_, err := x.WatchStatus(&a)
	ok(t, err)
	x.collect(t)
	all := x.collect(t)
	for name, want := range map[string]float64{"lag.max": 3, "lag": 7, "oldest_unread": 90, "resources": 5, "unowned": 1, "members": 4, "standbys": 2,
		"parked_keys": 6, "dead_letters": 8, "paused": 1} {
		for key, value := range map[string]string{"messaging.consumer.group.name": "c", "messaging.leasegen.per": "group"} {
			if got := all.sum("leasegen.consumer."+name, key, value); got != want {
				t.Errorf("leasegen.consumer.%s{%s=%s} is %v, want %v", name, key, value, got, want)
			}
		}
	}
	if a.n != 1 {
		t.Errorf("the status was asked for %d times, want 1", a.n)
	}
	if _, err := x.WatchStatus(nil); err == nil {
		t.Error("no operator: no error")
	}
}

// The cost of an observation of stored progress.
func BenchmarkObserve(b *testing.B) {
	x, err := leaseotel.New(leaseotel.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))))
	if err != nil {
		b.Fatal(err)
	}
	o := operate.ObservedCommit{Consumer: "c", Resource: "x", Epoch: 1, Outcomes: operate.Outcomes{Handled: 1},
		Kinds: []operate.KindOutcomes{{Kind: "kind", Outcomes: operate.Outcomes{Handled: 1}}}, Duration: time.Millisecond}
	b.ReportAllocs()
	for range b.N {
		x.Observe(o)
	}
}

// The middleware's cost where a trace is not sampled.
func BenchmarkUnsampled(b *testing.B) {
	x, err := leaseotel.New(leaseotel.WithTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))),
		leaseotel.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))))
	if err != nil {
		b.Fatal(err)
	}
	ms := make([]lease.CallMessage, 100)
	for i := range ms {
		ms[i] = lease.CallMessage{ID: "1", Topic: "x", Attempt: 1, PublishedAt: time.Now(),
			Headers: map[string]string{"traceparent": "00-0123456789abcdef0123456789abcdef-0123456789abcdef-00"}}
	}
	for name, c := range map[string]lease.Call{
		"one":   {Consumer: "c", Resource: "x", Epoch: 1, Kind: "kind", Messages: ms[:1]},
		"batch": {Consumer: "c", Resource: "x", Epoch: 1, Kind: "kind", Batch: true, Messages: ms},
	} {
		b.Run(name, func(b *testing.B) {
			call := x.Handle(func(context.Context, lease.Call) error { return nil })
			b.ReportAllocs()
			for range b.N {
				_ = call(b.Context(), c)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(c.Messages)), "ns/message")
		})
	}
}

package leaseotel

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/leasegen/leasegen/runtime/lease"
)

// Publish is middleware around publishing: the backends' option WithPublishMiddleware takes it. Events whose headers
// carry a trace context of their own keep it; that of ctx, or of the messages that a handler hands on the headers of, is none.
func (t *Telemetry) Publish(next lease.PublishFunc) lease.PublishFunc {
	return func(ctx context.Context, p lease.Publication) (err error) {
		began := time.Now()
		kind := t.kindOf(p.Events)
		attrs := []attribute.KeyValue{system, semconv.MessagingOperationName("publish"), semconv.MessagingOperationTypeSend}
		if kind != "" {
			attrs = append(attrs, kindKey.String(kind))
		}
		if len(p.Events) > 1 {
			attrs = append(attrs, semconv.MessagingBatchMessageCount(len(p.Events)))
		}
		if p.InTx {
			attrs = append(attrs, attribute.Bool("messaging.leasegen.in_transaction", true))
		}
		own, _ := lease.TraceFromContext(ctx)
		ctx, span := t.tracer.Start(ctx, name("publish", kind), trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(attrs...))
		defer func() {
			panicked := recover()
			failed := t.failure(ctx, err, panicked)
			t.published(ctx, kind, len(p.Events), time.Since(began), failed)
			finish(span, failed, panicked)
		}()
		p.Events = t.inject(ctx, p.Events, own)
		err = errGoexit
		return next(ctx, p)
	}
}

// inject returns events with the trace context and the baggage of ctx in their headers. Headers of another trace or
// baggage stays, unless it is own, which leasegen carried there, or of the messages that ctx's handler was given: a handler
// that hands on their headers would publish in its publisher's name.
func (t *Telemetry) inject(ctx context.Context, events []lease.Event, own string) []lease.Event {
	carrier := propagation.MapCarrier{}
	t.propagator.Inject(ctx, carrier)
	traced := slices.ContainsFunc(t.traceFields, func(f string) bool { return carrier[f] != "" })
	if len(carrier) == 0 {
		return events
	}
	came, _ := ctx.Value(givenKey{}).(*given)
	out := slices.Clone(events)
	for i := range out {
		set := out[i].Headers
		carried := own != "" && set["traceparent"] == own
		if slices.ContainsFunc(t.traceFields, func(f string) bool {
			return set[f] != "" && !(carried && (f == "traceparent" || f == "tracestate")) && !came.with(f, set[f])
		}) {
			continue // the application's
		}
		h := maps.Clone(map[string]string(carrier))
		for name, value := range set {
			replaced := traced && slices.Contains(t.traceFields, name) || name == baggageField && h[name] != "" && came.with(name, value)
			if !replaced {
				h[name] = value
			}
		}
		out[i].Headers = h
	}
	return out
}

const baggageField = "baggage"

// given are the messages that a handler was given, in its context.
type given struct {
	messages []lease.CallMessage
	fields   []string // of the propagator

	once   sync.Once
	values map[[2]string]struct{} // by field; of several messages
}

type givenKey struct{}

// with reports whether one of the messages has a field with this value in its headers.
func (g *given) with(field, value string) bool {
	switch {
	case g == nil:
		return false
	case len(g.messages) == 1:
		return g.messages[0].Headers[field] == value
	}
	g.once.Do(func() {
		g.values = map[[2]string]struct{}{}
		for i := range g.messages {
			for _, f := range g.fields {
				g.values[[2]string{f, g.messages[i].Headers[f]}] = struct{}{}
			}
		}
	})
	_, has := g.values[[2]string{field, value}]
	return has
}

const mostLinks = 128 // the SDK's default bound of a span

// Handle is middleware around handler calls: lease.WithMiddleware takes it. It makes their spans and counts their messages: a
// consumer's observer may miss some.
func (t *Telemetry) Handle(next lease.CallFunc) lease.CallFunc {
	return func(ctx context.Context, c lease.Call) (err error) {
		if len(c.Messages) == 0 {
			return next(ctx, c)
		}
		began := time.Now()
		k := t.callsOf(c.Consumer, c.Kind)
		t.delivered(ctx, k, c.Messages, began)
		if slices.ContainsFunc(c.Messages, func(m lease.CallMessage) bool { return len(m.Headers) > 0 }) {
			ctx = context.WithValue(ctx, givenKey{}, &given{messages: c.Messages, fields: t.fields})
		}
		opts := slices.Clip(k.options)
		left := 0
		var single [2]trace.SpanContext
		if c.Batch {
			var links []trace.Link
			links, left = t.links(trace.SpanContextFromContext(ctx), c.Messages)
			opts = append(opts, trace.WithNewRoot(), trace.WithLinks(links...))
		} else {
			ctx, single = t.continued(ctx, c.Messages[0].Headers)
			for _, link := range single {
				if link.IsSampled() { // samplers look at it
					opts = append(opts, trace.WithLinks(trace.Link{SpanContext: link}))
				}
			}
		}
		ctx, span := t.tracer.Start(ctx, k.name, opts...)
		if span.IsRecording() {
			span.SetAttributes(k.recorded...)
			span.SetAttributes(attribute.Int64("messaging.leasegen.epoch", c.Epoch))
			if c.Batch {
				span.SetAttributes(semconv.MessagingBatchMessageCount(len(c.Messages)))
			} else {
				span.SetAttributes(semconv.MessagingMessageID(c.Messages[0].ID), attribute.Int("messaging.leasegen.attempt", c.Messages[0].Attempt))
			}
			if left > 0 {
				span.SetAttributes(attribute.Int("messaging.leasegen.links_left_out", left))
			}
			for _, link := range single {
				if link.IsValid() && !link.IsSampled() { // most calls with such links have a span that would drop them
					span.AddLink(trace.Link{SpanContext: link})
				}
			}
		}
		defer func() {
			panicked := recover()
			failed := t.failure(ctx, err, panicked)
			t.handled(ctx, k, len(c.Messages), time.Since(began), failed)
			finish(span, failed, panicked)
		}()
		err = errGoexit
		return next(ctx, c)
	}
}

// noSpan is in the context of a span that begins a trace. It costs less than the option WithNewRoot.
var noSpan = trace.SpanFromContext(context.Background())

// continued returns ctx with what the headers of a single message carry, the baggage, too, and as its span the parent of the
// handler's span; and the spans to link to: the publisher's, and what the application began around the call, unless it is the parent.
func (t *Telemetry) continued(ctx context.Context, headers map[string]string) (_ context.Context, links [2]trace.SpanContext) {
	around := trace.SpanContextFromContext(ctx)
	ctx = t.propagator.Extract(ctx, propagation.MapCarrier(headers))
	sent := trace.SpanContextFromContext(ctx)
	if sent.Equal(around) { // the message carries none
		sent = trace.SpanContext{}
	}
	if sent.IsValid() && t.parents {
		return ctx, [2]trace.SpanContext{around}
	}
	if sent.IsValid() || around.IsValid() {
		ctx = trace.ContextWithSpan(ctx, noSpan)
	}
	return ctx, [2]trace.SpanContext{sent, around}
}

// links are around, the span that the application began around the call, and those of the messages that carry a trace context,
// each once.
func (t *Telemetry) links(around trace.SpanContext, ms []lease.CallMessage) (links []trace.Link, left int) {
	seen := map[trace.SpanID]bool{}
	add := func(span trace.SpanContext) {
		switch {
		case !span.IsValid() || seen[span.SpanID()]:
		case len(links) == mostLinks:
			left++
		default:
			links = append(links, trace.Link{SpanContext: span})
		}
		seen[span.SpanID()] = true
	}
	add(around)
	for i := range ms {
		add(trace.SpanContextFromContext(t.propagator.Extract(context.Background(), propagation.MapCarrier(ms[i].Headers))))
	}
	return links, left
}

// finish ends a span. The text of an error may have payload in it: the span has its type alone. A panic goes on.
func finish(span trace.Span, failed attribute.KeyValue, panicked any) {
	if failed.Valid() {
		span.SetAttributes(failed)
		span.SetStatus(codes.Error, "")
	}
	span.End()
	if panicked != nil {
		panic(panicked)
	}
}

// kindOf labels the kind of all events; empty when they have several.
func (t *Telemetry) kindOf(events []lease.Event) string {
	if len(events) == 0 { // middleware may leave none
		return ""
	}
	for _, e := range events {
		if e.Kind != events[0].Kind {
			return ""
		}
	}
	return t.kinds.label(events[0].Kind)
}

func name(operation, kind string) string {
	if kind == "" {
		return operation
	}
	return operation + " " + kind
}

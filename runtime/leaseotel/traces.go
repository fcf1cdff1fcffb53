package leaseotel

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/leasegen/leasegen/runtime/lease"
)

// Publish is middleware around publishing: the backends' option WithPublishMiddleware takes it. Events whose headers
// carry a trace context of their own, not that of ctx, keep it.
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
		defer func() { finish(ctx, span, err, recover()) }()
		p.Events = t.inject(ctx, p.Events, own)
		err = errGoexit
		err = next(ctx, p)
		t.published(ctx, kind, len(p.Events), time.Since(began), err)
		return err
	}
}

// inject returns events with the trace context of ctx in their headers. It replaces a traceparent that is own, which
// leasegen carried there, and leaves all other headers that the application set.
func (t *Telemetry) inject(ctx context.Context, events []lease.Event, own string) []lease.Event {
	carrier := propagation.MapCarrier{}
	t.propagator.Inject(ctx, carrier)
	if len(carrier) == 0 {
		return events
	}
	out := slices.Clone(events)
	for i := range out {
		set := out[i].Headers
		if p := set["traceparent"]; p != "" && p != own {
			continue
		}
		h := maps.Clone(map[string]string(carrier))
		for name, value := range set {
			if replaced := (name == "traceparent" || name == "tracestate") && carrier["traceparent"] != ""; !replaced {
				h[name] = value
			}
		}
		out[i].Headers = h
	}
	return out
}

const mostLinks = 128 // the SDK's default bound of a span

// Handle is middleware around handler calls: lease.WithMiddleware takes it.
func (t *Telemetry) Handle(next lease.CallFunc) lease.CallFunc {
	return func(ctx context.Context, c lease.Call) (err error) {
		if len(c.Messages) == 0 {
			return next(ctx, c)
		}
		k := t.callsOf(c.Consumer, c.Kind)
		t.delivered(ctx, k, c.Messages)
		opts := slices.Clip(k.options)
		left := 0
		var late trace.SpanContext
		if c.Batch {
			var links []trace.Link
			links, left = t.links(c.Messages)
			opts = append(opts, trace.WithNewRoot(), trace.WithLinks(links...))
		} else {
			var link trace.SpanContext
			if ctx, link = t.continued(ctx, c.Messages[0].Headers); link.IsSampled() {
				opts = append(opts, trace.WithLinks(trace.Link{SpanContext: link})) // samplers look at it
			} else {
				late = link // most that are not sampled have a span that is not, which would drop it
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
			if late.IsValid() {
				span.AddLink(trace.Link{SpanContext: late})
			}
		}
		defer func() { finish(ctx, span, err, recover()) }()
		err = errGoexit
		return next(ctx, c)
	}
}

// noSpan is in the context of a span that begins a trace. It costs less than the option WithNewRoot.
var noSpan = trace.SpanFromContext(context.Background())

// continued returns ctx with what the headers of a single message carry, the baggage, too, and as its span the parent of the
// handler's span; and the span to link to, which may be none.
func (t *Telemetry) continued(ctx context.Context, headers map[string]string) (context.Context, trace.SpanContext) {
	ambient := trace.SpanContextFromContext(ctx)
	ctx = t.propagator.Extract(ctx, propagation.MapCarrier(headers))
	sent := trace.SpanContextFromContext(ctx)
	switch {
	case !sent.IsValid():
		return ctx, sent
	case sent.Equal(ambient): // that of the whole process
		return trace.ContextWithSpan(ctx, noSpan), trace.SpanContext{}
	case t.parents:
		return ctx, ambient
	}
	return trace.ContextWithSpan(ctx, noSpan), sent
}

// links are those of the messages that carry a trace context, each once.
func (t *Telemetry) links(ms []lease.CallMessage) (links []trace.Link, left int) {
	seen := map[trace.SpanID]bool{}
	for i := range ms {
		sent := trace.SpanContextFromContext(t.propagator.Extract(context.Background(), propagation.MapCarrier(ms[i].Headers)))
		switch {
		case !sent.IsValid() || seen[sent.SpanID()]:
		case len(links) == mostLinks:
			left++
		default:
			links = append(links, trace.Link{SpanContext: sent})
		}
		seen[sent.SpanID()] = true
	}
	return links, left
}

// errGoexit is the error of a call that ended its goroutine: it returned none.
var errGoexit = goexit{}

type goexit struct{}

func (goexit) Error() string     { return "runtime.Goexit was called" }
func (goexit) ErrorType() string { return "goexit" }

// finish ends a span. The text of an error may have payload in it: the span has its type alone. A panic goes on.
func finish(ctx context.Context, span trace.Span, err error, panicked any) {
	switch {
	case panicked != nil:
		span.SetAttributes(semconv.ErrorTypeKey.String("panic"))
		span.SetStatus(codes.Error, "")
	case err != nil:
		span.SetAttributes(causeType(ctx, err))
		span.SetStatus(codes.Error, "")
	}
	span.End()
	if panicked != nil {
		panic(panicked)
	}
}

// causeType is errorType, of what ended ctx where err says that it has ended: that says more.
func causeType(ctx context.Context, err error) (named attribute.KeyValue) {
	defer orOther(&named)
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, ctx.Err()) {
		err = cause
	}
	return errorType(err)
}

// orOther names an error whose methods panic: they are the application's.
func orOther(named *attribute.KeyValue) {
	if recover() != nil {
		*named = semconv.ErrorTypeOther
	}
}

// errorType names what ended a lease or a call, or else the type of err.
func errorType(err error) (named attribute.KeyValue) {
	defer orOther(&named)
	switch {
	case errors.Is(err, lease.ErrLost):
		return semconv.ErrorTypeKey.String("lease_lost")
	case errors.Is(err, lease.ErrHandover):
		return semconv.ErrorTypeKey.String("handover")
	case errors.Is(err, lease.ErrStuck):
		return semconv.ErrorTypeKey.String("stuck")
	}
	return semconv.ErrorType(err)
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

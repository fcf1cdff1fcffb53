// Package leaseotel makes OpenTelemetry traces and metrics of what consumers and publishers do. It is a module of its own:
// only programs that import it compile OpenTelemetry.
//
//	telemetry, err := leaseotel.New()
//	…
//	be := leasepg.New(pool, leasepg.WithPublishMiddleware(telemetry.Publish), leasepg.WithObserver(telemetry))
//	billing, err := orders.NewBilling(be, &orders.Billing{}, telemetry.Options()...)
//
// # Traces
//
// A call of Publish is a span "publish KIND", and a handler call a span "process KIND", named as OpenTelemetry's messaging
// conventions say. The publisher's trace context travels in the headers of events, as the propagator writes it. A handler's
// span is linked to those of its messages, and to a span that the application began around it; with WithParents the span of a
// single message continues the publisher's trace. Events that a handler publishes with its context belong to the handler's span,
// also where it hands on the headers of its message. Run handlers have no span, for they do not end.
//
// # Metrics
//
// Of the conventions: messaging.process.duration, messaging.client.operation.duration (publish, commit),
// messaging.client.sent.messages and messaging.client.consumed.messages. Of leasegen's own, all below leasegen.:
//
//	lease.acquired, .released, .lost, .fenced
//	session.heartbeat.duration    once for each consumer of the session; with error.type when it failed
//	delivery.latency              from a message's publication to its handler's first attempt, by this machine's clock
//	lease.renew.duration          of leases that expire one by one
//	messages                      by outcome: handled, parked, dead, skipped
//	retries, dead_letters         of handlers that failed
//	stream.missed                 deleted by others before they were read; cursor.set_back: taken back after the server was
//	handler.stuck, consumer.stalled, observations.dropped
//
// WatchHealth and WatchStatus add gauges. Attributes are the consumer (messaging.consumer.group.name) and the kind
// (messaging.leasegen.kind; the first 200 that are seen, _OTHER for more), and never a topic, key or id. Failures have an error.type,
// the same as its span; there are 50 at most, and _OTHER. Counters of a consumer begin at zero when it is seen first.
//
// Calls of handlers and of Publish are measured where they are made. All else comes from the consumer's observer, which loses some
// observations when they come too fast, and counts them; the sum of messages is exact. Counts of the backend itself, stream.missed and
// cursor.set_back, comes from its own observer: give it the Telemetry, with leasepg.WithObserver or leaseredis.WithObserver. Folder dashboards has a Grafana dashboard and Prometheus alerts of these metrics.
package leaseotel

import (
	"slices"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/leasegen/leasegen/runtime/lease"
)

const scope = "github.com/leasegen/leasegen/runtime/leaseotel"

var system = semconv.MessagingSystemKey.String("leasegen")

// Telemetry makes traces and metrics. It may be used by many goroutines, backends and consumers at once.
type Telemetry struct {
	tracer      trace.Tracer
	meter       metric.Meter
	propagator  propagation.TextMapPropagator
	fields      []string // of the propagator
	traceFields []string // of these, all but the baggage
	parents     bool
	*instruments
}

// Option changes where a Telemetry writes, and how.
type Option func(*options)

type options struct {
	tracers    trace.TracerProvider
	meters     metric.MeterProvider
	propagator propagation.TextMapPropagator
	parents    bool
}

// WithTracerProvider sets where spans go. Default the global provider.
func WithTracerProvider(p trace.TracerProvider) Option { return func(o *options) { o.tracers = p } }

// WithMeterProvider sets where metrics go. Default the global provider.
func WithMeterProvider(p metric.MeterProvider) Option { return func(o *options) { o.meters = p } }

// WithPropagator sets how trace context and baggage travel in headers. Default the global propagator; where that carries
// no propagator, W3C Trace Context.
func WithPropagator(p propagation.TextMapPropagator) Option {
	return func(o *options) { o.propagator = p }
}

// WithParents makes the span of a handler call for a single message a child of the publisher's, in its trace. Default it
// is the root of a trace of its own, linked to the publisher's: a message may be handled long after it was published.
// Batches always have links.
func WithParents() Option { return func(o *options) { o.parents = true } }

// New returns a Telemetry. It fails when the meter provider refuses an instrument.
func New(opts ...Option) (*Telemetry, error) {
	o := options{tracers: otel.GetTracerProvider(), meters: otel.GetMeterProvider(), propagator: otel.GetTextMapPropagator()}
	for _, f := range opts {
		f(&o)
	}
	if len(o.propagator.Fields()) == 0 {
		o.propagator = propagation.TraceContext{}
	}
	meter := o.meters.Meter(scope, metric.WithSchemaURL(semconv.SchemaURL))
	ins, err := newInstruments(meter)
	if err != nil {
		return nil, err
	}
	fields := o.propagator.Fields()
	return &Telemetry{
		tracer: o.tracers.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL)),
		meter:  meter, propagator: o.propagator, parents: o.parents, instruments: ins, fields: fields,
		traceFields: slices.DeleteFunc(slices.Clone(fields), func(f string) bool { return f == baggageField }),
	}, nil
}

// Options are what a consumer is made with: Handle as middleware, for spans and metrics of calls, and the Telemetry as observer,
// for all other metrics.
func (t *Telemetry) Options() []lease.Option {
	return []lease.Option{lease.WithMiddleware(t.Handle), lease.WithObserver(t)}
}

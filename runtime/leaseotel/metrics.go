package leaseotel

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/operate"
)

// instruments are the metrics that are written as things happen.
type instruments struct {
	kinds kinds

	process, operation, heartbeat, latency                                                                metric.Float64Histogram
	sent, consumed, acquired, released, lost, fenced, messages, retries, dead, stuck, stalled, notWritten metric.Int64Counter
}

// The boundaries that the conventions advise, in seconds, and two below them: handlers that write a row take less than
// five milliseconds.
var boundaries = []float64{0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10}

// waits are the boundaries of what may take hours.
var waits = []float64{0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 21600, 86400}

func newInstruments(m metric.Meter) (*instruments, error) {
	var errs []error
	histogram := func(name, what string, at []float64) metric.Float64Histogram {
		h, err := m.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(what), metric.WithExplicitBucketBoundaries(at...))
		errs = append(errs, err)
		return h
	}
	counter := func(name, unit, what string) metric.Int64Counter {
		c, err := m.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(what))
		errs = append(errs, err)
		return c
	}
	ins := &instruments{
		process:    histogram("messaging.process.duration", "Duration of handler calls.", boundaries),
		operation:  histogram("messaging.client.operation.duration", "Duration of calls of the backend: publish, commit.", boundaries),
		heartbeat:  histogram("leasegen.session.heartbeat.duration", "Duration of heartbeats.", boundaries),
		latency:    histogram("leasegen.delivery.latency", "Time from the publication of a call's oldest message to the call.", waits),
		sent:       counter("messaging.client.sent.messages", "{message}", "Messages published."),
		consumed:   counter("messaging.client.consumed.messages", "{message}", "Messages given to handlers, once for each attempt."),
		acquired:   counter("leasegen.lease.acquired", "{lease}", "Leases acquired; crashed tells those whose former owner did not give them back."),
		released:   counter("leasegen.lease.released", "{lease}", "Leases given back."),
		lost:       counter("leasegen.lease.lost", "{lease}", "Leases that ended against their holder's will."),
		fenced:     counter("leasegen.lease.fenced", "{write}", "Writes refused because the lease is not held under its epoch any more."),
		messages:   counter("leasegen.messages", "{message}", "Messages by outcome, as progress is stored."),
		retries:    counter("leasegen.retries", "{message}", "Failures of handlers after which the message is tried again."),
		dead:       counter("leasegen.dead_letters", "{message}", "Messages given up on."),
		stuck:      counter("leasegen.handler.stuck", "{call}", "Handler calls that took too long."),
		stalled:    counter("leasegen.consumer.stalled", "{activity}", "Times that a consumer had work of a kind and made no step with it for too long."),
		notWritten: counter("leasegen.observations.dropped", "{observation}", "Observations dropped because they came too fast; counters lack them."),
	}
	return ins, errors.Join(errs...)
}

func (ins *instruments) published(ctx context.Context, kind string, n int, took time.Duration, err error) {
	attrs := []attribute.KeyValue{system, semconv.MessagingOperationName("publish"), semconv.MessagingOperationTypeSend}
	if kind != "" {
		attrs = append(attrs, kindKey.String(kind))
	}
	if err != nil {
		attrs = append(attrs, errorType(err))
	}
	all := metric.WithAttributeSet(attribute.NewSet(attrs...))
	ins.operation.Record(ctx, took.Seconds(), all)
	ins.sent.Add(ctx, int64(n), all)
}

func (ins *instruments) delivered(ctx context.Context, about metric.MeasurementOption, ms []lease.CallMessage) {
	oldest := ms[0].PublishedAt
	for i := range ms {
		if at := ms[i].PublishedAt; at.Before(oldest) {
			oldest = at
		}
	}
	if !oldest.IsZero() {
		ins.latency.Record(ctx, max(time.Since(oldest), 0).Seconds(), about)
	}
}

// of is the attributes of a measurement about a consumer.
func of(consumer string, more ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(append([]attribute.KeyValue{system, semconv.MessagingConsumerGroupName(consumer)}, more...)...))
}

// Observe writes metrics of what a consumer does: Telemetry is an operate.Observer.
func (ins *instruments) Observe(o operate.Observation) {
	ctx := context.Background()
	switch o := o.(type) {
	case operate.ObservedHandle:
		if o.Count == 0 {
			return // a Run handler
		}
		attrs := []attribute.KeyValue{ins.kinds.attribute(o.Kind), semconv.MessagingOperationName("process")}
		ins.consumed.Add(ctx, int64(o.Count), of(o.Consumer, attrs...))
		if o.Err != nil {
			attrs = append(attrs, errorType(o.Err))
		}
		ins.process.Record(ctx, o.Duration.Seconds(), of(o.Consumer, attrs...))
	case operate.ObservedCommit:
		ins.operation.Record(ctx, o.Duration.Seconds(), of(o.Consumer, semconv.MessagingOperationName("commit"), semconv.MessagingOperationTypeSettle))
		for outcome, n := range map[string]int{"handled": o.Handled, "parked": o.Parked, "dead": o.Dead, "skipped": o.Skipped} {
			if n > 0 {
				ins.messages.Add(ctx, int64(n), of(o.Consumer, attribute.String("outcome", outcome)))
			}
		}
	case operate.ObservedRetry:
		ins.retries.Add(ctx, 1, of(o.Consumer, ins.kinds.attribute(o.Kind)))
	case operate.ObservedDeadLetter:
		ins.dead.Add(ctx, 1, of(o.Consumer, ins.kinds.attribute(o.Kind)))
	case operate.ObservedAcquire:
		ins.acquired.Add(ctx, 1, of(o.Consumer, attribute.Bool("crashed", o.Crashed)))
	case operate.ObservedRelease:
		ins.released.Add(ctx, 1, of(o.Consumer))
	case operate.ObservedLoss:
		ins.lost.Add(ctx, 1, of(o.Consumer))
	case operate.ObservedFenced:
		ins.fenced.Add(ctx, 1, of(o.Consumer))
	case operate.ObservedHeartbeat:
		attrs := []attribute.KeyValue{system}
		if o.Err != nil {
			attrs = append(attrs, errorType(o.Err))
		}
		ins.heartbeat.Record(ctx, o.Duration.Seconds(), metric.WithAttributeSet(attribute.NewSet(attrs...)))
	case operate.ObservedStuck:
		ins.stuck.Add(ctx, 1, of(o.Consumer, ins.kinds.attribute(o.Kind)))
	case operate.ObservedStalled:
		if !o.Over {
			ins.stalled.Add(ctx, 1, of(o.Consumer))
		}
	case operate.ObservedDropped:
		ins.notWritten.Add(ctx, int64(o.Dropped), of(o.Consumer))
	}
}

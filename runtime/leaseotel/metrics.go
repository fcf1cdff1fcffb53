package leaseotel

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leaseotel/internal/metrics"
	"github.com/leasegen/leasegen/runtime/operate"
)

// instruments are the metrics that are written as things happen.
type instruments struct {
	kinds     kinds
	consumers made[string, consumer]
	calls     made[callsOf, calls]
	beats     attrs

	process, operation, heartbeat, latency                                                                metric.Float64Histogram
	sent, consumed, acquired, released, lost, fenced, messages, retries, dead, stuck, stalled, notWritten metric.Int64Counter
}

func newInstruments(m metric.Meter) (*instruments, error) {
	var errs []error
	histogram := func(d metrics.Metric) metric.Float64Histogram {
		h, err := m.Float64Histogram(d.Name, metric.WithUnit(d.Unit), metric.WithDescription(d.What), metric.WithExplicitBucketBoundaries(d.Bounds...))
		errs = append(errs, err)
		return h
	}
	counter := func(d metrics.Metric) metric.Int64Counter {
		c, err := m.Int64Counter(d.Name, metric.WithUnit(d.Unit), metric.WithDescription(d.What))
		errs = append(errs, err)
		return c
	}
	ins := &instruments{
		beats:   attrsOf(system),
		process: histogram(metrics.Process), operation: histogram(metrics.Operation),
		heartbeat: histogram(metrics.Heartbeat), latency: histogram(metrics.Latency),
		sent: counter(metrics.Sent), consumed: counter(metrics.Consumed), messages: counter(metrics.Messages),
		retries: counter(metrics.Retries), dead: counter(metrics.DeadLetters), stuck: counter(metrics.Stuck),
		acquired: counter(metrics.Acquired), released: counter(metrics.Released), lost: counter(metrics.Lost), fenced: counter(metrics.Fenced),
		stalled: counter(metrics.Stalled), notWritten: counter(metrics.Dropped),
	}
	return ins, errors.Join(errs...)
}

func (ins *instruments) published(ctx context.Context, kind string, n int, took time.Duration, err error) {
	all := []attribute.KeyValue{system, semconv.MessagingOperationName("publish"), semconv.MessagingOperationTypeSend}
	if kind != "" {
		all = append(all, kindKey.String(kind))
	}
	if err != nil {
		all = append(all, errorType(err))
	}
	a := attrsOf(all...)
	ins.operation.Record(ctx, took.Seconds(), a.record...)
	ins.sent.Add(ctx, int64(n), a.add...)
}

func (ins *instruments) delivered(ctx context.Context, c *calls, ms []lease.CallMessage) {
	oldest := ms[0].PublishedAt
	for i := range ms {
		if at := ms[i].PublishedAt; at.Before(oldest) {
			oldest = at
		}
	}
	if !oldest.IsZero() {
		ins.latency.Record(ctx, max(time.Since(oldest), 0).Seconds(), c.about.record...)
	}
}

// Observe writes metrics of what a consumer does: Telemetry is an operate.Observer.
func (ins *instruments) Observe(o operate.Observation) {
	ctx := context.Background()
	switch o := o.(type) {
	case operate.ObservedHandle:
		if o.Count == 0 {
			return // a Run handler
		}
		c := ins.callsOf(o.Consumer, o.Kind)
		ins.consumed.Add(ctx, int64(o.Count), c.process.add...)
		ended := c.process
		if o.Err != nil {
			ended = ended.and(errorType(o.Err))
		}
		ins.process.Record(ctx, o.Duration.Seconds(), ended.record...)
	case operate.ObservedCommit:
		c := ins.consumer(o.Consumer)
		ins.operation.Record(ctx, o.Duration.Seconds(), c.commit.record...)
		for i, n := range [...]int{o.Handled, o.Parked, o.Dead, o.Skipped} {
			if n > 0 {
				ins.messages.Add(ctx, int64(n), c.outcomes[i].add...)
			}
		}
	case operate.ObservedRetry:
		ins.retries.Add(ctx, 1, ins.callsOf(o.Consumer, o.Kind).about.add...)
	case operate.ObservedDeadLetter:
		ins.dead.Add(ctx, 1, ins.callsOf(o.Consumer, o.Kind).about.add...)
	case operate.ObservedAcquire:
		c := ins.consumer(o.Consumer)
		if o.Crashed {
			ins.acquired.Add(ctx, 1, c.crashed.add...)
		} else {
			ins.acquired.Add(ctx, 1, c.free.add...)
		}
	case operate.ObservedRelease:
		ins.released.Add(ctx, 1, ins.consumer(o.Consumer).about.add...)
	case operate.ObservedLoss:
		ins.lost.Add(ctx, 1, ins.consumer(o.Consumer).about.add...)
	case operate.ObservedFenced:
		ins.fenced.Add(ctx, 1, ins.consumer(o.Consumer).about.add...)
	case operate.ObservedHeartbeat:
		ended := ins.beats
		if o.Err != nil {
			ended = ended.and(errorType(o.Err))
		}
		ins.heartbeat.Record(ctx, o.Duration.Seconds(), ended.record...)
	case operate.ObservedStuck:
		ins.stuck.Add(ctx, 1, ins.callsOf(o.Consumer, o.Kind).about.add...)
	case operate.ObservedStalled:
		if !o.Over {
			ins.stalled.Add(ctx, 1, ins.consumer(o.Consumer).about.add...)
		}
	case operate.ObservedDropped:
		ins.notWritten.Add(ctx, int64(o.Dropped), ins.consumer(o.Consumer).about.add...)
	}
}

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
	kinds     labels
	errors    labels
	consumers made[string, consumer]
	calls     made[callsOf, calls]
	beats     attrs

	process, operation, heartbeat, latency, renew                                                                metric.Float64Histogram
	sent, acquired, released, lost, fenced, messages, retries, dead, stuck, stalled, notWritten, missed, setBack metric.Int64Counter
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
		kinds: labels{most: mostKinds}, errors: labels{most: mostErrors, seen: ownErrors()},
		beats:   attrsOf(system),
		process: histogram(metrics.Process), operation: histogram(metrics.Operation),
		heartbeat: histogram(metrics.Heartbeat), latency: histogram(metrics.Latency), renew: histogram(metrics.Renew),
		sent: counter(metrics.Sent), messages: counter(metrics.Messages),
		retries: counter(metrics.Retries), dead: counter(metrics.DeadLetters), stuck: counter(metrics.Stuck),
		acquired: counter(metrics.Acquired), released: counter(metrics.Released), lost: counter(metrics.Lost), fenced: counter(metrics.Fenced),
		stalled: counter(metrics.Stalled), notWritten: counter(metrics.Dropped), missed: counter(metrics.Missed), setBack: counter(metrics.SetBack),
	}
	_, err := m.Int64ObservableCounter(metrics.Consumed.Name, metric.WithUnit(metrics.Consumed.Unit), metric.WithDescription(metrics.Consumed.What),
		metric.WithInt64Callback(ins.consumed))
	return ins, errors.Join(append(errs, err)...)
}

// consumed tells how many messages handlers were given. It is counted for each, so in a way that costs little.
func (ins *instruments) consumed(_ context.Context, to metric.Int64Observer) error {
	ins.calls.each(func(c *calls) { to.Observe(c.given.Load(), c.process.observe...) })
	return nil
}

func (ins *instruments) published(ctx context.Context, kind string, n int, took time.Duration, failed attribute.KeyValue) {
	all := []attribute.KeyValue{system, semconv.MessagingOperationName("publish"), semconv.MessagingOperationTypeSend}
	if kind != "" {
		all = append(all, kindKey.String(kind))
	}
	if failed.Valid() {
		all = append(all, failed)
	}
	a := attrsOf(all...)
	ins.operation.Record(ctx, took.Seconds(), a.record...)
	ins.sent.Add(ctx, int64(n), a.add...)
}

// delivered times how long the oldest message waited that a handler gets for the first time.
func (ins *instruments) delivered(ctx context.Context, c *calls, ms []lease.CallMessage, at time.Time) {
	var oldest time.Time
	for i := range ms {
		if m := &ms[i]; m.Attempt <= 1 && !m.PublishedAt.IsZero() && (oldest.IsZero() || m.PublishedAt.Before(oldest)) {
			oldest = m.PublishedAt
		}
	}
	if !oldest.IsZero() {
		ins.latency.Record(ctx, max(at.Sub(oldest), 0).Seconds(), c.about.record...)
	}
}

func (ins *instruments) handled(ctx context.Context, c *calls, n int, took time.Duration, failed attribute.KeyValue) {
	c.given.Add(int64(n))
	ended := c.process
	if failed.Valid() {
		ended = ended.and(failed)
	}
	ins.process.Record(ctx, took.Seconds(), ended.record...)
}

// Observe writes metrics of what a consumer does: Telemetry is an operate.Observer. Handle writes those of calls of handlers.
func (ins *instruments) Observe(o operate.Observation) {
	ctx := context.Background()
	switch o := o.(type) {
	case operate.ObservedCommit:
		c := ins.consumer(o.Consumer)
		ins.operation.Record(ctx, o.Duration.Seconds(), c.commit.record...)
		ins.became(ctx, o.Consumer, o.Outcomes, o.Kinds)
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
			ended = ended.and(ins.errorType(ctx, o.Err))
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
		ins.became(ctx, o.Consumer, o.Outcomes, o.Kinds)
	case operate.ObservedRenew:
		ended := ins.consumer(o.Consumer).about
		if o.Err != nil {
			ended = ended.and(ins.errorType(ctx, o.Err))
		}
		ins.renew.Record(ctx, o.Duration.Seconds(), ended.record...)
	case operate.ObservedMissed:
		ins.missed.Add(ctx, int64(max(o.Messages, 1)), ins.consumer(o.Consumer).about.add...)
	case operate.ObservedSetBack:
		ins.setBack.Add(ctx, 1, ins.consumer(o.Consumer).about.add...)
	}
}

// became counts messages by outcome and kind; those without a reported kind are of another.
func (ins *instruments) became(ctx context.Context, consumer string, all operate.Outcomes, kinds []operate.KindOutcomes) {
	count := func(kind string, of operate.Outcomes) {
		c := ins.callsOf(consumer, kind)
		for i, n := range [...]int{of.Handled, of.Parked, of.Dead, of.Skipped} {
			if n > 0 {
				ins.messages.Add(ctx, int64(n), c.outcomes[i].add...)
			}
		}
	}
	rest := all
	for _, k := range kinds {
		count(k.Kind, k.Outcomes)
		rest.Add(operate.Outcomes{Handled: -k.Handled, Parked: -k.Parked, Dead: -k.Dead, Skipped: -k.Skipped})
	}
	if rest != (operate.Outcomes{}) {
		count(other, rest)
	}
}

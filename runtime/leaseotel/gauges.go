package leaseotel

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leaseotel/internal/metrics"
	"github.com/leasegen/leasegen/runtime/operate"
)

// level is a gauge that is read when metrics are collected.
type level[T any] struct {
	metrics.Metric
	of func(T) float64
}

// watch makes gauges of what read returns; about has the attributes of each.
func watch[T any](m metric.Meter, levels []level[T], read func(context.Context) ([]T, error), about func(T) attrs) (metric.Registration, error) {
	gauges := make([]metric.Float64ObservableGauge, len(levels))
	all := make([]metric.Observable, len(levels))
	for i, l := range levels {
		g, err := m.Float64ObservableGauge(l.Name, metric.WithUnit(l.Unit), metric.WithDescription(l.What))
		if err != nil {
			return nil, err
		}
		gauges[i], all[i] = g, g
	}
	return m.RegisterCallback(func(ctx context.Context, to metric.Observer) error {
		found, err := read(ctx)
		for _, v := range found {
			a := about(v)
			for i, l := range levels {
				to.ObserveFloat64(gauges[i], l.of(v), a.observe...)
			}
		}
		if err != nil { // returned, it would keep periodic readers from exporting
			otel.Handle(fmt.Errorf("leaseotel: some gauges have no value: %w", err))
		}
		return nil
	}, all...)
}

// WatchHealth adds gauges of this process's consumers: consumer.ready (0 or 1), lease.owned, session.belief.remaining
// (seconds) and handler.stuck.now. They ask no server. Unregister what it returns to end them.
func (t *Telemetry) WatchHealth(g interface{ Health() []lease.Health }) (metric.Registration, error) {
	return watch(t.meter, []level[lease.Health]{
		{metrics.Ready, func(h lease.Health) float64 { return one(h.Trouble == "") }},
		{metrics.Owned, func(h lease.Health) float64 { return float64(h.Leases) }},
		{metrics.Belief, func(h lease.Health) float64 { return h.Belief.Seconds() }},
		{metrics.StuckNow, func(h lease.Health) float64 { return float64(len(h.Stuck)) }},
	}, func(context.Context) ([]lease.Health, error) { return g.Health(), nil }, func(h lease.Health) attrs { return t.consumer(h.Consumer).about })
}

func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// StatusAge is how old a status may be that WatchStatus reports.
const StatusAge = 10 * time.Second

// WatchStatus adds gauges of what the backend keeps for all processes: consumer.lag.max, consumer.lag, consumer.oldest_unread
// (seconds), consumer.resources, .unowned, .members, .standbys, .parked_keys, .dead_letters and .paused (0 or 1). They have one more attribute,
// messaging.leasegen.per: what of the consumer has one owner. The backend is asked when metrics are collected, at most
// once in StatusAge. Each process that watches tells the same, so take max by consumer over them, not the sum. Unregister
// what it returns to end them.
func (t *Telemetry) WatchStatus(o operate.Operator) (metric.Registration, error) {
	if o == nil {
		return nil, errors.New("leaseotel: watch the status: the backend has no operator; look at its Capabilities")
	}
	type status = operate.ConsumerStatus
	count := func(d metrics.Metric, of func(status) int) level[status] {
		return level[status]{d, func(s status) float64 { return float64(of(s)) }}
	}
	return watch(t.meter, []level[status]{
		count(metrics.LagMax, func(s status) int { return int(s.LagMax) }),
		count(metrics.Lag, func(s status) int { return int(s.LagTotal) }),
		{metrics.Oldest, func(s status) float64 { return s.OldestUnread.Seconds() }},
		count(metrics.Resources, func(s status) int { return s.Resources }),
		count(metrics.Unowned, func(s status) int { return s.Unowned }),
		count(metrics.Members, func(s status) int { return s.Members }),
		count(metrics.Standbys, func(s status) int { return s.Standbys }),
		count(metrics.ParkedKeys, func(s status) int { return s.ParkedKeys }),
		count(metrics.Stored, func(s status) int { return s.DeadLetters }),
		{metrics.Paused, func(s status) float64 { return one(s.Paused) }},
	}, (&cached{o: o}).status, func(s status) attrs {
		return attrsOf(system, semconv.MessagingConsumerGroupName(s.Consumer), metrics.Per.String(s.Per))
	})
}

// statusWithin bounds the time that the backend is given, so that its outage does not keep back the other metrics: most who
// collect wait ten seconds.
const statusWithin = 5 * time.Second

// cached asks for the status once in StatusAge, however often it is read, and whether or not there was an answer.
type cached struct {
	o operate.Operator

	mu    sync.Mutex
	last  []operate.ConsumerStatus // none after a failure: a zero would look like an answer
	err   error
	asked time.Time // when the last attempt ended
}

func (c *cached) status(ctx context.Context) ([]operate.ConsumerStatus, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.asked.IsZero() && time.Since(c.asked) < StatusAge {
		return c.last, c.err
	}
	ctx, cancel := context.WithTimeout(ctx, statusWithin)
	defer cancel()
	c.last, c.err = c.o.Status(ctx)
	if c.err != nil {
		c.last = nil
	}
	c.asked = time.Now()
	return c.last, c.err
}

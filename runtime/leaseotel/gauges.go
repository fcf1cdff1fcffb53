package leaseotel

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/operate"
)

// level is a gauge that is read when metrics are collected.
type level[T any] struct {
	name, unit, what string
	of               func(T) float64
}

// watch makes gauges of what read returns, which names the consumer of each.
func watch[T any](m metric.Meter, levels []level[T], read func(context.Context) ([]T, error), consumer func(T) string) (metric.Registration, error) {
	gauges := make([]metric.Float64ObservableGauge, len(levels))
	all := make([]metric.Observable, len(levels))
	for i, l := range levels {
		g, err := m.Float64ObservableGauge("leasegen."+l.name, metric.WithUnit(l.unit), metric.WithDescription(l.what))
		if err != nil {
			return nil, err
		}
		gauges[i], all[i] = g, g
	}
	return m.RegisterCallback(func(ctx context.Context, to metric.Observer) error {
		found, err := read(ctx)
		for _, v := range found {
			for i, l := range levels {
				to.ObserveFloat64(gauges[i], l.of(v), of(consumer(v)))
			}
		}
		return err
	}, all...)
}

// WatchHealth adds gauges of this process's consumers: consumer.ready (0 or 1), lease.owned, session.belief.remaining
// (seconds) and handler.stuck.now. They ask no server. Unregister what it returns to end them.
func (t *Telemetry) WatchHealth(g interface{ Health() []lease.Health }) (metric.Registration, error) {
	return watch(t.meter, []level[lease.Health]{
		{"consumer.ready", "1", "1 when the consumer is ready, else 0.", func(h lease.Health) float64 {
			if h.Trouble == "" {
				return 1
			}
			return 0
		}},
		{"lease.owned", "{lease}", "Leases that this process holds.", func(h lease.Health) float64 { return float64(h.Leases) }},
		{"session.belief.remaining", "s", "For how much longer the process believes in its session if no heartbeat is confirmed.",
			func(h lease.Health) float64 { return h.Belief.Seconds() }},
		{"handler.stuck.now", "{call}", "Handler calls that take too long at present.", func(h lease.Health) float64 { return float64(len(h.Stuck)) }},
	}, func(context.Context) ([]lease.Health, error) { return g.Health(), nil }, func(h lease.Health) string { return h.Consumer })
}

// StatusAge is how old a status may be that WatchStatus tells of.
const StatusAge = 10 * time.Second

// WatchStatus adds gauges of what the backend keeps for all processes: consumer.lag.max, consumer.lag, consumer.oldest_unread
// (seconds), consumer.resources, .unowned, .members, .paused, .standbys, .parked_keys and .dead_letters. The backend is asked when
// metrics are collected, at most once in StatusAge. Each process that watches tells the same, so take max by consumer over
// them, not the sum. Unregister what it returns to end them.
func (t *Telemetry) WatchStatus(o operate.Operator) (metric.Registration, error) {
	if o == nil {
		return nil, errors.New("leaseotel: watch the status: the backend has no operator; look at its Capabilities")
	}
	type status = operate.ConsumerStatus
	count := func(name, unit, what string, of func(status) int) level[status] {
		return level[status]{"consumer." + name, unit, what, func(s status) float64 { return float64(of(s)) }}
	}
	return watch(t.meter, []level[status]{
		count("lag.max", "{message}", "Unread messages of the resource that is furthest behind.", func(s status) int { return int(s.LagMax) }),
		count("lag", "{message}", "Unread messages.", func(s status) int { return int(s.LagTotal) }),
		{"consumer.oldest_unread", "s", "Age of the oldest unread message.", func(s status) float64 { return s.OldestUnread.Seconds() }},
		count("resources", "{lease}", "Resources known.", func(s status) int { return s.Resources }),
		count("unowned", "{lease}", "Resources that no process owns.", func(s status) int { return s.Unowned }),
		count("members", "{process}", "Processes with a session.", func(s status) int { return s.Members }),
		count("paused", "{consumer}", "1 while an operator has paused it, else 0.", func(s status) int {
			if s.Paused {
				return 1
			}
			return 0
		}),
		count("standbys", "{process}", "Processes with a session that own nothing.", func(s status) int { return s.Standbys }),
		count("parked_keys", "{key}", "Keys with messages that wait for a retry.", func(s status) int { return s.ParkedKeys }),
		count("dead_letters", "{message}", "Dead letters stored.", func(s status) int { return s.DeadLetters }),
	}, (&cached{o: o}).status, func(s status) string { return s.Consumer })
}

// statusWithin bounds the time that the backend is given, so that its outage does not keep back the other metrics: most who
// collect wait ten seconds.
const statusWithin = 5 * time.Second

// cached asks for the status once in StatusAge, however often it is read. A failure is not kept.
type cached struct {
	o operate.Operator

	mu    sync.Mutex
	last  []operate.ConsumerStatus
	asked time.Time
}

func (c *cached) status(ctx context.Context) ([]operate.ConsumerStatus, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.asked.IsZero() && time.Since(c.asked) < StatusAge {
		return c.last, nil
	}
	ctx, cancel := context.WithTimeout(ctx, statusWithin)
	defer cancel()
	all, err := c.o.Status(ctx)
	if err != nil {
		return nil, err // no value at all: a zero would look like an answer
	}
	c.last, c.asked = all, time.Now()
	return all, nil
}

package main

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"time"

	"github.com/leasegen/leasegen/bench/report"
	"github.com/leasegen/leasegen/internal/fleet"
	"github.com/leasegen/leasegen/internal/must"
)

// gapMetrics is one figure for each trial, not for each round.
func gapMetrics() []report.Metric {
	return []report.Metric{{ID: "gap", Name: "p50, quickest and slowest", Unit: "ms"}}
}

// failover runs what is measured with two processes on one topic, of which one takes over.
func failover(measure func(context.Context, *turn, system, *replicas, func(sample))) func(context.Context, *turn, func(sample)) {
	return func(ctx context.Context, t *turn, add func(sample)) {
		sys := must.Get(t.contender.open(ctx, t.site))
		defer sys.Close()
		must.Do(sys.Fill(ctx, 1, 1))
		r := t.replicas()
		defer r.end()
		measure(ctx, t, sys, r, add)
	}
}

func crash() workload {
	return workload{
		Workload: report.Workload{ID: "crash", Title: "When is a killed process's message worked on again?",
			What: "Two processes. One gets a message and is killed with SIGKILL a second after it, or a little more. " +
				"From the signal to the moment when the other begins with that message.",
			Metrics: gapMetrics()},
		slow: true,
		trials: failover(func(ctx context.Context, t *turn, sys system, r *replicas, add func(sample)) {
			must.Do(r.start(ctx))
			for n := held; n < held+t.size.trials; n++ {
				must.Do(sys.Publish(ctx, 0, payloads(n, n+1)))
				holder := must.Get(r.first(ctx, "a replica has the message", func(b begin) bool { return b.n == n })).by
				must.Do(r.start(ctx)) // it takes over
				time.Sleep(time.Second)
				at := time.Now()
				must.Do(holder.Signal(syscall.SIGKILL))
				next := must.Get(r.first(ctx, "another replica has the message", func(b begin) bool {
					return b.n == n && b.by != holder
				}))
				if next.at.Before(at) {
					must.Do(errors.New("another replica had the message before the kill"))
				}
				add(gap(next.at.Sub(at)))
			}
		}),
	}
}

func gap(took time.Duration) sample { return sample{"gap": took.Seconds() * 1000} }

func handover() workload {
	return workload{
		Workload: report.Workload{ID: "handover", Title: "For how long does no process work when one stops in good order?",
			What: "Two processes, a message each 2 ms on one topic. The one at work gets SIGTERM. " +
				"The longest time without a handler's call in the two seconds after. Where both work at once, the other goes on.",
			Metrics: gapMetrics()},
		slow: true,
		trials: failover(func(ctx context.Context, t *turn, sys system, r *replicas, add func(sample)) {
			stop := background(ctx, func(ctx context.Context) error {
				for n := 1; ctx.Err() == nil; n++ {
					if err := sys.Publish(ctx, 0, payloads(n, n+1)); err != nil {
						return err
					}
					time.Sleep(2 * time.Millisecond)
				}
				return nil
			})
			defer func() { _ = stop() }()
			must.Do(r.start(ctx))
			must.Get(r.first(ctx, "a replica works", func(b begin) bool { return b.n > 0 }))
			for range t.size.trials {
				must.Do(r.start(ctx))
				time.Sleep(1500 * time.Millisecond) // the standby is a member
				old := must.Get(r.atWork())
				at := time.Now()
				must.Do(old.Signal(syscall.SIGTERM))
				time.Sleep(2 * time.Second)
				add(gap(r.longest(at, at.Add(2*time.Second))))
				must.Do(old.Left())
			}
			must.Do(stop()) // a publisher that failed is no gap of a consumer
		}),
	}
}

// atWork is the replica that began last.
func (r *replicas) atWork() (*fleet.Process, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range slices.Backward(r.begun) {
		if !b.by.Gone() {
			return b.by, nil
		}
	}
	return nil, errIdle
}

// longest is the longest time without a beginning.
func (r *replicas) longest(from, to time.Time) (gap time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	times := []time.Time{from, to}
	for _, b := range r.begun {
		if b.at.After(from) && b.at.Before(to) {
			times = append(times, b.at)
		}
	}
	slices.SortFunc(times, time.Time.Compare)
	for i := range times[1:] {
		gap = max(gap, times[i+1].Sub(times[i]))
	}
	return gap
}

package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/leasegen/leasegen/internal/must"
	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leaseredis"
	"github.com/leasegen/leasegen/runtime/operate"
)

const ours = "leasegen"

// drainLeasegen is a consumer with the batch form. Each round has a consumer of its own, which
// reads the same log from its beginning.
func drainLeasegen(server *redistest.Server, namespace string, topics, n, rounds int) *contender {
	patterns := []string{"bench.*"}
	c := &contender{family: ours, what: "1 topic, batches of 500 (in order)", messages: n}
	if topics > 1 {
		c.what = fmt.Sprintf("%d topics, batches of 500 (in order)", topics)
	}
	c.fill = func(ctx context.Context, round int) {
		if round > 0 {
			return
		}
		conn := client(server)
		defer conn.Close()
		be := leaseredis.New(conn, leaseredis.WithNamespace(namespace))
		// All rounds' consumers are known from the start: what a known one has not read stays.
		for r := range rounds {
			must.Do(be.Register(ctx, backend.ConsumerInfo{Name: consumerOf(r), Per: lease.PerTopic, Topics: patterns}, nil))
		}
		const chunk = 5000
		for at := 0; at < n; at += chunk {
			events := make([]lease.Event, min(chunk, n-at))
			for i := range events {
				events[i] = lease.Event{Topic: fmt.Sprintf("bench.%d", (at+i)%topics), Kind: "bench", Payload: payload(at + i)}
			}
			must.Do(be.Publish(ctx, events))
		}
	}
	c.drain = func(ctx context.Context, round int) time.Duration {
		conn := client(server)
		defer conn.Close()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		var handled, other, took atomic.Int64
		done := make(chan struct{})
		begin := time.Now()
		// What counts is progress that is stored, not only handled.
		observe := operate.ObserverFunc(func(o operate.Observation) {
			p, ok := o.(operate.ObservedCommit)
			if !ok {
				return
			}
			other.Add(int64(p.Parked + p.Dead + p.Skipped))
			if now := handled.Add(int64(p.Handled)); now >= int64(n) && now-int64(p.Handled) < int64(n) {
				took.Store(int64(time.Since(begin)))
				close(done)
			}
		})
		consumer := must.Get(lease.NewConsumer(leaseredis.New(conn, leaseredis.WithNamespace(namespace)), lease.Spec{
			Name: consumerOf(round), Per: lease.PerTopic, Topics: patterns, Batch: 500,
			Handlers: []lease.Handler{lease.Batch("bench", func(context.Context, []lease.Message[[]byte]) error { return nil })},
		}, lease.WithObserver(observe)))
		ended := make(chan error, 1)
		go func() { ended <- consumer.Run(ctx) }()
		must.Await(ctx, done, ended, handled.Load)
		cancel()
		must.Do(<-ended)
		if handled.Load() != int64(n) || other.Load() > 0 {
			must.Do(fmt.Errorf("%d of %d messages were handled, %d were not", handled.Load(), n, other.Load()))
		}
		return time.Duration(took.Load())
	}
	return c
}

func consumerOf(round int) string { return fmt.Sprintf("drain-%d", round) }

package main

import (
	"context"
	"slices"
	"sync"
	"time"
)

// bare is what a client that does no more took for a connection and for a write, beside the trials on the same server. Machines differ
// in both by a factor of ten and more, and takeovers are made of them.
type bare struct {
	connections, writes []time.Duration // sorted
}

// bareEvery keeps the bare client from being a load of its own: a connection to PostgreSQL may cost 40 ms of a core.
const bareEvery = time.Second

// beside measures the bare client on a store until stop is called.
func beside(ctx context.Context, st store) (stop func() bare) {
	ctx, cancel := context.WithCancel(ctx)
	var (
		loop sync.WaitGroup
		b    bare
	)
	loop.Go(func() {
		for ctx.Err() == nil {
			// A server that restarts refuses it; the next try follows.
			if connection, write, err := st.bare(ctx); err == nil {
				b.connections, b.writes = append(b.connections, connection), append(b.writes, write)
			}
			select {
			case <-time.After(bareEvery):
			case <-ctx.Done():
			}
		}
	})
	return func() bare {
		cancel()
		loop.Wait()
		slices.Sort(b.connections)
		slices.Sort(b.writes)
		return b
	}
}

// timed runs steps one after the other until one fails, and returns what each took.
func timed(steps ...func() error) (took []time.Duration, err error) {
	for _, step := range steps {
		began := time.Now()
		if err := step(); err != nil {
			return nil, err
		}
		took = append(took, time.Since(began))
	}
	return took, nil
}

package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/leasegen/leasegen/internal/must"
	"github.com/leasegen/leasegen/internal/redistest"
)

// drainAsynq is a server with one queue. It deletes what it has handled, so that each
// round is filled anew.
func drainAsynq(server *redistest.Server, workers, n int) *contender {
	c := &contender{family: "asynq", what: fmt.Sprintf("1 queue, concurrency %d (no order)", workers), messages: n}
	c.fill = func(ctx context.Context, _ int) {
		conn := client(server)
		defer conn.Close()
		tasks := asynq.NewClientFromRedisClient(conn)
		const producers = 32
		var next atomic.Int64
		errs := make(chan error, producers)
		var wg sync.WaitGroup
		for range producers {
			wg.Go(func() {
				for i := next.Add(1); i <= int64(n); i = next.Add(1) {
					if _, err := tasks.EnqueueContext(ctx, asynq.NewTask("bench", payload(int(i)))); err != nil {
						errs <- err
						return
					}
				}
			})
		}
		wg.Wait()
		close(errs)
		must.Do(<-errs)
	}
	c.drain = func(ctx context.Context, _ int) time.Duration {
		conn := client(server)
		defer conn.Close()
		var handled, took atomic.Int64
		done := make(chan struct{})
		begin := time.Now()
		srv := asynq.NewServerFromRedisClient(conn, asynq.Config{Concurrency: workers, Logger: silent{}, TaskCheckInterval: 10 * time.Millisecond})
		must.Do(srv.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
			if handled.Add(1) == int64(n) {
				took.Store(int64(time.Since(begin)))
				close(done)
			}
			return nil
		})))
		defer srv.Shutdown()
		must.Await(ctx, done, nil, handled.Load)
		return time.Duration(took.Load())
	}
	return c
}

// silent is a logger of asynq that says nothing.
type silent struct{}

func (silent) Debug(...any) {}
func (silent) Info(...any)  {}
func (silent) Warn(...any)  {}
func (silent) Error(...any) {}
func (silent) Fatal(...any) {}

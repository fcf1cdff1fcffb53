package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/bench/report"
)

const asynqKeeps = "no order, no fencing, at least once"

// asynqBest has more workers than by default, and looks for tasks more often when it found none: Config.Concurrency and
// Config.TaskCheckInterval, which its comments warn to set too low.
func asynqBest() contender {
	return contender{
		Contender: report.Contender{ID: "asynq", Name: "asynq", Backend: "Redis", Keeps: asynqKeeps, Settings: "Concurrency 64, TaskCheckInterval 10 ms"},
		cannot:    asynqCannot(),
		open:      openAsynq(asynq.Config{Concurrency: 64, TaskCheckInterval: 10 * time.Millisecond}),
	}
}

func asynqDefaults() contender {
	return contender{
		variant: true,
		Contender: report.Contender{ID: "asynq-defaults", Name: "asynq, defaults", Backend: "Redis", Keeps: asynqKeeps,
			Settings: "Concurrency as many as cores, TaskCheckInterval 1 s"},
		cannot: asynqCannot(),
		open:   openAsynq(asynq.Config{}),
	}
}

func asynqCannot() map[string]string {
	return onRedis(map[string]string{
		"drain-100":   "a queue has no topics: as 1 topic; no order",
		"drain-10000": "a queue has no topics: as 1 topic; no order",
		"leases":      "no leases: any worker takes any task",
		"crash":       "60 to 120 s: a lease of 30 s, 30 s beyond it, and the recoverer looks each minute; none of these can be set",
	})
}

func openAsynq(cfg asynq.Config) func(context.Context, *site) (system, error) {
	return func(_ context.Context, s *site) (system, error) {
		c := redisClient(s.redisAt)
		cfg.Logger, cfg.ShutdownTimeout = silent{}, 100*time.Millisecond
		return &asynqSystem{c, asynq.NewClientFromRedisClient(c), cfg}, nil
	}
}

type asynqSystem struct {
	redis  *redis.Client
	client *asynq.Client
	cfg    asynq.Config
}

func (a *asynqSystem) Close() { a.redis.Close() }

// Fill enqueues tasks one by one, there is no other way, 32 at a time.
func (a *asynqSystem) Fill(ctx context.Context, n, _ int) error {
	var next atomic.Int64
	errs := make(chan error, 32)
	var wg sync.WaitGroup
	for range cap(errs) {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				if _, err := a.client.EnqueueContext(ctx, asynq.NewTask(kind, payload(int(i)-1))); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	return <-errs
}

func (a *asynqSystem) Publish(ctx context.Context, _ int, payloads [][]byte) error {
	for _, p := range payloads {
		if _, err := a.client.EnqueueContext(ctx, asynq.NewTask(kind, p)); err != nil {
			return err
		}
	}
	return nil
}

func (a *asynqSystem) Consume(_ context.Context, j job) (func() error, error) {
	srv := asynq.NewServerFromRedisClient(a.redis, a.cfg)
	err := srv.Start(asynq.HandlerFunc(func(_ context.Context, t *asynq.Task) error {
		j.begin()
		if j.call != nil {
			j.call(t.Payload())
		}
		if j.done != nil {
			j.done(1) // removed by the next command
		}
		return nil
	}))
	return func() error { srv.Shutdown(); return nil }, err
}

// silent is a logger of asynq that prints no line.
type silent struct{}

func (silent) Debug(...any) {}
func (silent) Info(...any)  {}
func (silent) Warn(...any)  {}
func (silent) Error(...any) {}
func (silent) Fatal(...any) {}

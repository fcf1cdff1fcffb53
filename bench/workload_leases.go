package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/bench/report"
	"github.com/leasegen/leasegen/internal/must"
	"github.com/leasegen/leasegen/runtime/backend"
)

// leaser is a system with leases.
type leaser interface {
	// Lease acquires n leases and returns how many of them in what time, and how long it took another process to take
	// them over after it knew of the first one's end; 0 where that is the same.
	Lease(ctx context.Context, n int) (acquired int, took, over time.Duration, err error)
}

func leases(z size) workload {
	return workload{
		Workload: report.Workload{ID: "leases", Title: "How fast are leases acquired, and taken over?",
			What: fmt.Sprintf("%d topics, one process; then another, after the first one's end is known. "+
				"The bare loop changes as many rows in one UPDATE, or sets as many keys in pipelines of 1,000.", z.leases),
			Metrics: []report.Metric{
				{ID: "rate", Name: "acquired", Unit: "leases/s", Rate: true},
				{ID: "over", Name: "taken over in", Unit: "ms"},
			}},
		slow: true,
		run: func(ctx context.Context, t *turn) sample {
			sys := must.Get(t.contender.open(ctx, t.site))
			defer sys.Close()
			l, ok := sys.(leaser)
			if !ok {
				must.Do(fmt.Errorf("it has no leases"))
			}
			n, took, over, err := l.Lease(ctx, t.size.leases)
			must.Do(err)
			s := sample{"rate": float64(n) / took.Seconds()}
			if over > 0 {
				s["over"] = over.Seconds() * 1000
			}
			return s
		},
	}
}

// leasing is what a backend of leasegen is asked for.
type leasing interface {
	Register(ctx context.Context, c backend.ConsumerInfo, resources []string) error
	OpenSession(ctx context.Context, s backend.SessionSpec) (backend.Session, error)
	Acquire(ctx context.Context, r backend.AcquireRequest) ([]backend.Grant, error)
}

func topicNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("bench.%06d", i)
	}
	return names
}

// leaseAll acquires all leases for one session, which is silent and ends, and for another.
func leaseAll(ctx context.Context, be leasing, n int) (acquired int, took, over time.Duration, err error) {
	defer must.Catch(&err)
	info := backend.ConsumerInfo{Name: "leases", Per: backend.PerTopic, Topics: []string{"bench.*"}}
	must.Do(be.Register(ctx, info, topicNames(n)))
	const ttl = 4 * time.Second // acquiring them takes less
	grab := func(ttl time.Duration) time.Duration {
		spec := backend.SessionSpec{ID: rand.Text(), TTL: ttl, Consumers: []string{info.Name}, Host: "bench", PID: 1}
		must.Get(be.OpenSession(ctx, spec))
		begin, have := time.Now(), 0
		for have < n {
			grants := must.Get(be.Acquire(ctx, backend.AcquireRequest{Session: spec.ID, Consumer: info, Max: n - have, Attempt: rand.Text()}))
			if len(grants) == 0 {
				must.Do(fmt.Errorf("%d leases granted, want %d", have, n))
			}
			have += len(grants)
		}
		return time.Since(begin)
	}
	took = grab(ttl)
	time.Sleep(ttl + 100*time.Millisecond)
	return n, took, grab(time.Minute), nil
}

func (l *leasegenOnPostgres) Lease(ctx context.Context, n int) (int, time.Duration, time.Duration, error) {
	return leaseAll(ctx, l.be, n)
}

func (l *leasegenOnRedis) Lease(ctx context.Context, n int) (int, time.Duration, time.Duration, error) {
	return leaseAll(ctx, l.be, n)
}

// Lease changes as many rows in one statement as there are leases.
func (b *bareOnPostgres) Lease(ctx context.Context, n int) (_ int, took, _ time.Duration, err error) {
	defer must.Catch(&err)
	p := b.log.pool
	must.Get(p.Exec(ctx, `CREATE TABLE bare_lease (resource text PRIMARY KEY, epoch bigint, session text, acquired_at timestamptz) WITH (fillfactor = 60)`))
	must.Get(p.Exec(ctx, `INSERT INTO bare_lease SELECT unnest($1::text[]), 1`, topicNames(n)))
	must.Do(analyzed(ctx, p, "bare_lease"))
	begin := time.Now()
	must.Get(p.Exec(ctx, `UPDATE bare_lease SET epoch = epoch + 1, session = $1, acquired_at = clock_timestamp()`, rand.Text()))
	return n, time.Since(begin), 0, nil
}

// Lease sets a key for each lease.
func (b *bareOnRedis) Lease(ctx context.Context, n int) (_ int, took, _ time.Duration, err error) {
	begin := time.Now()
	err = chunks(n, 1000, func(from, to int) error {
		_, err := b.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i := from; i < to; i++ {
				p.SetNX(ctx, fmt.Sprintf("lease.%06d", i), "bench", time.Minute)
			}
			return nil
		})
		return err
	})
	return n, time.Since(begin), 0, err
}

// Lease acquires topics one by one, as many at once as there are connections: a twentieth of them, it takes a minute for all.
func (o *pgoutboxSystem) Lease(ctx context.Context, n int) (_ int, took, _ time.Duration, err error) {
	defer must.Catch(&err)
	n = max(n/20, 1)
	names := topicNames(n)
	must.Get(o.pool.Exec(ctx, `INSERT INTO topics (topic) SELECT unnest($1::text[])`, names))
	var next atomic.Int64
	loops := make([]func(context.Context) error, 16)
	for i := range loops {
		loops[i] = func(ctx context.Context) error {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				if err := o.acquire(ctx, names[i-1]); err != nil {
					return err
				}
			}
			return nil
		}
	}
	begin := time.Now()
	must.Do(together(ctx, loops...))
	return n, time.Since(begin), 0, nil
}

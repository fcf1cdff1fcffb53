package main

import (
	"context"
	"fmt"
	"os"
	"runtime/pprof"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

type wrap struct {
	*leasepg.Backend
	f, c atomic.Int64
	nf, nc atomic.Int64
}

func (w *wrap) Fetch(ctx context.Context, r lease.FetchRequest) ([]lease.Fetched, error) {
	t := time.Now()
	x, err := w.Backend.Fetch(ctx, r)
	w.f.Add(int64(time.Since(t)))
	w.nf.Add(1)
	return x, err
}
func (w *wrap) Commit(ctx context.Context, s, c string, p []lease.Progress) ([]string, error) {
	t := time.Now()
	x, err := w.Backend.Commit(ctx, s, c, p)
	w.c.Add(int64(time.Since(t)))
	w.nc.Add(1)
	return x, err
}

func main() {
	ctx := context.Background()
	s, err := pgtest.Launch(pgtest.Config("shared_preload_libraries", "pg_stat_statements"), pgtest.Config("shared_buffers", "1GB"))
	if err != nil {
		panic(err)
	}
	defer s.Close()
	pool, _ := pgxpool.New(ctx, s.DSN("postgres"))
	pool.Exec(ctx, "create extension pg_stat_statements")
	if _, err := leasepg.Migrate(ctx, pool); err != nil {
		panic(err)
	}
	be := leasepg.New(pool)
	wr := &wrap{Backend: be}
	const n = 500_000
	for at := 0; at < n; at += 10000 {
		ev := make([]lease.Event, 10000)
		for i := range ev {
			ev[i] = lease.Event{Topic: fmt.Sprintf("bench.%d", i%10), Key: fmt.Sprintf("k%d", i%100), Kind: "bench", Payload: fmt.Appendf(nil, `{"n":%d,"text":"%0100d"}`, i, i)}
		}
		if err := be.Publish(ctx, ev); err != nil {
			panic(err)
		}
	}
	pool.Exec(ctx, "vacuum analyze leasegen.message")
	if os.Getenv("Q") != "" { fmt.Println(s.DSN("postgres")); time.Sleep(40*time.Second); return }
	pool.Exec(ctx, "select pg_stat_statements_reset()")
	f, _ := os.Create("/tmp/cpu.prof")
	pprof.StartCPUProfile(f)
	var got atomic.Int64
	rctx, cancel := context.WithCancel(ctx)
	begin := time.Now()
	var took time.Duration
	c, err := lease.NewConsumer(wr, lease.Spec{Name: "drain", Per: lease.PerGroup, Topics: []string{"bench.*"}, Batch: 500, Handlers: []lease.Handler{lease.One("", func(context.Context, lease.Message[[]byte]) error { return nil })}},
		lease.WithObserver(lease.ObserverFunc(func(o lease.Observation) {
			if c, ok := o.(lease.ObservedCommit); ok && got.Add(int64(c.Handled)) == n {
				took = time.Since(begin)
				cancel()
			}
		})))
	if err != nil {
		panic(err)
	}
	c.Run(rctx)
	pprof.StopCPUProfile()
	fmt.Println("fetch", time.Duration(wr.f.Load()), wr.nf.Load(), "commit", time.Duration(wr.c.Load()), wr.nc.Load())
	fmt.Println(took, n/took.Seconds())
	rows, _ := pool.Query(ctx, "select calls, plans, mean_plan_time::text, mean_exec_time::text, left(regexp_replace(query,'\\s+',' ','g'),90) from pg_stat_statements order by total_exec_time desc limit 8")
	for rows.Next() {
		v, _ := rows.Values()
		fmt.Println(v...)
	}
}

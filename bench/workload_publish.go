package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/bench/report"
	"github.com/leasegen/leasegen/internal/must"
)

// publishers call at once.
const publishers = 8

func publishOne() workload {
	return publishing("publish-one", "How fast is one message published?", 1,
		"8 publishers, one message a call, each as durable as its system makes it when the call returns.")
}

func publishHundred() workload {
	return publishing("publish-100", "How fast are 100 messages published at once?", 100, "8 publishers, 100 messages a call.")
}

func publishing(id, title string, each int, what string) workload {
	return workload{
		Workload: report.Workload{ID: id, Title: title, What: what, Metrics: append([]report.Metric{rate("messages")}, costs()...)},
		run: func(ctx context.Context, t *turn) sample {
			sys := must.Get(t.contender.open(ctx, t.site))
			defer sys.Close()
			ps := payloads(0, each)
			return t.calls(ctx, sys, each, func(ctx context.Context) error { return sys.Publish(ctx, 0, ps) })
		},
	}
}

func publishInTransaction() workload {
	return workload{
		Workload: report.Workload{ID: "publish-tx", Title: "What does publishing cost in the caller's transaction?",
			What:    "8 callers: BEGIN, an INSERT of their own, one message, COMMIT. The bare loop does the INSERT alone.",
			Metrics: append([]report.Metric{rate("transactions")}, costs()...)},
		run: func(ctx context.Context, t *turn) sample {
			sys := must.Get(t.contender.open(ctx, t.site))
			defer sys.Close()
			in, ok := sys.(transactional)
			if !ok {
				must.Do(errors.New("it does not publish in a transaction"))
			}
			p := pool(ctx, t.site.dsn)
			defer p.Close()
			must.Get(p.Exec(ctx, `CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text NOT NULL, cents bigint NOT NULL)`))
			ps := payloads(0, 1)
			return t.calls(ctx, sys, 1, func(ctx context.Context) error {
				return pgx.BeginFunc(ctx, p, func(tx pgx.Tx) error {
					if _, err := tx.Exec(ctx, `INSERT INTO orders (customer, cents) VALUES ($1, $2)`, "k1", 100); err != nil {
						return err
					}
					return in.PublishTx(ctx, tx, 0, ps)
				})
			})
		},
	}
}

// calls lets publishers make calls for a window, after a tenth of it that does not count.
func (t *turn) calls(ctx context.Context, sys system, each int, call func(context.Context) error) sample {
	must.Do(sys.Fill(ctx, 100, 1)) // tables and topics are there
	var n atomic.Int64
	var over atomic.Bool
	errs := make(chan error, publishers)
	var wg sync.WaitGroup
	for range publishers {
		wg.Go(func() {
			for !over.Load() {
				if err := call(ctx); err != nil {
					errs <- err
					over.Store(true)
					return
				}
				n.Add(int64(each))
			}
		})
	}
	window := t.size.calls
	time.Sleep(window / 10)
	before := t.counters(ctx)
	begin, from := time.Now(), n.Load()
	time.Sleep(window)
	to, took := n.Load(), time.Since(begin)
	s := sample{"rate": float64(to-from) / took.Seconds()}
	t.perThousand(ctx, s, before, int(to-from))
	over.Store(true)
	wg.Wait()
	close(errs)
	must.Do(<-errs)
	return s
}

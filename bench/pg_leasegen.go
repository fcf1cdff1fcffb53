package main

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/bench/report"
	"github.com/leasegen/leasegen/internal/must"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/operate"
)

const (
	batch = 500
	kind  = "bench"
)

func leasegenPostgres() contender {
	return contender{
		Contender: report.Contender{ID: report.Ours, Name: "leasegen", Backend: "PostgreSQL", Ours: true,
			Settings: "per=topic, batches of 500, else defaults",
			Keeps:    "order by topic, fenced owners, effects exactly once in the handler's transaction"},
		open: func(ctx context.Context, s *site) (_ system, err error) {
			defer must.Catch(&err)
			p := pool(ctx, s.dsn)
			must.Get(leasepg.Migrate(ctx, p))
			return &leasegenOnPostgres{p, leasepg.New(p)}, nil
		},
	}
}

type leasegenOnPostgres struct {
	pool *pgxpool.Pool
	be   *leasepg.Backend
}

func (l *leasegenOnPostgres) Close() { l.pool.Close() }

// keyName is the key of the ith message: there are a hundred.
func keyName(i int) string { return "k" + strconv.Itoa(i%100) }

func events(topic func(i int) int, from, to int) []lease.Event {
	es := make([]lease.Event, to-from)
	for i := range es {
		es[i] = lease.Event{Topic: topicName(topic(from + i)), Key: keyName(from + i), Kind: kind, Payload: payload(from + i)}
	}
	return es
}

func (l *leasegenOnPostgres) Fill(ctx context.Context, n, topics int) error {
	err := chunks(n, 10_000, func(from, to int) error {
		return l.be.Publish(ctx, events(func(i int) int { return i % topics }, from, to))
	})
	if err != nil {
		return err
	}
	return analyzed(ctx, l.pool, "leasegen.message")
}

func asEvents(topic int, payloads [][]byte) []lease.Event {
	es := make([]lease.Event, len(payloads))
	for i, p := range payloads {
		es[i] = lease.Event{Topic: topicName(topic), Key: "k", Kind: kind, Payload: p}
	}
	return es
}

func (l *leasegenOnPostgres) Publish(ctx context.Context, topic int, payloads [][]byte) error {
	return l.be.Publish(ctx, asEvents(topic, payloads))
}

func (l *leasegenOnPostgres) PublishTx(ctx context.Context, tx pgx.Tx, topic int, payloads [][]byte) error {
	return l.be.In(tx).Publish(ctx, asEvents(topic, payloads))
}

func (l *leasegenOnPostgres) Consume(ctx context.Context, j job) (func() error, error) {
	h := plainHandler(j)
	switch j.effect {
	case oneByOne:
		h = lease.OneTx(kind, func(ctx context.Context, tx pgx.Tx, m lease.Message[[]byte]) error {
			j.begin()
			_, err := tx.Exec(ctx, effectOne, m.ID, m.Topic, m.Payload)
			return err
		})
	case manyAtOnce:
		h = lease.BatchTx(kind, func(ctx context.Context, tx pgx.Tx, ms []lease.Message[[]byte]) error {
			j.begin()
			ids, topics, payloads := make([]string, len(ms)), make([]string, len(ms)), make([][]byte, len(ms))
			for i, m := range ms {
				ids[i], topics[i], payloads[i] = m.ID, m.Topic, m.Payload
			}
			_, err := tx.Exec(ctx, effectMany, ids, topics, payloads)
			return err
		})
	}
	return consume(ctx, l.be, h, j)
}

// plainHandler returns at once, or makes the job's call.
func plainHandler(j job) lease.Handler {
	return lease.Batch(kind, func(_ context.Context, ms []lease.Message[[]byte]) error {
		j.begin()
		if j.call != nil {
			for i := range ms {
				j.call(ms[i].Payload)
			}
		}
		return nil
	})
}

// consume runs one consumer of leasegen. Stored progress counts.
func consume(ctx context.Context, be lease.Backend, h lease.Handler, j job) (stop func() error, err error) {
	var refused atomic.Int64
	observe := operate.ObserverFunc(func(o operate.Observation) {
		c, ok := o.(operate.ObservedCommit)
		if !ok {
			return
		}
		refused.Add(int64(c.Parked + c.Dead + c.Skipped))
		if c.Handled > 0 && j.done != nil {
			j.done(c.Handled)
		}
	})
	spec := lease.Spec{Name: "bench", Per: lease.PerTopic, Topics: []string{"bench.*"}, Batch: batch, Handlers: []lease.Handler{h}}
	c, err := lease.NewConsumer(be, spec, lease.WithObserver(observe))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	return func() error {
		cancel()
		if err := <-ended; err != nil {
			return err
		}
		if n := refused.Load(); n > 0 {
			return fmt.Errorf("%d messages were parked, dead or skipped", n)
		}
		return nil
	}, nil
}

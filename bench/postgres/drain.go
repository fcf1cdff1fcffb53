package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/must"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/operate"
)

const batch = 500

// drain lets one consumer with one lease handle a backlog in order and do nothing
// with it, beside a loop that reads the same rows and stores its position.
func drain(ctx context.Context, b *bench, pool *pgxpool.Pool) {
	fill(ctx, b, pool, b.messages)
	ours := consume(ctx, pool, b.messages, "drain", lease.PerGroup, lease.One("", noop))
	same := bareLoop(ctx, pool, b.messages, sameReads, nil)
	unsafe := bareLoop(ctx, pool, b.messages, idReads, nil)
	got, loop := rate(b.messages, ours), rate(b.messages, same)
	what := fmt.Sprintf("ordered drain, no-op, batch %d, %s messages", batch, thousands(int64(b.messages)))
	b.report(result{what: what, got: got, unit: "msg/s", bare: loop, want: "0.6 of the bare loop", holds: got >= 0.6*loop})
	b.report(result{what: "the same beside a loop that only reads id > position", got: got, unit: "msg/s", bare: rate(b.messages, unsafe)})
}

// effects lets the transaction form write one row for each message.
func effects(ctx context.Context, b *bench, pool *pgxpool.Pool) {
	n := b.messages / 5
	fill(ctx, b, pool, n)
	must.Get(pool.Exec(ctx, `CREATE TABLE effect (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, message_id text, topic text, payload bytea)`))
	insert := func(ctx context.Context, tx pgx.Tx, ids, topics []string, payloads [][]byte) error {
		_, err := tx.Exec(ctx, `INSERT INTO effect (message_id, topic, payload) SELECT * FROM unnest($1::text[], $2::text[], $3::bytea[])`, ids, topics, payloads)
		return err
	}
	batched := lease.BatchTx("", func(ctx context.Context, tx pgx.Tx, ms []lease.Message[[]byte]) error {
		ids, topics, payloads := make([]string, len(ms)), make([]string, len(ms)), make([][]byte, len(ms))
		for i, m := range ms {
			ids[i], topics[i], payloads[i] = m.ID, m.Topic, m.Payload
		}
		return insert(ctx, tx, ids, topics, payloads)
	})
	single := lease.OneTx("", func(ctx context.Context, tx pgx.Tx, m lease.Message[[]byte]) error {
		_, err := tx.Exec(ctx, `INSERT INTO effect (message_id, topic, payload) VALUES ($1, $2, $3)`, m.ID, m.Topic, m.Payload)
		return err
	})
	ours := consume(ctx, pool, n, "batched", lease.PerGroup, batched)
	bare := bareLoop(ctx, pool, n, sameReads, insert)
	oneByOne := consume(ctx, pool, n, "single", lease.PerGroup, single)
	bareSingle := bareLoop(ctx, pool, n, sameReads, func(ctx context.Context, tx pgx.Tx, ids, topics []string, payloads [][]byte) error {
		for i := range ids {
			if _, err := tx.Exec(ctx, `INSERT INTO effect (message_id, topic, payload) VALUES ($1, $2, $3)`, ids[i], topics[i], payloads[i]); err != nil {
				return err
			}
		}
		return nil
	})
	// Every consumer and every loop wrote each message once.
	var rows int
	must.Do(pool.QueryRow(ctx, `SELECT count(*) FROM effect`).Scan(&rows))
	if rows != 4*n {
		must.Do(fmt.Errorf("%d rows were written, want %d", rows, 4*n))
	}
	const goal = 3 * 15_448
	b.report(result{what: "transaction form, batch, one row each", got: rate(n, ours), unit: "msg/s", bare: rate(n, bare),
		want: "3 x 15,448 msg/s", holds: rate(n, ours) >= goal})
	b.report(result{what: "transaction form, one by one, one row each", got: rate(n, oneByOne), unit: "msg/s", bare: rate(n, bareSingle)})
}

// topics publishes to ten topics with a producer each, while a consumer drains them.
func topics(ctx context.Context, b *bench, pool *pgxpool.Pool) {
	const producers, chunk = 10, 100
	each := b.messages / 2 / producers / chunk * chunk
	n := each * producers
	be := leasepg.New(pool)
	begin := time.Now()
	var produced time.Duration
	var wg sync.WaitGroup
	errs := make(chan error, producers)
	for p := range producers {
		wg.Go(func() {
			events := make([]lease.Event, chunk)
			for i := range events {
				events[i] = event(p, i)
			}
			for range each / chunk {
				if err := be.Publish(ctx, events); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); produced = time.Since(begin); close(done) }()
	consume(ctx, pool, n, "topics", lease.PerTopic, lease.One("", noop))
	all := time.Since(begin)
	<-done
	close(errs)
	must.Do(<-errs)
	const goal = 3 * 39_795
	b.report(result{what: "10 topics, producer batch 100: published", got: rate(n, produced), unit: "msg/s"})
	b.report(result{what: "10 topics, producer batch 100: published and handled", got: rate(n, all), unit: "msg/s"})

	// The design's figure is for consuming, as the system it compares with measures it.
	drained := consume(ctx, pool, n, "again", lease.PerTopic, lease.One("", noop))
	b.report(result{what: "10 topics, producer batch 100: handled", got: rate(n, drained), unit: "msg/s",
		want: "3 x 39,795 msg/s", holds: rate(n, drained) >= goal})
}

func rate(n int, d time.Duration) float64 { return float64(n) / d.Seconds() }

func event(topic, i int) lease.Event {
	return lease.Event{Topic: fmt.Sprintf("bench.%d", topic), Key: fmt.Sprintf("k%d", i%100), Kind: "bench",
		Payload: fmt.Appendf(nil, `{"n":%d,"text":"%0100d"}`, i, i)}
}

// fill publishes n messages over ten topics.
func fill(ctx context.Context, b *bench, pool *pgxpool.Pool, n int) {
	be := leasepg.New(pool)
	begin := time.Now()
	const chunk = 10_000
	for at := 0; at < n; at += chunk {
		events := make([]lease.Event, min(chunk, n-at))
		for i := range events {
			events[i] = event((at+i)%10, at+i)
		}
		must.Do(be.Publish(ctx, events))
	}
	fmt.Fprintf(b.out, "   published %s messages of 120 bytes in %v\n", thousands(int64(n)), time.Since(begin).Round(time.Millisecond))
	must.Get(pool.Exec(ctx, "VACUUM ANALYZE leasegen.message"))
}

// consume runs a consumer until n messages are handled and stored, and returns the
// time from its first message to its last commit.
func consume(ctx context.Context, pool *pgxpool.Pool, n int, name string, per lease.Per, h lease.Handler) time.Duration {
	spec := lease.Spec{Name: name, Per: per, Topics: []string{"bench.*"}, Batch: batch, Handlers: []lease.Handler{h}}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var handled, bad atomic.Int64
	var last atomic.Int64
	done := make(chan struct{})
	begin := time.Now()
	observe := operate.ObserverFunc(func(o operate.Observation) {
		c, ok := o.(operate.ObservedCommit)
		if !ok {
			return
		}
		bad.Add(int64(c.Parked + c.Dead + c.Skipped))
		if handled.Add(int64(c.Handled)) == int64(n) {
			last.Store(int64(time.Since(begin)))
			close(done)
		}
	})
	c := must.Get(lease.NewConsumer(leasepg.New(pool), spec, lease.WithObserver(observe)))
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	must.Await(ctx, done, ended, handled.Load)
	cancel()
	must.Do(<-ended)
	if bad.Load() > 0 {
		must.Do(fmt.Errorf("%d messages were not handled", bad.Load()))
	}
	return time.Duration(last.Load())
}

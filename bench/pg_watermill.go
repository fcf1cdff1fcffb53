package main

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/leasegen/leasegen/bench/report"
	"github.com/leasegen/leasegen/internal/must"
)

const watermillSQLKeeps = "order by topic, effects exactly once in the subscriber's transaction, which stays open while a batch is handled; " +
	"no fencing for other effects"

// watermillSQL reads larger batches and polls more often than by default: DefaultPostgreSQLSchema.SubscribeBatchSize and
// SubscriberConfig.PollInterval, whose comments name them as what throughput and latency depend on.
func watermillSQL() contender {
	return contender{
		Contender: report.Contender{ID: "watermill-sql", Name: "watermill-sql", Backend: "PostgreSQL", Keeps: watermillSQLKeeps,
			Settings: "SubscribeBatchSize 1,000, PollInterval 10 ms for a topic, 500 ms each for 100, pgx"},
		cannot: watermillSQLCannot(),
		open: func(ctx context.Context, s *site) (system, error) {
			return openWatermillSQL(ctx, s, wsql.DefaultPostgreSQLSchema{SubscribeBatchSize: 1000}, 10*time.Millisecond)
		},
	}
}

func watermillSQLDefaults() contender {
	return contender{
		variant: true,
		Contender: report.Contender{ID: "watermill-sql-defaults", Name: "watermill-sql, defaults", Backend: "PostgreSQL", Keeps: watermillSQLKeeps,
			Settings: "SubscribeBatchSize 100, PollInterval 1 s, pgx"},
		cannot: watermillSQLCannot(),
		open: func(ctx context.Context, s *site) (system, error) {
			return openWatermillSQL(ctx, s, wsql.DefaultPostgreSQLSchema{}, 0)
		},
	}
}

func watermillSQLCannot() map[string]string {
	return map[string]string{
		"drain-10000": "not run: a table, a subscriber and a connection for each of 10,000 topics",
		"rows-batch":  "handlers take one message",
		"leases":      "no leases: a row lock for as long as a batch takes",
	}
}

// watermillConnections is more than others have: each subscriber, of which a topic has one, keeps a connection while it works.
const watermillConnections = 128

func openWatermillSQL(ctx context.Context, s *site, schema wsql.DefaultPostgreSQLSchema, poll time.Duration) (_ system, err error) {
	defer must.Catch(&err)
	return &watermillOnPostgres{poolOf(ctx, s.dsn, watermillConnections), schema, poll}, nil
}

type watermillOnPostgres struct {
	pool   *pgxpool.Pool
	schema wsql.DefaultPostgreSQLSchema
	poll   time.Duration
}

func (w *watermillOnPostgres) Close() { w.pool.Close() }

func watermillMessages(payloads [][]byte) []*message.Message {
	ms := make([]*message.Message, len(payloads))
	for i, p := range payloads {
		ms[i] = message.NewMessage(watermill.NewUUID(), p)
	}
	return ms
}

func watermillTopic(i int) string { return "bench_" + itoa(int64(i)) }

func (w *watermillOnPostgres) publish(on wsql.ContextExecutor, topic int, payloads [][]byte, make bool) error {
	p, err := wsql.NewPublisher(on, wsql.PublisherConfig{SchemaAdapter: w.schema, AutoInitializeSchema: make}, nil)
	if err != nil {
		return err
	}
	return p.Publish(watermillTopic(topic), watermillMessages(payloads)...)
}

func (w *watermillOnPostgres) Fill(ctx context.Context, n, topics int) error {
	tables := make([]string, topics)
	for t := range topics {
		tables[t] = w.schema.MessagesTable(watermillTopic(t))
		for at, first := t*n/topics, true; at < (t+1)*n/topics || first; at += 1000 {
			if err := w.publish(wsql.BeginnerFromPgx(w.pool), t, payloads(at, min(at+1000, (t+1)*n/topics)), first); err != nil {
				return err
			}
			first = false
		}
	}
	return analyzed(ctx, w.pool, tables...)
}

func (w *watermillOnPostgres) Publish(_ context.Context, topic int, payloads [][]byte) error {
	return w.publish(wsql.BeginnerFromPgx(w.pool), topic, payloads, false)
}

func (w *watermillOnPostgres) PublishTx(_ context.Context, tx pgx.Tx, topic int, payloads [][]byte) error {
	return w.publish(wsql.TxFromPgx(tx), topic, payloads, false)
}

func (w *watermillOnPostgres) Consume(ctx context.Context, j job) (_ func() error, err error) {
	defer must.Catch(&err)
	sub := must.Get(wsql.NewSubscriber(countingBeginner{wsql.BeginnerFromPgx(w.pool), j}, wsql.SubscriberConfig{
		ConsumerGroup: "bench", PollInterval: w.poll * time.Duration(max(1, j.topics/2)), SchemaAdapter: w.schema,
		OffsetsAdapter: wsql.DefaultPostgreSQLOffsetsAdapter{}, InitializeSchema: true,
	}, nil))
	ctx, cancel := context.WithCancel(ctx)
	var handlers errgroup.Group
	// A subscriber that is stopped rolls back at once, on the connection that a handler may be using.
	var handling sync.RWMutex
	stopping := false
	for t := range j.topics {
		ms := must.Get(sub.Subscribe(ctx, watermillTopic(t)))
		// At once: until its first message is handled, a subscriber keeps a connection that others need to subscribe.
		handlers.Go(func() error {
			for m := range ms {
				handling.RLock()
				if stopping {
					handling.RUnlock()
					m.Nack()
					continue
				}
				err := w.handle(t, m, j)
				handling.RUnlock()
				if err != nil {
					m.Nack()
					return err
				}
				m.Ack()
			}
			return nil
		})
	}
	return func() error {
		handling.Lock()
		stopping = true
		handling.Unlock()
		cancel()
		err := sub.Close()
		return errors.Join(err, handlers.Wait())
	}, nil
}

func (w *watermillOnPostgres) handle(topic int, m *message.Message, j job) error {
	j.begin()
	if j.call != nil {
		j.call(m.Payload)
	}
	tx, _ := wsql.TxFromContext(m.Context())
	counting, ok := tx.(*countingTx)
	if !ok {
		return errors.New("the message has no transaction of its subscriber")
	}
	counting.handled++
	if j.effect == noEffect {
		return nil
	}
	_, err := tx.ExecContext(m.Context(), effectOne, m.UUID, watermillTopic(topic), []byte(m.Payload))
	return err
}

// countingBeginner begins transactions whose messages count as done when they are committed: a batch that is acknowledged is not stored yet.
type countingBeginner struct {
	wsql.Beginner
	j job
}

func (b countingBeginner) BeginTx(ctx context.Context, o *sql.TxOptions) (wsql.Tx, error) {
	tx, err := b.Beginner.BeginTx(ctx, o)
	if err != nil {
		return nil, err
	}
	return &countingTx{Tx: tx, j: b.j}, nil
}

// countingTx is one batch. The subscriber commits when the last of its messages is acknowledged.
type countingTx struct {
	wsql.Tx
	j       job
	handled int
}

func (t *countingTx) Commit() error {
	err := t.Tx.Commit()
	if err == nil && t.handled > 0 && t.j.done != nil {
		t.j.done(t.handled)
	}
	return err
}

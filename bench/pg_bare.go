package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/leasegen/leasegen/bench/report"
	"github.com/leasegen/leasegen/internal/must"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

// Two ways for a program without leasegen to read leasegen's log, in the order of ids.
//
// sameReads loses no message: one statement reads what committed late below the position and what is new above it, with
// the snapshot that makes the next such read possible; a fenced update stores the position.
//
// idReads is what is often written instead. It loses what commits late.
const (
	sameReads = `
		SELECT NULL::bigint, pg_current_snapshot()::text, pg_current_xact_id()::text, NULL, NULL::bytea, NULL::jsonb, NULL::timestamptz
		UNION ALL
		SELECT * FROM (SELECT m.id, m.topic, m.key, m.kind, m.payload, m.headers, m.published_at FROM leasegen.message m
			WHERE m.xid >= pg_snapshot_xmax($3::text::pg_snapshot) AND m.xid < $4::text::xid8 AND m.id <= $1 ORDER BY m.id LIMIT $2) late
		UNION ALL
		SELECT * FROM (SELECT m.id, m.topic, m.key, m.kind, m.payload, m.headers, m.published_at FROM leasegen.message m
			WHERE m.id > $1 ORDER BY m.id LIMIT $2) fresh`
	idReads = `SELECT id, topic, key, kind, payload, headers, published_at FROM leasegen.message WHERE id > $1 ORDER BY id LIMIT $2`
)

const noFailover = "no second process takes over"

func barePostgres() contender {
	return contender{
		Contender: report.Contender{ID: report.Bare, Name: "bare pgx loop", Backend: "PostgreSQL", Limit: true,
			Settings: "one connection, batches of 500; publishes by INSERT into a table with a primary key, or into the log that it reads; polls each millisecond",
			Keeps:    "one order over all topics, effects exactly once; no owner: a second process would repeat all"},
		cannot: map[string]string{"crash": noFailover, "handover": noFailover},
		open:   func(ctx context.Context, s *site) (system, error) { return openBare(ctx, s, sameReads) },
	}
}

func barePostgresByID() contender {
	return contender{
		variant: true,
		Contender: report.Contender{ID: "pgx-by-id", Name: "bare pgx loop, id > position", Backend: "PostgreSQL",
			Settings: "as the bare loop, without a look at what committed late",
			Keeps:    "loses messages that commit late"},
		cannot: map[string]string{"crash": noFailover, "handover": noFailover, "latency": "as the bare loop"},
		open:   func(ctx context.Context, s *site) (system, error) { return openBare(ctx, s, idReads) },
	}
}

func openBare(ctx context.Context, s *site, query string) (_ system, err error) {
	defer must.Catch(&err)
	p := pool(ctx, s.dsn)
	must.Get(leasepg.Migrate(ctx, p))
	for _, sql := range []string{
		`CREATE TABLE bare_message (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic text NOT NULL, payload bytea NOT NULL)`,
		`CREATE TABLE bare (name text PRIMARY KEY, epoch bigint, pos bigint, snap pg_snapshot, x xid8) WITH (fillfactor = 60)`,
		`INSERT INTO bare VALUES ('bare', 1, 0)`,
	} {
		must.Get(p.Exec(ctx, sql))
	}
	return &bareOnPostgres{log: leasegenOnPostgres{p, leasepg.New(p)}, query: query}, nil
}

// bareOnPostgres reads a log that leasegen has filled, and writes a table of its own.
type bareOnPostgres struct {
	log       leasegenOnPostgres
	query     string
	consuming bool // it publishes to the log that it reads
}

func (b *bareOnPostgres) Close() { b.log.Close() }

func (b *bareOnPostgres) Fill(ctx context.Context, n, topics int) error {
	return b.log.Fill(ctx, n, topics)
}

func (b *bareOnPostgres) Publish(ctx context.Context, topic int, payloads [][]byte) (err error) {
	switch {
	case b.consuming:
		_, err = b.log.pool.Exec(ctx, `INSERT INTO leasegen.message (topic, key, kind, payload) SELECT $1, '', $2, unnest($3::bytea[])`,
			topicName(topic), kind, payloads)
	case len(payloads) == 1:
		_, err = b.log.pool.Exec(ctx, `INSERT INTO bare_message (topic, payload) VALUES ($1, $2)`, topicName(topic), payloads[0])
	default:
		_, err = b.log.pool.Exec(ctx, `INSERT INTO bare_message (topic, payload) SELECT $1, unnest($2::bytea[])`, topicName(topic), payloads)
	}
	return err
}

// PublishTx publishes no message: the caller's own INSERT alone is what others are measured by.
func (b *bareOnPostgres) PublishTx(context.Context, pgx.Tx, int, [][]byte) error { return nil }

// work is what is done with a batch, in the transaction that stores the position; nil for no work.
type work func(ctx context.Context, tx pgx.Tx, b batchRead) error

func (b *bareOnPostgres) Consume(ctx context.Context, j job) (func() error, error) {
	b.consuming = true
	var do work
	switch j.effect {
	case oneByOne:
		do = func(ctx context.Context, tx pgx.Tx, b batchRead) error {
			for i := range b.ids {
				if _, err := tx.Exec(ctx, effectOne, b.ids[i], b.topics[i], b.payloads[i]); err != nil {
					return err
				}
			}
			return nil
		}
	case manyAtOnce:
		do = func(ctx context.Context, tx pgx.Tx, b batchRead) error {
			_, err := tx.Exec(ctx, effectMany, b.ids, b.topics, b.payloads)
			return err
		}
	}
	return background(ctx, func(ctx context.Context) error { return bareLoop(ctx, b.log.pool, b.query, do, j) }), nil
}

// background runs a loop until stop is called. That it ends by the end of its context is no error.
func background(ctx context.Context, loops ...func(context.Context) error) (stop func() error) {
	ctx, cancel := context.WithCancelCause(ctx)
	errs := make([]error, len(loops))
	var wg sync.WaitGroup
	for i, loop := range loops {
		wg.Go(func() {
			if err := loop(ctx); err != nil && ctx.Err() == nil {
				errs[i] = err
				cancel(err)
			}
		})
	}
	return func() error {
		cancel(errStopped)
		wg.Wait()
		return errors.Join(errs...)
	}
}

// bareLoop reads messages, works on them and stores its position after each batch, one after the other, in one connection.
func bareLoop(ctx context.Context, pool *pgxpool.Pool, query string, do work, j job) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	at := position{snap: "1:1:", x: "1"}
	for ctx.Err() == nil {
		b, err := at.next(ctx, conn.Conn(), query, do != nil || j.call != nil)
		switch {
		case err != nil:
			return err
		case b.count == 0:
			pause(ctx)
			continue
		}
		j.begin()
		if j.call != nil {
			for _, p := range b.payloads {
				j.call(p)
			}
		}
		if do == nil {
			err = at.store(ctx, conn)
		} else {
			err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
				if err := do(ctx, tx, b); err != nil {
					return err
				}
				return at.store(ctx, tx)
			})
		}
		if err != nil {
			return err
		}
		if j.done != nil {
			j.done(b.count)
		}
	}
	return nil
}

// position is how far the loop has got, and the snapshot it last read with.
type position struct {
	pos     int64
	snap, x string
}

type batchRead struct {
	count       int
	ids, topics []string
	payloads    [][]byte
}

func (p *position) next(ctx context.Context, conn *pgx.Conn, query string, keep bool) (b batchRead, err error) {
	args := []any{p.pos, batch}
	if query == sameReads {
		args = append(args, p.snap, p.x)
	}
	rows, err := conn.Query(ctx, query, args...)
	if err != nil {
		return b, err
	}
	defer rows.Close()
	var (
		id               *int64
		topic, key, kind *string
		payload, headers []byte
		published        *time.Time
	)
	for rows.Next() {
		if err := rows.Scan(&id, &topic, &key, &kind, &payload, &headers, &published); err != nil {
			return b, err
		}
		if id == nil {
			p.snap, p.x = *topic, *key
			continue
		}
		b.count++
		p.pos = max(p.pos, *id)
		if keep {
			b.ids, b.topics, b.payloads = append(b.ids, fmt.Sprint(*id)), append(b.topics, *topic), append(b.payloads, payload)
			payload = nil
		}
	}
	return b, rows.Err()
}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func (p *position) store(ctx context.Context, on querier) error {
	var name string
	err := on.QueryRow(ctx, `UPDATE bare SET pos = $1, snap = $2::text::pg_snapshot, x = $3::text::xid8
		WHERE name = 'bare' AND epoch = 1 RETURNING name`,
		p.pos, p.snap, p.x).Scan(&name)
	if errors.Is(err, pgx.ErrNoRows) {
		return errors.New("the position was not stored")
	}
	return err
}

// together runs loops until all have ended, or one has failed.
func together(ctx context.Context, loops ...func(context.Context) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, loop := range loops {
		g.Go(func() error { return loop(ctx) })
	}
	return g.Wait()
}

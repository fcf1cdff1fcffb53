package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/must"
)

// Two ways for a program without leasegen to read the log, in the order of ids.
//
// sameReads does what leasegen's statements do, as lean as it can be written: one
// statement that reads what committed late below the position and what is new above it,
// with the snapshot that makes the next such read possible; and a fenced update.
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

// work is what is done with a batch, in the transaction that stores the position; nil
// for nothing.
type work func(ctx context.Context, tx pgx.Tx, ids, topics []string, payloads [][]byte) error

// bareLoop reads n messages, works on them and stores its position after each batch,
// one after the other, in one connection.
func bareLoop(ctx context.Context, pool *pgxpool.Pool, n int, query string, do work) time.Duration {
	conn := must.Get(pool.Acquire(ctx))
	defer conn.Release()
	for _, sql := range []string{
		`CREATE TABLE IF NOT EXISTS bare (name text PRIMARY KEY, epoch bigint, pos bigint, snap pg_snapshot, x xid8) WITH (fillfactor = 60)`,
		`INSERT INTO bare VALUES ('bare', 1, 0) ON CONFLICT (name) DO UPDATE SET pos = 0`,
	} {
		must.Get(conn.Exec(ctx, sql))
	}
	at := position{snap: "1:1:", x: "1"}
	begin := time.Now()
	for read := 0; read < n; {
		b := at.next(ctx, conn.Conn(), query, do != nil)
		if b.count == 0 {
			must.Do(fmt.Errorf("the log ended after %d of %d messages", read, n))
		}
		read += b.count
		if do == nil {
			must.Do(at.store(ctx, conn))
			continue
		}
		must.Do(pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if err := do(ctx, tx, b.ids, b.topics, b.payloads); err != nil {
				return err
			}
			return at.store(ctx, tx)
		}))
	}
	return time.Since(begin)
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

func (p *position) next(ctx context.Context, conn *pgx.Conn, query string, keep bool) (b batchRead) {
	args := []any{p.pos, batch}
	if query == sameReads {
		args = append(args, p.snap, p.x)
	}
	rows := must.Get(conn.Query(ctx, query, args...))
	defer rows.Close()
	var (
		id               *int64
		topic, key, kind *string
		payload, headers []byte
		published        *time.Time
	)
	for rows.Next() {
		must.Do(rows.Scan(&id, &topic, &key, &kind, &payload, &headers, &published))
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
	must.Do(rows.Err())
	return b
}

type execer interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func (p *position) store(ctx context.Context, on execer) error {
	var name string
	err := on.QueryRow(ctx, `UPDATE bare SET pos = $1, snap = $2::text::pg_snapshot, x = $3::text::xid8 WHERE name = 'bare' AND epoch = 1 RETURNING name`,
		p.pos, p.snap, p.x).Scan(&name)
	if errors.Is(err, pgx.ErrNoRows) {
		return errors.New("the position was not stored")
	}
	return err
}

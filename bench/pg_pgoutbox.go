package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/bench/report"
	"github.com/leasegen/leasegen/internal/must"
)

// pgoutbox is no library here, which cannot be downloaded, but the algorithm that version 0.4.0 of it publishes, with its
// settings: COPY and NOTIFY in the publisher's transaction; a topic's row locked, messages read with SKIP LOCKED, flushed
// and deleted in one transaction; a topic acquired in a transaction of its own that joins the process's session.
func pgoutbox() contender {
	return contender{
		Contender: report.Contender{ID: "pgoutbox", Name: "pgoutbox's algorithm", Backend: "PostgreSQL",
			Settings: "exclusive topics; batches of 500, as in its benchmark; NOTIFY, a poll each 5 s",
			Keeps:    "one owner for each topic; no order after a vacuum, no fencing token; effects exactly once in the flusher's transaction"},
		cannot: map[string]string{
			"crash":    "31 s: the session of 30 s, and an attempt each second",
			"handover": "up to 1 s: a waiting process asks each second",
		},
		notes: map[string]string{
			"drain-10000": "acquiring topics and handling messages share its connections: in some rounds few messages are handled in the window, and bear the cost of all that is acquired",
			"leases":      "taking over was not measured: a session ends 30 s after its process",
		},
		open: func(ctx context.Context, s *site) (_ system, err error) {
			defer must.Catch(&err)
			p := pool(ctx, s.dsn)
			must.Get(p.Exec(ctx, pgoutboxSchema))
			return &pgoutboxSystem{pool: p, session: "00000000-0000-0000-0000-000000000001"}, nil
		},
	}
}

const pgoutboxSchema = `
	CREATE TABLE messages (id bigint GENERATED ALWAYS AS IDENTITY, inserted_at timestamptz NOT NULL DEFAULT now(),
		topic text NOT NULL, payload jsonb NOT NULL,
		PRIMARY KEY (topic, id)) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);
	CREATE INDEX ON messages (topic, inserted_at);
	CREATE TABLE topics (topic text PRIMARY KEY, exclusive_consumer_id uuid, exclusive_consumer_expires_at timestamptz, last_inserted_at timestamptz);
	CREATE TABLE consumer_sessions (consumer_id uuid PRIMARY KEY, expires_at timestamptz NOT NULL);
	CREATE FUNCTION know() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO topics (topic, last_inserted_at) SELECT DISTINCT topic, now() FROM added
		ON CONFLICT (topic) DO UPDATE SET last_inserted_at = now() WHERE topics.last_inserted_at < now() - interval '1 minute';
		RETURN NULL;
	END $$;
	CREATE TRIGGER know AFTER INSERT ON messages REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION know();`

type pgoutboxSystem struct {
	pool    *pgxpool.Pool
	session string
}

func (o *pgoutboxSystem) Close() { o.pool.Close() }

func (o *pgoutboxSystem) add(ctx context.Context, tx pgx.Tx, topic string, payloads [][]byte) error {
	_, err := tx.CopyFrom(ctx, pgx.Identifier{"messages"}, []string{"topic", "payload"}, pgx.CopyFromSlice(len(payloads), func(i int) ([]any, error) {
		return []any{topic, payloads[i]}, nil
	}))
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `SELECT pg_notify('pgoutbox_pubsub', $1)`, topic)
	return err
}

func (o *pgoutboxSystem) Fill(ctx context.Context, n, topics int) error {
	err := chunks(topics, 1000, func(from, to int) error {
		return pgx.BeginFunc(ctx, o.pool, func(tx pgx.Tx) error {
			for t := from; t < to; t++ {
				if err := o.add(ctx, tx, topicName(t), payloads(t*n/topics, (t+1)*n/topics)); err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err != nil {
		return err
	}
	return analyzed(ctx, o.pool, "messages")
}

func (o *pgoutboxSystem) Publish(ctx context.Context, topic int, payloads [][]byte) error {
	return pgx.BeginFunc(ctx, o.pool, func(tx pgx.Tx) error { return o.add(ctx, tx, topicName(topic), payloads) })
}

func (o *pgoutboxSystem) PublishTx(ctx context.Context, tx pgx.Tx, topic int, payloads [][]byte) error {
	return o.add(ctx, tx, topicName(topic), payloads)
}

const (
	pgoutboxKnow = `INSERT INTO topics (topic) VALUES ($1) ON CONFLICT (topic) DO UPDATE SET topic = EXCLUDED.topic`
	pgoutboxLock = `SELECT t.exclusive_consumer_id::text, coalesce(t.exclusive_consumer_expires_at, s.expires_at) FROM topics t
		LEFT JOIN consumer_sessions s ON s.consumer_id = t.exclusive_consumer_id WHERE t.topic = $1 FOR UPDATE OF t`
	pgoutboxSession = `INSERT INTO consumer_sessions VALUES ($1, $2) ON CONFLICT (consumer_id) DO UPDATE SET expires_at = EXCLUDED.expires_at`
	pgoutboxHold    = `UPDATE topics SET exclusive_consumer_id = $2, exclusive_consumer_expires_at = NULL WHERE topic = $1`
	pgoutboxRead    = `SELECT id, payload FROM messages WHERE topic = $1 LIMIT $2 FOR UPDATE SKIP LOCKED`
	pgoutboxDelete  = `DELETE FROM messages WHERE topic = $1 AND id = ANY($2)`
)

var errHeld = errors.New("another process holds the topic")

// held reports whether the session holds a topic, whose row it locks.
func (o *pgoutboxSystem) held(ctx context.Context, tx pgx.Tx, topic string) (mine, free bool, err error) {
	var holder *string
	var until *time.Time
	if err := tx.QueryRow(ctx, pgoutboxLock, topic).Scan(&holder, &until); err != nil {
		return false, false, err
	}
	live := holder != nil && until != nil && until.After(time.Now())
	return live && *holder == o.session, !live || *holder == o.session, nil
}

// acquire takes a topic, or fails with errHeld.
func (o *pgoutboxSystem) acquire(ctx context.Context, topic string) error {
	return pgx.BeginFunc(ctx, o.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, pgoutboxKnow, topic); err != nil {
			return err
		}
		if _, free, err := o.held(ctx, tx, topic); err != nil || !free {
			return errors.Join(err, errHeld)
		}
		if _, err := tx.Exec(ctx, pgoutboxSession, o.session, time.Now().Add(30*time.Second)); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, pgoutboxHold, topic, o.session)
		return err
	})
}

// pass handles one batch of a topic.
func (o *pgoutboxSystem) pass(ctx context.Context, topic string, j job) (n int, err error) {
	err = pgx.BeginFunc(ctx, o.pool, func(tx pgx.Tx) error {
		mine, _, err := o.held(ctx, tx, topic)
		if err != nil {
			return err
		}
		if !mine {
			return errHeld
		}
		rows, err := tx.Query(ctx, pgoutboxRead, topic, batch)
		if err != nil {
			return err
		}
		var ids []int64
		var bodies [][]byte
		for rows.Next() {
			var id int64
			var body []byte
			if err := rows.Scan(&id, &body); err != nil {
				return err
			}
			ids, bodies = append(ids, id), append(bodies, body)
		}
		if n = len(ids); rows.Err() != nil || n == 0 {
			return rows.Err()
		}
		if err := o.flush(ctx, tx, topic, ids, bodies, j); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, pgoutboxDelete, topic, ids)
		return err
	})
	return n, err
}

func (o *pgoutboxSystem) flush(ctx context.Context, tx pgx.Tx, topic string, ids []int64, bodies [][]byte, j job) (err error) {
	j.begin()
	if j.call != nil {
		for _, b := range bodies {
			j.call(b)
		}
	}
	names, topics := make([]string, len(ids)), make([]string, len(ids))
	for i, id := range ids {
		names[i], topics[i] = fmt.Sprint(id), topic
	}
	switch j.effect {
	case oneByOne:
		for i := range names {
			if _, err := tx.Exec(ctx, effectOne, names[i], topic, bodies[i]); err != nil {
				return err
			}
		}
	case manyAtOnce:
		_, err = tx.Exec(ctx, effectMany, names, topics, bodies)
	}
	return err
}

func (o *pgoutboxSystem) Consume(ctx context.Context, j job) (_ func() error, err error) {
	defer must.Catch(&err)
	listener := must.Get(o.pool.Acquire(ctx))
	must.Get(listener.Exec(ctx, `LISTEN pgoutbox_pubsub`))
	wakes := make(map[string]chan struct{}, j.topics)
	var once sync.Once
	loops := []func(context.Context) error{
		func(ctx context.Context) error { // wakes the topics that are named
			defer once.Do(func() { listener.Conn().Close(context.WithoutCancel(ctx)); listener.Release() })
			for {
				n, err := listener.Conn().WaitForNotification(ctx)
				if err != nil {
					return err
				}
				select {
				case wakes[n.Payload] <- struct{}{}:
				default:
				}
			}
		},
		func(ctx context.Context) error { // renews the session
			for {
				if _, err := o.pool.Exec(ctx, pgoutboxSession, o.session, time.Now().Add(30*time.Second)); err != nil {
					return err
				}
				select {
				case <-time.After(10 * time.Second):
				case <-ctx.Done():
					return nil
				}
			}
		},
	}
	for t := range j.topics {
		topic, wake := topicName(t), make(chan struct{}, 1)
		wakes[topic] = wake
		loops = append(loops, func(ctx context.Context) error { return o.follow(ctx, topic, wake, j) })
	}
	return background(ctx, loops...), nil
}

// follow handles a topic until ctx ends.
func (o *pgoutboxSystem) follow(ctx context.Context, topic string, wake <-chan struct{}, j job) error {
	for {
		err := o.acquire(ctx, topic)
		if err == nil {
			break
		}
		if !errors.Is(err, errHeld) {
			return err
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return nil
		}
	}
	for ctx.Err() == nil {
		n, err := o.pass(ctx, topic, j)
		if err != nil {
			return err
		}
		if n > 0 && j.done != nil {
			j.done(n)
		}
		if n == batch {
			continue
		}
		select {
		case <-wake:
		case <-time.After(5 * time.Second):
		case <-ctx.Done():
		}
	}
	return nil
}

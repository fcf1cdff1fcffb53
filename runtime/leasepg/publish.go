package leasepg

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
)

const (
	publishRows  = 5000     // events in one statement
	publishBytes = 16 << 20 // of payload in one statement
	notifyEvery  = 10 * time.Millisecond

	// segmentsAhead is how many ids beyond the last one drawn have partitions.
	segmentsAhead = 4_000_000
)

// What a notification can say. It is only ever a hint.
const (
	wakeMessages  = "m"
	wakeOwnership = "o"
	wakeParked    = "p"
)

// Publish appends events to the log in a transaction of its own.
func (b *Backend) Publish(ctx context.Context, events []lease.Event) error {
	err := b.publish(ctx, b.pool, &b.notified, events)
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == noPartition {
		// Others drew ids faster than anyone added partitions. Nothing was written.
		b.logEnd.Store(0)
		err = b.publish(ctx, b.pool, &b.notified, events)
	}
	return err
}

const noPartition = "23514" // check_violation, as PostgreSQL reports a row without a partition

// In returns a publisher that appends events in the caller's transaction: they become
// visible when it commits.
func (b *Backend) In(tx pgx.Tx) lease.Publisher { return joined{b, tx} }

type joined struct {
	b  *Backend
	tx pgx.Tx
}

func (j joined) Publish(ctx context.Context, events []lease.Event) error {
	return j.b.publish(ctx, j.tx, &j.b.joined, events)
}

// database is a pool or a transaction.
type database interface {
	sender
	leasedb.DBTX
}

func (b *Backend) publish(ctx context.Context, on database, wake *throttle, events []lease.Event) error {
	if len(events) == 0 {
		return nil
	}
	parts, err := columns(events)
	if err != nil {
		return err
	}
	if err := b.makeRoom(ctx, on, int64(len(events))); err != nil {
		return b.fail("publish", err)
	}
	var last int64
	steps := make([]step, 0, len(parts)+1)
	for i := range parts {
		steps = append(steps, func(q *leasedb.Queries) (err error) {
			last, err = q.Publish(ctx, parts[i])
			return err
		})
	}
	if wake.ready(time.Now(), notifyEvery) {
		steps = append(steps, b.notify(ctx, wakeMessages))
	}
	if err := b.pipeline(ctx, on, steps...); err != nil {
		return b.fail("publish", err)
	}
	if last+segmentsAhead/2 > b.logEnd.Load() {
		// The events are in; room for later ones can wait for a later try.
		if err := b.ensureSegments(ctx, last); err != nil {
			b.log.Warn("leasepg: could not add partitions to the log", "err", err)
		}
	}
	return nil
}

// columns splits events into statements' worth of arrays.
func columns(events []lease.Event) ([]leasedb.PublishParams, error) {
	var parts []leasedb.PublishParams
	size := 0
	for i := range events {
		e := &events[i]
		if e.Topic == "" {
			return nil, fmt.Errorf("leasepg: publish: event %d of %d has no topic", i, len(events))
		}
		headers := ""
		if len(e.Headers) > 0 {
			h, err := json.Marshal(e.Headers)
			if err != nil {
				return nil, fmt.Errorf("leasepg: publish: headers of event %d: %w", i, err)
			}
			headers = string(h)
		}
		if n := len(parts); n == 0 || len(parts[n-1].Topics) >= publishRows || size+len(e.Payload) > publishBytes {
			parts = append(parts, leasedb.PublishParams{})
			size = 0
		}
		p := &parts[len(parts)-1]
		payload := e.Payload
		if payload == nil {
			payload = []byte{} // nil would be NULL
		}
		size += len(payload)
		p.Topics, p.Keys, p.Kinds = append(p.Topics, e.Topic), append(p.Keys, e.Key), append(p.Kinds, e.Kind)
		p.Payloads, p.Headers = append(p.Payloads, payload), append(p.Headers, headers)
	}
	return parts, nil
}

// makeRoom makes sure that n more ids have partitions when that is in doubt.
func (b *Backend) makeRoom(ctx context.Context, on database, n int64) error {
	if n <= segmentsAhead/40 && b.logEnd.Load() > 0 {
		return nil // what others draw meanwhile is covered by the rest
	}
	end, err := b.queries(on).LogEnd(ctx)
	if err != nil {
		return err
	}
	b.logEnd.Store(end.FirstMissing)
	if end.LastDrawn+n+segmentsAhead/2 < end.FirstMissing {
		return nil
	}
	return b.ensureSegments(ctx, end.LastDrawn+n)
}

// ensureSegments adds partitions ahead of the id last. It uses a connection of its own:
// the pool's may all wait in transactions that publish.
func (b *Backend) ensureSegments(ctx context.Context, last int64) error {
	conn, err := b.connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	end, err := b.queries(conn).EnsureSegments(ctx, last+segmentsAhead)
	if err == nil {
		b.logEnd.Store(end)
	}
	return err
}

func (b *Backend) notify(ctx context.Context, payload string) step {
	return func(q *leasedb.Queries) error {
		return q.Notify(ctx, leasedb.NotifyParams{Channel: b.schema.name, Payload: payload})
	}
}

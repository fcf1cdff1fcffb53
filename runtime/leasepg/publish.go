package leasepg

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
)

const (
	publishRows  = 5000     // events in one statement
	publishBytes = 16 << 20 // of payload in one statement
	copyRows     = 1000     // events from which on COPY is faster
	notifyEvery  = 10 * time.Millisecond

	// segmentsAhead is how many ids beyond the last one drawn have partitions.
	segmentsAhead = 4_000_000
)

// The words of a notification. It is only ever a hint.
const (
	wakeMessages  = "m"
	wakeOwnership = "o"
	wakeParked    = "p"
	wakeWanted    = "w/" // and a consumer's name: streams of it became wanted
)

// publisher publishes, and keeps partitions of the log ahead of what is published.
type publisher struct {
	*known
	around   backend.Publishing
	notified throttle // wakes sent by Publish
	joined   throttle // wakes sent in callers' transactions
}

// Publish appends events to the log in a transaction of its own.
func (p *publisher) Publish(ctx context.Context, events []backend.Event) error {
	return p.around.Publish(ctx, events, false, p.publishAlone)
}

func (p *publisher) publishAlone(ctx context.Context, events []backend.Event) error {
	err := p.publish(ctx, p.pool, &p.notified, events)
	if p.outrun(err) {
		err = p.publish(ctx, p.pool, &p.notified, events)
	}
	return err
}

const noPartition = "23514" // check_violation, as PostgreSQL reports a row without a partition

// outrun tells whether ids were drawn, for example by plain inserts, faster than partitions were added. Then no row was
// written, and the next one who publishes looks where the log ends.
func (p *publisher) outrun(err error) bool {
	if code(err) != noPartition {
		return false
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.ConstraintName != "" {
		return false
	}
	p.logEnd.Store(0)
	return true
}

// In returns a publisher that appends events in the caller's transaction: they become
// visible when it commits. Events with an id wait for other transactions that are
// publishing the same one.
func (p *publisher) In(tx pgx.Tx) backend.Publisher { return joined{p, tx} }

// OtherTx runs statements in a transaction that another library than pgx has begun, one after the other; package leasesql
// makes one of database/sql's. Arguments are strings, int64s, and slices of string, []byte, int64 and time.Time, which are
// arrays of text, bytea, bigint and timestamptz; values that are read are int64s. Errors of the server have the method
// SQLState.
type OtherTx interface {
	Exec(ctx context.Context, sql string, args ...any) error
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// InOther is In for a transaction of another library, in the database of the backend's pool. An event costs a little more:
// there is no COPY, and a publication that wakes consumers is two round trips.
func (p *publisher) InOther(tx OtherTx) backend.Publisher { return joined{p, otherTx{tx}} }

type otherTx struct{ OtherTx }

func (tx otherTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return pgconn.CommandTag{}, tx.OtherTx.Exec(ctx, sql, args...)
}

func (otherTx) Query(context.Context, string, ...any) (pgx.Rows, error) {
	return nil, errors.New("leasepg: publishing reads no rows but single ones") // of leasedb.DBTX; Publish never calls it
}

type joined struct {
	p  *publisher
	tx leasedb.DBTX
}

func (j joined) Publish(ctx context.Context, events []backend.Event) error {
	return j.p.around.Publish(ctx, events, true, j.publish)
}

func (j joined) publish(ctx context.Context, events []backend.Event) error {
	err := j.p.publish(ctx, j.tx, &j.p.joined, events)
	j.p.outrun(err)
	return err
}

// database is a pool or a transaction of pgx.
type database interface {
	sender
	leasedb.DBTX
	CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error)
}

func (p *publisher) publish(ctx context.Context, on leasedb.DBTX, wake *throttle, events []backend.Event) error {
	if len(events) == 0 {
		return nil
	}
	if err := backend.CheckEvents(events); err != nil {
		return err
	}
	if err := p.makeRoom(ctx, on, int64(len(events))); err != nil {
		return p.fail("publish", err)
	}
	var (
		selected = slices.ContainsFunc(events, isSelected)
		last     int64
		err      error
	)
	if c, ok := on.(database); ok && !selected && len(events) >= copyRows {
		last, err = p.copyIn(ctx, c, wake, events)
	} else {
		last, err = p.insert(ctx, on, wake, events, selected)
	}
	if err != nil {
		return p.fail("publish", err)
	}
	p.keepAhead(ctx, last)
	return nil
}

// isSelected reports whether the event may not simply be appended: it has an id or is delayed.
func isSelected(e backend.Event) bool { return e.ID != "" || e.After > 0 || !e.At.IsZero() }

// insert publishes by statements that take arrays, and returns the last id.
func (p *publisher) insert(ctx context.Context, on leasedb.DBTX, wake *throttle, events []backend.Event, selected bool) (last int64, err error) {
	var steps []step
	_, ours := on.(sender)
	for len(events) > 0 {
		n, size := 0, 0
		for n < len(events) && n < publishRows && (n == 0 || size+len(events[n].Payload) <= publishBytes) {
			size += len(events[n].Payload)
			n++
		}
		c, err := columns(events[:n])
		if err != nil {
			return 0, err
		}
		publish := func(q *leasedb.Queries) (int64, error) {
			if ours && n == 1 {
				return q.PublishOne(ctx, leasedb.PublishOneParams{Topic: c.Topics[0], Key: c.Keys[0], Kind: c.Kinds[0], Payload: c.Payloads[0], Headers: c.Headers[0]})
			}
			return q.Publish(ctx, leasedb.PublishParams{Topics: c.Topics, Keys: c.Keys, Kinds: c.Kinds, Payloads: c.Payloads, Headers: c.Headers})
		}
		if selected {
			publish = func(q *leasedb.Queries) (int64, error) { return q.PublishSelected(ctx, c) }
		}
		steps = append(steps, func(q *leasedb.Queries) error {
			id, err := publish(q)
			last = max(last, id)
			return err
		})
		events = events[n:]
	}
	if wake.ready(time.Now(), notifyEvery) {
		steps = append(steps, p.notify(ctx, wakeMessages))
	}
	return last, p.run(ctx, on, steps...)
}

// columns turns events into arrays.
func columns(events []backend.Event) (p leasedb.PublishSelectedParams, err error) {
	for i := range events {
		e := &events[i]
		h, err := headers(e)
		if err != nil {
			return p, err
		}
		p.Topics, p.Keys, p.Kinds = append(p.Topics, e.Topic), append(p.Keys, e.Key), append(p.Kinds, e.Kind)
		p.Payloads, p.Headers = append(p.Payloads, payload(e)), append(p.Headers, h)
		p.EventIds, p.Ats, p.Afters = append(p.EventIds, e.ID), append(p.Ats, e.At), append(p.Afters, max(e.After, 0).Microseconds())
	}
	return p, nil
}

func payload(e *backend.Event) []byte {
	if e.Payload == nil {
		return []byte{} // nil would be NULL
	}
	return e.Payload
}

func headers(e *backend.Event) (string, error) {
	if len(e.Headers) == 0 {
		return "", nil
	}
	h, err := json.Marshal(e.Headers)
	if err != nil {
		return "", fmt.Errorf("headers of an event on %s: %w", e.Topic, err)
	}
	return string(h), nil
}

// copyIn publishes by COPY, which evaluates defaults in the order of the columns too, and
// returns an id not below the last.
func (p *publisher) copyIn(ctx context.Context, on database, wake *throttle, events []backend.Event) (int64, error) {
	columns := []string{"topic", "key", "kind", "payload", "headers"}
	_, err := on.CopyFrom(ctx, pgx.Identifier{p.schema.name, "message"}, columns, pgx.CopyFromSlice(len(events), func(i int) ([]any, error) {
		e := &events[i]
		row := []any{e.Topic, e.Key, e.Kind, payload(e), nil}
		if len(e.Headers) > 0 {
			row[4] = e.Headers
		}
		return row, nil
	}))
	if err != nil {
		return 0, err
	}
	var end leasedb.LogEndRow
	steps := []step{func(q *leasedb.Queries) (err error) {
		end, err = q.LogEnd(ctx)
		return err
	}}
	if wake.ready(time.Now(), notifyEvery) {
		steps = append(steps, p.notify(ctx, wakeMessages))
	}
	if err := p.pipeline(ctx, on, steps...); err != nil {
		if _, joined := on.(pgx.Tx); joined {
			return 0, err
		}
		p.log.Warn("leasepg: published, but could not wake consumers; they poll", "err", err)
	}
	return end.LastDrawn, nil
}

// keepAhead adds partitions when the id last comes close to where they end.
func (p *publisher) keepAhead(ctx context.Context, last int64) {
	if last+segmentsAhead/2 <= p.logEnd.Load() {
		return
	}
	// The events are in; room for later ones can wait for a later try.
	if err := p.ensureSegments(ctx, last); err != nil {
		p.log.Warn("leasepg: could not add partitions to the log", "err", err)
	}
}

// makeRoom makes sure that n more ids have partitions when that is in doubt.
func (p *publisher) makeRoom(ctx context.Context, on leasedb.DBTX, n int64) error {
	if n <= segmentsAhead/40 && p.logEnd.Load() > 0 {
		return nil // what others draw in between is covered by the rest
	}
	end, err := p.queries(on).LogEnd(ctx)
	if err != nil {
		return err
	}
	p.logEnd.Store(end.FirstMissing)
	if end.LastDrawn+n+segmentsAhead/2 < end.FirstMissing {
		return nil
	}
	return p.ensureSegments(ctx, end.LastDrawn+n)
}

// segmentsTimeout bounds what a publisher, who may have a transaction open, waits for partitions.
const segmentsTimeout = 10 * time.Second

// ensureSegments adds partitions ahead of the id last. It uses a connection of its own:
// the pool's may all wait in transactions that publish.
func (p *publisher) ensureSegments(ctx context.Context, last int64) error {
	ctx, cancel := context.WithTimeout(ctx, segmentsTimeout)
	defer cancel()
	conn, err := p.connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	end, err := p.queries(conn).EnsureSegments(ctx, last+segmentsAhead)
	if err == nil {
		p.logEnd.Store(end)
	}
	return err
}

func (sv *server) notify(ctx context.Context, payload string) step {
	return func(q *leasedb.Queries) error {
		return q.Notify(ctx, leasedb.NotifyParams{Channel: sv.schema.name, Payload: payload})
	}
}

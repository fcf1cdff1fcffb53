// Package tabletest has consumers of a table, one for each way to own its rows. Tests of
// the runtime read the table through what leasegen has generated for them.
package tabletest

import (
	"context"
	"embed"
	"io/fs"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/internal/tabletest/leasedb"
	"github.com/leasegen/leasegen/runtime/lease"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Schema returns the migrations that make the table app.outbox, in order.
func Schema() ([]string, error) {
	names, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		return nil, err
	}
	var out []string
	for _, n := range names {
		sql, err := migrations.ReadFile(n)
		if err != nil {
			return nil, err
		}
		out = append(out, string(sql))
	}
	return out, nil
}

// Message is a row as a message.
type Message = lease.Message[leasedb.OutboxRow]

// Log is what handlers were given.
type Log struct {
	// Fail, when set, decides on the error of each handler call.
	Fail func(Message) error

	mu   sync.Mutex
	rows []Message
}

func (l *Log) add(m Message) error {
	if l.Fail != nil {
		if err := l.Fail(m); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rows = append(l.rows, m)
	return nil
}

// Rows returns the messages handled so far.
func (l *Log) Rows() []Message {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Message(nil), l.rows...)
}

// ByGroup has one owner for the table, and writes an effect for each row.
//
//leasegen:consumer per=group
//leasegen:table name=app.outbox topic=channel key=customer_id kind=event_type schema=internal/tabletest/migrations
//leasegen:retry max=3 min=1ms cap=10ms
type ByGroup struct{ Log }

// Handle notes the row in the table effect.
func (h *ByGroup) Handle(ctx context.Context, tx pgx.Tx, m Message) error {
	if err := h.add(m); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, "INSERT INTO effect (n) VALUES ($1)", m.Payload.N)
	return err
}

// ByTopic has one owner for each channel.
//
//leasegen:consumer per=topic
//leasegen:table name=app.outbox topic=channel key=customer_id kind=event_type schema=internal/tabletest/migrations
type ByTopic struct{ Log }

// Handle notes the row.
func (h *ByTopic) Handle(_ context.Context, m Message) error { return h.add(m) }

// ByKey has one owner for each of 16 slots of the key.
//
//leasegen:consumer per=partition
//leasegen:table name=app.outbox key=customer_id slots=16 schema=internal/tabletest/migrations
type ByKey struct{ Log }

// Handle notes the rows.
func (h *ByKey) Handle(_ context.Context, ms []Message) error {
	for _, m := range ms {
		if err := h.add(m); err != nil {
			return err
		}
	}
	return nil
}

// Ready passes over rows that are not ready.
//
//leasegen:consumer per=group from=now
//leasegen:table name=app.outbox key=customer_id "where=status = 'ready' AND n > 0" schema=internal/tabletest/migrations
type Ready struct{ Log }

// Handle notes the row.
func (h *Ready) Handle(_ context.Context, m Message) error { return h.add(m) }

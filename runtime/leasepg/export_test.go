package leasepg

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasepg/pgtable"
)

// PublishBy publishes in tx by COPY, or by statements that take arrays, whatever is faster
// for as many events.
func PublishBy(ctx context.Context, b *Backend, tx pgx.Tx, copies bool, events []backend.Event) error {
	var err error
	if copies {
		_, err = b.copyIn(ctx, tx, &b.joined, events)
	} else {
		_, err = b.insert(ctx, tx, &b.joined, events, false)
	}
	return err
}

// ReleaseDelayed does once what feeds do when delayed events are due.
func ReleaseDelayed(ctx context.Context, b *Backend) error {
	conn, err := b.connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	return b.releaseDelayed(ctx, conn)
}

// Sent is what is sent to the server for a statement as it was compiled.
func Sent(sql string) string { return newSchema(defaultSchema).statement(sql) }

// TellHeldBackAfter sets how old a transaction is before it is reported.
func TellHeldBackAfter(b *Backend, d time.Duration) { b.heldBackAfter = d }

// RowsOf is what reads rows of an application's table.
func RowsOf(db pgtable.Querier, query func(pgtable.Querier) ([]pgtable.Row, error)) ([]pgtable.Row, error) {
	return rowsOf(db, query)
}

// Ended reports whether a session of this process has ended, or is about to.
func Ended(b *Backend, id string) bool {
	s := b.session(id)
	return s == nil || s.ended.Load()
}

// Abandon has a session of this process lose its connections for good, as when the process died.
func Abandon(b *Backend, id string) { b.session(id).abandon() }

// OnSession runs f on the connection of a session.
func OnSession(ctx context.Context, b *Backend, id string, f func(context.Context, *pgx.Conn) error) error {
	return b.session(id).use(ctx, f)
}

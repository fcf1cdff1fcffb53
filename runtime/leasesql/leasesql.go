// Package leasesql publishes in transactions of database/sql, and so of GORM, ent, sqlx and others that are built on it:
// events are there when the transaction commits, together with everything else in it, and never were there when it rolls
// back.
//
//	tx, err := db.BeginTx(ctx, nil)
//	…
//	err = PublishOrderPlaced(ctx, leasesql.In(be, tx), "orders.eu", order)
//	…
//	return tx.Commit()
//
// The driver is pgx's (package stdlib, in any of its query modes) or lib/pq. The database is that of the backend's pool.
// That pool is asked for no connection to publish; one of its own is opened, rarely, when the log needs more partitions.
package leasesql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

// Tx is a transaction: a *sql.Tx, what embeds one, such as a *sqlx.Tx, an ent Tx with the feature sql/execquery, or, within
// GORM's Transaction, what db.Statement.ConnPool holds:
//
//	err := db.Transaction(func(g *gorm.DB) error {
//		…
//		return PublishOrderPlaced(ctx, leasesql.In(be, g.Statement.ConnPool.(leasesql.Tx)), "orders.eu", order)
//	})
//
// Package leasesql calls neither Commit nor Rollback. They are what a *sql.DB lacks, in which each statement would commit by itself.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	Commit() error
	Rollback() error
}

// In returns a publisher that appends events in the caller's transaction, as be.In does for one of pgx: with ids, delays,
// headers and be's publish middleware, in the order given. Like tx it is for one goroutine at a time.
//
// A call is one statement for up to 5,000 events and 16 MB, and a second one at most every 10 ms, which wakes consumers at
// the commit. Payloads are sent as hexadecimal text, which both drivers understand: twice their size. After an error the
// transaction can only be rolled back.
func In(be *leasepg.Backend, tx Tx) backend.Publisher { return be.InOther(statements{tx}) }

// statements runs leasepg's statements through database/sql.
type statements struct{ tx Tx }

// arguments are those of a statement, if there is a transaction to send it in.
func (s statements) arguments(args []any) ([]any, error) {
	if v := reflect.ValueOf(s.tx); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, errors.New("there is no transaction; begin one first")
	}
	return texts(args)
}

func (s statements) Exec(ctx context.Context, query string, args ...any) error {
	args, err := s.arguments(args)
	if err == nil {
		_, err = s.tx.ExecContext(ctx, query, args...)
	}
	return err
}

func (s statements) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	args, err := s.arguments(args)
	if err != nil {
		return row{nil, err}
	}
	rows, err := s.tx.QueryContext(ctx, query, args...)
	return row{rows, err}
}

// row is the only row of an answer.
type row struct {
	rows *sql.Rows
	err  error
}

func (r row) Scan(into ...any) error {
	if r.err != nil {
		return r.err
	}
	defer r.rows.Close()
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return fmt.Errorf("the server has answered without a row: %w", sql.ErrNoRows)
	}
	if err := r.rows.Scan(into...); err != nil {
		return err
	}
	for r.rows.Next() { // to the end, where an error of the statement may be
	}
	return r.rows.Err()
}

package leasepg

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/leasegen/leasegen/runtime/leasepg/pgtable"
)

// A table belongs to the application: it may be locked for as long as a migration takes, renamed
// or dropped. That stops the consumer of the table until it is fixed, and no other: no read
// of a table keeps a connection of the pool for longer than this while it waits for a lock.
const (
	boundedLocks = "SET LOCAL lock_timeout = '1s'"
	steadyReads  = "SET LOCAL jit = off; SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off; SET LOCAL enable_incremental_sort = off; " +
		"SET LOCAL max_parallel_workers_per_gather = 0; SET LOCAL plan_cache_mode = force_generic_plan" // see Steady
	tableTimeout = 25 * time.Second // one read of a table; less than the runtime waits for a call
)

// readTable runs queries on a table in one snapshot.
func (ts *tables) readTable(ctx context.Context, t *tableSource, queries ...func(pgtable.Querier) error) error {
	ctx, cancel := context.WithTimeout(ctx, tableTimeout)
	defer cancel()
	conn, err := ts.pool.Acquire(ctx)
	if err != nil {
		return err // the table is not to blame
	}
	defer conn.Release()
	for i, q := range queries {
		queries[i] = func(db pgtable.Querier) error { return q(ts.catalogued(db)) }
	}
	return ts.blameTable(t, inSnapshot(ctx, conn.Conn(), queries...))
}

// readTableIn runs a query on a table in a transaction of a handler, which keeps its own
// lock_timeout for what comes after.
func (ts *tables) readTableIn(ctx context.Context, t *tableSource, tx pgx.Tx, query func(pgtable.Querier) error) error {
	var before string
	if err := tx.QueryRow(ctx, "SHOW lock_timeout").Scan(&before); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, boundedLocks); err != nil {
		return err
	}
	if err := query(ts.catalogued(tx)); err != nil {
		return ts.blameTable(t, err)
	}
	_, err := tx.Exec(ctx, "SELECT pg_catalog.set_config('lock_timeout', $1, true)", before)
	return err
}

// inSnapshot runs queries in one snapshot. The first round trip bounds what the others wait for
// locks: they are taken while a statement is prepared, too.
func inSnapshot(ctx context.Context, c *pgx.Conn, queries ...func(pgtable.Querier) error) (err error) {
	if _, err := c.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ; "+boundedLocks+"; "+steadyReads); err != nil {
		return err
	}
	defer func() {
		if err != nil && !c.IsClosed() {
			ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			_, _ = c.Exec(ending, "ROLLBACK") // else the connection is given up
		}
	}()
	var batch pgx.Batch
	for _, q := range queries {
		if err := q(collector{&batch}); err != nil && !errors.Is(err, errCollected) {
			return err
		}
	}
	batch.Queue("COMMIT")
	results := c.SendBatch(ctx, &batch)
	defer func() {
		if e := results.Close(); err == nil {
			err = e
		}
	}()
	for _, q := range queries {
		if err := q(answers{results}); err != nil {
			return err
		}
	}
	_, err = results.Exec()
	return err
}

// catalogued runs queries that were generated for a table. Their functions are those of pg_catalog, whatever
// search_path says; their operators are written so that they fit.
type catalogued struct {
	pgtable.Querier
	names schema
}

func (ts *tables) catalogued(db pgtable.Querier) pgtable.Querier {
	return catalogued{db, ts.names}
}

func (c catalogued) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return c.Querier.Exec(ctx, c.names.statement(sql), args...)
}

func (c catalogued) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return c.Querier.Query(ctx, c.names.statement(sql), args...)
}

func (c catalogued) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return c.Querier.QueryRow(ctx, c.names.statement(sql), args...)
}

// tableError is what went wrong with a table of the application. leasegen's schema is not to blame.
type tableError struct {
	table, fix string
	err        error
}

func (e *tableError) Error() string {
	if e.fix == "" {
		return fmt.Sprintf("table %s: %v", e.table, e.err)
	}
	return fmt.Sprintf("table %s: %v; %s", e.table, e.err, e.fix)
}

func (e *tableError) Unwrap() error { return e.err }

// blameTable names the table, and the fix, in errors of the server that are about it.
func (ts *tables) blameTable(t *tableSource, err error) error {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || strings.Contains(pg.Message, `"`+ts.schema.name+`.`) || strings.Contains(pg.Message, " "+ts.schema.name+".") {
		return err
	}
	fix := ""
	switch pg.Code {
	case "42P01", "3F000": // undefined_table, invalid_schema_name
		fix = "it is missing or was renamed: bring it back, or change //leasegen:table and generate again"
		ts.checked.Delete(t) // what comes back under its name is looked at anew
	case "42703": // undefined_column
		fix = "run the application's migrations, or generate again"
		ts.checked.Delete(t)
	case lockNotAvailable:
		fix = "another transaction has locked it, see pg_locks; it is read again when that has ended"
	case "57014": // query_canceled
		fix = "it did not answer in time: it may lack an index, or be locked"
	case "42501": // insufficient_privilege
		fix = "GRANT SELECT ON " + t.printed() + " TO the role, and USAGE ON its schema"
	}
	return &tableError{t.Table, fix, err}
}

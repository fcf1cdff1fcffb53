package leasepg_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/leasetest"
)

// Only tests that wait for long are parallel. Others, such as those of the order of transactions, have the server to themselves.
func TestMain(m *testing.M) {
	pace.Parallel(8)
	pgtest.Main(m)
}

// open returns a pool on dsn that is closed with the test.
func open(t testing.TB, dsn string) *pgxpool.Pool {
	t.Helper()
	return openMax(t, dsn, 8)
}

// openMax is open for a pool of so many connections.
func openMax(t testing.TB, dsn string, conns int32) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = conns
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// migrated returns a backend on a fresh, migrated database.
func migrated(t testing.TB, opts ...leasepg.Option) (*leasepg.Backend, *pgxpool.Pool) {
	t.Helper()
	if len(opts) > 0 {
		return migratedAt(t, pgtest.DB(t), opts...)
	}
	return checked(t, open(t, pgtest.Shared(t).DBLike(t, "migrated", func(dsn string) error { return fill(dsn, "") })))
}

// fill brings the schema into a database and runs one statement more. It leaves no connection.
func fill(dsn, statement string, opts ...leasepg.Option) error {
	pool, err := pgxpool.New(context.Background(), dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err = leasepg.Migrate(context.Background(), pool, opts...); err == nil {
		_, err = pool.Exec(context.Background(), statement)
	}
	return err
}

// forSuite is a database with the schema of the suite, of another name, so that no query can do without the rewriting, and with
// a table for the effects of handlers.
func forSuite(t testing.TB) (dsn string) { t.Helper(); return forSuiteOn(t, pgtest.Shared(t)) }

func forSuiteOn(t testing.TB, s *pgtest.Server) (dsn string) {
	t.Helper()
	return s.DBLike(t, "for_suite", func(dsn string) error {
		return fill(dsn, "CREATE TABLE effect (seq bigint GENERATED ALWAYS AS IDENTITY, value text NOT NULL)", leasepg.WithSchema("own_name"))
	})
}

func migratedAt(t testing.TB, dsn string, opts ...leasepg.Option) (*leasepg.Backend, *pgxpool.Pool) {
	t.Helper()
	pool := open(t, dsn)
	if _, err := leasepg.Migrate(t.Context(), pool, opts...); err != nil {
		t.Fatal(err)
	}
	return checked(t, pool, opts...)
}

func checked(t testing.TB, pool *pgxpool.Pool, opts ...leasepg.Option) (*leasepg.Backend, *pgxpool.Pool) {
	t.Helper()
	be := leasepg.New(pool, opts...)
	if err := be.Check(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	return be, pool
}

func exec(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	for {
		_, err := pool.Exec(context.Background(), sql, args...)
		var refused *pgconn.PgError
		if errors.As(err, &refused) && refused.Code == "40P01" {
			continue // DDL met a reader that took its locks in another order; no part of it was done
		}
		if err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		return
	}
}

func query[T any](t testing.TB, pool *pgxpool.Pool, sql string, args ...any) T {
	t.Helper()
	rows, err := pool.Query(context.Background(), sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func TestConformance(t *testing.T) { leasetest.Run(t, factory(reused(t, forSuite, 8))) }

// factory makes backends on the stores that next returns.
func factory(next func(testing.TB) *store) leasetest.Factory {
	var known stores
	connect := func(t testing.TB, s *store) backend.Backend {
		be := leasepg.New(s.handle(t), leasepg.WithSchema("own_name"), leasepg.WithLogger(slog.New(slog.DiscardHandler)))
		known.m.Store(backend.Backend(be), s)
		return be
	}
	return leasetest.Factory{
		New: func(t testing.TB) backend.Backend {
			be := connect(t, next(t))
			kit.OK(t, be.Check(t.Context(), nil))
			return be
		},
		Again: func(t testing.TB, be backend.Backend) backend.Backend {
			return connect(t, known.of(be))
		},
		Effect: func(ctx context.Context, _ backend.Backend, tx any, value string) error {
			_, err := tx.(pgx.Tx).Exec(ctx, "INSERT INTO effect (value) VALUES ($1)", value)
			return err
		},
		Effects: func(t testing.TB, be backend.Backend) []string {
			rows, err := known.of(be).app.Query(t.Context(), "SELECT value FROM effect ORDER BY seq")
			if err != nil {
				t.Fatal(err)
			}
			values, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				t.Fatal(err)
			}
			return values
		},
		PublishLate: func(t testing.TB, be backend.Backend, events ...backend.Event) (commit, rollback func()) {
			tx, err := known.of(be).app.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := be.(*leasepg.Backend).In(tx).Publish(t.Context(), events); err != nil {
				t.Fatal(err)
			}
			end := func(f func(context.Context) error) func() {
				return func() {
					if err := f(t.Context()); err != nil {
						t.Error(err)
					}
				}
			}
			return end(tx.Commit), end(tx.Rollback)
		},
	}
}

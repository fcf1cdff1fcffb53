package leasepg_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/leasetest"
)

func TestMain(m *testing.M) {
	pace.Parallel(6)
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
	return migratedAt(t, copied(t, "leasegen"))
}

// copied is a database with the schema of that name.
func copied(t testing.TB, schema string) (dsn string) {
	t.Helper()
	return pgtest.DBLike(t, "with_"+schema, func(dsn string) error {
		pool, err := pgxpool.New(context.Background(), dsn)
		if err != nil {
			return err
		}
		defer pool.Close()
		_, err = leasepg.Migrate(context.Background(), pool, leasepg.WithSchema(schema))
		return err
	})
}

// ownName is a database with the schema of the suite: of another name, so that no query can do
// without the rewriting.
func ownName(t testing.TB) (dsn string) { t.Helper(); return copied(t, "own_name") }

func migratedAt(t testing.TB, dsn string, opts ...leasepg.Option) (*leasepg.Backend, *pgxpool.Pool) {
	t.Helper()
	pool := open(t, dsn)
	if _, err := leasepg.Migrate(t.Context(), pool, opts...); err != nil {
		t.Fatal(err)
	}
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
			continue // DDL met a reader that took its locks in another order; nothing of it was done
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

// pools remembers which database a backend of the suite was made on, by a pool for what the
// application does there itself.
type pools struct{ m sync.Map }

func (p *pools) of(be backend.Backend) *pgxpool.Pool {
	v, _ := p.m.Load(be)
	return v.(*pgxpool.Pool)
}

func TestConformance(t *testing.T) { leasetest.Run(t, factory(ownName)) }

// factory makes backends on databases that db makes.
func factory(db func(testing.TB) (dsn string)) leasetest.Factory { return factoryMax(db, 8) }

// factoryMax is factory for backends whose pools have so many connections.
func factoryMax(db func(testing.TB) (dsn string), conns int32) leasetest.Factory {
	var known pools
	connect := func(t testing.TB, app *pgxpool.Pool) backend.Backend {
		be := leasepg.New(openMax(t, app.Config().ConnString(), conns), leasepg.WithSchema("own_name"),
			leasepg.WithLogger(slog.New(slog.DiscardHandler)))
		known.m.Store(backend.Backend(be), app)
		return be
	}
	return leasetest.Factory{
		New: func(t testing.TB) backend.Backend {
			_, app := migratedAt(t, db(t), leasepg.WithSchema("own_name"))
			exec(t, app, "CREATE TABLE effect (seq bigint GENERATED ALWAYS AS IDENTITY, value text NOT NULL)")
			be := connect(t, app)
			ok(t, be.Check(t.Context(), nil))
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
			rows, err := known.of(be).Query(t.Context(), "SELECT value FROM effect ORDER BY seq")
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
			tx, err := known.of(be).Begin(t.Context())
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

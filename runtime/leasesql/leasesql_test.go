package leasesql_test

import (
	"context"
	"database/sql"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/leasesql"
	"github.com/leasegen/leasegen/runtime/leasesql/internal/sqlsuite"
)

func TestMain(m *testing.M) {
	pace.Parallel(8)
	pgtest.Main(m)
}

// driver is pgx's, with an address of the database that a test may change.
func driver(change func(*pgx.ConnConfig)) sqlsuite.Open {
	return func(t testing.TB, dsn string) sqlsuite.Begin {
		cfg := kit.Must[*pgx.ConnConfig](t)(pgx.ParseConfig(dsn))
		change(cfg)
		db := stdlib.OpenDB(*cfg)
		t.Cleanup(func() { kit.OK(t, db.Close()) })
		return func(ctx context.Context) (leasesql.Tx, error) { return db.BeginTx(ctx, nil) }
	}
}

func TestConformance(t *testing.T) {
	sqlsuite.Conformance(t, pgtest.DBLike, driver(func(*pgx.ConnConfig) {}))
}

func TestQueryModes(t *testing.T) {
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			sqlsuite.Run(t, pgtest.DBLike, driver(func(cfg *pgx.ConnConfig) { cfg.DefaultQueryExecMode = mode }))
		})
	}
}

// A PgBouncer gives each transaction another connection.
func TestThroughPgBouncer(t *testing.T) {
	pooler := pgtest.StartPooler(t, pgtest.Shared(t), "default_pool_size = 2")
	sqlsuite.Run(t, pgtest.DBLike, func(t testing.TB, dsn string) sqlsuite.Begin {
		return driver(func(cfg *pgx.ConnConfig) { cfg.DefaultQueryExecMode = pgx.QueryExecModeExec })(t, pooler.Through(pgtest.Shared(t), dsn))
	})
}

// One pool can serve both the application's database/sql and the backend.
func TestOnePoolForBoth(t *testing.T) {
	cfg := kit.Must[*pgxpool.Config](t)(pgxpool.ParseConfig(pgtest.DB(t)))
	cfg.MaxConns = 1 // publishing asks for no other connection than the transaction's
	pool := kit.Must[*pgxpool.Pool](t)(pgxpool.NewWithConfig(t.Context(), cfg))
	t.Cleanup(pool.Close)
	_, err := leasepg.Migrate(t.Context(), pool)
	kit.OK(t, err)
	be, db := leasepg.New(pool), stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { kit.OK(t, db.Close()) })
	begin := func(ctx context.Context) (leasesql.Tx, error) {
		return db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelSerializable})
	}
	kit.OK(t, sqlsuite.InTx(t.Context(), begin, func(tx leasesql.Tx) error {
		return leasesql.In(be, tx).Publish(t.Context(), kit.Events("x", 120_000))
	}))
	var n int
	kit.OK(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM leasegen.message").Scan(&n))
	kit.Equal(t, "published", n, 120_000)
}

func TestPublishMiddleware(t *testing.T) {
	var begin sqlsuite.Begin
	kit.PublishMiddleware(t, func(m ...backend.PublishMiddleware) (be backend.Backend) {
		be, begin, _ = sqlsuite.Migrated(t, pgtest.DB(t), driver(func(*pgx.ConnConfig) {}), leasepg.WithPublishMiddleware(m...))
		return be
	}, func(be backend.Backend, f func(backend.Publisher) error) error {
		return sqlsuite.InTx(t.Context(), begin, func(tx leasesql.Tx) error { return f(leasesql.In(be.(*leasepg.Backend), tx)) })
	})
}

// A database or a connection commits each statement by itself: it is no transaction, and the compiler says so.
func TestOnlyTransactions(t *testing.T) {
	for _, no := range []any{&sql.DB{}, &sql.Conn{}} {
		if _, ok := no.(leasesql.Tx); ok {
			t.Errorf("%T is taken for a transaction", no)
		}
	}
	var _ leasesql.Tx = &sql.Tx{}
}

// BenchmarkPublish compares publishing through database/sql with publishing through pgx.
func BenchmarkPublish(b *testing.B) {
	for _, n := range []int{1, 10, 100, 900} {
		events := kit.Events("x", n)
		for i := range events {
			events[i].Payload = make([]byte, 200)
		}
		be, begin, pool := sqlsuite.Migrated(b, pgtest.DB(b), driver(func(*pgx.ConnConfig) {}))
		b.Run("pgx/"+strconv.Itoa(n), func(b *testing.B) {
			for b.Loop() {
				kit.OK(b, pgx.BeginFunc(b.Context(), pool, func(tx pgx.Tx) error { return be.In(tx).Publish(b.Context(), events) }))
			}
		})
		b.Run("sql/"+strconv.Itoa(n), func(b *testing.B) {
			for b.Loop() {
				kit.OK(b, sqlsuite.InTx(b.Context(), begin, func(tx leasesql.Tx) error { return leasesql.In(be, tx).Publish(b.Context(), events) }))
			}
		})
	}
}

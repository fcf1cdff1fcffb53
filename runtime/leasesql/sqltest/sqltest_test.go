// Package sqltest holds publishing in transactions of lib/pq, GORM, ent and sqlx to what publishing through pgx does. It is a
// module of its own, so that users of leasesql need none of these.
package sqltest

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"github.com/jmoiron/sqlx"
	_ "github.com/lib/pq"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leasesql"
	"github.com/leasegen/leasegen/runtime/leasesql/internal/sqlsuite"
)

func TestMain(m *testing.M) {
	pace.Parallel(8)
	pgtest.Main(m)
}

// openPQ is a database through lib/pq.
func openPQ(t testing.TB, dsn string) *sql.DB {
	db := kit.Must[*sql.DB](t)(sql.Open("postgres", dsn))
	t.Cleanup(func() { kit.OK(t, db.Close()) })
	return db
}

func pq(t testing.TB, dsn string) sqlsuite.Begin {
	db := openPQ(t, dsn)
	return func(ctx context.Context) (leasesql.Tx, error) { return db.BeginTx(ctx, nil) }
}

func TestConformance(t *testing.T) { sqlsuite.Conformance(t, pgtest.DBLike, pq) }

func TestPQ(t *testing.T) { sqlsuite.Run(t, pgtest.DBLike, pq) }

func TestPQWithBinaryParameters(t *testing.T) {
	sqlsuite.Run(t, pgtest.DBLike, func(t testing.TB, dsn string) sqlsuite.Begin { return pq(t, dsn+"&binary_parameters=yes") })
}

func TestPQThroughPgBouncer(t *testing.T) {
	pooler := pgtest.StartPooler(t, pgtest.Shared(t), "default_pool_size = 2")
	sqlsuite.Run(t, pgtest.DBLike, func(t testing.TB, dsn string) sqlsuite.Begin { return pq(t, pooler.Through(pgtest.Shared(t), dsn)) })
}

func TestSQLX(t *testing.T) {
	sqlsuite.Run(t, pgtest.DBLike, func(t testing.TB, dsn string) sqlsuite.Begin {
		db := sqlx.NewDb(openPQ(t, dsn), "postgres")
		return func(ctx context.Context) (leasesql.Tx, error) { return db.BeginTxx(ctx, nil) }
	})
}

func TestEnt(t *testing.T) {
	sqlsuite.Run(t, pgtest.DBLike, func(t testing.TB, dsn string) sqlsuite.Begin {
		driver := entsql.OpenDB(dialect.Postgres, openPQ(t, dsn))
		return func(ctx context.Context) (leasesql.Tx, error) {
			tx, err := driver.BeginTx(ctx, nil)
			if err != nil {
				return nil, err
			}
			return tx.(*entsql.Tx), nil
		}
	})
}

func openGORM(t testing.TB, dsn string, prepare bool) *gorm.DB {
	db := kit.Must[*gorm.DB](t)(gorm.Open(postgres.Open(dsn), &gorm.Config{PrepareStmt: prepare, Logger: logger.Discard}))
	pool := kit.Must[*sql.DB](t)(db.DB())
	t.Cleanup(func() { kit.OK(t, pool.Close()) })
	return db
}

func TestGORM(t *testing.T) {
	for name, prepare := range map[string]bool{"plain": false, "PrepareStmt": true} {
		t.Run(name, func(t *testing.T) {
			sqlsuite.Run(t, pgtest.DBLike, func(t testing.TB, dsn string) sqlsuite.Begin {
				db := openGORM(t, dsn, prepare)
				return func(ctx context.Context) (leasesql.Tx, error) {
					tx := db.WithContext(ctx).Begin()
					if tx.Error != nil {
						return nil, tx.Error
					}
					return tx.Statement.ConnPool.(leasesql.Tx), nil
				}
			})
		})
	}
}

// An application's own code: a row and its event in one of GORM's transactions, a part of which is undone.
func TestGORMTransaction(t *testing.T) {
	for name, prepare := range map[string]bool{"plain": false, "PrepareStmt": true} {
		t.Run(name, func(t *testing.T) {
			type Order struct{ Customer string }
			var db *gorm.DB
			be, _, pool := sqlsuite.Migrated(t, pgtest.DB(t), func(t testing.TB, dsn string) sqlsuite.Begin {
				db = openGORM(t, dsn, prepare)
				return nil
			})
			kit.OK(t, db.AutoMigrate(&Order{}))
			place := func(g *gorm.DB, customer string) error {
				if err := g.Create(&Order{customer}).Error; err != nil {
					return err
				}
				return leasesql.In(be, g.Statement.ConnPool.(leasesql.Tx)).Publish(t.Context(), []backend.Event{{Topic: "orders", Key: customer}})
			}
			errUndo := errors.New("undo")
			kit.OK(t, db.Transaction(func(g *gorm.DB) error {
				if err := place(g, "stays"); err != nil {
					return err
				}
				if err := g.Transaction(func(g *gorm.DB) error { return errors.Join(place(g, "undone"), errUndo) }); !errors.Is(err, errUndo) {
					t.Errorf("a savepoint: %v", err)
				}
				return place(g, "stays, too")
			}))
			if err := db.Transaction(func(g *gorm.DB) error { return errors.Join(place(g, "undone"), errUndo) }); !errors.Is(err, errUndo) {
				t.Error(err)
			}
			var orders, events string
			kit.OK(t, pool.QueryRow(t.Context(), "SELECT string_agg(customer, '; ' ORDER BY customer) FROM orders").Scan(&orders))
			kit.OK(t, pool.QueryRow(t.Context(), "SELECT string_agg(key, '; ' ORDER BY id) FROM own_name.message").Scan(&events))
			kit.Equal(t, "orders", orders, "stays; stays, too")
			kit.Equal(t, "events", events, orders)
			if _, is := db.Statement.ConnPool.(leasesql.Tx); is {
				t.Error("GORM's pool is taken for a transaction")
			}
		})
	}
}

// A pool commits each statement by itself: it is no transaction.
func TestOnlyTransactions(t *testing.T) {
	for _, no := range []any{&sqlx.DB{}, &entsql.Driver{}, &gorm.PreparedStmtDB{}} {
		if _, ok := no.(leasesql.Tx); ok {
			t.Errorf("%T is taken for a transaction", no)
		}
	}
}

package leasepgtest_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/leasepgtest"
	"github.com/leasegen/leasegen/runtime/leasetest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// schemas is how many schemas of tests a database has.
func schemas(t testing.TB, dsn string) (n int) {
	t.Helper()
	c := kit.Must[*pgx.Conn](t)(pgx.Connect(context.Background(), dsn))
	defer c.Close(context.Background())
	kit.OK(t, c.QueryRow(context.Background(), "SELECT count(*) FROM pg_namespace WHERE nspname ~ '^leasetest_'").Scan(&n))
	return n
}

// Tests at once on one database, each with a consumer of the same name, get what they published and no other test does.
func TestEachTestHasItsOwn(t *testing.T) {
	dsn := pgtest.DB(t)
	var mu sync.Mutex
	used := map[string]bool{}
	t.Run("all", func(t *testing.T) {
		for i := range 8 {
			t.Run(fmt.Sprint("With / awkward \"Names' ", i, " and much more of them than a schema's name has room for"), func(t *testing.T) {
				t.Parallel()
				be, pool := leasepgtest.New(t, dsn+"&pool_max_conns=4")
				_, err := pool.Exec(t.Context(), "CREATE TABLE effect (n int)")
				kit.OK(t, err)
				c := kit.Must[*lease.Consumer](t)(lease.NewConsumer(be, lease.Spec{Name: "same", Per: lease.PerTopic, Topics: []string{"*"},
					Handlers: []lease.Handler{lease.OneTx("kind", func(ctx context.Context, tx pgx.Tx, m lease.Message[struct{}]) error {
						_, err := tx.Exec(ctx, "INSERT INTO effect VALUES ($1)", i)
						return err
					})}}))
				kit.OK(t, be.Publish(t.Context(), kit.Events("x", 5+i)))
				leasetest.Drain(t, be, c)
				var n, schemas string
				kit.OK(t, pool.QueryRow(t.Context(), "SELECT count(*) || ' of ' || min(n) || ' to ' || max(n), current_schemas(false)::text FROM effect").Scan(&n, &schemas))
				kit.Equal(t, "effects", n, fmt.Sprintf("%d of %d to %[2]d", 5+i, i))
				mu.Lock()
				defer mu.Unlock()
				if used[schemas] || schemas == "{}" {
					t.Errorf("schemas %s are used twice", schemas)
				}
				used[schemas] = true
			})
		}
	})
	kit.Equal(t, "tests", len(used), 8)
	kit.Equal(t, "schemas left", schemas(t, dsn), 0)
}

// told is a test that remembers its errors and runs its cleanups when it is asked to.
type told struct {
	testing.TB
	errors   []string
	cleanups []func()
}

func (t *told) Cleanup(f func())              { t.cleanups = append(t.cleanups, f) }
func (t *told) Errorf(text string, of ...any) { t.errors = append(t.errors, fmt.Sprintf(text, of...)) }
func (t *told) end() {
	for _, f := range t.cleanups {
		f()
	}
}

// A connection that a test leaves open fails the test, and holds up the end of the tests for no longer than the helper's patience.
func TestAForgottenConnection(t *testing.T) {
	dsn := pgtest.DB(t)
	inner := &told{TB: t}
	_, pool := leasepgtest.New(inner, dsn)
	tx := kit.Must[pgx.Tx](t)(pool.Begin(t.Context()))
	kit.Equal(t, "schemas", schemas(t, dsn), 2)
	inner.end()
	if len(inner.errors) != 1 {
		t.Errorf("the test fails with %q, want one error, that a connection is in use", inner.errors)
	}
	kit.Equal(t, "schemas left", schemas(t, dsn), 0)
	kit.OK(t, tx.Rollback(t.Context()))
}

// BenchmarkNew is what a test pays before and after its own work.
func BenchmarkNew(b *testing.B) {
	dsn := pgtest.DB(b)
	for b.Loop() {
		inner := &told{TB: b}
		leasepgtest.New(inner, dsn)
		inner.end()
	}
}

// The schema is set last, whatever else a test asks for.
func TestOptions(t *testing.T) {
	be, pool := leasepgtest.New(t, pgtest.DB(t), leasepg.WithSlots(64), leasepg.WithSchema("leasegen"))
	kit.OK(t, be.Check(t.Context(), nil))
	var all string
	kit.OK(t, pool.QueryRow(t.Context(), "SELECT coalesce(to_regnamespace('leasegen')::text, 'none')").Scan(&all))
	kit.Equal(t, "schema leasegen", all, "none")
}

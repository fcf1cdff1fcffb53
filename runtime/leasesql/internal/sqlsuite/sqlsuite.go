// Package sqlsuite holds publishing through database/sql to what publishing through pgx does, for any driver and for libraries
// on top of one.
package sqlsuite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/leasesql"
	"github.com/leasegen/leasegen/runtime/leasetest"
)

const schema = "own_name" // so that no statement can do without the rewriting

// Begin begins a transaction as an application does.
type Begin func(ctx context.Context) (leasesql.Tx, error)

// Open connects to a database, until the test ends.
type Open func(t testing.TB, dsn string) Begin

// Run checks all that depends on the driver.
func Run(t *testing.T, db Copy, open Open) {
	t.Run("As_pgx_does", func(t *testing.T) { same(t, suited(t, db, open)) })
	t.Run("Rollback", func(t *testing.T) { rollback(t, suited(t, db, open)) })
	t.Run("Refusals", func(t *testing.T) { refusals(t, suited(t, db, open)) })
	t.Run("Undone", func(t *testing.T) { undone(t, suited(t, db, open)) })
	t.Run("Outrun", func(t *testing.T) { outrun(t, suited(t, db, open)) })
}

// Copy makes a copy of the database of a name, which prepare fills for the first who asks.
type Copy func(t testing.TB, name string, prepare func(dsn string) error) (dsn string)

// Conformance runs the suite's rules of publishing and reading.
func Conformance(t *testing.T, db Copy, open Open) {
	leasetest.RunSome(t, factory(db, open), "Publish/", "Fetch/", "Concurrent_publishers")
}

// through publishes in transactions of database/sql.
type through struct {
	*leasepg.Backend
	pool  *pgxpool.Pool
	begin Begin
}

func (b *through) Publish(ctx context.Context, events []backend.Event) error {
	return InTx(ctx, b.begin, func(tx leasesql.Tx) error { return leasesql.In(b.Backend, tx).Publish(ctx, events) })
}

// InTx commits what f does, or rolls it back.
func InTx(ctx context.Context, begin Begin, f func(leasesql.Tx) error) error {
	tx, err := begin(ctx)
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// suited is a backend on a database of its own that has leasegen's schema.
func suited(t testing.TB, db Copy, open Open) *through {
	t.Helper()
	return connect(t, db(t, "for_suite", func(dsn string) error {
		pool, err := pgxpool.New(context.Background(), dsn)
		if err != nil {
			return err
		}
		defer pool.Close()
		_, err = leasepg.Migrate(context.Background(), pool, leasepg.WithSchema(schema))
		return err
	}), open)
}

func connect(t testing.TB, dsn string, open Open, opts ...leasepg.Option) *through {
	t.Helper()
	pool := kit.Must[*pgxpool.Pool](t)(pgxpool.New(context.Background(), dsn))
	t.Cleanup(pool.Close)
	opts = append(opts, leasepg.WithSchema(schema), leasepg.WithLogger(slog.New(slog.DiscardHandler)))
	return &through{leasepg.New(pool, opts...), pool, open(t, dsn)}
}

// Migrated is a backend on a database that gets leasegen's schema, and what begins transactions there.
func Migrated(t testing.TB, dsn string, open Open, opts ...leasepg.Option) (*leasepg.Backend, Begin, *pgxpool.Pool) {
	t.Helper()
	b := connect(t, dsn, open, opts...)
	_, err := leasepg.Migrate(t.Context(), b.pool, leasepg.WithSchema(schema))
	kit.OK(t, err)
	return b.Backend, b.begin, b.pool
}

func factory(db Copy, open Open) leasetest.Factory {
	return leasetest.Factory{
		New: func(t testing.TB) backend.Backend { return suited(t, db, open) },
		Again: func(t testing.TB, be backend.Backend) backend.Backend {
			return connect(t, be.(*through).pool.Config().ConnString(), open)
		},
		PublishLate: func(t testing.TB, be backend.Backend, events ...backend.Event) (commit, rollback func()) {
			b := be.(*through)
			tx := kit.Must[leasesql.Tx](t)(b.begin(context.WithoutCancel(t.Context())))
			kit.OK(t, leasesql.In(b.Backend, tx).Publish(t.Context(), events))
			var once sync.Once
			t.Cleanup(func() { once.Do(func() { _ = tx.Rollback() }) })
			end := func(f func() error) func() {
				return func() {
					once.Do(func() {
						if err := f(); err != nil {
							t.Error(err)
						}
					})
				}
			}
			return end(tx.Commit), end(tx.Rollback)
		},
	}
}

// same compares what is stored of events with what pgx stores of them.
func same(t *testing.T, x *through) {
	be, begin, pool := x.Backend, x.begin, x.pool
	var every strings.Builder // character of the first plane, and some of others
	for r := rune(1); r < 0x3000; r++ {
		every.WriteRune(r)
	}
	every.WriteString("漢字🎉\U0010fffd")
	bytes := make([]byte, 256)
	for i := range bytes {
		bytes[i] = byte(i)
	}
	var events []backend.Event
	for i, text := range []string{"plain", "", "NULL", `"`, `\`, `a"b\c`, `{}`, `{a,b}`, ",", "'; DROP TABLE x; --", " \t\n\r ", `\x00`, "$1", "é漢🎉", "?", ":name", "%s"} {
		events = append(events, backend.Event{Topic: "t" + text, Key: text, Kind: text, Payload: []byte(text), Headers: map[string]string{"h": text, "k" + text: "v"}},
			backend.Event{Topic: "ids", Kind: "kind", ID: fmt.Sprint(i, text)}, backend.Event{Topic: "ids", Kind: "again", ID: fmt.Sprint(i, text)})
	}
	events = append(events, backend.Event{Topic: "x", Headers: map[string]string{"all": every.String()}, Payload: bytes}, backend.Event{Topic: "x", Payload: nil},
		backend.Event{Topic: "x", Payload: []byte{}}, backend.Event{Topic: "x", Payload: make([]byte, 3<<20)})
	for _, d := range []time.Duration{-1, time.Microsecond, 48 * time.Hour, math.MaxInt64} {
		events = append(events, backend.Event{Topic: "after", Payload: []byte(d.String()), After: d})
	}
	zone := time.FixedZone("", 3600+1800)
	for _, at := range []time.Time{{}, time.Date(-5, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(1, 1, 1, 1, 0, 0, 0, zone), time.Unix(0, 0),
		time.Date(2099, 12, 31, 23, 59, 59, 999_999_999, zone), time.Date(9999, 12, 31, 23, 0, 0, 0, time.UTC), time.Date(10_000, 2, 29, 0, 0, 0, 0, zone), time.Date(200_000, 1, 1, 0, 0, 0, 1000, zone)} {
		events = append(events, backend.Event{Topic: "at", Payload: []byte(at.String()), At: at})
	}
	stored := func() string {
		t.Helper()
		rows, err := pool.Query(t.Context(), `SELECT md5(ROW(topic, key, kind, payload, headers)::text) || ' ' || topic || ' ' || left(encode(payload, 'escape'), 50) || due
			FROM (SELECT topic, key, kind, payload, headers, '' AS due, id FROM own_name.message UNION ALL
			      SELECT topic, key, kind, payload, headers, CASE topic WHEN 'at' THEN ' at ' || due_at ELSE ' later' END, seq FROM own_name.delayed) m ORDER BY due <> '', id`)
		kit.OK(t, err)
		all := kit.Must[[]string](t)(pgx.CollectRows(rows, pgx.RowTo[string]))
		_, err = pool.Exec(t.Context(), "TRUNCATE own_name.message, own_name.delayed, own_name.published_id")
		kit.OK(t, err)
		return strings.Join(all, "\n")
	}
	kit.OK(t, be.Publish(t.Context(), events))
	want := stored()
	if n := strings.Count(want, "\n") + 1; n < len(events)-20 {
		t.Fatalf("pgx has stored %d of %d events", n, len(events))
	}
	kit.OK(t, InTx(t.Context(), begin, func(tx leasesql.Tx) error { return leasesql.In(be, tx).Publish(t.Context(), events) }))
	if got := stored(); got != want {
		t.Errorf("stored:\n%s\nwant:\n%s", got, want)
	}
	// Events without ids and delays go by another statement, and many go by several.
	many := make([]backend.Event, 12_000)
	for i := range many {
		many[i] = backend.Event{Topic: "many", Key: fmt.Sprint(i % 7), Kind: "kind", Payload: fmt.Append(nil, i)}
	}
	kit.OK(t, be.Publish(t.Context(), many))
	want = stored()
	kit.OK(t, InTx(t.Context(), begin, func(tx leasesql.Tx) error {
		to := leasesql.In(be, tx)
		if err := to.Publish(t.Context(), many[:1]); err != nil {
			return err
		}
		return to.Publish(t.Context(), many[1:])
	}))
	if got := stored(); got != want {
		t.Error("of 12,000 events not all are stored in order")
	}
}

// rollback checks that events are there with all else in the transaction, or not at all.
func rollback(t *testing.T, x *through) {
	be, begin, pool := x.Backend, x.begin, x.pool
	_, err := pool.Exec(t.Context(), "CREATE TABLE effect (n int)")
	kit.OK(t, err)
	count := func() (all string) {
		t.Helper()
		kit.OK(t, pool.QueryRow(t.Context(), `SELECT concat_ws(' ', (SELECT count(*) FROM effect), (SELECT count(*) FROM own_name.message),
			(SELECT count(*) FROM own_name.delayed), (SELECT count(*) FROM own_name.published_id))`).Scan(&all))
		return all
	}
	errUndo := errors.New("undo")
	do := func(end error) error {
		return InTx(t.Context(), begin, func(tx leasesql.Tx) error {
			if _, err := tx.ExecContext(t.Context(), "INSERT INTO effect VALUES (1)"); err != nil {
				return err
			}
			err := leasesql.In(be, tx).Publish(t.Context(), []backend.Event{{Topic: "x"}, {Topic: "x", ID: "i"}, {Topic: "x", After: time.Hour}})
			if err != nil {
				return err
			}
			kit.Equal(t, "seen by others before the end", count(), "0 0 0 0")
			return end
		})
	}
	if err := do(errUndo); !errors.Is(err, errUndo) {
		t.Fatal(err)
	}
	kit.Equal(t, "after a rollback", count(), "0 0 0 0")
	kit.OK(t, do(nil))
	kit.Equal(t, "after a commit", count(), "1 2 1 1")
}

// refusals checks what errors say.
func refusals(t *testing.T, x *through) {
	be, begin, pool := x.Backend, x.begin, x.pool
	_, err := pool.Exec(t.Context(), "CREATE ROLE "+pgx.Identifier{pool.Config().ConnConfig.Database + "_lacking"}.Sanitize())
	kit.OK(t, err)
	one := []backend.Event{{Topic: "x", Payload: []byte("secret")}}
	for sql, want := range map[string]string{
		"SELECT 1/0":                   "an earlier statement of the transaction has failed",
		"SET TRANSACTION READ ONLY":    "connect to the primary",
		"DROP SCHEMA own_name CASCADE": "run leasegen migrate",
		"SET LOCAL ROLE " + pool.Config().ConnConfig.Database + "_lacking": "leasegen migrate -grants",
	} {
		tx := kit.Must[leasesql.Tx](t)(begin(t.Context()))
		_, _ = tx.ExecContext(t.Context(), sql)
		err := leasesql.In(be, tx).Publish(t.Context(), one)
		if err == nil || !strings.HasPrefix(err.Error(), "leasepg: publish: ") || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("after %s: %v, want %q", sql, err, want)
		}
		kit.OK(t, tx.Rollback())
	}
	tx := kit.Must[leasesql.Tx](t)(begin(t.Context()))
	if err := leasesql.In(be, tx).Publish(t.Context(), []backend.Event{{Topic: "x"}, {}}); err == nil || !strings.Contains(err.Error(), "event 2 of 2") {
		t.Errorf("without a topic: %v", err)
	}
	kit.OK(t, leasesql.In(be, tx).Publish(t.Context(), one)) // no statement was sent: the transaction goes on
	kit.OK(t, tx.Commit())
	if err := leasesql.In(be, tx).Publish(t.Context(), one); !errors.Is(err, sql.ErrTxDone) {
		t.Errorf("after the commit: %v", err)
	}
	var n int
	kit.OK(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM own_name.message").Scan(&n))
	kit.Equal(t, "published", n, 1)
}

// undone checks what a transaction leaves behind that is rolled back, by its user or by the end of its context: neither an id that
// is taken, nor a delayed event, and a publisher that goes on.
func undone(t *testing.T, x *through) {
	be, begin, pool := x.Backend, x.begin, x.pool
	events := []backend.Event{{Topic: "x", ID: "i"}, {Topic: "x", ID: "i"}, {Topic: "y", ID: "i", After: time.Hour}, {Topic: "x", At: time.Now().Add(time.Hour)}}
	ctx, cancel := context.WithCancel(t.Context())
	tx := kit.Must[leasesql.Tx](t)(begin(ctx))
	kit.OK(t, leasesql.In(be, tx).Publish(ctx, events))
	cancel()
	if err := leasesql.In(be, tx).Publish(ctx, events); err == nil {
		t.Error("published with a context that has ended")
	}
	_ = tx.Rollback() // it may be over
	for _, commit := range []bool{false, true} {
		tx := kit.Must[leasesql.Tx](t)(begin(t.Context()))
		done := make(chan error, 1)
		go func() { // waits for the transaction that is publishing the same id
			done <- InTx(t.Context(), begin, func(tx leasesql.Tx) error { return leasesql.In(be, tx).Publish(t.Context(), events[:1]) })
		}()
		kit.OK(t, leasesql.In(be, tx).Publish(t.Context(), events))
		if commit {
			kit.OK(t, tx.Commit())
		} else {
			kit.OK(t, tx.Rollback())
		}
		kit.OK(t, <-done)
	}
	var n string
	kit.OK(t, pool.QueryRow(t.Context(), "SELECT concat((SELECT count(*) FROM own_name.message), ' ', (SELECT count(*) FROM own_name.delayed))").Scan(&n))
	kit.Equal(t, "published and delayed", n, "1 2")
	var none *sql.Tx
	for _, tx := range []leasesql.Tx{nil, none} {
		if err := leasesql.In(be, tx).Publish(t.Context(), events); err == nil || !strings.Contains(err.Error(), "there is no transaction; begin one first") {
			t.Errorf("without a transaction: %v", err)
		}
	}
}

// outrun checks that a publisher recovers when the log has run out of partitions, by plain inserts of others say.
func outrun(t *testing.T, x *through) {
	be, begin, pool := x.Backend, x.begin, x.pool
	publish := func() error {
		return InTx(t.Context(), begin, func(tx leasesql.Tx) error {
			return leasesql.In(be, tx).Publish(t.Context(), []backend.Event{{Topic: "x"}})
		})
	}
	kit.OK(t, publish())
	_, err := pool.Exec(t.Context(), "SELECT setval('own_name.message_id_seq', (SELECT max(hi) + 5 FROM own_name.segment))")
	kit.OK(t, err)
	if err := publish(); err == nil {
		t.Fatal("an id without a partition was stored")
	}
	kit.OK(t, publish())
}

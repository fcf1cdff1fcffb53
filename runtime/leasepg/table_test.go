package leasepg_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/tabletest"
	"github.com/leasegen/leasegen/internal/tabletest/leasedb"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/leasepg/pgtable"
	"github.com/leasegen/leasegen/runtime/operate"
)

// withTable returns a backend on a database that has the table app.outbox, too.
func withTable(t testing.TB) (*leasepg.Backend, *pgxpool.Pool) {
	t.Helper()
	be, pool := migrated(t)
	addTable(t, pool)
	return be, pool
}

func addTable(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	for _, sql := range kit.Must[[]string](t)(tabletest.Schema()) {
		exec(t, pool, sql)
	}
	exec(t, pool, "CREATE TABLE effect (seq bigint GENERATED ALWAYS AS IDENTITY, n bigint NOT NULL)")
}

func quiet() lease.Option { return lease.WithLogger(slog.New(slog.DiscardHandler)) }

// consumers of app.outbox.
func byGroup(t testing.TB, be *leasepg.Backend, h *tabletest.ByGroup) *lease.Consumer {
	return kit.Must[*lease.Consumer](t)(tabletest.NewByGroup(be, h, quiet()))
}

func byTopic(t testing.TB, be *leasepg.Backend, h *tabletest.ByTopic) *lease.Consumer {
	return kit.Must[*lease.Consumer](t)(tabletest.NewByTopic(be, h, quiet()))
}

func byKey(t testing.TB, be *leasepg.Backend, h *tabletest.ByKey) *lease.Consumer {
	return kit.Must[*lease.Consumer](t)(tabletest.NewByKey(be, h, quiet()))
}

// running runs consumers until the test ends.
func running(t testing.TB, consumers ...*lease.Consumer) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	g := lease.NewGroup()
	for _, c := range consumers {
		kit.OK(t, g.Add(c))
	}
	wg.Go(func() {
		if err := kit.Run(ctx, g); err != nil {
			t.Error(err)
		}
	})
}

func ns(rows []tabletest.Message) []int64 {
	var out []int64
	for _, m := range rows {
		out = append(out, m.Payload.N)
	}
	return out
}

func TestTableRowsAreTyped(t *testing.T) {
	be, pool := withTable(t)
	exec(t, pool, `INSERT INTO app.outbox (channel, customer_id, event_type, n, body) VALUES ('eu', 7, 'placed', 1, '{"a": 1}')`)
	exec(t, pool, `INSERT INTO app.outbox (channel, n) VALUES ('us', 2), ('eu', 3)`)
	group, topic, key := &tabletest.ByGroup{}, &tabletest.ByTopic{}, &tabletest.ByKey{}
	running(t, byGroup(t, be, group), byTopic(t, be, topic), byKey(t, be, key))
	kit.Eventually(t, "three rows, three times", func() bool {
		return len(group.Rows()) == 3 && len(topic.Rows()) == 3 && len(key.Rows()) == 3
	})
	if got := ns(group.Rows()); !slices.Equal(got, []int64{1, 2, 3}) {
		t.Errorf("in order: %v", got)
	}
	m := group.Rows()[0]
	if m.ID != "1" || m.Topic != "eu" || m.Key != "7" || m.Kind != "placed" || m.Payload.ID != 1 || *m.Payload.CustomerID != 7 ||
		string(m.Payload.Body) != `{"a": 1}` || m.Payload.Xid == nil || m.Attempt != 1 || m.Epoch == 0 {
		t.Errorf("%+v", m)
	}
	// One that comes while they run, without a notification.
	exec(t, pool, `INSERT INTO app.outbox (channel, n) VALUES ('apac', 4)`)
	kit.Eventually(t, "the row of a new topic", func() bool {
		return len(group.Rows()) == 4 && len(topic.Rows()) == 4 && len(key.Rows()) == 4
	})
	kit.Eventually(t, "four effects", func() bool { return query[int](t, pool, "SELECT count(*) FROM effect") == 4 })
}

// readerOf is a pool of a role that has leasegen's grants and, of app.outbox, none.
func readerOf(t *testing.T, pool *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	exec(t, pool, "CREATE ROLE table_reader LOGIN")
	t.Cleanup(func() { exec(t, pool, "DROP OWNED BY table_reader; DROP ROLE table_reader") })
	exec(t, pool, leasepg.Grants("table_reader"))
	cfg := pool.Config()
	cfg.ConnConfig.User = "table_reader"
	reader := kit.Must[*pgxpool.Pool](t)(pgxpool.NewWithConfig(t.Context(), cfg))
	t.Cleanup(reader.Close)
	return reader
}

// TestTableReadsOnly holds the application's role to SELECT on its table.
func TestTableReadsOnly(t *testing.T) {
	_, pool := withTable(t)
	reader := readerOf(t, pool)
	be := leasepg.New(reader)
	h := &tabletest.ByTopic{}
	c := byTopic(t, be, h)
	err := be.Register(t.Context(), c.Info(), nil)
	if err == nil || !strings.Contains(err.Error(), "GRANT SELECT ON app.outbox") {
		t.Fatalf("without a grant: %v", err)
	}
	exec(t, pool, "GRANT USAGE ON SCHEMA app TO table_reader; GRANT SELECT ON app.outbox TO table_reader")
	exec(t, pool, `INSERT INTO app.outbox (channel, n) VALUES ('eu', 1)`)
	running(t, c)
	kit.Eventually(t, "the row", func() bool { return len(h.Rows()) == 1 })
}

// TestTableCheck names what makes a table unfit, and the way out.
func TestTableCheck(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, change, want string }{
		{"gone", "DROP TABLE app.outbox", "does not exist in this database"},
		{"no xid", "ALTER TABLE app.outbox DROP COLUMN xid", "ALTER TABLE app.outbox ADD COLUMN xid xid8"},
		{"xid by default", "ALTER TABLE app.outbox ALTER COLUMN xid DROP DEFAULT", "SET DEFAULT pg_current_xact_id()"},
		{"xid after position", "DROP TRIGGER outbox_xid_first ON app.outbox", "CREATE TRIGGER outbox_xid_first BEFORE INSERT"},
		{"disabled trigger", "ALTER TABLE app.outbox DISABLE TRIGGER outbox_xid_first", "CREATE TRIGGER"},
		{"xid is 32 bits", "ALTER TABLE app.outbox DROP COLUMN xid; ALTER TABLE app.outbox ADD COLUMN xid bigint", "must be xid8"},
		{"cached", "ALTER TABLE app.outbox ALTER COLUMN id SET CACHE 20", "now CACHE 20"},
		{"falling", "ALTER TABLE app.outbox ALTER COLUMN id SET INCREMENT BY -1 SET MINVALUE -100 SET MAXVALUE 100", "a positive INCREMENT"},
		{"no sequence", "ALTER TABLE app.outbox ALTER COLUMN id DROP IDENTITY", "draws from no sequence"},
		{"text", "ALTER TABLE app.outbox DROP COLUMN id; ALTER TABLE app.outbox ADD COLUMN id text", "column id is text"},
		{"foreign", "INSERT INTO app.outbox (channel, n, xid) VALUES ('eu', 1, '9000000000')", "restored from another cluster"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			be, pool := withTable(t)
			exec(t, pool, tc.change)
			err := be.Register(t.Context(), byGroup(t, be, &tabletest.ByGroup{}).Info(), nil)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v\nwant … %s", err, tc.want)
			}
		})
	}
}

// TestTableFilter: rows that do not match are passed, with the cursor, and never come back.
func TestTableFilter(t *testing.T) {
	t.Parallel()
	be, pool := withTable(t)
	exec(t, pool, `INSERT INTO app.outbox (channel, n, dawdled) VALUES ('eu', 1, 0)`)
	h := &tabletest.Ready{}
	c := kit.Must[*lease.Consumer](t)(tabletest.NewReady(be, h, quiet()))
	kit.OK(t, be.Register(t.Context(), c.Info(), nil)) // from=now: the first row is passed over
	exec(t, pool, `INSERT INTO app.outbox (channel, n, status, dawdled) SELECT 'eu', g, 'hold', 0 FROM generate_series(2, 60000) g`)
	exec(t, pool, `INSERT INTO app.outbox (channel, n, dawdled) VALUES ('eu', 60001, 0)`)
	running(t, c)
	kit.Eventually(t, "the row behind those that do not match", func() bool { return slices.Equal(ns(h.Rows()), []int64{60001}) })
	exec(t, pool, `INSERT INTO app.outbox (channel, n, status, dawdled) VALUES ('eu', 60002, 'hold', 0)`)
	kit.Eventually(t, "the cursor behind the last row", func() bool {
		var pos int64
		kit.OK(t, pool.QueryRow(t.Context(), "SELECT pos FROM leasegen.lease WHERE consumer = 'ready'").Scan(&pos))
		return pos == 60002
	})
	exec(t, pool, `UPDATE app.outbox SET status = 'ready'`)
	exec(t, pool, `INSERT INTO app.outbox (channel, n, dawdled) VALUES ('eu', 60003, 0)`)
	kit.Eventually(t, "the next row", func() bool { return len(h.Rows()) > 1 })
	if got := ns(h.Rows()); !slices.Equal(got, []int64{60001, 60003}) {
		t.Errorf("handled %v", got)
	}
}

// TestTableParked: failed rows are parked by reference, read again, and given up on with a
// copy; one that was deleted in between becomes a dead letter.
func TestTableParked(t *testing.T) {
	be, pool := withTable(t)
	var healed atomic.Bool
	h := &tabletest.ByGroup{}
	h.Fail = func(m tabletest.Message) error {
		switch {
		case m.Payload.N == 1 && m.Payload.Status != "mended":
			exec(t, pool, "UPDATE app.outbox SET status = 'mended' WHERE n = 1")
			return errors.New("not yet")
		case m.Payload.N == 2:
			if m.Attempt == 1 {
				exec(t, pool, "DELETE FROM app.outbox WHERE n = 2")
			}
			return errors.New("deleted under way")
		case m.Payload.N == 3 && !healed.Load():
			return errors.New("always")
		}
		return nil
	}
	exec(t, pool, `INSERT INTO app.outbox (channel, customer_id, n) VALUES ('eu', 1, 1), ('eu', 2, 2), ('eu', 3, 3), ('eu', 4, 4)`)
	// A message of the log with the id of a row must not be taken for it.
	kit.OK(t, be.Publish(t.Context(), kit.Events("log", 5)))
	running(t, byGroup(t, be, h))
	var dead []operate.DeadLetterInfo
	kit.Eventually(t, "two dead letters and two rows", func() bool {
		dead = kit.Must[[]operate.DeadLetterInfo](t)(be.DeadLetters(t.Context(), operate.DeadLetterFilter{Consumer: "by_group"}))
		rows := ns(h.Rows()) // a row is called again when one after it in its transaction has failed
		slices.Sort(rows)
		return len(dead) == 2 && slices.Equal(slices.Compact(rows), []int64{1, 4})
	})
	slices.SortFunc(dead, func(a, b operate.DeadLetterInfo) int { return strings.Compare(a.MessageID, b.MessageID) })
	if !strings.Contains(dead[0].Reason, "its row was deleted") || !strings.Contains(dead[1].Reason, "always") {
		t.Errorf("reasons: %q, %q", dead[0].Reason, dead[1].Reason)
	}
	d := kit.Must[[]operate.DeadLetterInfo](t)(be.DeadLetters(t.Context(), operate.DeadLetterFilter{IDs: []string{dead[1].ID}}))[0]
	if !strings.Contains(string(d.Payload), `"n": 3`) || d.Topic != "eu" || d.Key != "3" || d.Kind != "placed" {
		t.Errorf("the copy: %+v %s", d, d.Payload)
	}
	healed.Store(true)
	kit.Equal(t, "replayed", kit.Must[int](t)(be.Replay(t.Context(), operate.DeadLetterFilter{IDs: []string{dead[1].ID}})), 1)
	kit.Eventually(t, "the replayed row", func() bool { return slices.Contains(ns(h.Rows()), 3) })
	for _, m := range h.Rows() {
		if m.Payload.N == 1 && m.Payload.Status != "mended" {
			t.Error("a parked row is handled as it was, not as it is")
		}
	}
}

// TestTableOtherSource: cursors of one table have no meaning for another source.
func TestTableOtherSource(t *testing.T) {
	be, pool := withTable(t)
	info := byKey(t, be, &tabletest.ByKey{}).Info()
	kit.OK(t, be.Register(t.Context(), info, nil))
	kit.OK(t, be.Register(t.Context(), info, nil))
	var leases int
	kit.OK(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM leasegen.lease WHERE consumer = 'by_key'").Scan(&leases))
	kit.Equal(t, "slots", leases, 16)
	source := *info.Source.(*pgtable.Source)
	source.Slots = 32
	info.Source = &source
	if err := be.Register(t.Context(), info, nil); err == nil || !strings.Contains(err.Error(), "give the consumer another name") {
		t.Errorf("other slots: %v", err)
	}
}

// rowWriters insert rows of app.outbox from many transactions at once until ctx ends.
type rowWriters struct {
	next, last atomic.Int64
	mu         sync.Mutex
	committed  map[int64]bool
}

func (w *rowWriters) write(ctx context.Context, t *testing.T, pool *pgxpool.Pool, writers int) {
	w.committed = map[int64]bool{}
	var wg sync.WaitGroup
	defer wg.Wait()
	for i := range writers {
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := w.transaction(ctx, pool, i); err != nil && ctx.Err() == nil {
					t.Errorf("writer %d: %v", i, err)
					return
				}
			}
		})
	}
}

func (w *rowWriters) transaction(ctx context.Context, pool *pgxpool.Pool, writer int) error {
	pause := func(most time.Duration) { time.Sleep(rand.N(most)) }
	var drawn []int64
	cause := w.last.Load()
	row := func() (string, int64, int64) {
		n := w.next.Add(1)
		drawn = append(drawn, n)
		return fmt.Sprint("t", rand.IntN(4)), rand.Int64N(40), n
	}
	err := pgx.BeginFunc(context.WithoutCancel(ctx), pool, func(tx pgx.Tx) error {
		ctx := context.WithoutCancel(ctx)
		if rand.IntN(4) == 0 {
			if _, err := tx.Exec(ctx, "SELECT pg_current_xact_id()"); err != nil {
				return err
			}
			pause(5 * time.Millisecond)
		}
		for range 1 + rand.IntN(2) {
			switch rand.IntN(4) {
			case 0: // COPY
				var rows [][]any
				for range 1 + rand.IntN(3) {
					channel, customer, n := row()
					rows = append(rows, []any{channel, customer, n, cause})
				}
				if _, err := tx.CopyFrom(ctx, pgx.Identifier{"app", "outbox"}, []string{"channel", "customer_id", "n", "cause"}, pgx.CopyFromRows(rows)); err != nil {
					return err
				}
			case 1: // inside a statement that does something else, and a savepoint
				channel, customer, n := row()
				err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
					_, err := tx.Exec(ctx, "WITH i AS (INSERT INTO app.outbox (channel, customer_id, n, cause) VALUES ($1, $2, $3, $4) RETURNING id) SELECT * FROM i",
						channel, customer, n, cause)
					return err
				})
				if err != nil {
					return err
				}
			default:
				channel, customer, n := row()
				if _, err := tx.Exec(ctx, "INSERT INTO app.outbox (channel, customer_id, n, cause) VALUES ($1, $2, $3, $4)", channel, customer, n, cause); err != nil {
					return err
				}
			}
			if rand.IntN(3) == 0 {
				pause(5 * time.Millisecond)
			}
		}
		if writer == 0 {
			pause(2 * time.Second) // the long one
		}
		if rand.IntN(10) == 0 {
			return errRollback
		}
		return nil
	})
	if errors.Is(err, errRollback) {
		return nil
	}
	if err == nil {
		w.mu.Lock()
		for _, n := range drawn {
			w.committed[n] = true
		}
		w.mu.Unlock()
		w.last.Store(drawn[0])
	}
	return err
}

// tableReader reads and commits batch after batch, commits only parts of some, and now and
// then goes on from what was stored, as after a crash.
type tableReader struct {
	info       backend.ConsumerInfo
	seen       map[int64]int
	inversions int
	late       int
}

func (r *tableReader) read(t *testing.T, be *leasepg.Backend, written context.Context) {
	kit.OK(t, be.Register(t.Context(), r.info, nil))
	session := kit.Join(t, be, r.info, time.Hour)
	at := map[string]backend.Cursor{}
	held := map[string]backend.Grant{}
	highest := map[string]int64{}
	var seq int64
	take := func() {
		if r.info.Per == backend.PerTopic {
			kit.OK(t, be.Register(t.Context(), r.info, nil))
		}
		for _, g := range session.Acquires(100) {
			held[g.Resource], at[g.Resource] = g, g.Cursor
		}
	}
	empty := 0 // reads that found no row, one after the other
	for quiet := time.Now(); empty < 10 || time.Since(quiet) < 700*time.Millisecond; {
		empty++
		if written.Err() == nil {
			quiet, empty = time.Now(), 0
		}
		if rand.IntN(30) == 0 {
			var refs []backend.Ref
			for _, g := range held {
				refs = append(refs, g.Ref)
			}
			kit.OK(t, be.Release(t.Context(), session.ID, r.info.Name, refs))
			clear(held)
		}
		if len(held) == 0 || r.info.Per == backend.PerTopic {
			take()
		}
		limit := 1 + rand.IntN(60)
		if rand.IntN(3) == 0 {
			limit = 1 + rand.IntN(3) // pages of late rows
		}
		req := backend.FetchRequest{Consumer: r.info, MaxPayload: 1 << 20}
		for name := range held {
			req.Items = append(req.Items, backend.FetchItem{Resource: name, From: at[name], Limit: limit})
		}
		if len(req.Items) == 0 {
			continue
		}
		var ps []backend.Progress
		for _, f := range kit.Must[[]backend.Fetched](t)(be.Fetch(t.Context(), req)) {
			keep, next := len(f.Messages), f.Next
			if keep > 0 && rand.IntN(4) == 0 {
				keep = rand.IntN(keep + 1)
				next = f.Cut(keep)
			}
			for _, m := range f.Messages[:keep] {
				row := m.Value.(leasedb.OutboxRow)
				r.seen[row.N]++
				if r.info.Per == backend.PerGroup && row.Cause != 0 && r.seen[row.Cause] == 0 {
					r.inversions++
				}
				if row.ID < highest[f.Resource] {
					r.late++
				}
				highest[f.Resource] = max(highest[f.Resource], row.ID)
			}
			if len(f.Messages) > 0 {
				quiet, empty = time.Now(), 0
			}
			at[f.Resource] = next
			if next != held[f.Resource].Cursor {
				seq++
				ps = append(ps, backend.Progress{Ref: held[f.Resource].Ref, Seq: seq, Cursor: next})
			}
		}
		if fenced := kit.Must[[]string](t)(be.Commit(t.Context(), session.ID, r.info.Name, ps)); len(fenced) > 0 {
			t.Fatalf("fenced: %v", fenced)
		}
	}
}

// TestTableDrawsXIDFirst: a row has its xid before its position, so that it is found when it
// commits after rows with higher positions were read. Without the trigger it is lost.
func TestTableDrawsXIDFirst(t *testing.T) {
	const plain = "INSERT INTO app.outbox (channel, n) VALUES ('eu', 1)"
	for name, insert := range map[string]string{
		"insert": plain, "copy": "COPY app.outbox (channel, n) FROM STDIN",
		"inside a statement": "WITH i AS (INSERT INTO app.outbox (channel, n) VALUES ('eu', 1) RETURNING n) SELECT n FROM i",
		"insert or update":   "INSERT INTO app.outbox (channel, n) VALUES ('eu', 1) ON CONFLICT (id) DO UPDATE SET n = 1",
	} {
		t.Run(name, func(t *testing.T) {
			if got := overtaken(t, insert, ""); !slices.Equal(got, []int64{2, 1}) {
				t.Errorf("read %v, want both", got)
			}
		})
	}
	t.Run("mutant: no trigger", func(t *testing.T) {
		// A sequence that is logged, every 32 numbers and after a checkpoint, draws an xid too.
		for range 5 {
			if slices.Equal(overtaken(t, plain, "DROP TRIGGER outbox_xid_first ON app.outbox"), []int64{2}) {
				return
			}
		}
		t.Error("the row was never lost: the test does not bite")
	})
}

// overtaken inserts row 1, which waits once it has its position, inserts and reads row 2
// in between, and returns what was read once row 1 is committed.
func overtaken(t *testing.T, insert, change string) []int64 {
	be, pool := withTable(t)
	exec(t, pool, "INSERT INTO app.outbox (channel, n) VALUES ('eu', 0)")
	info := byGroup(t, be, &tabletest.ByGroup{}).Info()
	_, g := kit.Sole(t, be, info)
	if change != "" {
		exec(t, pool, change)
	}
	gate := kit.Must[*pgxpool.Conn](t)(pool.Acquire(t.Context()))
	defer gate.Release()
	kit.Must[pgconn.CommandTag](t)(gate.Exec(t.Context(), "SELECT pg_advisory_lock(77)"))
	slow := kit.Must[*pgx.Conn](t)(pgx.Connect(t.Context(), pool.Config().ConnString()))
	defer slow.Close(context.Background())
	kit.Must[pgconn.CommandTag](t)(slow.Exec(t.Context(), "SET app.wait = on"))
	done := make(chan error, 1)
	go func() {
		var err error
		if strings.HasPrefix(insert, "COPY") {
			_, err = slow.PgConn().CopyFrom(context.Background(), strings.NewReader("eu\t1\n"), insert)
		} else {
			_, err = slow.Exec(context.Background(), insert)
		}
		done <- err
	}()
	kit.Eventually(t, "the first row waits behind its position", func() bool {
		var waits bool
		kit.OK(t, pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 77 AND NOT granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`).Scan(&waits))
		return waits
	})
	exec(t, pool, "INSERT INTO app.outbox (channel, n) VALUES ('eu', 2)")
	before := kit.Fetch(t, be, info, backend.Whole, g.Cursor, 10)
	kit.Must[pgconn.CommandTag](t)(gate.Exec(t.Context(), "SELECT pg_advisory_unlock(77)"))
	kit.OK(t, <-done)
	after := kit.Fetch(t, be, info, backend.Whole, before.Next, 10)
	return slices.Concat(rowsOf(before)[1:], rowsOf(after))
}

// TestTableTorture: 16 writers on the application's table, for 2 s, or 20 s in make proof; no message is lost, none comes
// twice, and causes come before effects.
func TestTableTorture(t *testing.T) {
	be, pool := withTable(t)
	w := &rowWriters{}
	writing, stop := writingFor(t, time.Duration(pace.Rounds(2, 20))*time.Second, func() bool { return w.next.Load() >= tortureLeast })
	defer stop()
	writers := open(t, pool.Config().ConnString()+"&pool_max_conns=16")
	var wg sync.WaitGroup
	written, done := context.WithCancel(t.Context()) // transactions outlive writing: the last to commit
	wg.Go(func() {
		defer done()
		w.write(writing, t, writers, 16)
	})
	var readers []*tableReader
	for _, c := range []*lease.Consumer{
		byGroup(t, be, &tabletest.ByGroup{}), byTopic(t, be, &tabletest.ByTopic{}), byKey(t, be, &tabletest.ByKey{}),
	} {
		r := &tableReader{info: c.Info(), seen: map[int64]int{}}
		readers = append(readers, r)
		wg.Go(func() { r.read(t, be, written) })
	}
	wg.Wait()
	late := 0
	for _, r := range readers {
		lost, twice := 0, 0
		for n := range w.committed {
			if r.seen[n] == 0 {
				lost++
			}
		}
		for n, times := range r.seen {
			if times > 1 || !w.committed[n] {
				twice++
			}
		}
		t.Logf("%s: committed %d, lost %d, twice %d, late %d, inversions %d", r.info.Name, len(w.committed), lost, twice, r.late, r.inversions)
		if lost+twice+r.inversions > 0 {
			t.Errorf("%s: lost %d, twice %d, inversions %d", r.info.Name, lost, twice, r.inversions)
		}
		late += r.late
	}
	if len(w.committed) < 300 || late == 0 {
		t.Errorf("no torture: %d committed, %d late", len(w.committed), late)
	}
}

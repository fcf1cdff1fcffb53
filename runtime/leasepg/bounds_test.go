package leasepg_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/faultproxy"
	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/internal/tabletest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/operate"
)

// sent counts what statements carry to the server.
type sent struct {
	mu       sync.Mutex
	elements int            // of arrays, in one statement at most
	calls    map[string]int // by the statement's name
	batches  [][]string     // names of the statements that were sent together
}

func (s *sent) note(sql string, args []any) (name string) {
	if found := queryName.FindStringSubmatch(sql); found != nil {
		name = found[1]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[name]++
	n := 0
	for _, a := range args {
		if v := reflect.ValueOf(a); v.IsValid() && v.Kind() == reflect.Slice && v.Type().Elem().Kind() != reflect.Uint8 {
			n += v.Len()
		}
	}
	s.elements = max(s.elements, n)
	return name
}

func (s *sent) most() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.elements
}

func (s *sent) count(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[name]
}

// with lists the batches that have a statement.
func (s *sent) with(name string) [][]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.batches), func(b []string) bool { return !slices.Contains(b, name) })
}

func (s *sent) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.elements, s.calls, s.batches = 0, map[string]int{}, nil
}

func (s *sent) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	s.note(d.SQL, d.Args)
	return ctx
}
func (s *sent) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (s *sent) TraceBatchStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceBatchStartData) context.Context {
	var names []string
	for _, q := range d.Batch.QueuedQueries {
		names = append(names, s.note(q.SQL, q.Arguments))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.batches = append(s.batches, names)
	return ctx
}
func (s *sent) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (s *sent) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// traced opens another backend on a database, which counts what it sends.
func traced(t testing.TB, dsn string) (*leasepg.Backend, *pgxpool.Pool, *sent) {
	t.Helper()
	cfg := kit.Must[*pgxpool.Config](t)(pgxpool.ParseConfig(dsn))
	s := &sent{calls: map[string]int{}}
	cfg.ConnConfig.Tracer = s
	pool := kit.Must[*pgxpool.Pool](t)(pgxpool.NewWithConfig(context.Background(), cfg))
	t.Cleanup(pool.Close)
	return leasepg.New(pool), pool, s
}

// burn uses up transaction ids: each sub-transaction has one.
func burn(t testing.TB, pool *pgxpool.Pool, xids int) {
	t.Helper()
	exec(t, pool, "CREATE TABLE IF NOT EXISTS burnt (n int)")
	exec(t, pool, fmt.Sprintf(`DO $$ BEGIN
		FOR i IN 1..%d LOOP
			BEGIN INSERT INTO burnt VALUES (i); EXCEPTION WHEN unique_violation THEN NULL; END;
		END LOOP;
	END $$`, xids))
	exec(t, pool, "TRUNCATE burnt")
}

// fetchAll reads from each grant's cursor, or from where a read before got to, and returns the payloads.
func fetchAll(t testing.TB, be *leasepg.Backend, c backend.ConsumerInfo, grants []backend.Grant, at map[string]backend.Cursor) (payloads []string, more bool) {
	t.Helper()
	req := backend.FetchRequest{Consumer: c, MaxPayload: 1 << 20}
	for _, g := range grants {
		if at[g.Resource] == nil {
			at[g.Resource] = g.Cursor
		}
		req.Items = append(req.Items, backend.FetchItem{Resource: g.Resource, From: at[g.Resource], Limit: 10})
	}
	for _, f := range kit.Must[[]backend.Fetched](t)(be.Fetch(t.Context(), req)) {
		for _, m := range f.Messages {
			payloads = append(payloads, string(m.Payload))
		}
		at[f.Resource] = f.Next
		more = more || f.More
	}
	return payloads, more
}

// TestLeasesChangeAFewAtATime: a call for many leases is some transactions, each about some of them.
func TestLeasesChangeAFewAtATime(t *testing.T) {
	const leases = 1100
	dsn := pgtest.DB(t)
	_, pool := migratedAt(t, dsn)
	be, _, s := traced(t, dsn)
	for statement, tt := range map[string]struct {
		c            backend.ConsumerInfo
		transactions int
		call         func(session string, c backend.ConsumerInfo, refs []backend.Ref) error
	}{
		"RenewLeases": {rowed, 2, func(session string, c backend.ConsumerInfo, refs []backend.Ref) error {
			lost, err := be.Renew(t.Context(), session, c, refs)
			kit.Equal(t, "leases that were lost", len(lost), 0)
			return err
		}},
		"ReleaseLeases": {topical, 5, func(session string, c backend.ConsumerInfo, refs []backend.Ref) error {
			return be.Release(t.Context(), session, c.Name, refs)
		}},
		"RetireStreams": {streamed, 2, func(session string, c backend.ConsumerInfo, refs []backend.Ref) error {
			return be.Retire(t.Context(), session, c.Name, refs)
		}},
	} {
		t.Run(statement, func(t *testing.T) {
			session, grants := all(t, be, tt.c, kit.Topics(leases))
			kit.Equal(t, "acquired", len(grants), leases)
			s.reset()
			kit.OK(t, tt.call(session, tt.c, kit.Refs(grants)))
			batches := s.with(statement)
			kit.Equal(t, "transactions", len(batches), tt.transactions)
			if most := 2 * 1000; s.most() > most { // names and epochs
				t.Errorf("one statement carries %d array elements, want at most %d", s.most(), most)
			}
			for i, b := range batches {
				last := statement == "ReleaseLeases" && i == len(batches)-1
				kit.Equal(t, "the others are notified", slices.Contains(b, "Notify"), last)
			}
			if statement != "RenewLeases" {
				kit.Equal(t, "leases that are owned", owned(t, pool, tt.c), 0)
			}
		})
	}
}

func owned(t testing.TB, pool *pgxpool.Pool, c backend.ConsumerInfo) int {
	t.Helper()
	return query[int](t, pool, "SELECT count(*) FROM leasegen.lease WHERE consumer = $1 AND session IS NOT NULL", c.Name)
}

// A release that is repeated after a reply was lost in the middle frees all, and the others hear of it then.
func TestAReleaseIsRepeated(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DB(t)
	_, pool := migratedAt(t, dsn)
	link := faultproxy.Start(t, pgtest.Shared(t).Addr())
	be := leasepg.New(open(t, strings.Replace(dsn, pgtest.Shared(t).Addr(), link.Addr(), 1)), leasepg.WithLogger(slog.New(slog.DiscardHandler)))
	session, grants := all(t, be, topical, kit.Topics(600))
	refs := kit.Refs(grants)
	fromNow, wait := wakes(t, pool)
	fromNow()
	lost := link.DropReply(func(request []byte) bool { return bytes.Contains(request, []byte(refs[300].Resource)) }) // in the second part
	if be.Release(t.Context(), session, topical.Name, refs) == nil {
		t.Error("no error from a release whose reply was lost")
	}
	<-lost
	kit.Equal(t, "leases that are owned after two parts of three", owned(t, pool, topical), 100)
	kit.OK(t, be.Release(t.Context(), session, topical.Name, refs))
	wait()
	kit.Equal(t, "leases that are owned", owned(t, pool, topical), 0)
}

// TestLateCostsWhatIsLate: cursors that have many transactions in question, as after reads on a machine
// that was busy, ask for them once, send little, and find what was late.
func TestLateCostsWhatIsLate(t *testing.T) {
	const topics, transactions, late = 200, 1400, 40
	for _, c := range []backend.ConsumerInfo{topical, sliced, keyedStreams, grouped} {
		t.Run(c.Per.String(), func(t *testing.T) {
			dsn := pgtest.DB(t)
			be, pool := migratedAt(t, dsn)
			names := kit.Topics(topics)
			event := func(n int, payload string) backend.Event {
				return backend.Event{Topic: names[n%topics], Key: names[n%topics], Kind: "kind", Payload: []byte(payload)}
			}
			one := func(payload string) {
				t.Helper()
				var es []backend.Event
				for n := range topics {
					es = append(es, event(n, payload))
				}
				kit.OK(t, be.Publish(t.Context(), es))
			}
			// Transactions that wrote, and one that wrote much, stay open while all cursors pass their ids.
			var open []pgx.Tx
			for n := range late {
				tx := kit.Must[*pgx.Conn](t)(pgx.Connect(t.Context(), dsn))
				t.Cleanup(func() { tx.Close(context.Background()) })
				begun := kit.Must[pgx.Tx](t)(tx.Begin(t.Context()))
				kit.OK(t, be.In(begun).Publish(t.Context(), []backend.Event{event(n, "late")}))
				open = append(open, begun)
			}
			one("first")
			var resources []string
			if c.Per == backend.PerTopic || c.Per == backend.PerStream {
				resources = names
			}
			session, grants := all(t, be, c, resources)
			read, _ := drainAll(t, be, c, session, grants, 1000)
			kit.Equal(t, "read beside them", len(read), topics)
			burn(t, pool, transactions)
			// The position that a long read would have stored: a higher x is right, too.
			exec(t, pool, "UPDATE leasegen.lease SET x = pg_current_xact_id() WHERE x IS NOT NULL")
			for _, tx := range open {
				kit.OK(t, tx.Commit(t.Context()))
			}
			one("second")
			kit.OK(t, be.Release(t.Context(), session, c.Name, kit.Refs(grants)))

			again, _, s := traced(t, dsn)
			grants = kit.Join(t, again, c, time.Hour).Acquires(1000)
			at := map[string]backend.Cursor{}
			s.reset()
			got := map[string]int{}
			for more := true; more; {
				var payloads []string
				payloads, more = fetchAll(t, again, c, grants, at)
				for _, p := range payloads {
					got[p]++
				}
			}
			kit.Equal(t, "late messages", got["late"], late)
			kit.Equal(t, "later messages", got["second"], topics)
			kit.Equal(t, "messages that came again", got["first"], 0)
			t.Logf("at most %d array elements in a statement, questions: %d", s.most(), s.count("Wrote"))
			// Positions, names, limits and snapshots of what is read, and a few for each late message; and
			// the transactions of one question.
			if most := 256*6 + late*8 + 300; s.most() > most {
				t.Errorf("one statement carried %d array elements, want at most %d", s.most(), most)
			}
			if n := s.count("Wrote"); n > 2*(transactions+late)/300+2 {
				t.Errorf("%d questions about %d transactions: not once", n, transactions+late)
			}
			s.reset()
			_, _ = fetchAll(t, again, c, grants, map[string]backend.Cursor{})
			kit.Equal(t, "questions about transactions that are known", s.count("Wrote"), 0)
		})
	}
}

// TestFarApart: when more transactions began in the middle of a read than can be listed, what was late
// is found anyway.
func TestFarApart(t *testing.T) {
	for _, c := range []backend.ConsumerInfo{topical, sliced, keyedStreams, grouped} {
		t.Run(c.Per.String(), func(t *testing.T) {
			be, pool := migrated(t)
			tx := begin(t, pool)
			kit.OK(t, be.In(tx).Publish(t.Context(), []backend.Event{{Topic: "x", Key: "x", Kind: "k", Payload: []byte("late")}}))
			kit.OK(t, be.Publish(t.Context(), []backend.Event{{Topic: "x", Key: "x", Kind: "k", Payload: []byte("first")}}))
			session, grants := all(t, be, c, []string{"x"})
			drainAll(t, be, c, session, grants, 10)
			burn(t, pool, 21_000)
			exec(t, pool, "UPDATE leasegen.lease SET x = pg_current_xact_id() WHERE x IS NOT NULL")
			kit.OK(t, tx.Commit(t.Context()))
			kit.OK(t, be.Publish(t.Context(), []backend.Event{{Topic: "x", Key: "x", Kind: "k", Payload: []byte("second")}}))
			kit.OK(t, be.Release(t.Context(), session, c.Name, kit.Refs(grants)))
			grants = kit.Acting(t, be, session, c).Acquires(1000)
			read, _ := drainAll(t, be, c, session, grants, 10)
			var payloads []string
			for _, m := range read {
				payloads = append(payloads, string(m.Payload))
			}
			kit.Equal(t, "read", strings.Join(payloads, " "), "late second")
		})
	}
}

// TestSegmentsAreSteady: ANALYZE does not believe its samples in any partition, also in those to come.
func TestSegmentsAreSteady(t *testing.T) {
	_, pool := migrated(t)
	exec(t, pool, "SELECT leasegen.ensure_segments(9000000)")
	kit.Equal(t, "columns that ANALYZE may misjudge", query[string](t, pool, `SELECT coalesce(string_agg(s.name || '.' || a.attname, ' '), '')
		FROM leasegen.segment s JOIN pg_attribute a ON a.attrelid = to_regclass('leasegen.' || s.name)
		WHERE a.attname IN ('xid', 'topic', 'key') AND NOT coalesce(a.attoptions @> '{n_distinct=-1}', false)`), "")
}

// TestReadsAreNotCompiled: whatever the server thinks of their cost.
func TestReadsAreNotCompiled(t *testing.T) {
	s := measured(t)
	dsn := s.DB("compiled")
	_, pool := migratedAt(t, dsn)
	if query[int](t, pool, "SELECT current_setting('server_version_num')::int") < 150000 || !query[bool](t, pool, "SELECT pg_jit_available()") {
		t.Skip("the server cannot compile, or does not count it")
	}
	exec(t, pool, "CREATE EXTENSION pg_stat_statements")
	exec(t, pool, "ALTER DATABASE compiled SET jit_above_cost = 0")
	pool = open(t, dsn) // after that
	be := leasepg.New(pool)
	kit.OK(t, be.Publish(t.Context(), keyed("x", 20, 2)))
	for _, c := range []backend.ConsumerInfo{topical, sliced, keyedStreams, grouped} {
		tx := begin(t, pool)
		kit.OK(t, be.In(tx).Publish(t.Context(), keyed("x", 20, 1)))
		session, grants := all(t, be, c, nil)
		drainAll(t, be, c, session, grants, 10)
		kit.OK(t, tx.Commit(t.Context()))
		drainAll(t, be, c, session, grants, 10)
		kit.Must[backend.Parked](t)(be.FetchParked(t.Context(), backend.ParkedRequest{Session: session, Consumer: c, Limit: 9, MaxPayload: 99}))
		feed := kit.Must[backend.Feed](t)(be.OpenFeed(t.Context(), []backend.ConsumerInfo{c}))
		kit.Must[backend.News](t)(feed.Next(t.Context()))
		feed.Close()
	}
	kit.Equal(t, "reads that were compiled", query[string](t, pool, `SELECT coalesce(string_agg(DISTINCT substring(query from '-- name: (\w+)'), ' '), '')
		FROM pg_stat_statements WHERE jit_functions > 0 AND query ~ '-- name: (Fetch|Feed|Wrote|Due|Next|Parked|Survey)'`), "")
	if query[int](t, pool, "SELECT count(*) FROM pg_stat_statements WHERE jit_functions > 0") == 0 {
		t.Error("nothing was compiled: the test proves nothing")
	}
}

// TestParkedBehindOthers: a lane that is due is found behind thousands of messages that are due and
// whose turn has not come, a bounded part of them at a time.
func TestParkedBehindOthers(t *testing.T) {
	be, pool := migrated(t)
	session, g := kit.Sole(t, be, topical, "x")
	exec(t, pool, `INSERT INTO leasegen.parked (consumer, resource, lane, message_id, topic, key, kind, payload, published_at, attempt, next_at, error)
		SELECT 'topical', 'x', 'blocked', g, 'x', 'blocked', 'kind', 'p', clock_timestamp(), 1,
		       clock_timestamp() + CASE WHEN g = 1 THEN interval '1 hour' ELSE interval '-1 hour' END, 'e' FROM generate_series(1, 9000) g`)
	exec(t, pool, `INSERT INTO leasegen.parked (consumer, resource, lane, message_id, topic, key, kind, payload, published_at, attempt, next_at, error)
		SELECT 'topical', 'x', 'due', 10000, 'x', 'due', 'kind', 'p', clock_timestamp(), 1, clock_timestamp() - interval '1 minute', 'e'`)
	req := backend.ParkedRequest{Session: session.ID, Consumer: topical, Limit: 9, MaxPayload: 99}
	var found backend.Parked
	reads := 0
	for found = kit.Must[backend.Parked](t)(be.FetchParked(t.Context(), req)); len(found.Messages) == 0; reads++ {
		if !found.More || reads > 9 {
			t.Fatalf("the lane that is due was not found in %d reads: %+v", reads, found)
		}
		found = kit.Must[backend.Parked](t)(be.FetchParked(t.Context(), req))
	}
	kit.Equal(t, "lane", found.Messages[0].Lane, "due")
	_, err := be.Commit(t.Context(), session.ID, topical.Name, []backend.Progress{{Ref: g.Ref, Done: []string{found.Messages[0].ID}}})
	kit.OK(t, err)
	exec(t, pool, "DELETE FROM leasegen.parked WHERE message_id BETWEEN 2 AND 9000")
	kit.Eventually(t, "the time of the blocked lane is told", func() bool {
		found = kit.Must[backend.Parked](t)(be.FetchParked(t.Context(), req))
		return !found.More
	})
	if found.Next < 50*time.Minute || found.Next > time.Hour {
		t.Errorf("the next lane is due in %v, want an hour", found.Next)
	}
}

// TestRetentionOnePartitionATime: publishers wait for one drop at most.
func TestRetentionOnePartitionATime(t *testing.T) {
	be, pool := migrated(t)
	session, g := kit.Sole(t, be, grouped)
	for n := range 3 {
		exec(t, pool, "SELECT setval('leasegen.message_id_seq', $1)", n*1_000_000+500_000)
		kit.OK(t, be.Publish(t.Context(), kit.Events("x", 10)))
	}
	exec(t, pool, "SELECT setval('leasegen.message_id_seq', 3500000)")
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 10)))
	drain(t, be, grouped, session.ID, g, 1000)
	kit.Equal(t, "in the call that closes them", query[int](t, pool, "SELECT leasegen.drop_segments()"), 0)
	kit.Equal(t, "dropped in one call", query[int](t, pool, "SELECT leasegen.drop_segments()"), 1)
	r := kit.Must[operate.MaintainReport](t)(be.Maintain(t.Context(), []backend.ConsumerInfo{grouped}))
	kit.Equal(t, "dropped by housekeeping", r.SegmentsDropped, 2)
}

// TestHousekeepingOnce: one process of a fleet does it, and another one when that has stopped.
func TestHousekeepingOnce(t *testing.T) {
	one, pool := migrated(t)
	other := leasepg.New(pool)
	c := topical
	c.Keep = time.Hour
	kit.OK(t, one.Register(t.Context(), c, []string{"x"}))
	n := 0
	expired := func(be *leasepg.Backend) int {
		t.Helper()
		n++
		exec(t, pool, `INSERT INTO leasegen.dead_letter (consumer, resource, message_id, topic, key, kind, payload, published_at, failed_at, dead_at, attempts, reason)
			VALUES ('topical', 'x', $1, 'x', '', 'k', '', clock_timestamp(), clock_timestamp(), clock_timestamp() - interval '2 hours', 1, 'r')`, n)
		return kit.Must[operate.MaintainReport](t)(be.Maintain(t.Context(), []backend.ConsumerInfo{c})).DeadLettersExpired
	}
	kit.Equal(t, "expired by the first", expired(one), 1)
	kit.Equal(t, "expired by the other", expired(other), 0)
	kit.Equal(t, "expired by the first, again", expired(one), 2)
	exec(t, pool, "UPDATE leasegen.chore SET at = at - interval '2 minutes'")
	kit.Equal(t, "expired by the other when the first has stopped", expired(other), 1)
	kit.Equal(t, "expired by the first after that", expired(one), 0)
	exec(t, pool, "UPDATE leasegen.chore SET at = at + interval '1 hour'") // a clock that was set back
	kit.Equal(t, "expired under a time to come", expired(one), 2)
}

// TestHeldBackIsTold: a forgotten prepared transaction, of another database, keeps the log from being
// shortened, and the log line says which.
func TestHeldBackIsTold(t *testing.T) {
	s := measured(t)
	elsewhere := open(t, s.DB("elsewhere"))
	exec(t, elsewhere, "CREATE TABLE things (n int)")
	exec(t, elsewhere, "BEGIN; INSERT INTO things VALUES (1); PREPARE TRANSACTION 'forgotten'")
	var text bytes.Buffer
	be, pool := migratedAt(t, s.DB("app"), leasepg.WithLogger(slog.New(slog.NewTextHandler(&text, nil))))
	leasepg.TellHeldBackAfter(be, 0)
	session, g := kit.Sole(t, be, grouped)
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 10)))
	exec(t, pool, "SELECT setval('leasegen.message_id_seq', 1500000)")
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 10)))
	drain(t, be, grouped, session.ID, g, 1000)
	r := kit.Must[operate.MaintainReport](t)(be.Maintain(t.Context(), []backend.ConsumerInfo{grouped}))
	kit.Equal(t, "dropped", r.SegmentsDropped, 0)
	if !strings.Contains(text.String(), "prepared transaction 'forgotten' of database elsewhere") {
		t.Errorf("the log does not tell what holds it back: %s", text.String())
	}
	what, open, err := be.HeldBack(t.Context())
	kit.OK(t, err)
	kit.Equal(t, "held back by", what, "the prepared transaction 'forgotten' of database elsewhere")
	kit.Equal(t, "open for a while", open >= 0 && open < time.Hour, true)
	exec(t, elsewhere, "ROLLBACK PREPARED 'forgotten'")
	what, _, err = be.HeldBack(t.Context())
	kit.OK(t, err)
	kit.Equal(t, "held back by", what, "")
	r = kit.Must[operate.MaintainReport](t)(be.Maintain(t.Context(), []backend.ConsumerInfo{grouped}))
	kit.Equal(t, "dropped when it has ended", r.SegmentsDropped, 1)
}

// TestSlotsWithoutIndex: slots are read in bounded parts while a writer keeps the log from being indexed,
// and quickly as soon as housekeeping has made up for it.
func TestSlotsWithoutIndex(t *testing.T) {
	const messages = 8_000
	s := measured(t)
	be, m := measuredDB(t, s, "plain")
	busy := begin(t, m.pool)
	kit.OK(t, be.In(busy).Publish(t.Context(), keyed("x", 1, 1)))
	exec(t, m.pool, "INSERT INTO leasegen.message (topic, key, kind, payload) SELECT 'x', 'key-' || g % 2000, 'k', 'p' FROM generate_series(1, $1::int) g", messages)
	session, grants := all(t, be, sliced, nil)
	n := 0
	costs := m.costs(func() {
		read, _ := drainAll(t, be, sliced, session, grants, 15)
		n = len(read)
	})
	kit.Equal(t, "read", n, messages)
	t.Log(costs)
	// Each slot looks at a thousand messages, about 100 of which are on a page.
	if most := 256 * 40; max(costs["FetchSlots"].pages, costs["FetchSlotsLate"].pages) > most {
		t.Errorf("a read without the index touches %v pages, want at most %d", costs, most)
	}
	kit.OK(t, busy.Commit(t.Context()))
	be = leasepg.New(m.pool) // which has not tried just now
	kit.Must[operate.MaintainReport](t)(be.Maintain(t.Context(), []backend.ConsumerInfo{sliced}))
	kit.Equal(t, "partitions without the index", query[int](t, m.pool, `SELECT count(*) FROM leasegen.segment s WHERE to_regclass('leasegen.' || s.name || '_slot') IS NULL`), 0)
}

// TestTableLateAmongMany is TestLateCostsWhatIsLate for a table of the application.
func TestTableLateAmongMany(t *testing.T) {
	const topics, late = 60, 20
	_, pool := withTable(t)
	pool = openMax(t, pool.Config().ConnString(), late+8)
	insert := func() {
		t.Helper()
		exec(t, pool, "INSERT INTO app.outbox (channel, n) SELECT 'c' || g, g FROM generate_series(1, $1::int) g", topics)
	}
	var open []pgx.Tx
	for n := range late {
		tx := begin(t, pool)
		_, err := tx.Exec(t.Context(), "INSERT INTO app.outbox (channel, n) VALUES ('c' || $1::int, 1000 + $1::int)", n+1)
		kit.OK(t, err)
		open = append(open, tx)
	}
	insert()
	before, after := &tabletest.ByTopic{}, &tabletest.ByTopic{}
	t.Run("beside", func(t *testing.T) {
		running(t, byTopic(t, leasepg.New(pool), before))
		kit.Eventually(t, "the rows beside open transactions", func() bool { return len(before.Rows()) == topics })
	})
	burn(t, pool, 1400)
	exec(t, pool, "UPDATE leasegen.lease SET x = pg_current_xact_id() WHERE x IS NOT NULL")
	for _, tx := range open {
		kit.OK(t, tx.Commit(t.Context()))
	}
	insert()
	t.Run("late", func(t *testing.T) {
		running(t, byTopic(t, leasepg.New(pool), after))
		kit.Eventually(t, "late rows, and later ones", func() bool { return len(after.Rows()) >= topics+late })
		n := 0
		for _, m := range after.Rows() {
			if m.Payload.N > 1000 {
				n++
			}
		}
		kit.Equal(t, "late rows", n, late)
		kit.Equal(t, "rows", len(after.Rows()), topics+late)
	})
}

package leasepg_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/operate"
)

var sliced = backend.ConsumerInfo{Name: "sliced", Per: backend.PerPartition, Topics: []string{"*"}}

// all registers a consumer and takes all its resources.
func all(t testing.TB, be *leasepg.Backend, c backend.ConsumerInfo, resources []string) (session string, grants []backend.Grant) {
	t.Helper()
	a := kit.Join(t, be, c, time.Hour)
	kit.OK(t, be.Register(t.Context(), c, resources))
	return a.ID, a.Acquires(100_000)
}

// drainAll reads resources together, committing each round, until none is left.
func drainAll(t testing.TB, be *leasepg.Backend, c backend.ConsumerInfo, session string, grants []backend.Grant, limit int) (read []backend.Raw, by map[string][]backend.Raw) {
	t.Helper()
	by = map[string][]backend.Raw{}
	at := make([]backend.Cursor, len(grants))
	for i, g := range grants {
		at[i] = g.Cursor
	}
	for {
		req := backend.FetchRequest{Consumer: c, MaxPayload: 1 << 20}
		for i, g := range grants {
			req.Items = append(req.Items, backend.FetchItem{Resource: g.Resource, From: at[i], Limit: limit})
		}
		more := false
		var ps []backend.Progress
		for i, f := range kit.Must[[]backend.Fetched](t)(be.Fetch(t.Context(), req)) {
			read = append(read, f.Messages...)
			by[f.Resource] = append(by[f.Resource], f.Messages...)
			more = more || f.More || len(f.Messages) > 0
			if f.Next != at[i] {
				at[i] = f.Next
				ps = append(ps, backend.Progress{Ref: grants[i].Ref, Cursor: f.Next})
			}
		}
		fenced, err := be.Commit(t.Context(), session, c.Name, ps)
		kit.OK(t, err)
		kit.Equal(t, "fenced", len(fenced), 0)
		if !more {
			return read, by
		}
	}
}

// begin opens a transaction that ends with the test at the latest: the pool waits for it.
func begin(t testing.TB, pool *pgxpool.Pool) pgx.Tx {
	t.Helper()
	tx := kit.Must[pgx.Tx](t)(pool.Begin(t.Context()))
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

func keyed(topic string, keys, each int) []backend.Event {
	var es []backend.Event
	for n := range each {
		for k := range keys {
			es = append(es, backend.Event{Topic: topic, Key: fmt.Sprint("key-", k), Kind: "kind", Payload: strconv.AppendInt(nil, int64(n), 10)})
		}
	}
	return es
}

// TestSlots: a key has one slot, keys and keyless messages are spread, and plain SQL gets
// slots as the publisher does.
func TestSlots(t *testing.T) {
	be, pool := migrated(t)
	kit.OK(t, be.Publish(t.Context(), keyed("x", 2000, 3)))
	exec(t, pool, "INSERT INTO leasegen.message (topic, key, kind, payload) SELECT 'x', 'key-' || g, 'kind', '3' FROM generate_series(0, 1999) g")
	kit.Equal(t, "slots per key", query[int](t, pool, "SELECT max(n)::int FROM (SELECT count(DISTINCT slot) AS n FROM leasegen.message GROUP BY key) s"), 1)
	kit.Equal(t, "out of range", query[int](t, pool, "SELECT count(*) FROM leasegen.message WHERE slot NOT BETWEEN 0 AND 255"), 0)
	if n := query[int](t, pool, "SELECT count(DISTINCT slot) FROM leasegen.message"); n < 250 {
		t.Errorf("2,000 keys are in %d of 256 slots", n)
	}
	if n := query[int](t, pool, "SELECT max(n)::int FROM (SELECT count(DISTINCT key) AS n FROM leasegen.message GROUP BY slot) s"); n > 30 {
		t.Errorf("a slot has %d keys of 2,000, evenly spread it would be 8", n)
	}
	exec(t, pool, "INSERT INTO leasegen.message (topic, kind, payload) SELECT 'none', 'kind', '' FROM generate_series(1, 2560)")
	kit.Equal(t, "most keyless messages in a slot", query[int](t, pool,
		"SELECT max(n)::int FROM (SELECT count(*) AS n FROM leasegen.message WHERE topic = 'none' GROUP BY slot) s"), 10)

	session, grants := all(t, be, sliced, nil)
	kit.Equal(t, "slots", len(grants), 256)
	read, by := drainAll(t, be, sliced, session, grants, 7)
	kit.Equal(t, "read", len(read), 2000*4+2560)
	owner := map[string]string{}
	for slot, ms := range by {
		next := map[string]int{}
		for _, m := range ms {
			if m.Key == "" {
				continue
			}
			if other, ok := owner[m.Key]; ok && other != slot {
				t.Fatalf("key %s came from slots %s and %s", m.Key, other, slot)
			}
			owner[m.Key] = slot
			kit.Equal(t, m.Key+" in order", string(m.Payload), strconv.Itoa(next[m.Key]))
			next[m.Key]++
		}
	}
}

// TestSlotsOfTopics: a slot's reader passes over what is not its consumer's, however long
// that is, and stores where it has got.
func TestSlotsOfTopics(t *testing.T) {
	be, pool := migrated(t)
	some := backend.ConsumerInfo{Name: "some", Per: backend.PerPartition, Topics: []string{"a", "b.*"}}
	kit.OK(t, be.Publish(t.Context(), slices.Concat(keyed("noise", 50, 2), keyed("a", 50, 2), keyed("b.c", 50, 2))))
	exec(t, pool, "SELECT setval('leasegen.message_id_seq', 900000)") // as many rolled back
	kit.OK(t, be.Publish(t.Context(), slices.Concat(keyed("noise", 50, 2), keyed("a", 50, 2))))
	session, grants := all(t, be, some, nil)
	read, _ := drainAll(t, be, some, session, grants, 3)
	kit.Equal(t, "read", len(read), 300)
	for _, m := range read {
		if m.Topic != "a" && m.Topic != "b.c" {
			t.Fatalf("read a message of %s", m.Topic)
		}
	}
	kit.Equal(t, "slots that have not passed what is not theirs", query[int](t, pool,
		"SELECT count(*) FROM leasegen.lease WHERE consumer = 'some' AND pos < 900000"), 0)

	kit.OK(t, be.Release(t.Context(), session, some.Name, kit.Refs(grants)))
	grants = kit.Acting(t, be, session, some).Acquires(256)
	for _, f := range kit.Must[[]backend.Fetched](t)(be.Fetch(t.Context(), requests(some, grants, 10))) {
		i := slices.IndexFunc(grants, func(g backend.Grant) bool { return g.Resource == f.Resource })
		if len(f.Messages) > 0 || f.More || f.Next != grants[i].Cursor {
			t.Fatalf("slot %s moves at the end of the log", f.Resource)
		}
	}
}

func requests(c backend.ConsumerInfo, grants []backend.Grant, limit int) backend.FetchRequest {
	req := backend.FetchRequest{Consumer: c, MaxPayload: 1 << 20}
	for _, g := range grants {
		req.Items = append(req.Items, backend.FetchItem{Resource: g.Resource, From: g.Cursor, Limit: limit})
	}
	return req
}

// TestSlotsHugeLateTransaction: what a large transaction brings to many slots when it commits
// late is read in pages, in order, each message once.
func TestSlotsHugeLateTransaction(t *testing.T) {
	be, pool := migrated(t)
	for _, c := range []backend.ConsumerInfo{sliced, keyedStreams} {
		t.Run(c.Per.String(), func(t *testing.T) {
			exec(t, pool, "TRUNCATE leasegen.message, leasegen.lease, leasegen.consumer")
			tx := begin(t, pool)
			kit.OK(t, be.In(tx).Publish(t.Context(), keyed("x", 300, 60)))
			kit.OK(t, be.Publish(t.Context(), keyed("x", 300, 1)))
			session, grants := all(t, be, c, nil)
			read, _ := drainAll(t, be, c, session, grants, 10)
			kit.Equal(t, "read while the transaction was open", len(read), 300)
			kit.OK(t, tx.Commit(t.Context()))
			kit.OK(t, be.Publish(t.Context(), keyed("x", 300, 1)))
			kit.OK(t, be.Release(t.Context(), session, c.Name, kit.Refs(grants)))
			grants = kit.Acting(t, be, session, c).Acquires(1000)
			read, by := drainAll(t, be, c, session, grants, 10)
			kit.Equal(t, "read", len(read), 300*61)
			seen := map[string]bool{}
			for _, ms := range by {
				last := 0
				for _, m := range ms {
					id := kit.Must[int](t)(strconv.Atoi(m.ID))
					if seen[m.ID] || id < last {
						t.Fatalf("message %d came twice or after %d", id, last)
					}
					seen[m.ID], last = true, id
				}
			}
		})
	}
}

// TestFeedTellsSlotsAndStreams: each consumer hears of what is its own, late messages too.
func TestFeedTellsSlotsAndStreams(t *testing.T) {
	be, pool := migrated(t)
	slots := backend.ConsumerInfo{Name: "slots", Per: backend.PerPartition, Topics: []string{"a*"}}
	streams := backend.ConsumerInfo{Name: "streams", Per: backend.PerStream, Topics: []string{"*b"}}
	topics := backend.ConsumerInfo{Name: "topics", Per: backend.PerTopic, Topics: []string{"c"}}
	feed := kit.Must[backend.Feed](t)(be.OpenFeed(t.Context(), []backend.ConsumerInfo{slots, streams, topics}))
	defer feed.Close()
	hear := func(want map[string][]string) {
		t.Helper()
		got := map[string]map[string]bool{}
		kit.Eventually(t, fmt.Sprint("the feed tells ", want), func() bool {
			n := kit.Must[backend.News](t)(feed.Next(t.Context()))
			for _, topic := range n.Topics {
				if topic != "c" {
					t.Fatalf("the feed tells of topic %s", topic)
				}
			}
			for c, rs := range n.Resources {
				for _, r := range rs {
					if !slices.Contains(want[c], r) {
						t.Fatalf("the feed tells %s of %s", c, r)
					}
					if got[c] == nil {
						got[c] = map[string]bool{}
					}
					got[c][r] = true
				}
			}
			for c, rs := range want {
				if len(got[c]) != len(rs) {
					return false
				}
			}
			return true
		})
	}
	late := begin(t, pool)
	kit.OK(t, be.In(late).Publish(t.Context(), []backend.Event{{Topic: "ab", Key: "late", Kind: "k"}}))
	kit.OK(t, be.Publish(t.Context(), []backend.Event{
		{Topic: "a", Key: "one", Kind: "k"}, {Topic: "b", Key: "two", Kind: "k"}, {Topic: "b", Key: "two", Kind: "k"},
		{Topic: "ab", Key: "three", Kind: "k"}, {Topic: "none", Key: "four", Kind: "k"}, {Topic: "c", Key: "five", Kind: "k"},
	}))
	slot := func(key string) string {
		return query[string](t, pool, "SELECT min(slot)::text FROM leasegen.message WHERE key = $1", key)
	}
	hear(map[string][]string{"slots": {slot("one"), slot("three")}, "streams": {"two", "three"}})
	kit.OK(t, late.Commit(t.Context()))
	hear(map[string][]string{"slots": {slot("late")}, "streams": {"late"}})
}

// TestIndexLog: the first reader of slots has the log indexed, partition by partition, also
// when a transaction keeps one of them busy; partitions to come are born with the index.
func TestIndexLog(t *testing.T) {
	be, pool := migrated(t)
	kit.OK(t, be.Publish(t.Context(), keyed("x", 100, 1)))
	busy := begin(t, pool)
	kit.OK(t, be.In(busy).Publish(t.Context(), keyed("x", 1, 1)))
	indexes := func(column string) int {
		t.Helper()
		return query[int](t, pool, `SELECT count(*) FROM pg_indexes WHERE schemaname = 'leasegen' AND tablename LIKE 'message\_%'
			AND indexdef LIKE '%(' || $1 || ', id)'`, column)
	}
	kit.Equal(t, "indexes before", indexes("slot"), 0)
	session, grants := all(t, be, sliced, nil)
	if n := indexes("slot"); n == 0 || n >= query[int](t, pool, "SELECT count(*) FROM leasegen.segment") {
		t.Fatalf("%d partitions are indexed, want all but the busy one", n)
	}
	read, _ := drainAll(t, be, sliced, session, grants, 50)
	kit.Equal(t, "read without the index", len(read), 100)
	kit.OK(t, busy.Commit(t.Context()))

	again := leasepg.New(pool) // a process that comes later
	kit.OK(t, again.Register(t.Context(), sliced, nil))
	kit.Equal(t, "indexes", indexes("slot"), query[int](t, pool, "SELECT count(*) FROM leasegen.segment"))
	exec(t, pool, "SELECT leasegen.ensure_segments(9000000)")
	kit.Equal(t, "indexes of partitions to come", indexes("slot"), query[int](t, pool, "SELECT count(*) FROM leasegen.segment"))
	kit.Equal(t, "indexes that nobody needs", indexes("key"), 0)
	exec(t, pool, "SELECT setval('leasegen.message_id_seq', 8000000)")
	kit.OK(t, be.Publish(t.Context(), keyed("x", 100, 1)))
	read, _ = drainAll(t, be, sliced, session, grants, 50)
	kit.Equal(t, "read", len(read), 201)
}

// TestMigrateFilledLog: a log that version 1 filled, with cursors in the middle of it, goes on
// under the newest version: no message is lost, none comes twice, and keys have slots.
func TestMigrateFilledLog(t *testing.T) {
	pool := open(t, pgtest.DB(t))
	for _, name := range []string{"0000_schema.sql", "0001_log_and_leases.sql"} {
		exec(t, pool, string(kit.Must[[]byte](t)(os.ReadFile(filepath.Join("migrations", name)))))
	}
	exec(t, pool, `
		INSERT INTO leasegen.migration (version, name) VALUES (1, '0001_log_and_leases.sql');
		INSERT INTO leasegen.message (topic, key, kind, payload) SELECT 't' || g % 3, 'k' || g % 700, 'kind', '1' FROM generate_series(1, 20000) g;
		INSERT INTO leasegen.consumer (name, per, topics, likes, grace) VALUES ('grouped', 'group', '{*}', '{%}', '0');
		INSERT INTO leasegen.lease (consumer, resource) VALUES ('grouped', '*');
		UPDATE leasegen.lease SET epoch = 5, pos = 12000, snap = pg_current_snapshot();
		UPDATE leasegen.lease SET x = pg_current_xact_id();
		SELECT setval('leasegen.message_id_seq', 999900);
		INSERT INTO leasegen.message (topic, key, kind, payload) SELECT 't' || g % 3, 'k' || g % 700, 'kind', '1' FROM generate_series(1, 200) g`)
	before := query[string](t, pool, "SELECT md5(string_agg(xid || '/' || id || '/' || key, ',' ORDER BY id)) FROM leasegen.message")
	names, err := leasepg.Migrate(t.Context(), pool)
	kit.OK(t, err)
	kit.Equal(t, "applied", names[0], "0002_partitions.sql")
	kit.Equal(t, "the log", query[string](t, pool, "SELECT md5(string_agg(xid || '/' || id || '/' || key, ',' ORDER BY id)) FROM leasegen.message"), before)
	be := leasepg.New(pool)
	kit.OK(t, be.Check(t.Context(), nil))
	kit.Equal(t, "slots per key", query[int](t, pool, "SELECT max(n)::int FROM (SELECT count(DISTINCT slot) AS n FROM leasegen.message GROUP BY key) s"), 1)

	session, g := kit.Sole(t, be, grouped)
	ids, _ := drain(t, be, grouped, session.ID, g, 1000)
	kit.Equal(t, "left for the reader from before", len(ids), 8200)
	for _, c := range []backend.ConsumerInfo{sliced, keyedStreams} {
		session, grants := all(t, be, c, nil)
		read, _ := drainAll(t, be, c, session, grants, 100)
		kit.Equal(t, c.Name+" read", len(read), 20200)
	}
	// A publisher of version 1 that still runs.
	exec(t, pool, "INSERT INTO leasegen.message (topic, key, kind, payload) SELECT 't', 'k1', 'kind', '1' FROM generate_series(1, 10)")
	kit.Equal(t, "slots of k1", query[int](t, pool, "SELECT count(DISTINCT slot) FROM leasegen.message WHERE key = 'k1'"), 1)
}

// TestFromNow: what is there when a consumer registers for the first time is passed over, by
// all replicas alike; what is late for that moment, and what comes later, is not.
func TestFromNow(t *testing.T) {
	t.Parallel()
	for _, c := range []backend.ConsumerInfo{sliced, keyedStreams, grouped, topical} {
		t.Run(c.Per.String(), func(t *testing.T) {
			c.From = backend.FromNow
			be, pool := migrated(t)
			kit.OK(t, be.Publish(t.Context(), append(keyed("x", 20, 5), keyed("y", 20, 5)...)))
			open := begin(t, pool)
			kit.OK(t, be.In(open).Publish(t.Context(), keyed("x", 20, 1)))
			kit.OK(t, be.Publish(t.Context(), keyed("x", 20, 1)))

			// Publishers and replicas at once: whatever is passed over, it is the same for
			// all resources, and no message published after a registration is.
			var wg sync.WaitGroup
			for range 6 {
				wg.Go(func() {
					own := leasepg.New(pool)
					if err := own.Register(context.Background(), c, nil); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			kit.OK(t, be.Publish(t.Context(), append(keyed("x", 30, 1), keyed("z", 30, 1)...)))
			kit.OK(t, leasepg.New(pool).Register(t.Context(), c, nil))
			kit.OK(t, open.Commit(t.Context()))
			kit.OK(t, be.Register(t.Context(), c, []string{"x", "z", "key-0"}))
			kit.OK(t, be.Register(t.Context(), c, nil))
			session := kit.Join(t, be, c, time.Hour)
			read, _ := drainAll(t, be, c, session.ID, session.Acquires(1000), 7)
			kit.Equal(t, "read", len(read), 20+60)
		})
	}
}

// TestProgressInOrder: a request that was overtaken by a later one of its epoch stores
// no progress, whatever it brings, and is not taken for fenced.
func TestProgressInOrder(t *testing.T) {
	be, pool := migrated(t)
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 8)))
	kit.OK(t, be.Publish(t.Context(), kit.Events("y", 8)))
	session, grants := all(t, be, topical, nil)
	byName := map[string]backend.Grant{}
	for _, g := range grants {
		byName[g.Resource] = g
	}
	x, y := byName["x"], byName["y"]
	f := kit.Fetch(t, be, topical, "x", x.Cursor, 10)
	id := func(i int) string { return f.Messages[i].ID }
	commit := func(ps ...backend.Progress) {
		t.Helper()
		fenced, err := be.Commit(t.Context(), session, topical.Name, ps)
		kit.OK(t, err)
		kit.Equal(t, "fenced", len(fenced), 0)
	}
	state := func() string {
		return query[string](t, pool, `SELECT concat_ws(' ', (SELECT pos FROM leasegen.lease WHERE resource = 'x'),
			(SELECT string_agg(message_id || ':' || attempt, ',' ORDER BY seq) FROM leasegen.parked),
			(SELECT string_agg(message_id::text, ',' ORDER BY id) FROM leasegen.dead_letter))`)
	}
	first := backend.Progress{Ref: x.Ref, Seq: 1, Cursor: f.Cut(3), Park: []backend.Park{{ID: id(1), Lane: "l", Attempt: 1, Error: "e"}, {ID: id(2), Lane: "l"}}}
	second := backend.Progress{Ref: x.Ref, Seq: 2, Cursor: f.Cut(5), Done: []string{id(1)}, Park: []backend.Park{{ID: id(2), Lane: "l", Attempt: 4, Error: "e"}},
		Dead: []backend.Dead{{ID: id(4), Attempt: 1, Reason: "r"}}}
	commit(first)
	commit(second)
	want := state()
	old := backend.Progress{Ref: x.Ref, Seq: 1, Cursor: f.Cut(3), Done: []string{id(2)}, Park: []backend.Park{{ID: id(1), Lane: "l", Attempt: 1, Error: "e"}},
		Dead: []backend.Dead{{ID: id(0), Attempt: 1, Reason: "r"}}}
	commit(first)
	kit.Equal(t, "after an old request alone", state(), want)
	commit(backend.Progress{Ref: y.Ref, Seq: 1, Cursor: kit.Fetch(t, be, topical, "y", y.Cursor, 4).Next}, old)
	kit.Equal(t, "after an old request among others", state(), want)
	if pos := query[int64](t, pool, "SELECT pos FROM leasegen.lease WHERE resource = 'y'"); pos != 12 {
		t.Errorf("the other lease is at %d, want 12", pos)
	}
	commit(second)
	commit(second, backend.Progress{Ref: y.Ref, Seq: 2})
	kit.Equal(t, "after repeated requests", state(), want)

	// In a transaction it takes the effects with it.
	exec(t, pool, "CREATE TABLE effect (n int)")
	tx := kit.Must[backend.Tx](t)(be.Begin(t.Context(), session))
	_, err := tx.Handle().(pgx.Tx).Exec(t.Context(), "INSERT INTO effect VALUES (1)")
	kit.OK(t, err)
	if err := tx.Commit(t.Context(), session, topical.Name, old); err == nil {
		t.Error("an overtaken transaction was committed")
	}
	kit.Equal(t, "effects of an overtaken transaction", query[int](t, pool, "SELECT count(*) FROM effect"), 0)
	kit.Equal(t, "after an overtaken transaction", state(), want)

	// The next owner counts from the beginning.
	kit.OK(t, be.Release(t.Context(), session, topical.Name, []backend.Ref{x.Ref}))
	x = kit.Acting(t, be, session, topical).Acquires(1)[0]
	commit(backend.Progress{Ref: x.Ref, Seq: 1, Cursor: f.Next})
	if state() == want {
		t.Error("the next owner's first progress was taken for an old one")
	}
	fenced, err := be.Commit(t.Context(), session, topical.Name, []backend.Progress{first})
	kit.OK(t, err)
	kit.Equal(t, "fenced", strings.Join(fenced, ","), "x")
}

// TestRetentionOfSlotsAndStreams: a partition goes when all slots, or all streams, have been
// read, also those that no process has come for yet.
func TestRetentionOfSlotsAndStreams(t *testing.T) {
	for _, c := range []backend.ConsumerInfo{
		{Name: "slots", Per: backend.PerPartition, Topics: []string{"x*"}},
		{Name: "streams", Per: backend.PerStream, Topics: []string{"x*"}},
	} {
		t.Run(c.Per.String(), func(t *testing.T) {
			be, pool := migrated(t)
			drop := func() int {
				t.Helper()
				return kit.Must[operate.MaintainReport](t)(be.Maintain(t.Context(), []backend.ConsumerInfo{c})).SegmentsDropped
			}
			never := func(why string) {
				t.Helper()
				for range 3 {
					kit.Equal(t, "dropped although "+why, drop(), 0)
				}
			}
			kit.OK(t, be.Publish(t.Context(), append(keyed("x", 40, 3), keyed("noise", 40, 3)...)))
			late := begin(t, pool)
			kit.OK(t, be.In(late).Publish(t.Context(), keyed("xx", 5, 1)))
			exec(t, pool, "SELECT setval('leasegen.message_id_seq', 999990)")
			kit.OK(t, be.Publish(t.Context(), keyed("x", 40, 1)))
			session, grants := all(t, be, c, nil)
			never("nothing has been read")
			read, _ := drainAll(t, be, c, session, grants[1:], 100)
			never("one has not been read")
			first, _ := drainAll(t, be, c, session, grants[:1], 100)
			kit.Equal(t, "read", len(read)+len(first), 160)
			never("a transaction that wrote into it is open")
			kit.OK(t, late.Commit(t.Context()))
			never("its messages were late for all")
			kit.OK(t, be.Register(t.Context(), c, nil))
			kit.OK(t, be.Release(t.Context(), session, c.Name, kit.Refs(grants)))
			grants = kit.Acting(t, be, session, c).Acquires(1000)
			read, _ = drainAll(t, be, c, session, grants, 100)
			kit.Equal(t, "late", len(read), 5)
			kit.Equal(t, "dropped", drop(), 1)
			kit.Equal(t, "messages kept", query[int](t, pool, "SELECT count(*) FROM leasegen.message"), 30)
		})
	}
}

// TestRestampSlots: a copy in another cluster keeps what was late for slots and streams, and
// for the start of consumers that have not seen their resource yet.
func TestRestampSlots(t *testing.T) {
	be, pool := migrated(t)
	fresh := backend.ConsumerInfo{Name: "fresh", Per: backend.PerStream, Topics: []string{"*"}, From: backend.FromNow}
	tx := begin(t, pool)
	kit.OK(t, be.In(tx).Publish(t.Context(), keyed("x", 10, 1)))
	kit.OK(t, be.Publish(t.Context(), keyed("x", 20, 1)))
	consumers := []backend.ConsumerInfo{sliced, keyedStreams}
	for _, c := range consumers {
		session, grants := all(t, be, c, nil)
		read, _ := drainAll(t, be, c, session, grants, 9)
		kit.Equal(t, c.Name+" read before", len(read), 20)
	}
	kit.OK(t, be.Register(t.Context(), fresh, nil))
	kit.OK(t, tx.Commit(t.Context()))
	exec(t, pool, "UPDATE leasegen.origin SET system_identifier = 7")
	exec(t, pool, "SELECT leasegen.restamp()")
	for _, c := range append(consumers, fresh) {
		session, grants := all(t, be, c, nil)
		read, _ := drainAll(t, be, c, session, grants, 9)
		kit.Equal(t, c.Name+" read after", len(read), 0)
		p := kit.Must[backend.Parked](t)(be.FetchParked(t.Context(), backend.ParkedRequest{Session: session, Consumer: c, Limit: 99, MaxPayload: 99}))
		kit.Equal(t, c.Name+" parked", len(p.Messages), 10)
	}
}

// TestSetCursor: the owner is fenced, and the next one begins where it was set.
func TestSetCursor(t *testing.T) {
	for _, c := range []backend.ConsumerInfo{sliced, keyedStreams, topical, grouped} {
		t.Run(c.Per.String(), func(t *testing.T) {
			be, pool := migrated(t)
			kit.OK(t, be.Publish(t.Context(), keyed("x", 30, 3)))
			middle := query[int64](t, pool, "SELECT max(id) FROM leasegen.message")
			kit.OK(t, be.Publish(t.Context(), keyed("x", 30, 1)))
			session, grants := all(t, be, c, nil)
			read, _ := drainAll(t, be, c, session, grants, 50)
			kit.Equal(t, "read", len(read), 120)
			_, err := be.Commit(t.Context(), session, c.Name, []backend.Progress{{Ref: grants[0].Ref, Seq: 9,
				Park: []backend.Park{{ID: read[0].ID, Lane: "l", Attempt: 1, Error: "e"}}, Dead: []backend.Dead{{ID: read[1].ID, Reason: "r"}}}})
			kit.OK(t, err)
			late := begin(t, pool)
			kit.OK(t, be.In(late).Publish(t.Context(), keyed("x", 30, 1)))
			for _, step := range []struct {
				to         operate.CursorTarget
				want, kept int
			}{
				{operate.CursorTarget{After: fmt.Sprint(middle)}, 30, 2},
				{operate.CursorTarget{Now: true}, 0, 2},
				{operate.CursorTarget{Beginning: true}, 120, 0},
			} {
				moved := kit.Must[int](t)(be.SetCursor(t.Context(), c.Name, "", step.to))
				kit.Equal(t, "moved", moved, len(grants))
				fenced, err := be.Commit(t.Context(), session, c.Name, []backend.Progress{{Ref: grants[0].Ref, Seq: 10}})
				kit.OK(t, err)
				kit.Equal(t, "fenced", len(fenced), 1)
				old := grants
				grants = kit.Acting(t, be, session, c).Acquires(1000)
				kit.Equal(t, "acquired", len(grants), len(old))
				read, _ = drainAll(t, be, c, session, grants, 50)
				kit.Equal(t, fmt.Sprintf("read after %+v", step.to), len(read), step.want)
				kit.Equal(t, "parked and dead", query[int](t, pool,
					"SELECT (SELECT count(*) FROM leasegen.parked) + (SELECT count(*) FROM leasegen.dead_letter)"), step.kept)
			}
			kit.OK(t, late.Commit(t.Context()))
			read, _ = drainAll(t, be, c, session, grants, 50)
			if len(read) != 30+120 { // the grants' cursors are those from before the last drain
				t.Errorf("with the late ones: read %d, want 150", len(read))
			}
			// One resource alone.
			one := grants[len(grants)-1].Resource
			kit.Equal(t, "moved", kit.Must[int](t)(be.SetCursor(t.Context(), c.Name, one, operate.CursorTarget{Beginning: true})), 1)
			got := kit.Acting(t, be, session, c).Acquires(1000)
			if len(got) != 1 || got[0].Resource != one {
				t.Errorf("freed %v, want %s alone", got, one)
			}
			kit.Equal(t, "moved", kit.Must[int](t)(be.SetCursor(t.Context(), c.Name, "nothing", operate.CursorTarget{Now: true})), 0)
		})
	}
}

// BenchmarkSlots256 drains 256 slots of 100,000 messages, 1,000 messages a slot at most in a
// read, with a cursor for each committed.
func BenchmarkSlots256(b *testing.B) {
	be, pool := migrated(b)
	const n = 100_000
	exec(b, pool, "INSERT INTO leasegen.message (topic, key, kind, payload) SELECT 't' || g % 5, 'k' || g % 5000, 'kind', repeat('x', 100)::bytea FROM generate_series(1, $1) g", n)
	session, _ := all(b, be, sliced, nil)
	exec(b, pool, "VACUUM ANALYZE leasegen.message")
	for b.Loop() {
		b.StopTimer()
		kit.Must[int](b)(be.SetCursor(b.Context(), sliced.Name, "", operate.CursorTarget{Beginning: true}))
		grants := kit.Acting(b, be, session, sliced).Acquires(256)
		b.StartTimer()
		read, _ := drainAll(b, be, sliced, session, grants, 1000)
		kit.Equal(b, "read", len(read), n)
	}
	b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "msg/s")
}

// BenchmarkStatus40k is leasegen status of a consumer with 40,000 leases.
func BenchmarkStatus40k(b *testing.B) {
	for _, c := range []backend.ConsumerInfo{topical, keyedStreams} {
		b.Run(c.Per.String(), func(b *testing.B) {
			be, pool := migrated(b)
			exec(b, pool, `INSERT INTO leasegen.message (topic, key, kind, payload)
				SELECT 'topic-' || g % $1, 'key-' || g % $1, 'kind', 'x' FROM generate_series(1, 4 * $1) g`, manyLeases)
			session, grants := all(b, be, c, nil)
			kit.Equal(b, "leases", len(grants), manyLeases)
			drainAll(b, be, c, session, grants[:manyLeases/2], 10)
			exec(b, pool, "VACUUM ANALYZE leasegen.message, leasegen.lease")
			for b.Loop() {
				s := kit.Must[[]operate.ConsumerStatus](b)(be.Status(b.Context()))
				kit.Equal(b, "lag", s[0].LagTotal, int64(2*manyLeases))
			}
		})
	}
}

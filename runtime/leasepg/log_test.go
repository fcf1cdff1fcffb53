package leasepg_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/operate"
)

// drain reads a resource batch by batch, committing each, until nothing is left.
func drain(t testing.TB, be *leasepg.Backend, c backend.ConsumerInfo, session string, g backend.Grant, limit int) (ids []string, at backend.Cursor) {
	t.Helper()
	at = g.Cursor
	for {
		f := fetch(t, be, c, g.Resource, at, limit)
		if len(f.Messages) > limit {
			t.Fatalf("%d messages, the limit is %d", len(f.Messages), limit)
		}
		for _, m := range f.Messages {
			ids = append(ids, m.ID)
		}
		at = f.Next
		fenced, err := be.Commit(t.Context(), session, c.Name, []backend.Progress{{Ref: g.Ref, Cursor: at}})
		ok(t, err)
		equal(t, "fenced", len(fenced), 0)
		if len(f.Messages) == 0 && !f.More {
			return ids, at
		}
	}
}

// TestHugeLateTransaction: what a transaction of many messages brings when it commits late
// is read in batches, in order, without anything twice, by both kinds of readers.
func TestHugeLateTransaction(t *testing.T) {
	const huge, limit = 40_000, 500
	be, pool := migrated(t)
	tx := must[pgx.Tx](t)(pool.Begin(t.Context()))
	ok(t, be.In(tx).Publish(t.Context(), events("x", huge)))
	ok(t, be.Publish(t.Context(), events("x", 10)))

	type consumer struct {
		info     backend.ConsumerInfo
		resource string
		session  string
		grant    backend.Grant
	}
	var all []*consumer
	for _, c := range []*consumer{{info: grouped, resource: backend.Whole}, {info: topical, resource: "x"}} {
		c.session, c.grant = sole(t, be, c.info, c.resource)
		ids, at := drain(t, be, c.info, c.session, c.grant, limit)
		equal(t, "read while the transaction was open", len(ids), 10)
		c.grant.Cursor = at
		all = append(all, c)
	}
	ok(t, tx.Commit(t.Context()))
	ok(t, be.Publish(t.Context(), events("x", 5)))
	for _, c := range all {
		start := time.Now()
		ids, _ := drain(t, be, c.info, c.session, c.grant, limit)
		equal(t, c.info.Name+" read", len(ids), huge+5)
		seen := map[string]bool{}
		last := int64(0)
		for _, id := range ids {
			var n int64
			fmt.Sscan(id, &n)
			if seen[id] || n <= last {
				t.Fatalf("%s: message %d came after %d", c.info.Name, n, last)
			}
			seen[id], last = true, n
		}
		t.Logf("%s: %v", c.info.Name, time.Since(start))
	}
}

// TestCutWithinLateMessages: a cursor cut anywhere is where it says, also across a crash.
func TestCutWithinLateMessages(t *testing.T) {
	be, pool := migrated(t)
	session, g := sole(t, be, topical, "x")
	tx := must[pgx.Tx](t)(pool.Begin(t.Context()))
	ok(t, be.In(tx).Publish(t.Context(), events("x", 6)))
	ok(t, be.Publish(t.Context(), events("x", 2)))
	f := fetch(t, be, topical, "x", g.Cursor, 10)
	equal(t, "read first", len(f.Messages), 2)
	ok(t, tx.Commit(t.Context()))
	ok(t, be.Publish(t.Context(), events("x", 3)))

	base := f.Next
	for limit := 1; limit <= 10; limit++ {
		for n := 0; n <= limit; n++ {
			f := fetch(t, be, topical, "x", base, limit)
			if n > len(f.Messages) {
				break
			}
			_, err := be.Commit(t.Context(), session, topical.Name, []backend.Progress{{Ref: g.Ref, Cursor: f.Cut(n)}})
			ok(t, err)
			ok(t, be.Release(t.Context(), session, topical.Name, []backend.Ref{g.Ref}))
			g = acquire(t, be, session, topical, 1)[0]
			rest, _ := drain(t, be, topical, session, g, limit)
			equal(t, fmt.Sprintf("left after %d of %d", n, limit), len(rest), 9-n)
		}
	}
}

// TestSelectiveReader: a reader whose patterns match little of a long log gets on without
// reading it in one go, and its stored progress moves.
func TestSelectiveReader(t *testing.T) {
	be, pool := migrated(t)
	ok(t, be.Publish(t.Context(), events("noise", 10)))
	exec(t, pool, "SELECT setval('leasegen.message_id_seq', 700000)") // as many rolled back
	ok(t, be.Publish(t.Context(), events("a_b", 1)))
	ok(t, be.Publish(t.Context(), events("axb", 1)))
	picky := backend.ConsumerInfo{Name: "picky", Per: backend.PerGroup, Topics: []string{"a_b", `c%\*`}}
	session, g := sole(t, be, picky)
	first := fetch(t, be, picky, backend.Whole, g.Cursor, 10)
	if len(first.Messages) != 0 || !first.More || first.Next == g.Cursor {
		t.Fatalf("%d messages, more %v: want progress without messages", len(first.Messages), first.More)
	}
	ids, at := drain(t, be, picky, session, g, 10)
	equal(t, "matched", len(ids), 1)
	again := fetch(t, be, picky, backend.Whole, at, 10)
	if len(again.Messages) != 0 || again.More || again.Next != at {
		t.Fatal("a reader at the end of the log moves")
	}
}

// TestBytesBound: a batch of large payloads is cut, and nothing is lost by that.
func TestBytesBound(t *testing.T) {
	be, _ := migrated(t)
	big := []byte(`"` + strings.Repeat("x", 900<<10) + `"`)
	for range 50 {
		ok(t, be.Publish(t.Context(), []backend.Event{{Topic: "x", Kind: "big", Payload: big}}))
	}
	for _, c := range []backend.ConsumerInfo{topical, grouped} {
		resource := map[backend.Per]string{backend.PerTopic: "x", backend.PerGroup: backend.Whole}[c.Per]
		session, g := sole(t, be, c, "x")
		f := fetch(t, be, c, resource, g.Cursor, 50)
		if n := len(f.Messages); n == 0 || n >= 50 || !f.More {
			t.Fatalf("%d messages, more %v: want fewer than 50 and more", n, f.More)
		}
		ids, _ := drain(t, be, c, session, g, 50)
		equal(t, "read in all", len(ids), 50)
	}
}

// TestPartitionsAhead: publishers find a partition however far the ids have got.
func TestPartitionsAhead(t *testing.T) {
	be, pool := migrated(t)
	ok(t, be.Publish(t.Context(), events("x", 1)))
	for _, at := range []int64{3_999_995, 7_999_995, 30_000_000} {
		exec(t, pool, "SELECT setval('leasegen.message_id_seq', $1)", at) // others drew these
		ok(t, be.Publish(t.Context(), events("x", 10)))
	}
	if end := query[int64](t, pool, "SELECT max(hi) FROM leasegen.segment"); end < 32_000_000 {
		t.Fatalf("partitions end at %d", end)
	}
	// The caller's transaction does not hold the log up, nor is it held up.
	cfg := pool.Config().Copy()
	cfg.MaxConns = 1
	one := must[*pgxpool.Pool](t)(pgxpool.NewWithConfig(t.Context(), cfg))
	defer one.Close()
	exec(t, pool, "SELECT setval('leasegen.message_id_seq', 34999000)")
	ok(t, pgx.BeginFunc(t.Context(), one, func(tx pgx.Tx) error {
		return leasepg.New(one).In(tx).Publish(t.Context(), events("x", 2000))
	}))
	session, g := sole(t, be, grouped)
	ids, _ := drain(t, be, grouped, session, g, 1000)
	equal(t, "read", len(ids), 1+30+2000)
}

// TestRetention: a partition goes when every consumer has read all it wants of it, and not
// before, nor while a transaction may still write into it.
func TestRetention(t *testing.T) {
	be, pool := migrated(t)
	infos := []backend.ConsumerInfo{topical, grouped}
	drop := func() int {
		t.Helper()
		r := must[operate.MaintainReport](t)(be.Maintain(t.Context(), infos))
		return r.SegmentsDropped
	}
	never := func(why string) {
		t.Helper()
		for range 3 {
			equal(t, "dropped although "+why, drop(), 0)
		}
	}
	ok(t, be.Publish(t.Context(), append(events("a", 5), events("b", 5)...)))
	late := must[pgx.Tx](t)(pool.Begin(t.Context()))
	ok(t, be.In(late).Publish(t.Context(), events("a", 1)))
	exec(t, pool, "SELECT setval('leasegen.message_id_seq', 999995)")
	ok(t, be.Publish(t.Context(), events("a", 20)))
	never("no consumer has come yet")

	gs, g := sole(t, be, grouped)
	_, at := drain(t, be, grouped, gs, g, 100)
	g.Cursor = at
	ts, _ := member(t, be, time.Hour, topical)
	ok(t, be.Register(t.Context(), topical, []string{"a"}))
	never("topic b has no lease")
	ok(t, be.Register(t.Context(), topical, nil))
	grants := acquire(t, be, ts, topical, 9)
	equal(t, "topics", len(grants), 2)
	never("topics have not been read")
	for i := range grants {
		_, grants[i].Cursor = drain(t, be, topical, ts, grants[i], 100)
	}
	never("a transaction that wrote into it is open")
	ok(t, late.Commit(t.Context()))
	never("its message was late for all")
	for i := range grants {
		ids, _ := drain(t, be, topical, ts, grants[i], 100)
		if grants[i].Resource == "a" {
			equal(t, "late", len(ids), 1)
		}
	}
	never("one consumer has not read the late message")
	ids, _ := drain(t, be, grouped, gs, g, 100)
	equal(t, "late", len(ids), 1)

	// A reader that only holds the log up for a moment does not make publishers wait.
	reading := must[pgx.Tx](t)(pool.Begin(t.Context()))
	_, err := reading.Exec(t.Context(), "SELECT count(*) FROM leasegen.message")
	ok(t, err)
	start := time.Now()
	equal(t, "dropped under a reader", drop(), 0)
	if took := time.Since(start); took > 30*time.Second { // it ends only after this
		t.Fatalf("waited %v for a reader", took)
	}
	ok(t, reading.Rollback(t.Context()))
	equal(t, "dropped", drop(), 1)
	equal(t, "messages left", query[int](t, pool, "SELECT count(*) FROM leasegen.message WHERE id < 1000001"), 0)
	equal(t, "messages kept", query[int](t, pool, "SELECT count(*) FROM leasegen.message"), 15)
	ok(t, be.Publish(t.Context(), events("a", 1)))
}

// TestPublishJoinsTheTransaction: events are there when it commits, and only then.
func TestPublishJoinsTheTransaction(t *testing.T) {
	be, pool := migrated(t)
	for _, commit := range []bool{false, true} {
		tx := must[pgx.Tx](t)(pool.Begin(t.Context()))
		ok(t, be.In(tx).Publish(t.Context(), []backend.Event{{Topic: "x", Kind: "k", Payload: nil, Headers: map[string]string{"a": "ü\n"}}}))
		equal(t, "visible before", query[int](t, pool, "SELECT count(*) FROM leasegen.message"), 0)
		if commit {
			ok(t, tx.Commit(t.Context()))
		} else {
			ok(t, tx.Rollback(t.Context()))
		}
	}
	_, g := sole(t, be, topical, "x")
	f := fetch(t, be, topical, "x", g.Cursor, 5)
	equal(t, "messages", len(f.Messages), 1)
	m := f.Messages[0]
	if m.Headers["a"] != "ü\n" || m.Payload == nil || len(m.Payload) != 0 || time.Since(m.PublishedAt).Abs() > time.Minute {
		t.Fatalf("read %+v", m)
	}
	if err := be.Publish(t.Context(), []backend.Event{{Topic: "x", Kind: "k"}, {Kind: "k"}}); err == nil {
		t.Fatal("an event without a topic was published")
	}
	equal(t, "all or none", query[int](t, pool, "SELECT count(*) FROM leasegen.message"), 1)
}

// TestQueryModes: every mode of pgx works, those for poolers among them.
func TestQueryModes(t *testing.T) {
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			cfg := must[*pgxpool.Config](t)(pgxpool.ParseConfig(pgtest.DB(t)))
			cfg.ConnConfig.DefaultQueryExecMode = mode
			pool := must[*pgxpool.Pool](t)(pgxpool.NewWithConfig(t.Context(), cfg))
			defer pool.Close()
			_, err := leasepg.Migrate(t.Context(), pool)
			ok(t, err)
			be := leasepg.New(pool)
			ok(t, be.Check(t.Context(), nil))
			es := events("x", 3)
			es[1].Headers = map[string]string{"h": "v"}
			ok(t, be.Publish(t.Context(), es))
			session, g := sole(t, be, topical, "x")
			f := fetch(t, be, topical, "x", g.Cursor, 2)
			equal(t, "messages", len(f.Messages), 2)
			equal(t, "header", f.Messages[1].Headers["h"], "v")
			equal(t, "payload", string(f.Messages[1].Payload), `{"n":1}`)
			_, err = be.Commit(t.Context(), session, topical.Name, []backend.Progress{{Ref: g.Ref, Cursor: f.Next,
				Park: []backend.Park{{ID: f.Messages[0].ID, Lane: "l", Attempt: 1, Error: "no"}}, Dead: []backend.Dead{{ID: f.Messages[1].ID, Reason: "dead"}}}})
			ok(t, err)
			p := must[backend.Parked](t)(be.FetchParked(t.Context(), backend.ParkedRequest{Session: session, Consumer: topical, Limit: 9, MaxPayload: 99}))
			equal(t, "parked", len(p.Messages), 1)
			equal(t, "replayed", must[int](t)(be.Replay(t.Context(), operate.DeadLetterFilter{Consumer: topical.Name})), 1)
			feed := must[backend.Feed](t)(be.OpenFeed(t.Context(), []backend.ConsumerInfo{topical}))
			defer feed.Close()
			ok(t, be.Publish(t.Context(), events("y", 1)))
			eventually(t, "the feed reports y", func() bool {
				return len(must[backend.News](t)(feed.Next(context.Background())).Topics) > 0
			})
		})
	}
}

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
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/operate"
)

// drain reads a resource batch by batch, committing each, until none is left.
func drain(t testing.TB, be *leasepg.Backend, c backend.ConsumerInfo, session string, g backend.Grant, limit int) (ids []string, at backend.Cursor) {
	t.Helper()
	at = g.Cursor
	for {
		f := kit.Fetch(t, be, c, g.Resource, at, limit)
		if len(f.Messages) > limit {
			t.Fatalf("%d messages, the limit is %d", len(f.Messages), limit)
		}
		for _, m := range f.Messages {
			ids = append(ids, m.ID)
		}
		at = f.Next
		fenced, err := be.Commit(t.Context(), session, c.Name, []backend.Progress{{Ref: g.Ref, Cursor: at}})
		kit.OK(t, err)
		kit.Equal(t, "fenced", len(fenced), 0)
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
	tx := kit.Must[pgx.Tx](t)(pool.Begin(t.Context()))
	kit.OK(t, be.In(tx).Publish(t.Context(), kit.Events("x", huge)))
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 10)))

	type consumer struct {
		info     backend.ConsumerInfo
		resource string
		*kit.Actor
		grant backend.Grant
	}
	var all []*consumer
	for _, c := range []*consumer{{info: grouped, resource: backend.Whole}, {info: topical, resource: "x"}} {
		c.Actor, c.grant = kit.Sole(t, be, c.info, c.resource)
		ids, at := drain(t, be, c.info, c.ID, c.grant, limit)
		kit.Equal(t, "read while the transaction was open", len(ids), 10)
		c.grant.Cursor = at
		all = append(all, c)
	}
	kit.OK(t, tx.Commit(t.Context()))
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 5)))
	for _, c := range all {
		start := time.Now()
		ids, _ := drain(t, be, c.info, c.ID, c.grant, limit)
		kit.Equal(t, c.info.Name+" read", len(ids), huge+5)
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
	session, g := kit.Sole(t, be, topical, "x")
	tx := kit.Must[pgx.Tx](t)(pool.Begin(t.Context()))
	kit.OK(t, be.In(tx).Publish(t.Context(), kit.Events("x", 6)))
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 2)))
	f := kit.Fetch(t, be, topical, "x", g.Cursor, 10)
	kit.Equal(t, "read first", len(f.Messages), 2)
	kit.OK(t, tx.Commit(t.Context()))
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 3)))

	base := f.Next
	for limit := 1; limit <= 10; limit++ {
		for n := 0; n <= limit; n++ {
			f := kit.Fetch(t, be, topical, "x", base, limit)
			if n > len(f.Messages) {
				break
			}
			_, err := be.Commit(t.Context(), session.ID, topical.Name, []backend.Progress{{Ref: g.Ref, Cursor: f.Cut(n)}})
			kit.OK(t, err)
			kit.OK(t, be.Release(t.Context(), session.ID, topical.Name, []backend.Ref{g.Ref}))
			g = session.Acquires(1)[0]
			rest, _ := drain(t, be, topical, session.ID, g, limit)
			kit.Equal(t, fmt.Sprintf("left after %d of %d", n, limit), len(rest), 9-n)
		}
	}
}

// TestSelectiveReader: a reader whose patterns match little of a long log gets on without
// reading it in one go, and its stored progress moves.
func TestSelectiveReader(t *testing.T) {
	be, pool := migrated(t)
	kit.OK(t, be.Publish(t.Context(), kit.Events("noise", 10)))
	exec(t, pool, "SELECT setval('leasegen.message_id_seq', 700000)") // as many rolled back
	kit.OK(t, be.Publish(t.Context(), kit.Events("a_b", 1)))
	kit.OK(t, be.Publish(t.Context(), kit.Events("axb", 1)))
	picky := backend.ConsumerInfo{Name: "picky", Per: backend.PerGroup, Topics: []string{"a_b", `c%\*`}}
	session, g := kit.Sole(t, be, picky)
	first := kit.Fetch(t, be, picky, backend.Whole, g.Cursor, 10)
	if len(first.Messages) != 0 || !first.More || first.Next == g.Cursor {
		t.Fatalf("%d messages, more %v: want progress without messages", len(first.Messages), first.More)
	}
	ids, at := drain(t, be, picky, session.ID, g, 10)
	kit.Equal(t, "matched", len(ids), 1)
	again := kit.Fetch(t, be, picky, backend.Whole, at, 10)
	if len(again.Messages) != 0 || again.More || again.Next != at {
		t.Fatal("a reader at the end of the log moves")
	}
}

// TestBytesBound: a batch of large payloads is cut, and no message is lost by that.
func TestBytesBound(t *testing.T) {
	t.Parallel()
	be, _ := migrated(t)
	big := []byte(`"` + strings.Repeat("x", 900<<10) + `"`)
	for range 50 {
		kit.OK(t, be.Publish(t.Context(), []backend.Event{{Topic: "x", Kind: "big", Payload: big}}))
	}
	for _, c := range []backend.ConsumerInfo{topical, grouped} {
		resource := map[backend.Per]string{backend.PerTopic: "x", backend.PerGroup: backend.Whole}[c.Per]
		session, g := kit.Sole(t, be, c, "x")
		f := kit.Fetch(t, be, c, resource, g.Cursor, 50)
		if n := len(f.Messages); n == 0 || n >= 50 || !f.More {
			t.Fatalf("%d messages, more %v: want fewer than 50 and more", n, f.More)
		}
		ids, _ := drain(t, be, c, session.ID, g, 50)
		kit.Equal(t, "read in all", len(ids), 50)
	}
}

// TestPartitionsAhead: publishers find a partition however far the ids have got.
func TestPartitionsAhead(t *testing.T) {
	be, pool := migrated(t)
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 1)))
	for _, at := range []int64{3_999_995, 7_999_995, 30_000_000} {
		exec(t, pool, "SELECT setval('leasegen.message_id_seq', $1)", at) // others drew these
		kit.OK(t, be.Publish(t.Context(), kit.Events("x", 10)))
	}
	if end := query[int64](t, pool, "SELECT max(hi) FROM leasegen.segment"); end < 32_000_000 {
		t.Fatalf("partitions end at %d", end)
	}
	// The caller's transaction does not hold the log up, nor is it held up.
	cfg := pool.Config().Copy()
	cfg.MaxConns = 1
	one := kit.Must[*pgxpool.Pool](t)(pgxpool.NewWithConfig(t.Context(), cfg))
	defer one.Close()
	exec(t, pool, "SELECT setval('leasegen.message_id_seq', 34999000)")
	kit.OK(t, pgx.BeginFunc(t.Context(), one, func(tx pgx.Tx) error {
		return leasepg.New(one).In(tx).Publish(t.Context(), kit.Events("x", 2000))
	}))
	session, g := kit.Sole(t, be, grouped)
	ids, _ := drain(t, be, grouped, session.ID, g, 1000)
	kit.Equal(t, "read", len(ids), 1+30+2000)
}

// TestRetention: a partition goes when every consumer has read all it wants of it, and not
// before, nor while a transaction may still write into it.
func TestRetention(t *testing.T) {
	be, pool := migrated(t)
	infos := []backend.ConsumerInfo{topical, grouped}
	drop := func() int {
		t.Helper()
		r := kit.Must[operate.MaintainReport](t)(be.Maintain(t.Context(), infos))
		return r.SegmentsDropped
	}
	never := func(why string) {
		t.Helper()
		for range 3 {
			kit.Equal(t, "dropped although "+why, drop(), 0)
		}
	}
	kit.OK(t, be.Publish(t.Context(), append(kit.Events("a", 5), kit.Events("b", 5)...)))
	late := kit.Must[pgx.Tx](t)(pool.Begin(t.Context()))
	kit.OK(t, be.In(late).Publish(t.Context(), kit.Events("a", 1)))
	exec(t, pool, "SELECT setval('leasegen.message_id_seq', 999995)")
	kit.OK(t, be.Publish(t.Context(), kit.Events("a", 20)))
	never("no consumer has come yet")

	gs, g := kit.Sole(t, be, grouped)
	_, at := drain(t, be, grouped, gs.ID, g, 100)
	g.Cursor = at
	ts := kit.Join(t, be, topical, time.Hour)
	kit.OK(t, be.Register(t.Context(), topical, []string{"a"}))
	never("topic b has no lease")
	kit.OK(t, be.Register(t.Context(), topical, nil))
	grants := ts.Acquires(9)
	kit.Equal(t, "topics", len(grants), 2)
	never("topics have not been read")
	for i := range grants {
		_, grants[i].Cursor = drain(t, be, topical, ts.ID, grants[i], 100)
	}
	never("a transaction that wrote into it is open")
	kit.OK(t, late.Commit(t.Context()))
	never("its message was late for all")
	for i := range grants {
		ids, _ := drain(t, be, topical, ts.ID, grants[i], 100)
		if grants[i].Resource == "a" {
			kit.Equal(t, "late", len(ids), 1)
		}
	}
	never("one consumer has not read the late message")
	ids, _ := drain(t, be, grouped, gs.ID, g, 100)
	kit.Equal(t, "late", len(ids), 1)

	// A reader that only holds the log up for a moment does not make publishers wait.
	reading := kit.Must[pgx.Tx](t)(pool.Begin(t.Context()))
	_, err := reading.Exec(t.Context(), "SELECT count(*) FROM leasegen.message")
	kit.OK(t, err)
	start := time.Now()
	kit.Equal(t, "dropped under a reader", drop(), 0)
	if took := time.Since(start); took > 30*time.Second { // it ends only after this
		t.Fatalf("waited %v for a reader", took)
	}
	kit.OK(t, reading.Rollback(t.Context()))
	for _, c := range kit.Must[[]operate.CursorStatus](t)(be.Cursors(t.Context(), topical.Name, "", 0)) {
		kit.Equal(t, "gone before", c.Gone, "")
	}
	kit.Equal(t, "dropped", drop(), 1)
	for _, c := range kit.Must[[]operate.CursorStatus](t)(be.Cursors(t.Context(), topical.Name, "", 0)) {
		kit.Equal(t, "gone", c.Gone, "1000000")
	}
	kit.Equal(t, "messages left", query[int](t, pool, "SELECT count(*) FROM leasegen.message WHERE id < 1000001"), 0)
	kit.Equal(t, "messages kept", query[int](t, pool, "SELECT count(*) FROM leasegen.message"), 15)
	kit.OK(t, be.Publish(t.Context(), kit.Events("a", 1)))
}

// TestPublishJoinsTheTransaction: events are there when it commits, and only then.
func TestPublishJoinsTheTransaction(t *testing.T) {
	be, pool := migrated(t)
	for _, commit := range []bool{false, true} {
		tx := kit.Must[pgx.Tx](t)(pool.Begin(t.Context()))
		kit.OK(t, be.In(tx).Publish(t.Context(), []backend.Event{{Topic: "x", Kind: "k", Payload: nil, Headers: map[string]string{"a": "ü\n"}}}))
		kit.Equal(t, "visible before", query[int](t, pool, "SELECT count(*) FROM leasegen.message"), 0)
		if commit {
			kit.OK(t, tx.Commit(t.Context()))
		} else {
			kit.OK(t, tx.Rollback(t.Context()))
		}
	}
	_, g := kit.Sole(t, be, topical, "x")
	f := kit.Fetch(t, be, topical, "x", g.Cursor, 5)
	kit.Equal(t, "messages", len(f.Messages), 1)
	m := f.Messages[0]
	if m.Headers["a"] != "ü\n" || m.Payload == nil || len(m.Payload) != 0 || time.Since(m.PublishedAt).Abs() > time.Minute {
		t.Fatalf("read %+v", m)
	}
	if err := be.Publish(t.Context(), []backend.Event{{Topic: "x", Kind: "k"}, {Kind: "k"}}); err == nil {
		t.Fatal("an event without a topic was published")
	}
	kit.Equal(t, "all or none", query[int](t, pool, "SELECT count(*) FROM leasegen.message"), 1)
}

// TestQueryModes: every mode of pgx works, those for poolers among them.
func TestQueryModes(t *testing.T) {
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			cfg := kit.Must[*pgxpool.Config](t)(pgxpool.ParseConfig(pgtest.DB(t)))
			cfg.ConnConfig.DefaultQueryExecMode = mode
			pool := kit.Must[*pgxpool.Pool](t)(pgxpool.NewWithConfig(t.Context(), cfg))
			defer pool.Close()
			_, err := leasepg.Migrate(t.Context(), pool)
			kit.OK(t, err)
			be := leasepg.New(pool)
			kit.OK(t, be.Check(t.Context(), nil))
			es := kit.Events("x", 3)
			es[1].Headers = map[string]string{"h": "v"}
			kit.OK(t, be.Publish(t.Context(), es))
			session, g := kit.Sole(t, be, topical, "x")
			f := kit.Fetch(t, be, topical, "x", g.Cursor, 2)
			kit.Equal(t, "messages", len(f.Messages), 2)
			kit.Equal(t, "header", f.Messages[1].Headers["h"], "v")
			kit.Equal(t, "payload", string(f.Messages[1].Payload), `{"n":1}`)
			_, err = be.Commit(t.Context(), session.ID, topical.Name, []backend.Progress{{Ref: g.Ref, Cursor: f.Next,
				Park: []backend.Park{{ID: f.Messages[0].ID, Lane: "l", Attempt: 1, Error: "no"}}, Dead: []backend.Dead{{ID: f.Messages[1].ID, Reason: "dead"}}}})
			kit.OK(t, err)
			p := kit.Must[backend.Parked](t)(be.FetchParked(t.Context(), backend.ParkedRequest{Session: session.ID, Consumer: topical, Limit: 9, MaxPayload: 99}))
			kit.Equal(t, "parked", len(p.Messages), 1)
			kit.Equal(t, "replayed", kit.Must[int](t)(be.Replay(t.Context(), operate.DeadLetterFilter{Consumer: topical.Name})), 1)
			feed := kit.Must[backend.Feed](t)(be.OpenFeed(t.Context(), []backend.ConsumerInfo{topical}))
			defer feed.Close()
			kit.OK(t, be.Publish(t.Context(), kit.Events("y", 1)))
			kit.Eventually(t, "the feed reports y", func() bool {
				return len(kit.Must[backend.News](t)(feed.Next(context.Background())).Topics) > 0
			})
		})
	}
}

package leasepg_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/leasegen/leasegen/internal/tabletest"
	"github.com/leasegen/leasegen/internal/tabletest/leasedb"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/operate"
)

func rowsOf(f backend.Fetched) []int64 {
	var out []int64
	for _, m := range f.Messages {
		out = append(out, m.Value.(leasedb.OutboxRow).N)
	}
	return out
}

// TestTableStatus: rows behind are counted in the table, for each way to own them.
func TestTableStatus(t *testing.T) {
	be, pool := withTable(t)
	infos := []backend.ConsumerInfo{byGroup(t, be, &tabletest.ByGroup{}).Info(), byTopic(t, be, &tabletest.ByTopic{}).Info(), byKey(t, be, &tabletest.ByKey{}).Info()}
	exec(t, pool, "INSERT INTO app.outbox (channel, customer_id, n) VALUES ('eu', 1, 1), ('eu', NULL, 2), ('us', 3, 3)")
	kit.OK(t, be.Publish(t.Context(), kit.Events("eu", 7))) // the log's messages are not theirs
	for _, info := range infos {
		kit.OK(t, be.Register(t.Context(), info, nil))
	}
	status := kit.Must[[]operate.ConsumerStatus](t)(be.Status(t.Context()))
	kit.Equal(t, "consumers", len(status), 3)
	for _, s := range status {
		kit.Equal(t, s.Consumer+": rows behind", s.LagTotal, 3)
	}
	topics := kit.Must[[]operate.LeaseStatus](t)(be.Leases(t.Context(), "by_topic", 0))
	if len(topics) != 2 || topics[0].Resource != "eu" || topics[0].Lag != 2 || topics[1].Lag != 1 {
		t.Errorf("%+v", topics)
	}
}

// TestTableCursor: cursors of a table are moved by its positions, not by the log's ids.
func TestTableCursor(t *testing.T) {
	be, pool := withTable(t)
	exec(t, pool, "INSERT INTO app.outbox (channel, n, dawdled) SELECT 'eu', g, 0 FROM generate_series(1, 9) g")
	info := byGroup(t, be, &tabletest.ByGroup{}).Info()
	session, g := kit.Sole(t, be, info)
	move := func(to operate.CursorTarget) []int64 {
		t.Helper()
		kit.Equal(t, "moved", kit.Must[int](t)(be.SetCursor(t.Context(), info.Name, "", to)), 1)
		if f := kit.Must[[]string](t)(be.Commit(t.Context(), session.ID, info.Name, []backend.Progress{{Ref: g.Ref, Seq: 99}})); len(f) != 1 {
			t.Fatal("the owner was not fenced")
		}
		g = session.Acquires(1)[0]
		return rowsOf(kit.Fetch(t, be, info, backend.Whole, g.Cursor, 5))
	}
	if got := move(operate.CursorTarget{After: "6"}); !slices.Equal(got, []int64{7, 8, 9}) {
		t.Errorf("after 6: %v", got)
	}
	if got := move(operate.CursorTarget{Now: true}); len(got) != 0 {
		t.Errorf("now: %v", got)
	}
	if got := move(operate.CursorTarget{Beginning: true}); !slices.Equal(got, []int64{1, 2, 3, 4, 5}) {
		t.Errorf("beginning: %v", got)
	}
	_, err := be.SetCursor(t.Context(), info.Name, "", operate.CursorTarget{After: "10"})
	if err == nil || !strings.Contains(err.Error(), "the last one has id 9") {
		t.Errorf("beyond the end: %v", err)
	}
}

// TestTableNotify: a trigger that notifies, as in docs/tables.md, makes it quicker than the poll.
func TestTableNotify(t *testing.T) {
	t.Parallel()
	be, pool := withTable(t)
	exec(t, pool, `CREATE FUNCTION app.outbox_notify() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN PERFORM pg_notify('leasegen', 't'); RETURN NULL; END $$;
		CREATE TRIGGER outbox_notify AFTER INSERT ON app.outbox FOR EACH STATEMENT EXECUTE FUNCTION app.outbox_notify()`)
	h := &tabletest.ByTopic{}
	running(t, byTopic(t, be, h))
	exec(t, pool, "INSERT INTO app.outbox (channel, n) VALUES ('eu', 0)")
	kit.Eventually(t, "the first row", func() bool { return len(h.Rows()) == 1 })
	var took []time.Duration
	for n := range 5 {
		time.Sleep(800 * time.Millisecond) // until it is idle
		began := time.Now()
		exec(t, pool, "INSERT INTO app.outbox (channel, n) VALUES ('eu', 1)")
		kit.Eventually(t, "the row", func() bool { return len(h.Rows()) == n+2 })
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	t.Logf("from insert to handler: %v", took)
	// By polling alone it is 250 ms on average.
	if limit := 200*time.Millisecond + slack(t, pool); took[2] > limit {
		t.Errorf("half of them took %v or longer, want %v", took[2], limit)
	}
}

// TestTableRestore: a copy of a table and its cursors, restored from another cluster where
// xids had got further, loses no message and repeats none.
func TestTableRestore(t *testing.T) {
	be, pool := withTable(t)
	h := &tabletest.Ready{}
	filtered := kit.Must[*lease.Consumer](t)(tabletest.NewReady(be, h, quiet())).Info()
	filtered.From = backend.FromBeginning
	topical := byTopic(t, be, &tabletest.ByTopic{}).Info()
	late := kit.Must[pgx.Tx](t)(pool.Begin(t.Context()))
	kit.Must[pgconn.CommandTag](t)(late.Exec(t.Context(), "INSERT INTO app.outbox (channel, n, status) VALUES ('eu', 1, 'ready'), ('eu', 2, 'hold'), ('us', 3, 'ready')"))
	exec(t, pool, "INSERT INTO app.outbox (channel, n) VALUES ('eu', 4), ('us', 5)")
	session, g := kit.Sole(t, be, filtered)
	f := kit.Fetch(t, be, filtered, backend.Whole, g.Cursor, 10)
	kit.Equal(t, "read before", len(f.Messages), 2)
	kit.Must[[]string](t)(be.Commit(t.Context(), session.ID, filtered.Name, []backend.Progress{{Ref: g.Ref, Seq: 1, Cursor: f.Next}}))
	other := kit.Join(t, be, topical, time.Hour)
	kit.OK(t, be.Register(t.Context(), topical, nil))
	for _, g := range other.Acquires(9) {
		f := kit.Fetch(t, be, topical, g.Resource, g.Cursor, 10)
		kit.Must[[]string](t)(be.Commit(t.Context(), other.ID, topical.Name, []backend.Progress{{Ref: g.Ref, Seq: 1, Cursor: f.Next}}))
	}
	kit.OK(t, late.Commit(t.Context()))
	exec(t, pool, "INSERT INTO app.outbox (channel, n) VALUES ('eu', 6)")

	// As if the dump came from a cluster that was far ahead.
	exec(t, pool, `
		UPDATE app.outbox SET xid = (xid::text::bigint + 900000000)::text::xid8;
		UPDATE leasegen.lease SET x = (x::text::bigint + 900000000)::text::xid8,
			snap = (SELECT (pg_snapshot_xmin(snap)::text::bigint + 900000000) || ':' || (pg_snapshot_xmax(snap)::text::bigint + 900000000)
				|| ':' || coalesce((SELECT string_agg((v::text::bigint + 900000000)::text, ',') FROM pg_snapshot_xip(snap) v), ''))::pg_snapshot;
		UPDATE leasegen.origin SET system_identifier = 7;
		SELECT leasegen.restamp()`)
	fresh := kit.Must[*lease.Consumer](t)(tabletest.NewReady(be, h, quiet())).Info() // of a new process
	source := byTopic(t, be, &tabletest.ByTopic{}).Info()
	for _, info := range []backend.ConsumerInfo{fresh, source} {
		err := be.Register(t.Context(), info, nil)
		if err == nil || !strings.Contains(err.Error(), "UPDATE app.outbox SET xid = '3'") {
			t.Fatalf("with foreign xids: %v", err)
		}
	}
	exec(t, pool, "UPDATE app.outbox SET xid = '3' WHERE xid >= pg_snapshot_xmax(pg_current_snapshot())")
	check := func(info backend.ConsumerInfo, parked, read []int64) {
		t.Helper()
		kit.OK(t, be.Register(t.Context(), info, nil))
		session := kit.Join(t, be, info, time.Hour)
		var got []int64
		for _, g := range session.Acquires(9) {
			got = append(got, rowsOf(kit.Fetch(t, be, info, g.Resource, g.Cursor, 10))...)
		}
		if !slices.Equal(got, read) {
			t.Errorf("%s: read %v, want %v", info.Name, got, read)
		}
		got = nil
		p := kit.Must[backend.Parked](t)(be.FetchParked(t.Context(), backend.ParkedRequest{Session: session.ID, Consumer: info, Limit: 9, MaxPayload: 99}))
		for _, m := range p.Messages {
			got = append(got, m.Value.(leasedb.OutboxRow).N)
		}
		slices.Sort(got)
		if !slices.Equal(got, parked) {
			t.Errorf("%s: parked %v, want %v", info.Name, got, parked)
		}
	}
	check(fresh, []int64{1, 3}, []int64{6})
	check(source, []int64{1, 2, 3}, []int64{6})
}

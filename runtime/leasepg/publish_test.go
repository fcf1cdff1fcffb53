package leasepg_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/operate"
)

// BenchmarkPublish compares COPY with statements that take arrays, in turn, for as many
// events in a transaction. Where COPY becomes faster is copyRows. The best run of each counts:
// it is the least disturbed by what else the machine does.
func BenchmarkPublish(b *testing.B) {
	for _, n := range []int{10, 100, 300, 1000, 3000, 10_000, 50_000} {
		es := kit.Events("x", n)
		for i := range es {
			es[i].Payload = fmt.Appendf(nil, `{"n":%d,"pad":%0100d}`, i, i)
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			be, pool := migrated(b)
			best := map[bool]time.Duration{true: time.Hour, false: time.Hour}
			for b.Loop() {
				for copies, least := range best {
					began := time.Now()
					kit.OK(b, pgx.BeginFunc(b.Context(), pool, func(tx pgx.Tx) error {
						return leasepg.PublishBy(b.Context(), be, tx, copies, es)
					}))
					best[copies] = min(least, time.Since(began))
				}
			}
			b.ReportMetric(float64(n)/best[false].Seconds(), "arrays-events/s")
			b.ReportMetric(float64(n)/best[true].Seconds(), "copy-events/s")
			b.ReportMetric(best[false].Seconds()/best[true].Seconds(), "copy-ratio")
		})
	}
}

// A feed of an idle process probes for delayed events without drawing xids, and what is due
// joins the log in good time.
func TestDelayedEventsCostNothingUntilDue(t *testing.T) {
	t.Parallel()
	be, pool := migratedAt(t, pgtest.Start(t).DB("delayed")) // xids are a whole server's
	feed := kit.Must[backend.Feed](t)(be.OpenFeed(t.Context(), []backend.ConsumerInfo{topical}))
	defer feed.Close()
	kit.OK(t, be.Publish(t.Context(), []backend.Event{{Topic: "x", Kind: "k", Payload: []byte("1"), After: 15 * time.Second}}))
	next := func() backend.News { return kit.Must[backend.News](t)(feed.Next(t.Context())) }
	for began := time.Now(); time.Since(began) < time.Second; { // until it is idle
		began = time.Now()
		next()
	}
	xid := func() string { return query[string](t, pool, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text") }
	before, reads := xid(), 0
	for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); reads++ {
		if n := next(); len(n.Topics) > 0 {
			t.Fatal("it came before its time")
		}
	}
	kit.Equal(t, "next xid", xid(), before)
	if reads > 6 {
		t.Errorf("%d polls in 1.5 s", reads)
	}
	for len(next().Topics) == 0 {
	}
	late := query[time.Duration](t, pool, "SELECT clock_timestamp() - published_at FROM leasegen.message")
	if limit := time.Second + slack(t, pool); late > limit {
		t.Errorf("told %v after it had joined the log, want at most %v", late, limit)
	}
	kit.Equal(t, "left", query[int64](t, pool, "SELECT count(*) FROM leasegen.delayed"), 0)
}

// Processes that move delayed events at the same time move each once, and none out of order.
func TestDelayedEventsAreMovedByOneAtATime(t *testing.T) {
	be, pool := migrated(t)
	const n = 3500 // more than one transaction moves
	var es []backend.Event
	for i := range n {
		es = append(es, backend.Event{Topic: "x", Kind: "k", Payload: []byte(fmt.Sprint(i)), After: time.Hour})
	}
	kit.OK(t, be.Publish(t.Context(), es))
	kit.Equal(t, "moved before their time", query[int64](t, pool, "SELECT count(*) FROM leasegen.message"), 0)
	// Their times, in the opposite order of publication but for pairs, come to pass.
	exec(t, pool, "UPDATE leasegen.delayed SET due_at = now() - interval '1 s' - (seq / 2) * interval '1 ms'")
	// While one moves them the others do not even wait.
	tx := kit.Must[pgx.Tx](t)(pool.Begin(t.Context()))
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	var mine bool
	kit.OK(t, tx.QueryRow(t.Context(), "SELECT leasegen.take_turn('delayed')").Scan(&mine))
	kit.Equal(t, "the turn is taken", mine, true)
	kit.OK(t, leasepg.ReleaseDelayed(t.Context(), be))
	kit.Equal(t, "moved by a second one", query[int64](t, pool, "SELECT count(*) FROM leasegen.message"), 0)
	kit.OK(t, tx.Rollback(t.Context()))
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			for query[int64](t, pool, "SELECT count(*) FROM leasegen.delayed") > 0 {
				if err := leasepg.ReleaseDelayed(t.Context(), be); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	kit.Equal(t, "in the log", query[int64](t, pool, "SELECT count(DISTINCT payload) FROM leasegen.message"), n)
	kit.Equal(t, "rows", query[int64](t, pool, "SELECT count(*) FROM leasegen.message"), n)
	kit.Equal(t, "out of order", query[int64](t, pool, `SELECT count(*) FROM (
		SELECT convert_from(payload, 'UTF8')::int + 1 AS seq, lag(convert_from(payload, 'UTF8')::int + 1) OVER (ORDER BY id) AS before
		FROM leasegen.message) m
		WHERE seq / 2 > before / 2 OR seq / 2 = before / 2 AND seq < before`), 0)
}

// Ids are forgotten by housekeeping when their time is over, and count no more even before.
func TestIDsAreForgotten(t *testing.T) {
	be, pool := migrated(t)
	publish := func(want int64) {
		t.Helper()
		kit.OK(t, be.Publish(t.Context(), []backend.Event{{Topic: "x", Kind: "k", ID: "i", Payload: []byte("1")}}))
		kit.Equal(t, "published", query[int64](t, pool, "SELECT count(*) FROM leasegen.message"), want)
	}
	maintain := func() int { return kit.Must[operate.MaintainReport](t)(be.Maintain(t.Context(), nil)).IDsForgotten }
	age := func(d string) {
		exec(t, pool, "UPDATE leasegen.published_id SET at = clock_timestamp() - $1::text::interval", d)
	}
	publish(1)
	age("6 days 23 hours")
	publish(1)
	kit.Equal(t, "forgotten", maintain(), 0)
	age("7 days 1 hour")
	publish(2) // and the id counts again from now on
	publish(2)
	kit.Equal(t, "forgotten", maintain(), 0)
	age("7 days 1 hour")
	kit.Equal(t, "forgotten", maintain(), 1)
	publish(3)
}

// A COPY is all or none in the caller's transaction, and alone.
func TestManyEventsAreAllOrNone(t *testing.T) {
	be, pool := migrated(t)
	es := kit.Events("x", 2000)
	count := func() int64 { return query[int64](t, pool, "SELECT count(*) FROM leasegen.message") }
	errUndo := errors.New("undo")
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		kit.OK(t, be.In(tx).Publish(t.Context(), es))
		return errUndo
	})
	if !errors.Is(err, errUndo) {
		t.Fatal(err)
	}
	kit.Equal(t, "after a rollback", count(), 0)
	// The server refuses the last one, in the midst of the COPY.
	exec(t, pool, "ALTER TABLE leasegen.message ADD CONSTRAINT no_key CHECK (key <> 'bad') NOT VALID")
	bad := append([]backend.Event(nil), es...)
	bad[1999].Key = "bad"
	if err := be.Publish(t.Context(), bad); err == nil {
		t.Fatal("an event that cannot be stored was published")
	}
	kit.Equal(t, "after an error", count(), 0)
	kit.OK(t, be.Publish(t.Context(), es))
	kit.Equal(t, "published", count(), 2000)
	kit.Equal(t, "rows whose id was drawn before their xid", query[int64](t, pool, "SELECT count(*) FROM leasegen.message WHERE xid = '0'"), 0)
}

func TestCopyWakesTheFeed(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	feed := kit.Must[backend.Feed](t)(be.OpenFeed(t.Context(), []backend.ConsumerInfo{topical}))
	defer feed.Close()
	bare := pace.Beside(t, pool.Ping)
	for range 12 {
		kit.Must[backend.News](t)(feed.Next(t.Context())) // until it is idle
	}
	heard := make(chan time.Time, 1)
	go func() {
		for {
			n, err := feed.Next(context.Background())
			if err != nil || len(n.Topics) > 0 {
				heard <- time.Now()
				return
			}
		}
	}()
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 2000)))
	done := time.Now()
	bare.Within(t, "waking the feed", (<-heard).Sub(done), 700*time.Millisecond)
}

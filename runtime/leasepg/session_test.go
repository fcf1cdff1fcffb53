package leasepg_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

// TestNoHeartbeatAfterTakeover is the stale join race: heartbeats and takeovers around the
// moment of expiry. Once a lease was granted to another, no heartbeat succeeds any more.
func TestNoHeartbeatAfterTakeover(t *testing.T) {
	const rounds, ttl = 40, 30 * time.Millisecond
	be, _ := migrated(t)
	ok(t, be.Register(t.Context(), grouped, nil))
	contender, _ := member(t, be, time.Hour, grouped)
	var epoch int64
	for range rounds {
		var holder string
		var s backend.Session
		eventually(t, "the holder gets the lease", func() bool {
			holder, s = member(t, be, ttl, grouped)
			gs, err := be.Acquire(t.Context(), backend.AcquireRequest{Session: holder, Consumer: grouped, Max: 1, Attempt: newID()})
			return err == nil && len(gs) == 1
		})
		var (
			wg      sync.WaitGroup
			granted = make(chan time.Time, 1)
		)
		wg.Go(func() {
			for {
				gs := acquire(t, be, contender, grouped, 1)
				if len(gs) == 1 {
					granted <- time.Now()
					if gs[0].Epoch <= epoch {
						t.Errorf("epoch %d was granted after %d", gs[0].Epoch, epoch)
					}
					epoch = gs[0].Epoch
					ok(t, be.Release(context.Background(), contender, grouped.Name, []backend.Ref{gs[0].Ref}))
					return
				}
			}
		})
		var lastSuccess time.Time
		for {
			time.Sleep(rand.N(2 * ttl))
			before := time.Now()
			err := s.Heartbeat(t.Context())
			if errors.Is(err, backend.ErrSessionLost) {
				break
			}
			ok(t, err)
			lastSuccess = before
		}
		wg.Wait()
		if at := <-granted; lastSuccess.After(at) {
			t.Fatalf("a heartbeat sent %v after the takeover succeeded", lastSuccess.Sub(at))
		}
	}
}

// TestHeartbeatCreatesAndRevivesNothing: only a live, unexpired session is extended.
func TestHeartbeatCreatesAndRevivesNothing(t *testing.T) {
	be, pool := migrated(t)
	_, gone := member(t, be, time.Hour, grouped)
	exec(t, pool, "DELETE FROM leasegen.session")
	expired, late := member(t, be, time.Hour, grouped)
	expire(t, pool, expired)
	_, closed := member(t, be, time.Hour, grouped)
	ok(t, closed.Close(t.Context()))
	for _, s := range []backend.Session{gone, late, closed} {
		if err := s.Heartbeat(t.Context()); !errors.Is(err, backend.ErrSessionLost) {
			t.Errorf("heartbeat: %v, want ErrSessionLost", err)
		}
	}
	if _, err := be.Acquire(t.Context(), backend.AcquireRequest{Session: expired, Consumer: grouped, Max: 1, Attempt: newID()}); !errors.Is(err, backend.ErrSessionLost) {
		t.Errorf("acquire: %v, want ErrSessionLost", err)
	}
}

// TestCostOfHolding: holding many leases costs one row written per heartbeat, in place; a
// standby and an idle feed write nothing.
func TestCostOfHolding(t *testing.T) {
	const leases, beats = 2000, 20
	t.Parallel() // statistics take their time
	pool := open(t, pgtest.Start(t).DB("cost"))
	_, err := leasepg.Migrate(t.Context(), pool)
	ok(t, err)
	be := leasepg.New(pool)
	ok(t, be.Register(t.Context(), topical, topicNames(leases)))
	holder, s := member(t, be, time.Hour, topical)
	standby, _ := member(t, be, time.Hour, topical)
	equal(t, "acquired", len(acquire(t, be, holder, topical, leases)), leases)
	feed := must[backend.Feed](t)(be.OpenFeed(t.Context(), []backend.ConsumerInfo{topical}))
	defer feed.Close()
	for range 20 { // until it has become idle
		must[backend.News](t)(feed.Next(t.Context()))
	}

	settled := func() (writes, hot, leaseWrites int64) {
		t.Helper()
		const sql = `SELECT n_tup_ins + n_tup_upd + n_tup_del, n_tup_hot_upd FROM pg_stat_user_tables WHERE schemaname = 'leasegen' AND relname = $1`
		var before [3]int64
		for range 100 { // connections report within a second of falling idle
			ok(t, pool.QueryRow(t.Context(), sql, "session").Scan(&writes, &hot))
			ok(t, pool.QueryRow(t.Context(), sql, "lease").Scan(&leaseWrites, new(int64)))
			now := [3]int64{writes, hot, leaseWrites}
			if now == before && writes >= 2 && leaseWrites >= 2*leases {
				return
			}
			before = now
			time.Sleep(1100 * time.Millisecond)
		}
		t.Fatal("the statistics never settle")
		return
	}
	w0, h0, l0 := settled()
	x0 := query[int64](t, pool, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
	for range beats {
		ok(t, s.Heartbeat(t.Context()))
	}
	x1 := query[int64](t, pool, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
	equal(t, "transaction ids of the heartbeats", x1-x0, beats)
	var w1, h1, l1 int64
	// A connection tells of what it did at most once a second, and of the rest ten seconds after it
	// fell idle: that two looks agree says nothing yet.
	eventually(t, "the statistics show the heartbeats", func() bool {
		w1, h1, l1 = settled()
		return w1-w0 >= beats
	})
	equal(t, "rows written by the heartbeats", w1-w0, beats)
	equal(t, "of these in place", h1-h0, beats)
	equal(t, "lease rows written", l1-l0, 0)

	// The standby: surveys, an acquire that finds nothing, and the feed.
	x0 = query[int64](t, pool, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
	polls := 0
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); polls++ {
		must[backend.News](t)(feed.Next(t.Context()))
		must[[]backend.Survey](t)(be.Survey(t.Context(), []string{topical.Name}))
		ok(t, be.Register(t.Context(), topical, topicNames(3)))
	}
	if polls > 8 {
		t.Errorf("an idle feed polled %d times in 3 s", polls)
	}
	x1 = query[int64](t, pool, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
	equal(t, "transaction ids drawn by a standby", x1-x0, 0)
	_ = standby
}

// TestServerRestarts: sessions, feeds and commits go on after the server was killed or
// restarted, on their own.
func TestServerRestarts(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	pool := open(t, server.DB("restarted"))
	_, err := leasepg.Migrate(t.Context(), pool)
	ok(t, err)
	be := leasepg.New(pool)
	id, s := member(t, be, time.Minute, topical)
	ok(t, be.Register(t.Context(), topical, []string{"x"}))
	g := acquire(t, be, id, topical, 1)[0]
	feed := must[backend.Feed](t)(be.OpenFeed(t.Context(), []backend.ConsumerInfo{topical}))
	defer feed.Close()
	for i, restart := range []func(){func() { server.Restart() }, func() { server.Kill(); server.Start() }} {
		restart()
		eventually(t, "the heartbeat works again", func() bool { return s.Heartbeat(t.Context()) == nil })
		eventually(t, "publishing works again", func() bool { return be.Publish(t.Context(), events("x", 1)) == nil })
		eventually(t, "the feed reports it", func() bool {
			news, err := feed.Next(t.Context())
			return err == nil && len(news.Topics) == 1
		})
		f := fetch(t, be, topical, "x", g.Cursor, 9)
		if len(f.Messages) == 0 {
			t.Fatalf("no message after restart %d", i)
		}
		g.Cursor = f.Next
		fenced, err := be.Commit(t.Context(), id, topical.Name, []backend.Progress{{Ref: g.Ref, Cursor: f.Next}})
		ok(t, err)
		equal(t, "fenced", len(fenced), 0)
	}
}

// TestGrantsSurviveACrash: an epoch that was answered is never granted again, even where
// the role does not wait for the disk by default.
func TestGrantsSurviveACrash(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	pool := open(t, server.DB("restarted"))
	exec(t, pool, "ALTER ROLE CURRENT_USER SET synchronous_commit = off")
	pool.Reset()
	_, err := leasepg.Migrate(t.Context(), pool)
	ok(t, err)
	be := leasepg.New(pool)
	ok(t, be.Register(t.Context(), grouped, nil))
	id, _ := member(t, be, time.Hour, grouped)
	var last int64
	for range 3 {
		for range 20 {
			gs := acquire(t, be, id, grouped, 1)
			equal(t, "granted", len(gs), 1)
			if gs[0].Epoch <= last {
				t.Fatalf("epoch %d after %d", gs[0].Epoch, last)
			}
			last = gs[0].Epoch
			ok(t, be.Release(t.Context(), id, grouped.Name, []backend.Ref{gs[0].Ref}))
		}
		server.Kill()
		server.Start()
		eventually(t, "the server answers", func() bool { return pool.Ping(t.Context()) == nil })
		if have := query[int64](t, pool, "SELECT epoch FROM leasegen.lease"); have != last {
			t.Fatalf("after the crash the epoch is %d, %d was granted", have, last)
		}
	}
}

// TestFrozenTransactionEnds: a process that freezes in an effect transaction holds the next
// owner up for about a TTL, not for ever.
func TestFrozenTransactionEnds(t *testing.T) {
	be, pool := migrated(t)
	id, _ := member(t, be, 3*time.Second, grouped)
	ok(t, be.Register(t.Context(), grouped, nil))
	acquire(t, be, id, grouped, 1)
	tx := must[backend.Tx](t)(be.Begin(t.Context()))
	_, err := tx.Handle().(pgx.Tx).Exec(t.Context(), "SELECT 1 FROM leasegen.lease FOR NO KEY UPDATE")
	ok(t, err)
	expire(t, pool, id)
	next, _ := member(t, be, time.Hour, grouped)
	eventually(t, "the lease is taken over", func() bool { return len(acquire(t, be, next, grouped, 1)) == 1 })
	if err := tx.Commit(t.Context(), id, grouped.Name, backend.Progress{}); err == nil {
		t.Error("the frozen transaction committed")
	}
}

// TestPoolInUse: handlers that hold every connection do not stop the heartbeat.
func TestPoolInUse(t *testing.T) {
	be, pool := migrated(t)
	_, s := member(t, be, time.Hour, grouped)
	var held []*pgxpool.Conn
	for range pool.Config().MaxConns {
		held = append(held, must[*pgxpool.Conn](t)(pool.Acquire(t.Context())))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ok(t, s.Heartbeat(ctx))
	for _, c := range held {
		c.Release()
	}
}

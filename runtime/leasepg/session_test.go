package leasepg_test

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/faultproxy"
	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

// TestNoHeartbeatAfterTakeover is the stale join race: heartbeats and takeovers around the
// moment of expiry. Once a lease was granted to another, no heartbeat succeeds any more.
func TestNoHeartbeatAfterTakeover(t *testing.T) {
	t.Parallel()
	const ttl = 30 * time.Millisecond
	be, _ := migrated(t)
	kit.OK(t, be.Register(t.Context(), grouped, nil))
	contender := kit.Join(t, be, grouped, time.Hour)
	var epoch int64
	for range pace.Rounds(15, 40) {
		var holder *kit.Actor
		kit.Eventually(t, "the holder gets the lease", func() bool {
			holder = kit.Join(t, be, grouped, ttl)
			gs, err := be.Acquire(t.Context(), holder.Request(1))
			return err == nil && len(gs) == 1
		})
		var (
			wg    sync.WaitGroup
			at    time.Time
			taken = make(chan struct{})
		)
		wg.Go(func() {
			for {
				gs := contender.Acquires(1)
				if len(gs) == 1 {
					at = time.Now()
					close(taken)
					if gs[0].Epoch <= epoch {
						t.Errorf("epoch %d was granted after %d", gs[0].Epoch, epoch)
					}
					epoch = gs[0].Epoch
					kit.OK(t, be.Release(context.Background(), contender.ID, grouped.Name, []backend.Ref{gs[0].Ref}))
					return
				}
			}
		})
		var lastSuccess time.Time
		for {
			select {
			case <-time.After(rand.N(2 * ttl)):
			case <-taken: // at once: a moment later the session finds out by itself
			}
			before := time.Now()
			err := holder.Session.Heartbeat(t.Context())
			if errors.Is(err, backend.ErrSessionLost) {
				break
			}
			if errors.Is(err, context.DeadlineExceeded) { // a busy machine answered too late
				continue
			}
			kit.OK(t, err)
			lastSuccess = before
		}
		wg.Wait()
		if lastSuccess.After(at) {
			t.Fatalf("a heartbeat sent %v after the takeover succeeded", lastSuccess.Sub(at))
		}
	}
}

// TestHeartbeatCreatesAndRevivesNothing: only a live, unexpired session is extended.
func TestHeartbeatCreatesAndRevivesNothing(t *testing.T) {
	be, pool := migrated(t)
	gone := kit.Join(t, be, grouped, time.Hour)
	exec(t, pool, "DELETE FROM leasegen.session")
	expired := kit.Join(t, be, grouped, time.Hour)
	expire(t, pool, expired.ID)
	closed := kit.Join(t, be, grouped, time.Hour)
	kit.OK(t, closed.Session.Close(t.Context()))
	for _, s := range []backend.Session{gone.Session, expired.Session, closed.Session} {
		if err := s.Heartbeat(t.Context()); !errors.Is(err, backend.ErrSessionLost) {
			t.Errorf("heartbeat: %v, want ErrSessionLost", err)
		}
	}
	if _, err := be.Acquire(t.Context(), backend.AcquireRequest{Session: expired.ID, Consumer: grouped, Max: 1, Attempt: kit.ID()}); !errors.Is(err, backend.ErrSessionLost) {
		t.Errorf("acquire: %v, want ErrSessionLost", err)
	}
}

// A session comes back over a link on which opening a connection takes longer than it waits for an answer.
func TestSlowWayBack(t *testing.T) {
	t.Parallel()
	_, pool := migrated(t)
	dsn := pool.Config().ConnString()
	link := faultproxy.Start(t, pgtest.Shared(t).Addr())
	far := leasepg.New(open(t, strings.Replace(dsn, pgtest.Shared(t).Addr(), link.Addr(), 1)), leasepg.WithLogger(slog.New(slog.DiscardHandler)))
	const ttl = 15 * time.Second
	id := kit.Join(t, far, grouped, ttl)
	pid := query[int](t, pool, firstHolder, id.ID)
	link.Delay(375 * time.Millisecond)
	link.HangUp()
	broke := time.Now()
	for tried := time.Duration(0); ; {
		ctx, cancel := context.WithTimeout(t.Context(), ttl/4)
		err := id.Session.Heartbeat(ctx)
		cancel()
		if err == nil {
			break
		}
		tried = time.Since(broke)
		if errors.Is(err, backend.ErrSessionLost) || tried > time.Minute {
			t.Fatalf("after %v: %v", tried, err)
		}
	}
	took := time.Since(broke)
	t.Logf("it was back after %v", took)
	if took < ttl/3 {
		t.Errorf("it was back after %v, and the test is about more than %v", took, ttl/3)
	}
	if again := query[int](t, pool, firstHolder, id.ID); again == pid {
		t.Errorf("its connection has the pid %d, as before", pid)
	}
}

// A host that does not answer leaves a session, and its connection that waits, the time to reach the next one.
func TestNextHost(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		takes bool // connections, on which it does not answer
	}{
		{"it drops what is sent to it", false},
		{"it takes connections and does not answer", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, pool := migrated(t)
			at := pgtest.Shared(t).Addr()
			first, second := faultproxy.Start(t, at), faultproxy.Start(t, at)
			cfg := kit.Must[*pgxpool.Config](t)(pgxpool.ParseConfig(strings.Replace(pool.Config().ConnString(), at, first.Addr()+","+second.Addr(), 1)))
			var silent atomic.Bool
			cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if addr == first.Addr() && silent.Load() && !c.takes {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return new(net.Dialer).DialContext(ctx, network, addr)
			}
			hosts := kit.Must[*pgxpool.Pool](t)(pgxpool.NewWithConfig(t.Context(), cfg))
			t.Cleanup(hosts.Close)
			id := kit.Join(t, leasepg.New(hosts, leasepg.WithLogger(slog.New(slog.DiscardHandler))), grouped, time.Hour)
			kit.Eventually(t, "it waits", func() bool { return waits(t, pool, id.ID) })
			pid, waiting := query[int](t, pool, firstHolder, id.ID), query[int](t, pool, secondHolder, id.ID)
			silent.Store(true)
			first.Deafen()
			first.HangUp()
			kit.Eventually(t, "it is back", func() bool { p := query[int](t, pool, firstHolder, id.ID); return p != 0 && p != pid })
			kit.Eventually(t, "it waits again", func() bool { w := query[int](t, pool, secondHolder, id.ID); return w != 0 && w != waiting })
		})
	}
}

// The time that a session has to open is shared as well: the first host of a DSN may be the one that hangs, after a promotion.
func TestFirstConnectionReachesTheNextHost(t *testing.T) {
	t.Parallel()
	_, pool := migrated(t)
	at := pgtest.Shared(t).Addr()
	mute := faultproxy.Start(t, at)
	mute.Deafen()
	be := leasepg.New(open(t, strings.Replace(pool.Config().ConnString(), at, mute.Addr()+","+at, 1)), leasepg.WithLogger(slog.New(slog.DiscardHandler)))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	spec := backend.SessionSpec{ID: kit.ID(), TTL: time.Hour, Host: "host", PID: 7, Consumers: []string{grouped.Name}}
	kit.OK(t, kit.Must[backend.Session](t)(be.OpenSession(ctx, spec)).Close(t.Context()))
}

// A session that is abandoned while it connects ends that: the one that replaces it needs the server's time.
func TestAbandonedSessionStopsConnecting(t *testing.T) {
	t.Parallel()
	_, pool := migrated(t)
	link := faultproxy.Start(t, pgtest.Shared(t).Addr())
	var cut atomic.Bool
	var opened, closed atomic.Int64
	cfg := kit.Must[*pgxpool.Config](t)(pgxpool.ParseConfig(strings.Replace(pool.Config().ConnString(), pgtest.Shared(t).Addr(), link.Addr(), 1)))
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil || !cut.Load() {
			return c, err
		}
		return &starting{Conn: c, opened: sync.OnceFunc(func() { opened.Add(1) }), closed: sync.OnceFunc(func() { closed.Add(1) })}, nil
	}
	far := kit.Must[*pgxpool.Pool](t)(pgxpool.NewWithConfig(t.Context(), cfg))
	t.Cleanup(far.Close)
	be := leasepg.New(far, leasepg.WithLogger(slog.New(slog.DiscardHandler)), leasepg.WithoutWaiting())
	id := kit.Join(t, be, grouped, time.Hour)
	cut.Store(true)
	link.BlackHole()
	exec(t, pool, "SELECT pg_terminate_backend(("+firstHolder+"))", id.ID)
	link.HangUp()
	kit.Eventually(t, "it connects", func() bool { return opened.Load() > 0 })
	leasepg.Abandon(be, id.ID)
	for end := time.Now().Add(5 * time.Second); closed.Load() < opened.Load(); time.Sleep(5 * time.Millisecond) { // by itself a try ends after ten
		if time.Now().After(end) {
			t.Fatalf("of %d connections %d are closed", opened.Load(), closed.Load())
		}
	}
}

// starting is a connection that reports its beginning and its end, unless it carries a request to cancel: that has 16 bytes.
type starting struct {
	net.Conn
	opened, closed func()
	started        atomic.Bool
}

func (c *starting) Write(p []byte) (int, error) {
	if len(p) > 16 {
		c.started.Store(true)
		c.opened()
	}
	return c.Conn.Write(p)
}

func (c *starting) Close() error {
	if c.started.Load() {
		c.closed()
	}
	return c.Conn.Close()
}

// TestCostOfHolding: holding many leases costs one row written per heartbeat, in place; a
// standby and an idle feed write no rows.
func TestCostOfHolding(t *testing.T) {
	const leases, beats = 2000, 20
	t.Parallel() // statistics take their time
	// Autovacuum would draw transaction ids, too.
	pool := open(t, pgtest.Start(t, pgtest.Config("autovacuum", "off")).DB("cost"))
	_, err := leasepg.Migrate(t.Context(), pool)
	kit.OK(t, err)
	be := leasepg.New(pool)
	kit.OK(t, be.Register(t.Context(), topical, kit.Topics(leases)))
	holder := kit.Join(t, be, topical, time.Hour)
	standby := kit.Join(t, be, topical, time.Hour)
	kit.Equal(t, "acquired", len(holder.Acquires(leases)), leases)
	feed := kit.Must[backend.Feed](t)(be.OpenFeed(t.Context(), []backend.ConsumerInfo{topical}))
	defer feed.Close()
	for range 20 { // until it has become idle
		kit.Must[backend.News](t)(feed.Next(t.Context()))
	}

	// A connection reports at most once a second what it has done, and at once when it ends.
	settled := func() (writes, hot, leaseWrites int64) {
		t.Helper()
		pool.Reset()
		const sql = `SELECT n_tup_ins + n_tup_upd + n_tup_del, n_tup_hot_upd FROM pg_stat_user_tables WHERE schemaname = 'leasegen' AND relname = $1`
		var before [3]int64
		for range 100 {
			kit.OK(t, pool.QueryRow(t.Context(), sql, "session").Scan(&writes, &hot))
			kit.OK(t, pool.QueryRow(t.Context(), sql, "lease").Scan(&leaseWrites, new(int64)))
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
	for beat := range beats {
		if beat == beats-1 { // after a second this one reports all of them; without it they wait for ten
			time.Sleep(1100 * time.Millisecond)
		}
		kit.OK(t, holder.Heartbeat())
	}
	x1 := query[int64](t, pool, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
	kit.Equal(t, "transaction ids of the heartbeats", x1-x0, beats)
	var w1, h1, l1 int64
	// That two looks agree is no proof yet.
	kit.Eventually(t, "the statistics show the heartbeats", func() bool {
		w1, h1, l1 = settled()
		return w1-w0 >= beats
	})
	kit.Equal(t, "rows written by the heartbeats", w1-w0, beats)
	kit.Equal(t, "of these in place", h1-h0, beats)
	kit.Equal(t, "lease rows written", l1-l0, 0)

	// The standby: surveys, an acquire that finds no lease, and the feed.
	x0 = query[int64](t, pool, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
	polls := 0
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); polls++ {
		kit.Must[backend.News](t)(feed.Next(t.Context()))
		kit.Must[[]backend.Survey](t)(be.Survey(t.Context(), []string{topical.Name}))
		kit.OK(t, be.Register(t.Context(), topical, kit.Topics(3)))
	}
	if polls > 8 {
		t.Errorf("an idle feed polled %d times in 3 s", polls)
	}
	x1 = query[int64](t, pool, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
	kit.Equal(t, "transaction ids drawn by a standby", x1-x0, 0)
	_ = standby.ID
}

// TestServerRestarts: sessions, feeds and commits go on after the server was killed or
// restarted, on their own.
func TestServerRestarts(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	pool := open(t, server.DB("restarted"))
	_, err := leasepg.Migrate(t.Context(), pool)
	kit.OK(t, err)
	be := leasepg.New(pool)
	id := kit.Join(t, be, topical, time.Minute)
	kit.OK(t, be.Register(t.Context(), topical, []string{"x"}))
	g := id.Acquires(1)[0]
	feed := kit.Must[backend.Feed](t)(be.OpenFeed(t.Context(), []backend.ConsumerInfo{topical}))
	defer feed.Close()
	for i, restart := range []func(){func() { server.Restart() }, func() { server.Kill(); server.Start() }} {
		restart()
		kit.Eventually(t, "the heartbeat works again", func() bool { return id.Session.Heartbeat(t.Context()) == nil })
		kit.Eventually(t, "publishing works again", func() bool { return be.Publish(t.Context(), kit.Events("x", 1)) == nil })
		kit.Eventually(t, "the feed reports it", func() bool {
			news, err := feed.Next(t.Context())
			return err == nil && len(news.Topics) == 1
		})
		f := kit.Fetch(t, be, topical, "x", g.Cursor, 9)
		if len(f.Messages) == 0 {
			t.Fatalf("no message after restart %d", i)
		}
		g.Cursor = f.Next
		fenced, err := be.Commit(t.Context(), id.ID, topical.Name, []backend.Progress{{Ref: g.Ref, Cursor: f.Next}})
		kit.OK(t, err)
		kit.Equal(t, "fenced", len(fenced), 0)
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
	kit.OK(t, err)
	be := leasepg.New(pool)
	kit.OK(t, be.Register(t.Context(), grouped, nil))
	id := kit.Join(t, be, grouped, time.Hour)
	var last int64
	for range 3 {
		for range 20 {
			gs := id.Acquires(1)
			kit.Equal(t, "granted", len(gs), 1)
			if gs[0].Epoch <= last {
				t.Fatalf("epoch %d after %d", gs[0].Epoch, last)
			}
			last = gs[0].Epoch
			kit.OK(t, be.Release(t.Context(), id.ID, grouped.Name, []backend.Ref{gs[0].Ref}))
		}
		server.Kill()
		server.Start()
		kit.Eventually(t, "the server answers", func() bool { return pool.Ping(t.Context()) == nil })
		if have := query[int64](t, pool, "SELECT epoch FROM leasegen.lease"); have != last {
			t.Fatalf("after the crash the epoch is %d, %d was granted", have, last)
		}
		id.Releases(backend.Ref{Resource: backend.Whole, Epoch: last}) // that one may be lost
	}
}

// TestFrozenTransactionEnds: a process that freezes in an effect transaction holds the next
// owner up for about a TTL, not for ever.
func TestFrozenTransactionEnds(t *testing.T) {
	be, pool := migrated(t)
	id := kit.Join(t, be, grouped, 3*time.Second)
	kit.OK(t, be.Register(t.Context(), grouped, nil))
	id.Acquires(1)
	next := kit.Join(t, be, grouped, time.Hour) // another session of the process, whose TTL does not count
	tx := kit.Must[backend.Tx](t)(be.Begin(t.Context(), id.ID))
	_, err := tx.Handle().(pgx.Tx).Exec(t.Context(), "SELECT 1 FROM leasegen.lease FOR NO KEY UPDATE")
	kit.OK(t, err)
	expire(t, pool, id.ID)
	kit.Eventually(t, "the lease is taken over", func() bool { return len(next.Acquires(1)) == 1 })
	if err := tx.Commit(t.Context(), id.ID, grouped.Name, backend.Progress{}); err == nil {
		t.Error("the frozen transaction committed")
	}
}

// TestPoolInUse: handlers that hold every connection do not stop the heartbeat.
func TestPoolInUse(t *testing.T) {
	be, pool := migrated(t)
	s := kit.Join(t, be, grouped, time.Hour)
	var held []*pgxpool.Conn
	for range pool.Config().MaxConns {
		held = append(held, kit.Must[*pgxpool.Conn](t)(pool.Acquire(t.Context())))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	kit.OK(t, s.Session.Heartbeat(ctx))
	for _, c := range held {
		c.Release()
	}
}

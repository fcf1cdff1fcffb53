package leasepg_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/faultproxy"
	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/part"
	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
)

// holders of a session's first lock, and of its second one.
const (
	firstHolder  = "SELECT backend_pid FROM leasegen.session WHERE id = $1"
	secondHolder = "SELECT coalesce((SELECT max(pid) FROM leasegen.lock_holders(hashtextextended('leasegen.second/' || $1, 0))), 0)"
)

// Sessions that lose a connection come back, and no other takes them for dead: 10,000 times in make proof.
func TestReconnectsKillNobody(t *testing.T) {
	t.Parallel()
	be, pool := migratedAt(t, pgtest.Start(t, pgtest.Config("fsync", "off")).DB("reconnects"), leasepg.WithLogger(slog.New(slog.DiscardHandler)))
	bare := pace.Beside(t, connecting(pool))
	const sessions = 16
	rounds := pace.Rounds(15*sessions, 10_000)
	var left, judged, dead, notCounted atomic.Int64
	left.Store(int64(rounds))
	join := func() *kit.Actor {
		id := kit.Join(t, be, grouped, time.Hour)
		kit.Eventually(t, "it waits", func() bool { return waits(t, pool, id.ID) })
		return id
	}
	// reconnect ends a connection of a session, and waits until it is back, or dead, or for a minute.
	reconnect := func(id *kit.Actor, kind int) (alive bool) {
		pid := query[int](t, pool, firstHolder, id.ID)
		holder := []string{firstHolder, secondHolder, firstHolder}[kind]
		exec(t, pool, "SELECT pg_terminate_backend(pid) FROM ("+holder+") h (pid) WHERE pid <> 0", id.ID)
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(40 * time.Millisecond) {
			if state(t, pool, id.ID) != "live" {
				return false
			}
			if waits(t, pool, id.ID) && (kind == 1 || query[int](t, pool, firstHolder, id.ID) != pid) {
				return true
			}
		}
		t.Errorf("session %s does not come back", id.ID)
		return true
	}
	var wg sync.WaitGroup
	for n := range sessions {
		id := join()
		wg.Go(func() {
			for i := n; left.Add(-1) >= 0; i++ {
				for {
					began := time.Now()
					alive := reconnect(id, i%3)
					busy := !alive && bare.BusySince(began)
					if !alive && !busy {
						dead.Add(1)
					}
					if busy {
						notJudged(t, id.ID)
					}
					if !alive {
						id = join()
					}
					if !busy {
						judged.Add(1)
						break
					}
					if notCounted.Add(1) > int64(rounds) { // it is made again, but not for ever
						break
					}
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d reconnects were judged; %d more were not, since the machine was busy", judged.Load(), notCounted.Load())
	kit.Equal(t, "reconnects that were judged", judged.Load(), int64(rounds))
	kit.Equal(t, fmt.Sprintf("sessions taken for dead in %d reconnects", rounds), dead.Load(), 0)
}

// A process whose connections all end at once, and that lives, has as long as it takes to connect several times.
func TestAllConnectionsEndAtOnce(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	watching := kit.Join(t, be, grouped, time.Hour)
	bare := pace.Beside(t, connecting(pool))
	survived := 0
	rounds := pace.Rounds(8, 20)
	for range rounds {
		began := time.Now()
		id := kit.Join(t, be, grouped, time.Hour)
		kit.Eventually(t, "both wait", func() bool { return waits(t, pool, id.ID) && waits(t, pool, watching.ID) })
		pid := query[int](t, pool, firstHolder, id.ID)
		exec(t, pool, "SELECT pg_terminate_backend(pid) FROM (SELECT ("+firstHolder+") UNION ALL "+secondHolder+") h (pid)", id.ID)
		kit.Eventually(t, "it is back, or lost", func() bool {
			return state(t, pool, id.ID) == "dead" || query[int](t, pool, firstHolder, id.ID) != pid
		})
		time.Sleep(300 * time.Millisecond)
		if id.Session.Heartbeat(t.Context()) == nil {
			survived++
			kit.OK(t, id.Session.Close(t.Context()))
		} else if bare.BusySince(began) {
			notJudged(t, id.ID)
			survived++
		}
	}
	kit.Equal(t, "sessions that survived the end of all their connections", survived, rounds)
}

// The same where the network resets them or ends them in order, which the server notices late of the one that waits, and each commit
// takes long: what coming back costs counts, and not connecting alone.
func TestNetworkResetsKillNobody(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*faultproxy.Proxy){
		"reset":        func(link *faultproxy.Proxy) { link.Cut(); link.Heal() },
		"orderly ends": (*faultproxy.Proxy).HangUp,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := pgtest.Start(t, pgtest.Config("commit_delay", "20000"), pgtest.Config("commit_siblings", "0"))
			be, pool := migratedAt(t, server.DB("resets"))
			link := faultproxy.Start(t, server.Addr())
			far := leasepg.New(open(t, strings.Replace(pool.Config().ConnString(), server.Addr(), link.Addr(), 1)), leasepg.WithLogger(slog.New(slog.DiscardHandler)))
			watching := kit.Join(t, be, grouped, time.Hour)
			bare := pace.Beside(t, connecting(pool))
			dead := 0
			for range pace.Rounds(10, 30) {
				began := time.Now()
				id := kit.Join(t, far, grouped, time.Hour)
				kit.Eventually(t, "both wait", func() bool { return waits(t, pool, id.ID) && waits(t, pool, watching.ID) })
				pid := query[int](t, pool, firstHolder, id.ID)
				end(link)
				kit.Eventually(t, "it is back, or lost", func() bool {
					return state(t, pool, id.ID) == "dead" || query[int](t, pool, firstHolder, id.ID) != pid
				})
				switch {
				case state(t, pool, id.ID) != "dead":
				case bare.BusySince(began):
					notJudged(t, id.ID)
				default:
					dead++
				}
				kit.OK(t, id.Session.Close(t.Context()))
			}
			kit.Equal(t, "sessions taken for dead whose connections the network ended", dead, 0)
		})
	}
}

// A leader whose lock is gone, and that cannot take another, ends its session by itself after its TTL, however often it is asked
// for heartbeats: it waits on, and so no other finds it dead.
func TestLeaderThatCannotComeBackEnds(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	careful := led
	careful.Grace = time.Second
	kit.OK(t, be.Register(t.Context(), careful, nil))
	link := faultproxy.Start(t, pgtest.Shared(t).Addr())
	far := leasepg.New(open(t, strings.Replace(pool.Config().ConnString(), pgtest.Shared(t).Addr(), link.Addr(), 1)),
		leasepg.WithLogger(slog.New(slog.DiscardHandler)))
	id, session := leader(t, far, 5*time.Second)
	kit.Equal(t, "acquired", len(kit.Acting(t, far, id, careful).Acquires(1)), 1)
	next, _ := leader(t, be, time.Hour)
	kit.Eventually(t, "both wait", func() bool {
		_ = session.Heartbeat(t.Context()) // it may be late
		return waits(t, pool, id) && waits(t, pool, next)
	})
	link.Refuse(func(request []byte) bool { return strings.Contains(string(request), "user\x00") })
	exec(t, pool, "SELECT pg_terminate_backend(backend_pid) FROM leasegen.session WHERE id = $1", id)
	kit.Eventually(t, "another leads", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_ = session.Heartbeat(ctx)
		return len(kit.Acting(t, be, next, careful).Acquires(1)) == 1
	})
}

// redirected opens a pool whose connections are made by dial.
func redirected(t testing.TB, pool *pgxpool.Pool, dial func(ctx context.Context, network, addr string) (net.Conn, error)) *pgxpool.Pool {
	t.Helper()
	cfg := pool.Config()
	cfg.ConnConfig.DialFunc = dial
	p := kit.Must[*pgxpool.Pool](t)(pgxpool.NewWithConfig(t.Context(), cfg))
	t.Cleanup(p.Close)
	return p
}

// slowly connects some time later while slow, and counts how often.
func slowly(slow *atomic.Bool, times *atomic.Int64) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if slow.Load() {
			times.Add(1)
			time.Sleep(1500 * time.Millisecond)
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
}

// A process that takes long to connect gives the others long to come back, and finds out how long with two tries. The server does not
// end its connection for that, and it does not count as cut off itself.
func TestSlowWatcher(t *testing.T) {
	t.Parallel()
	_, pool := migrated(t)
	var slow atomic.Bool
	var tries atomic.Int64
	be := leasepg.New(redirected(t, pool, slowly(&slow, &tries)), leasepg.WithLogger(slog.New(slog.DiscardHandler)))
	id := kit.Join(t, be, topical, time.Hour)
	kit.OK(t, be.Register(t.Context(), topical, kit.Topics(1)))
	process, dead := part.Start(t, taking{pool.Config().ConnString(), 10 * time.Minute, topical, 1, false})
	kit.Eventually(t, "both wait", func() bool { return waits(t, pool, id.ID) && waits(t, pool, dead) })
	pid := query[int](t, pool, secondHolder, id.ID)
	slow.Store(true)
	kit.OK(t, process.Kill())
	bare, killed := pace.Beside(t, connecting(pool)), time.Now()
	kit.Eventually(t, "it is found", func() bool { return state(t, pool, dead) == "dead" })
	took := time.Since(killed)
	if took < 7*time.Second {
		t.Errorf("found after %v, want a little more than five times what connecting takes", took)
	}
	bare.Within(t, "finding it", took, 14*time.Second)
	if took < 10*time.Second { // later it finds out once more
		kit.Equal(t, "tries to connect", tries.Load(), 2)
	}
	kit.Equal(t, "the pid of the connection that waits", query[int](t, pool, secondHolder, id.ID), pid)
}

// A leader by its lock alone that is cut off loses its session a TTL after the server has ended its connection, however long the
// process that watches it takes to connect, and though that opens another session in between: by then the leader has ceased to believe in it.
func TestSlowWatcherOfALeader(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	kit.OK(t, be.Register(t.Context(), led, nil))
	var slow atomic.Bool
	var tries atomic.Int64
	logger := leasepg.WithLogger(slog.New(slog.DiscardHandler))
	near := leasepg.New(redirected(t, pool, slowly(&slow, &tries)), logger)
	link := faultproxy.Start(t, pgtest.Shared(t).Addr())
	far := leasepg.New(open(t, strings.Replace(pool.Config().ConnString(), pgtest.Shared(t).Addr(), link.Addr(), 1)), logger)
	const ttl = 4 * time.Second
	next, watching := leader(t, near, time.Hour)
	id, session := leader(t, far, ttl)
	var beat time.Time
	heartbeat := func() {
		beat = time.Now()
		kit.OK(t, kit.Heartbeat(t, session))
	}
	heartbeat()
	kit.Equal(t, "acquired", len(kit.Acting(t, far, id, led).Acquires(1)), 1)
	kit.Eventually(t, "both wait", func() bool {
		heartbeat()
		return waits(t, pool, id) && waits(t, pool, next)
	})
	bare := pace.Beside(t, connecting(pool))
	heartbeat()
	slow.Store(true)
	link.BlackHole()
	cut := time.Now()
	kit.Eventually(t, "the server ends its connection", func() bool {
		return query[int](t, pool, "SELECT count(*) FROM leasegen.session s, leasegen.lock_holders(s.lock_key) WHERE s.id = $1", id) == 0
	})
	found := func() bool {
		dead := state(t, pool, id) == "dead"
		if took := time.Since(beat); dead && took < 2*ttl {
			t.Fatalf("found after %v: the server ends the leader's connection after %v, and the leader may believe in its session for as long again", took, ttl)
		}
		return dead
	}
	time.Sleep(ttl * 3 / 4)
	found()
	kit.OK(t, watching.Close(t.Context()))
	leader(t, near, time.Hour)
	kit.Eventually(t, "it is found", found)
	// Five times what connecting takes, twice, would be 15 s more.
	if took := time.Since(cut); took > 2*ttl+ttl*3/4 && !bare.BusySince(cut) {
		t.Errorf("found after %v, want a little more than twice the TTL, %v", took, ttl)
	}
	if tries.Load() == 0 {
		t.Error("the process that watches did not connect")
	}
}

// A session that polls notices that its connection has ended while it gives another one time to come back.
func TestPollingNoticesABreak(t *testing.T) {
	t.Parallel()
	_, pool := migrated(t)
	var slow atomic.Bool
	be := leasepg.New(redirected(t, pool, slowly(&slow, new(atomic.Int64))), leasepg.WithLogger(slog.New(slog.DiscardHandler)), leasepg.WithoutWaiting())
	kit.OK(t, be.Register(t.Context(), topical, kit.Topics(1)))
	id := kit.Join(t, be, topical, time.Hour)
	process, dead := part.Start(t, taking{pool.Config().ConnString(), 10 * time.Minute, topical, 1, false})
	pid := query[int](t, pool, firstHolder, id.ID)
	slow.Store(true)
	kit.OK(t, process.Kill())
	time.Sleep(time.Second)
	slow.Store(false)
	kit.Equal(t, "state of the other", state(t, pool, dead), "live")
	exec(t, pool, "SELECT pg_terminate_backend($1)", pid)
	bare, began := pace.Beside(t, connecting(pool)), time.Now()
	kit.Eventually(t, "it is back", func() bool { return query[int](t, pool, firstHolder, id.ID) != pid })
	bare.Within(t, "coming back", time.Since(began), time.Second)
}

// A watcher that freezes when it is about to bury a session, and goes on, does not judge by what it saw before.
func TestFrozenWatcherForgets(t *testing.T) {
	t.Parallel()
	_, pool := migrated(t)
	direct, logger := pool.Config().ConnString(), leasepg.WithLogger(slog.New(slog.DiscardHandler))
	through := func(link *faultproxy.Proxy) *pgxpool.Pool {
		return open(t, strings.Replace(direct, pgtest.Shared(t).Addr(), link.Addr(), 1))
	}
	near, far := faultproxy.Start(t, pgtest.Shared(t).Addr()), faultproxy.Start(t, pgtest.Shared(t).Addr())
	watching := kit.Join(t, leasepg.New(through(near), logger), grouped, time.Hour)
	be := leasepg.New(through(far), logger, leasepg.WithoutWaiting()) // it has the longest grace
	aimed := func(id string) func() bool {
		return func() bool {
			return query[bool](t, pool, `SELECT EXISTS (SELECT FROM pg_locks l, leasegen.session s
				WHERE s.id = $2 AND NOT l.granted AND l.locktype = 'advisory' AND l.pid = (`+secondHolder+`) AND l.objid::bigint = s.lock_key & 4294967295)`, watching.ID, id)
		}
	}
	for tries, frozen := 0, 0; frozen < 3; tries++ {
		if tries == 50 {
			t.Fatal("the watcher is always too quick")
		}
		id := kit.Join(t, be, grouped, time.Hour)
		kit.Eventually(t, "the other waits for it", aimed(id.ID))
		pid := query[int](t, pool, firstHolder, id.ID)
		far.Cut()
		time.Sleep(100 * time.Millisecond)
		near.BlackHole()
		time.Sleep(300 * time.Millisecond)
		was := state(t, pool, id.ID)
		far.Heal()
		if was == "live" {
			kit.Eventually(t, "the session is back", func() bool { return query[int](t, pool, firstHolder, id.ID) != pid })
			frozen++
		}
		near.Heal()
		time.Sleep(300 * time.Millisecond)
		if was == "live" {
			kit.OK(t, id.Session.Heartbeat(t.Context()))
		}
		kit.OK(t, id.Session.Close(t.Context()))
	}
}

// A process that was cut off gives the others the time that it had itself, and judges then.
func TestWhoWasCutOffWaits(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	link := faultproxy.Start(t, pgtest.Shared(t).Addr())
	far := leasepg.New(open(t, strings.Replace(pool.Config().ConnString(), pgtest.Shared(t).Addr(), link.Addr(), 1)),
		leasepg.WithLogger(slog.New(slog.DiscardHandler)))
	const ttl = 15 * time.Second
	id := kit.Join(t, far, grouped, time.Hour)
	watching := kit.Join(t, be, grouped, ttl)
	kit.Eventually(t, "both wait", func() bool { return waits(t, pool, id.ID) && waits(t, pool, watching.ID) })
	pid := query[int](t, pool, firstHolder, watching.ID)
	link.Cut()
	exec(t, pool, "SELECT pg_terminate_backend(pid) FROM (SELECT ("+firstHolder+") UNION ALL "+secondHolder+") h (pid)", watching.ID)
	kit.Eventually(t, "the watcher is back", func() bool { return query[int](t, pool, firstHolder, watching.ID) != pid })
	back := time.Now()
	kit.Eventually(t, "the other is found dead", func() bool {
		kit.OK(t, watching.Heartbeat())
		return state(t, pool, id.ID) == "dead"
	})
	if took := time.Since(back); took < ttl/3-time.Second {
		t.Errorf("who was cut off itself judges after %v, a third of the TTL is %v", took, ttl/3)
	}
}

// The statement that buries a session looks again whether connections have been ended: the server may count one a moment after it has
// freed its locks. A process that died is not counted.
func TestEndsAreLookedAtAgain(t *testing.T) {
	t.Parallel()
	_, pool := migrated(t)
	q, lost := leasedb.New(pool), kit.ID()
	ends := func() int64 {
		return kit.Must[[]leasedb.LookAroundRow](t)(q.LookAround(t.Context(), lost))[0].Ends
	}
	exec(t, pool, `INSERT INTO leasegen.session (id, host, pid, consumers, ttl, expires_at, lock_key, backend_pid, server)
		VALUES ($1, 'host', 1, '{}', '1 h', clock_timestamp() + '1 h', 7, 1, leasegen.incarnation())`, lost)
	before := ends()
	if before < 0 {
		t.Skip("PostgreSQL 14 counts late")
	}
	const abandoned = "SELECT sessions_abandoned FROM pg_stat_database WHERE datname = current_database()"
	were := query[int](t, pool, abandoned)
	killed := kit.Must[*pgx.Conn](t)(pgx.Connect(t.Context(), pool.Config().ConnString()))
	kit.OK(t, killed.PgConn().Conn().Close()) // as the kernel does for a killed process
	kit.Eventually(t, "the server counts the connection of a killed process", func() bool { return query[int](t, pool, abandoned) > were })
	kit.Equal(t, "connections ended, after a process was killed", ends(), before)
	other := kit.Must[*pgxpool.Conn](t)(pool.Acquire(t.Context()))
	defer other.Release()
	exec(t, pool, "SELECT pg_terminate_backend($1)", int(other.Conn().PgConn().PID()))
	kit.Eventually(t, "the server counts it", func() bool { return ends() == before+1 })
	bury := func(ends int64) int {
		return len(kit.Must[[]leasedb.BuryGoneRow](t)(q.BuryGone(t.Context(), leasedb.BuryGoneParams{Ids: []string{lost}, Keys: []int64{7}, Ends: ends})))
	}
	kit.Equal(t, "buried by what was seen before", bury(before), 0)
	kit.Equal(t, "buried", bury(before+1), 1)
}

// signHolder has the sign of a session that comes back.
const signHolder = "SELECT coalesce((SELECT max(pid) FROM leasegen.lock_holders(hashtextextended('leasegen.back/' || $1, 0))), 0)"

// A session that has lost all connections shows a sign as soon as it has another one, and has all the time then to join the others.
func TestSignTellsOfLife(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	watching := kit.Join(t, be, grouped, time.Hour)
	id := kit.Join(t, leasepg.New(pool, leasepg.WithoutWaiting()), grouped, time.Hour) // it has one connection
	kit.Eventually(t, "the other waits", func() bool { return waits(t, pool, watching.ID) })
	// A process that holds a lock of its own joins slowly: its connection is none that waits.
	exec(t, pool, `CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF EXISTS (SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory' AND mode = 'ExclusiveLock') THEN
				PERFORM pg_sleep(2);
			END IF;
			RETURN NULL;
		END $$;
		CREATE TRIGGER dawdle BEFORE UPDATE ON leasegen.session FOR EACH STATEMENT EXECUTE FUNCTION dawdle()`)
	pid := query[int](t, pool, firstHolder, id.ID)
	bare, began := pace.Beside(t, connecting(pool)), time.Now()
	exec(t, pool, "SELECT pg_terminate_backend($1)", pid)
	kit.Eventually(t, "it is back, or lost", func() bool {
		return query[int](t, pool, firstHolder, id.ID) != pid || state(t, pool, id.ID) == "dead"
	})
	if !lives(t, pool, id.ID, bare, began) {
		return
	}
	kit.Equal(t, "holder of the sign of a session that is back", query[int](t, pool, signHolder, id.ID), 0)
}

// A stranger's lock is no sign: only a connection of the session's role can show it, and shared.
func TestOnlyASessionShowsItsSign(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	kit.OK(t, be.Register(t.Context(), topical, kit.Topics(1)))
	kit.Join(t, be, topical, time.Hour)
	process, dead := part.Start(t, taking{pool.Config().ConnString(), 10 * time.Minute, topical, 1, false})
	holder := kit.Must[*pgxpool.Conn](t)(pool.Acquire(t.Context()))
	defer holder.Release()
	_, err := holder.Exec(t.Context(), "SELECT pg_advisory_lock(hashtextextended('leasegen.back/' || $1, 0))", dead)
	kit.OK(t, err)
	kit.OK(t, process.Kill())
	kit.Eventually(t, "it is found dead", func() bool { return state(t, pool, dead) == "dead" })
}

// A process that was cut off itself does not judge, and has the one before it in the ring judge at once.
func TestWhoWasCutOffPassesOn(t *testing.T) {
	t.Parallel()
	_, pool := migrated(t)
	logger := leasepg.WithLogger(slog.New(slog.DiscardHandler))
	type member struct {
		*kit.Actor
		link *faultproxy.Proxy
	}
	var ring []member
	for range 3 {
		link := faultproxy.Start(t, pgtest.Shared(t).Addr())
		be := leasepg.New(open(t, strings.Replace(pool.Config().ConnString(), pgtest.Shared(t).Addr(), link.Addr(), 1)), logger)
		ring = append(ring, member{kit.Join(t, be, grouped, time.Hour), link})
	}
	slices.SortFunc(ring, func(a, b member) int { return strings.Compare(a.ID, b.ID) })
	first, cutOff, last := ring[0], ring[1], ring[2]
	kit.Eventually(t, "all wait", func() bool {
		return waits(t, pool, first.ID) && waits(t, pool, cutOff.ID) && waits(t, pool, last.ID)
	})
	pid := query[int](t, pool, secondHolder, cutOff.ID)
	exec(t, pool, "SELECT pg_terminate_backend(pid) FROM ("+secondHolder+") h (pid)", cutOff.ID)
	kit.Eventually(t, "it waits again", func() bool { return !slices.Contains([]int{0, pid}, query[int](t, pool, secondHolder, cutOff.ID)) })
	exec(t, pool, "SELECT pg_cancel_backend(pid) FROM ("+secondHolder+") h (pid)", first.ID) // it has just looked
	time.Sleep(100 * time.Millisecond)
	last.link.Cut()
	bare, died := pace.Beside(t, connecting(pool)), time.Now()
	kit.Eventually(t, "it is found dead", func() bool { return state(t, pool, last.ID) == "dead" })
	// The one that was cut off judges after ten seconds, the one before it looks every five.
	bare.Within(t, "finding it dead", time.Since(died), 3*time.Second)
}

package leasepg_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/leasegen/leasegen/internal/childproc"
	"github.com/leasegen/leasegen/internal/faultproxy"
	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/part"
	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

// taking is what a process of its own takes part in.
type taking struct {
	DSN      string
	TTL      time.Duration
	Consumer backend.ConsumerInfo
	Max      int
	Mixed    bool // not all that the process consumes is led by an advisory lock: its session lives by heartbeats
}

// TestProcess is no test but such a process: it owns what it can until it is killed.
func TestProcess(t *testing.T) {
	p := part.Of[taking](t)
	be := leasepg.New(open(t, p.DSN), leasepg.WithLogger(slog.New(slog.DiscardHandler)))
	part.Take(t, be, backend.SessionSpec{TTL: p.TTL, Advisory: p.Consumer.Lock == backend.LockAdvisory && !p.Mixed}, p.Consumer, p.Max)
}

func state(t testing.TB, pool *pgxpool.Pool, session string) string {
	t.Helper()
	return query[string](t, pool, "SELECT state FROM leasegen.session WHERE id = $1", session)
}

// A process that is killed is found by the end of its connection, in a fraction of its TTL.
func TestKilledProcess(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	kit.OK(t, be.Register(t.Context(), topical, kit.Topics(100)))
	kit.Join(t, be, topical, time.Hour)
	successor := kit.Join(t, be, topical, time.Hour)
	process, dead := part.Start(t, taking{pool.Config().ConnString(), 10 * time.Minute, topical, 100, false})
	time.Sleep(2 * time.Second) // it is not only killed in its first moment
	kit.Equal(t, "state of a living process", state(t, pool, dead), "live")
	killed := time.Now()
	kit.OK(t, process.Kill())
	kit.Eventually(t, "its leases are taken over, long before its TTL", func() bool { return len(successor.Acquires(100)) == 100 })
	t.Logf("taken over within %v", time.Since(killed).Round(time.Millisecond))
	kit.Equal(t, "suspicion", query[int](t, pool, "SELECT min(suspicion) FROM leasegen.lease"), 1)
}

// With a grace, leases stay untaken until what the dead process may have believed is over.
func TestKilledProcessWithGrace(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	careful := topical
	careful.Grace = 500 * time.Millisecond
	kit.OK(t, be.Register(t.Context(), careful, kit.Topics(3)))
	successor := kit.Join(t, be, careful, time.Hour)
	const ttl = 20 * time.Second
	process, dead := part.Start(t, taking{pool.Config().ConnString(), ttl, careful, 3, false})
	kit.OK(t, process.Kill())
	kit.Eventually(t, "it is found", func() bool { return state(t, pool, dead) == "dead" })
	due := query[time.Time](t, pool, "SELECT expires_at FROM leasegen.session WHERE id = $1", dead).Add(careful.Grace)
	found, free := time.Until(due), kit.Must[[]backend.Survey](t)(be.Survey(t.Context(), []string{careful.Name}))[0].Free
	if found < careful.Grace {
		t.Fatalf("it was found only %v before its leases become free", found)
	}
	if time.Now().Before(due) {
		kit.Equal(t, "free", free, 0)
	}
	kit.Eventually(t, "its leases are taken over", func() bool { return len(successor.Acquires(3)) == 3 })
	if early := time.Until(due); early > 10*time.Millisecond {
		t.Errorf("they were taken %v too early", early)
	}
}

// A leader that freezes holds its connection open and its lock with it, until the server
// ends that: about a TTL later there is another. It learns so when it goes on.
func TestFrozenLeader(t *testing.T) {
	t.Parallel()
	for name, mixed := range map[string]bool{"it lives by its lock": false, "it lives by heartbeats": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, pool := migrated(t)
			var log text
			be := leasepg.New(pool, leasepg.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
			kit.OK(t, be.Register(t.Context(), led, nil))
			successor := kit.Join(t, be, led, time.Hour)
			const ttl = 5 * time.Second
			process, frozen := part.Start(t, taking{pool.Config().ConnString(), ttl, led, 1, mixed})
			bare := pace.Beside(t, pool.Ping) // no connections: the bound below leaves four seconds for tries to connect
			time.Sleep(ttl)
			kit.Equal(t, "state of a living leader", state(t, pool, frozen), "live")
			kit.Equal(t, "acquired from a living leader", len(successor.Acquires(1)), 0)
			childproc.Freeze(process.Pid)
			stopped := time.Now()
			kit.Eventually(t, "it is replaced", func() bool { return len(successor.Acquires(1)) == 1 })
			took := time.Since(stopped)
			if took < ttl/2 && !bare.Stalled() { // its last heartbeat was up to a third of it before
				t.Errorf("it was replaced after %v, its TTL is %v", took, ttl)
			}
			bare.Within(t, "replacing the leader", took, 2*ttl)
			if strings.Contains(log.String(), "not one of its processes") {
				t.Errorf("the frozen leader is taken for a stranger: %s", log.String())
			}
			kit.OK(t, process.Signal(syscall.SIGCONT))
			done := make(chan struct{})
			go func() { _, _ = process.Wait(); close(done) }()
			select {
			case <-done: // its heartbeat returned ErrSessionLost
			case <-time.After(time.Minute):
				t.Error("it does not notice")
			}
		})
	}
}

// A connection that outlives its session holds the advisory lock on. It is no stranger's: the lease alone decides, and the log names
// no connection that somebody would end for it.
func TestFrozenLeaderIsNoStranger(t *testing.T) {
	t.Parallel()
	const ttl = time.Minute // the server ends the connection after it
	for name, c := range map[string]struct {
		mixed bool
		bury  string // what ends the session in its row while its process is frozen
	}{
		"its heartbeats are over":      {true, "expires_at = clock_timestamp() - interval '1 s'"},
		"they have been over for long": {true, "expires_at = clock_timestamp() - interval '1 h'"},
		"it was replaced long ago":     {false, "state = 'closed', expires_at = clock_timestamp() - interval '1 h'"},
		"it lived by its lock":         {false, "state = 'dead', expires_at = clock_timestamp()"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, pool := migrated(t)
			var log text
			be := leasepg.New(pool, leasepg.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
			kit.OK(t, be.Register(t.Context(), led, nil))
			process, frozen := part.Start(t, taking{pool.Config().ConnString(), ttl, led, 1, c.mixed})
			pid := query[int](t, pool, "SELECT backend_pid FROM leasegen.session WHERE id = $1", frozen)
			childproc.Freeze(process.Pid)
			kit.Eventually(t, "its last heartbeat is over", func() bool {
				return query[string](t, pool, "SELECT state FROM pg_stat_activity WHERE pid = $1", pid) == "idle"
			})
			exec(t, pool, "UPDATE leasegen.session SET "+c.bury+" WHERE id = $1", frozen)
			standby, _ := leader(t, be, time.Hour)
			kit.Eventually(t, "it is replaced", func() bool { return len(kit.Acting(t, be, standby, led).Acquires(1)) == 1 })
			kit.Equal(t, "holders that are the frozen leader", query[int](t, pool,
				"SELECT count(*) FROM leasegen.lock_holders($1) WHERE pid = $2", leasepg.LockKey(led.Name), pid), 1)
			if strings.Contains(log.String(), "not one of its processes") {
				t.Errorf("the frozen leader, pid %d, is taken for a stranger: %s", pid, log.String())
			}
		})
	}
}

// A session whose connection the server ends goes on over another one.
func TestTerminatedHeartbeat(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	kit.OK(t, be.Register(t.Context(), grouped, nil))
	contender := kit.Join(t, be, grouped, time.Hour)
	kit.Join(t, be, grouped, time.Hour)
	bare := pace.Beside(t, connecting(pool))
	rounds := pace.Rounds(8, 20)
	survived := 0
	for range rounds {
		began := time.Now()
		id := kit.Join(t, be, grouped, time.Minute)
		var gs []backend.Grant
		kit.Eventually(t, "the lease is free", func() bool { gs = id.Acquires(1); return len(gs) == 1 })
		kit.Eventually(t, "it waits for another", func() bool { return waits(t, pool, id.ID) })
		pid := query[int](t, pool, "SELECT backend_pid FROM leasegen.session WHERE id = $1", id.ID)
		exec(t, pool, "SELECT pg_terminate_backend($1, 5000)", pid)
		kit.Eventually(t, "it is back, or lost", func() bool {
			return state(t, pool, id.ID) == "dead" || query[int](t, pool, "SELECT backend_pid FROM leasegen.session WHERE id = $1", id.ID) != pid
		})
		time.Sleep(time.Second / 2) // the others have looked
		taken := contender.Acquires(1)
		fenced := kit.Must[[]string](t)(be.Commit(t.Context(), id.ID, grouped.Name, []backend.Progress{{Ref: gs[0].Ref}}))
		if len(taken)+len(fenced) == 1 || len(taken) != len(fenced) {
			t.Fatalf("%d others own the lease, %d commits are fenced", len(taken), len(fenced))
		}
		switch err := id.Session.Heartbeat(t.Context()); {
		case err == nil:
			kit.Equal(t, "taken from a living session", len(taken), 0)
			survived++
			kit.OK(t, id.Session.Close(t.Context()))
		case errors.Is(err, backend.ErrSessionLost):
			if bare.BusySince(began) {
				notJudged(t, id.ID)
				survived++
			}
			for _, g := range taken {
				kit.OK(t, be.Release(t.Context(), contender.ID, grouped.Name, []backend.Ref{g.Ref}))
			}
		default:
			t.Fatal(err)
		}
	}
	kit.Equal(t, "sessions that survived the end of their connection", survived, rounds)
}

// After a restart of the server, or a crash of one of its processes, no lock is held by
// anyone. That is no proof of anyone's death: the TTL decides, and who comes back goes on.
func TestServerRestartKillsNobody(t *testing.T) {
	t.Parallel()
	for name, restart := range map[string]func(*testing.T, *pgtest.Server, *pgxpool.Pool){
		"restart": func(_ *testing.T, s *pgtest.Server, _ *pgxpool.Pool) { s.Restart() },
		"kill":    func(_ *testing.T, s *pgtest.Server, _ *pgxpool.Pool) { s.Kill(); s.Start() },
		// The postmaster stays, and all its other processes start anew.
		"crash of a backend": func(t *testing.T, _ *pgtest.Server, pool *pgxpool.Pool) {
			kit.OK(t, syscall.Kill(query[int](t, pool, "SELECT pg_backend_pid()"), syscall.SIGKILL))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := pgtest.Start(t)
			dsn := server.DB("restarted")
			pool := open(t, dsn)
			_, err := leasepg.Migrate(t.Context(), pool)
			kit.OK(t, err)
			link := faultproxy.Start(t, server.Addr())
			far := leasepg.New(open(t, strings.Replace(dsn, server.Addr(), link.Addr(), 1)), leasepg.WithLogger(slog.New(slog.DiscardHandler)))
			id := kit.Join(t, far, topical, 5*time.Minute)
			kit.OK(t, far.Register(t.Context(), topical, kit.Topics(3)))
			g := id.Acquires(1)[0]
			leader, _ := memberSpec(t, far, backend.SessionSpec{TTL: time.Minute, Advisory: true, Consumers: []string{led.Name}})
			kit.OK(t, far.Register(t.Context(), led, nil))
			kit.Equal(t, "leases of the leader", len(kit.Acting(t, far, leader, led).Acquires(1)), 1)

			be := leasepg.New(pool, leasepg.WithLogger(slog.New(slog.DiscardHandler)))
			near := kit.Join(t, be, topical, 5*time.Minute, led)
			link.BlackHole() // who is cut off cannot be back first, and the server did not see its connection end
			before := query[string](t, pool, "SELECT leasegen.incarnation()")
			restart(t, server, pool)
			kit.Eventually(t, "the server has a new life", func() bool {
				var now string
				return pool.QueryRow(t.Context(), "SELECT leasegen.incarnation()").Scan(&now) == nil && now != before
			})
			kit.Eventually(t, "the near session is back", func() bool { return near.Session.Heartbeat(t.Context()) == nil })
			// A session that lives by the lock alone is dead: somebody may lead by now.
			kit.Eventually(t, "the leader is found dead", func() bool { return state(t, pool, leader) == "dead" })
			kit.Equal(t, "taken from the leader", len(near.As(led).Acquires(1)), 1)
			time.Sleep(1500 * time.Millisecond) // the near session looks all the time
			kit.Equal(t, "state of who is cut off", state(t, pool, id.ID), "live")
			kit.Equal(t, "taken from who is cut off", len(near.Acquires(9)), 2)
			link.Heal()
			kit.Eventually(t, "it is back", func() bool { return id.Session.Heartbeat(t.Context()) == nil })
			fenced := kit.Must[[]string](t)(be.Commit(t.Context(), id.ID, topical.Name, []backend.Progress{{Ref: g.Ref}}))
			kit.Equal(t, "fenced", len(fenced), 0)
		})
	}
}

// A process that is cut off from the server is found by its broken connection; when it comes back it
// learns that it was given up.
func TestCutOff(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	kit.OK(t, be.Register(t.Context(), topical, kit.Topics(3)))
	near := kit.Join(t, be, topical, time.Hour)
	cfg := pool.Config()
	link := faultproxy.Start(t, pgtest.Shared(t).Addr())
	far := leasepg.New(open(t, strings.Replace(cfg.ConnString(), pgtest.Shared(t).Addr(), link.Addr(), 1)))
	id := kit.Join(t, far, topical, 10*time.Minute)
	kit.Equal(t, "acquired", len(id.Acquires(3)), 3)
	link.Cut()
	kit.Eventually(t, "its leases are taken over, long before its TTL", func() bool { return len(near.Acquires(3)) == 3 })
	if err := id.Session.Heartbeat(t.Context()); err == nil || errors.Is(err, backend.ErrSessionLost) {
		t.Errorf("heartbeat while cut off: %v", err)
	}
	select {
	case <-id.Session.(interface{ Alarm() <-chan struct{} }).Alarm():
	case <-time.After(time.Minute):
		t.Error("the session does not tell that its connection broke")
	}
	link.Heal()
	kit.Eventually(t, "it learns that it is lost", func() bool { return errors.Is(id.Session.Heartbeat(t.Context()), backend.ErrSessionLost) })
}

// Any number of sessions: each death is found, also of neighbours in the ring.
func TestManyDeaths(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	alive := map[string]bool{}
	var doomed []string
	link := faultproxy.Start(t, pgtest.Shared(t).Addr())
	far := leasepg.New(open(t, strings.Replace(pool.Config().ConnString(), pgtest.Shared(t).Addr(), link.Addr(), 1)))
	for i := range 15 {
		if i%3 == 0 {
			id := kit.Join(t, be, grouped, time.Hour)
			alive[id.ID] = true
		} else {
			id := kit.Join(t, far, grouped, time.Hour)
			doomed = append(doomed, id.ID)
		}
	}
	link.Cut()
	cut := time.Now()
	kit.Eventually(t, "all deaths are found", func() bool {
		return query[int](t, pool, "SELECT count(*) FROM leasegen.session WHERE state = 'dead' AND id = ANY ($1)", doomed) == len(doomed)
	})
	t.Logf("10 of 15 sessions were found dead within %v", time.Since(cut).Round(time.Millisecond))
	kit.Equal(t, "sessions that live", query[int](t, pool, "SELECT count(*) FROM leasegen.session WHERE state = 'live'"), len(alive))
}

// Sessions that have ended, one way or the other, leave no trace: no goroutine, no
// connection, no lock.
func TestSessionsLeaveNothing(t *testing.T) {
	be, pool := migrated(t)
	kit.OK(t, be.Register(t.Context(), led, nil))
	const connections = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'leasegen'"
	before := goleak.IgnoreCurrent()
	for i := range 12 {
		id := kit.Join(t, be, led, time.Minute)
		switch i % 4 {
		case 1:
			kit.Equal(t, "acquired", len(id.Acquires(1)), 1)
			expire(t, pool, id.ID)
			if err := id.Session.Heartbeat(t.Context()); !errors.Is(err, backend.ErrSessionLost) {
				t.Fatalf("heartbeat of an expired session: %v", err)
			}
		case 2: // it finds by itself that it is dead
			exec(t, pool, "UPDATE leasegen.session SET state = 'dead' WHERE id = $1", id.ID)
		case 3:
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if id.Session.Close(ctx) == nil {
				t.Error("a close that was cancelled says that it closed")
			}
		default:
			kit.OK(t, id.Session.Close(t.Context()))
		}
	}
	kit.Eventually(t, "no connection is left", func() bool { return query[int](t, pool, connections) == 0 })
	kit.Equal(t, "holders", held(t, pool, led.Name), 0)
	leaked := goleak.Find(before) // which looks for a second
	for try := 0; leaked != nil && try < 4; try++ {
		leaked = goleak.Find(before)
	}
	kit.OK(t, leaked)
}

// A process that no longer asks for heartbeats does not stay alive by its connection.
func TestSilentProcessLetsGo(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	kit.Join(t, be, led, time.Hour)
	id, _ := memberSpec(t, be, backend.SessionSpec{TTL: time.Second, Advisory: true, Consumers: []string{led.Name}})
	kit.Eventually(t, "it is dead", func() bool { return state(t, pool, id) == "dead" })
}

// Watching writes no rows and reads what is said.
func TestCostOfWatching(t *testing.T) {
	t.Parallel()
	// Autovacuum would draw transaction ids, too.
	pool := open(t, pgtest.Start(t, pgtest.Config("autovacuum", "off")).DB("cost"))
	_, err := leasepg.Migrate(t.Context(), pool)
	kit.OK(t, err)
	be := leasepg.New(pool)
	for range 3 {
		kit.Join(t, be, grouped, time.Hour)
	}
	counts := func() (statements int64) {
		t.Helper()
		exec(t, pool, "SELECT pg_sleep(1.2)") // statistics are sent once a second
		kit.OK(t, pool.QueryRow(t.Context(), "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()").Scan(&statements))
		return
	}
	x0 := query[int64](t, pool, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
	exec(t, pool, "SELECT pg_sleep(12)") // a connection reports its last work ten seconds after it fell idle
	counts()
	n0, at := counts(), time.Now()
	own := int64(0) // statements of this test
	n1 := n0
	// So many that it makes little difference that statistics come late.
	kit.Eventually(t, "the sessions look", func() bool { n1, own = counts(), own+2; return n1-n0-own > 12 })
	rate := float64(n1-n0-own) / time.Since(at).Seconds() / 3
	t.Logf("%.2f reads a second and session", rate)
	if rate > 0.5 {
		t.Errorf("%.2f reads a second and session, want at most about 0.2", rate)
	}
	kit.Equal(t, "transaction ids", query[int64](t, pool, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")-x0, 0)
}

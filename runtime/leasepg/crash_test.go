package leasepg_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	osexec "os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/leasegen/leasegen/internal/faultproxy"
	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

// part is what a process of its own takes part in.
type part struct {
	DSN      string
	TTL      time.Duration
	Consumer backend.ConsumerInfo
	Max      int
}

// TestProcess is no test but such a process: it owns what it can until it is killed.
func TestProcess(t *testing.T) {
	var p part
	if os.Getenv("LEASEGEN_TEST_PART") == "" {
		t.Skip("it is started by others")
	}
	ok(t, json.Unmarshal([]byte(os.Getenv("LEASEGEN_TEST_PART")), &p))
	be := leasepg.New(open(t, p.DSN), leasepg.WithLogger(slog.New(slog.DiscardHandler)))
	spec := backend.SessionSpec{ID: newID(), TTL: p.TTL, Host: "host", PID: os.Getpid(), Consumers: []string{p.Consumer.Name},
		Advisory: p.Consumer.Lock == backend.LockAdvisory}
	s := must[backend.Session](t)(be.OpenSession(t.Context(), spec))
	gs := acquire(t, be, spec.ID, p.Consumer, p.Max)
	if len(gs) == 0 {
		t.Fatal("nothing was to be had")
	}
	os.Stdout.WriteString("\nowner " + spec.ID + "\n")
	for s.Heartbeat(t.Context()) == nil {
		time.Sleep(p.TTL / 3)
	}
	os.Stdout.WriteString("\nlost\n")
}

// start runs such a process until the test ends, and returns it with its session.
func (p part) start(t *testing.T) (*os.Process, string) {
	t.Helper()
	cmd := osexec.Command(os.Args[0], "-test.run=^TestProcess$", "-test.v")
	cmd.Env = append(os.Environ(), "LEASEGEN_TEST_PART="+string(must[[]byte](t)(json.Marshal(p))))
	out := must[interface{ Read([]byte) (int, error) }](t)(cmd.StdoutPipe())
	ok(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if session, is := strings.CutPrefix(lines.Text(), "owner "); is {
			return cmd.Process, session
		}
		t.Log(lines.Text())
	}
	t.Fatal("the process ended before it owned anything")
	return nil, ""
}

func state(t testing.TB, pool *pgxpool.Pool, session string) string {
	t.Helper()
	return query[string](t, pool, "SELECT state FROM leasegen.session WHERE id = $1", session)
}

// A process that is killed is found by the end of its connection, in a fraction of its TTL.
func TestKilledProcess(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	ok(t, be.Register(t.Context(), topical, topicNames(100)))
	member(t, be, time.Hour, topical)
	successor, _ := member(t, be, time.Hour, topical)
	process, dead := part{pool.Config().ConnString(), 10 * time.Minute, topical, 100}.start(t)
	time.Sleep(2 * time.Second) // it is not only killed in its first moment
	equal(t, "state of a living process", state(t, pool, dead), "live")
	killed := time.Now()
	ok(t, process.Kill())
	eventually(t, "its leases are taken over, long before its TTL", func() bool { return len(acquire(t, be, successor, topical, 100)) == 100 })
	t.Logf("taken over within %v", time.Since(killed).Round(time.Millisecond))
	equal(t, "suspicion", query[int](t, pool, "SELECT min(suspicion) FROM leasegen.lease"), 1)
}

// With a grace, leases stay untaken until what the dead process may have believed is over.
func TestKilledProcessWithGrace(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	careful := topical
	careful.Grace = 500 * time.Millisecond
	ok(t, be.Register(t.Context(), careful, topicNames(3)))
	successor, _ := member(t, be, time.Hour, careful)
	const ttl = 8 * time.Second
	process, dead := part{pool.Config().ConnString(), ttl, careful, 3}.start(t)
	ok(t, process.Kill())
	eventually(t, "it is found", func() bool { return state(t, pool, dead) == "dead" })
	due := query[time.Time](t, pool, "SELECT expires_at FROM leasegen.session WHERE id = $1", dead).Add(careful.Grace)
	found, free := time.Until(due), must[[]backend.Survey](t)(be.Survey(t.Context(), []string{careful.Name}))[0].Free
	if found < careful.Grace {
		t.Fatalf("it was found only %v before its leases become free", found)
	}
	if time.Now().Before(due) {
		equal(t, "free", free, 0)
	}
	eventually(t, "its leases are taken over", func() bool { return len(acquire(t, be, successor, careful, 3)) == 3 })
	if early := time.Until(due); early > 10*time.Millisecond {
		t.Errorf("they were taken %v too early", early)
	}
}

// A leader that freezes holds its connection open and its lock with it, until the server
// ends that: about a TTL later there is another. It learns so when it goes on.
func TestFrozenLeader(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	ok(t, be.Register(t.Context(), led, nil))
	successor, _ := member(t, be, time.Hour, led)
	const ttl = 5 * time.Second
	process, frozen := part{pool.Config().ConnString(), ttl, led, 1}.start(t)
	time.Sleep(ttl) // it lives by its lock, not by what it writes
	equal(t, "state of a living leader", state(t, pool, frozen), "live")
	equal(t, "acquired from a living leader", len(acquire(t, be, successor, led, 1)), 0)
	ok(t, process.Signal(syscall.SIGSTOP))
	stopped := time.Now()
	eventually(t, "it is replaced", func() bool { return len(acquire(t, be, successor, led, 1)) == 1 })
	took := time.Since(stopped)
	if took < ttl/2 {
		t.Errorf("it was replaced after %v, its TTL is %v", took, ttl)
	}
	pace.Within(t, "replacing the leader", took, 2*ttl)
	ok(t, process.Signal(syscall.SIGCONT))
	done := make(chan struct{})
	go func() { _, _ = process.Wait(); close(done) }()
	select {
	case <-done: // its heartbeat returned ErrSessionLost
	case <-time.After(time.Minute):
		t.Error("it does not notice")
	}
}

// A session whose connection the server ends goes on over another one.
func TestTerminatedHeartbeat(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	ok(t, be.Register(t.Context(), grouped, nil))
	contender, _ := member(t, be, time.Hour, grouped)
	member(t, be, time.Hour, grouped)
	const rounds = 20
	survived := 0
	for range rounds {
		id, s := member(t, be, time.Minute, grouped)
		var gs []backend.Grant
		eventually(t, "the lease is free", func() bool { gs = acquire(t, be, id, grouped, 1); return len(gs) == 1 })
		pid := query[int](t, pool, "SELECT backend_pid FROM leasegen.session WHERE id = $1", id)
		exec(t, pool, "SELECT pg_terminate_backend($1, 5000)", pid)
		eventually(t, "it is back, or lost", func() bool {
			return state(t, pool, id) == "dead" || query[int](t, pool, "SELECT backend_pid FROM leasegen.session WHERE id = $1", id) != pid
		})
		time.Sleep(time.Second / 2) // the others have looked
		taken := acquire(t, be, contender, grouped, 1)
		fenced := must[[]string](t)(be.Commit(t.Context(), id, grouped.Name, []backend.Progress{{Ref: gs[0].Ref}}))
		if len(taken)+len(fenced) == 1 || len(taken) != len(fenced) {
			t.Fatalf("%d others own the lease, %d commits are fenced", len(taken), len(fenced))
		}
		switch err := s.Heartbeat(t.Context()); {
		case err == nil:
			equal(t, "taken from a living session", len(taken), 0)
			survived++
			ok(t, s.Close(t.Context()))
		case errors.Is(err, backend.ErrSessionLost):
			for _, g := range taken {
				ok(t, be.Release(t.Context(), contender, grouped.Name, []backend.Ref{g.Ref}))
			}
		default:
			t.Fatal(err)
		}
	}
	// Mostly all do; on a busy machine others may look before a session is back.
	if t.Logf("%d of %d sessions survived the end of their connection", survived, rounds); survived == 0 {
		t.Error("no session survives the end of its connection")
	}
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
			ok(t, syscall.Kill(query[int](t, pool, "SELECT pg_backend_pid()"), syscall.SIGKILL))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := pgtest.Start(t)
			dsn := server.DB("restarted")
			pool := open(t, dsn)
			_, err := leasepg.Migrate(t.Context(), pool)
			ok(t, err)
			link := faultproxy.Start(t, server.Addr())
			far := leasepg.New(open(t, strings.Replace(dsn, server.Addr(), link.Addr(), 1)), leasepg.WithLogger(slog.New(slog.DiscardHandler)))
			id, s := member(t, far, time.Minute, topical)
			ok(t, far.Register(t.Context(), topical, topicNames(3)))
			g := acquire(t, far, id, topical, 1)[0]
			leader, _ := memberSpec(t, far, backend.SessionSpec{TTL: time.Minute, Advisory: true, Consumers: []string{led.Name}})
			ok(t, far.Register(t.Context(), led, nil))
			equal(t, "leases of the leader", len(acquire(t, far, leader, led, 1)), 1)

			be := leasepg.New(pool, leasepg.WithLogger(slog.New(slog.DiscardHandler)))
			near, near1 := member(t, be, time.Minute, topical, led)
			link.BlackHole() // who is cut off cannot be back first, and the server did not see its connection end
			before := query[string](t, pool, "SELECT leasegen.incarnation()")
			restart(t, server, pool)
			eventually(t, "the server has a new life", func() bool {
				var now string
				return pool.QueryRow(t.Context(), "SELECT leasegen.incarnation()").Scan(&now) == nil && now != before
			})
			eventually(t, "the near session is back", func() bool { return near1.Heartbeat(t.Context()) == nil })
			// Who lives by the lock alone is dead: somebody may lead by now.
			eventually(t, "the leader is found dead", func() bool { return state(t, pool, leader) == "dead" })
			equal(t, "taken from the leader", len(acquire(t, be, near, led, 1)), 1)
			time.Sleep(1500 * time.Millisecond) // the near session looks all the time
			equal(t, "state of who is cut off", state(t, pool, id), "live")
			equal(t, "taken from who is cut off", len(acquire(t, be, near, topical, 9)), 2)
			link.Heal()
			eventually(t, "it is back", func() bool { return s.Heartbeat(t.Context()) == nil })
			fenced := must[[]string](t)(be.Commit(t.Context(), id, topical.Name, []backend.Progress{{Ref: g.Ref}}))
			equal(t, "fenced", len(fenced), 0)
		})
	}
}

// Who is cut off from the server is found by its broken connection; when it comes back it is
// told that it was given up.
func TestCutOff(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	ok(t, be.Register(t.Context(), topical, topicNames(3)))
	near, _ := member(t, be, time.Hour, topical)
	cfg := pool.Config()
	link := faultproxy.Start(t, pgtest.Shared(t).Addr())
	far := leasepg.New(open(t, strings.Replace(cfg.ConnString(), pgtest.Shared(t).Addr(), link.Addr(), 1)))
	id, s := member(t, far, 10*time.Minute, topical)
	equal(t, "acquired", len(acquire(t, far, id, topical, 3)), 3)
	link.Cut()
	eventually(t, "its leases are taken over, long before its TTL", func() bool { return len(acquire(t, be, near, topical, 3)) == 3 })
	if err := s.Heartbeat(t.Context()); err == nil || errors.Is(err, backend.ErrSessionLost) {
		t.Errorf("heartbeat while cut off: %v", err)
	}
	select {
	case <-s.(interface{ Alarm() <-chan struct{} }).Alarm():
	case <-time.After(time.Minute):
		t.Error("the session does not tell that its connection broke")
	}
	link.Heal()
	eventually(t, "it learns that it is lost", func() bool { return errors.Is(s.Heartbeat(t.Context()), backend.ErrSessionLost) })
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
			id, _ := member(t, be, time.Hour, grouped)
			alive[id] = true
		} else {
			id, _ := member(t, far, time.Hour, grouped)
			doomed = append(doomed, id)
		}
	}
	link.Cut()
	cut := time.Now()
	eventually(t, "all deaths are found", func() bool {
		return query[int](t, pool, "SELECT count(*) FROM leasegen.session WHERE state = 'dead' AND id = ANY ($1)", doomed) == len(doomed)
	})
	t.Logf("10 of 15 sessions were found dead within %v", time.Since(cut).Round(time.Millisecond))
	equal(t, "sessions that live", query[int](t, pool, "SELECT count(*) FROM leasegen.session WHERE state = 'live'"), len(alive))
}

// Sessions that have ended, one way or the other, leave nothing behind: no goroutine, no
// connection, no lock.
func TestSessionsLeaveNothing(t *testing.T) {
	be, pool := migrated(t)
	ok(t, be.Register(t.Context(), led, nil))
	const connections = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'leasegen'"
	before := goleak.IgnoreCurrent()
	for i := range 12 {
		id, s := member(t, be, time.Minute, led)
		switch i % 4 {
		case 1:
			equal(t, "acquired", len(acquire(t, be, id, led, 1)), 1)
			expire(t, pool, id)
			if err := s.Heartbeat(t.Context()); !errors.Is(err, backend.ErrSessionLost) {
				t.Fatalf("heartbeat of an expired session: %v", err)
			}
		case 2: // it finds by itself that it is dead
			exec(t, pool, "UPDATE leasegen.session SET state = 'dead' WHERE id = $1", id)
		case 3:
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if s.Close(ctx) == nil {
				t.Error("a close that was cancelled says that it closed")
			}
		default:
			ok(t, s.Close(t.Context()))
		}
	}
	eventually(t, "no connection is left", func() bool { return query[int](t, pool, connections) == 0 })
	equal(t, "holders", held(t, pool, led.Name), 0)
	goleak.VerifyNone(t, before)
}

// A process that no longer asks for heartbeats does not stay alive by its connection.
func TestSilentProcessLetsGo(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	member(t, be, time.Hour, led)
	id, _ := memberSpec(t, be, backend.SessionSpec{TTL: time.Second, Advisory: true, Consumers: []string{led.Name}})
	eventually(t, "it is dead", func() bool { return state(t, pool, id) == "dead" })
}

// Watching writes nothing and reads what is said.
func TestCostOfWatching(t *testing.T) {
	t.Parallel()
	pool := open(t, pgtest.Start(t).DB("cost"))
	_, err := leasepg.Migrate(t.Context(), pool)
	ok(t, err)
	be := leasepg.New(pool)
	for range 3 {
		member(t, be, time.Hour, grouped)
	}
	counts := func() (statements int64) {
		t.Helper()
		exec(t, pool, "SELECT pg_sleep(1.2)") // statistics are sent once a second
		ok(t, pool.QueryRow(t.Context(), "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()").Scan(&statements))
		return
	}
	x0 := query[int64](t, pool, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
	counts()
	n0, at := counts(), time.Now()
	own := int64(0) // statements of this test
	n1 := n0
	// So many that it makes no difference that statistics come up to two seconds late.
	eventually(t, "the sessions look", func() bool { n1, own = counts(), own+2; return n1-n0-own > 90 })
	rate := float64(n1-n0-own) / time.Since(at).Seconds() / 3
	t.Logf("%.2f reads a second and session", rate)
	if rate > 3 {
		t.Errorf("%.2f reads a second and session, want at most about 2.5", rate)
	}
	equal(t, "transaction ids", query[int64](t, pool, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")-x0, 0)
}

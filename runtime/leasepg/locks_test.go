package leasepg_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/faultproxy"
	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/operate"
)

var led = backend.ConsumerInfo{Name: "led", Per: backend.PerCluster, Lock: backend.LockAdvisory}

// memberSpec opens a session as spec says, with a random id.
func memberSpec(t testing.TB, be *leasepg.Backend, spec backend.SessionSpec) (string, backend.Session) {
	t.Helper()
	spec.ID = kit.ID()
	s := kit.Must[backend.Session](t)(be.OpenSession(context.Background(), spec))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = s.Close(ctx)
	})
	return spec.ID, s
}

func leader(t testing.TB, be *leasepg.Backend, ttl time.Duration) (string, backend.Session) {
	t.Helper()
	return memberSpec(t, be, backend.SessionSpec{TTL: ttl, Advisory: true, Consumers: []string{led.Name}})
}

// held counts how often the lock of a consumer is held.
func held(t testing.TB, pool *pgxpool.Pool, consumer string) int {
	t.Helper()
	return query[int](t, pool, "SELECT count(*) FROM leasegen.lock_holders($1)", leasepg.LockKey(consumer))
}

// A consumer led by its advisory lock: one leader, standbys that find it free the moment it
// is released, epochs that rise, and no writes in between.
func TestAdvisoryLeader(t *testing.T) {
	t.Parallel()
	pool := open(t, pgtest.Start(t).DB("led")) // its own server: transaction ids are counted
	_, err := leasepg.Migrate(t.Context(), pool)
	kit.OK(t, err)
	be := leasepg.New(pool)
	kit.OK(t, be.Register(t.Context(), led, nil))
	id, s := leader(t, be, time.Hour)
	other, _ := leader(t, be, time.Hour)
	g := kit.Acting(t, be, id, led).Acquires(1)[0]
	survey := func() backend.Survey {
		return kit.Must[[]backend.Survey](t)(be.Survey(t.Context(), []string{led.Name}))[0]
	}
	kit.Equal(t, "free while led", survey().Free, 0)
	kit.Equal(t, "members", len(survey().Members), 2)
	kit.Equal(t, "granted to a standby", len(kit.Acting(t, be, other, led).Acquires(1)), 0)
	members := kit.Must[[]operate.MemberStatus](t)(be.Members(t.Context(), led.Name))
	kit.Equal(t, "members listed", len(members), 2)
	kit.Equal(t, "time that is left to who lives by its lock", members[0].TTLRemaining, time.Hour)
	x0 := query[int64](t, pool, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
	for range 100 {
		kit.OK(t, kit.Heartbeat(t, s))
	}
	kit.Equal(t, "transaction ids of 100 heartbeats", query[int64](t, pool, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")-x0, 0)
	for range 20 { // locks pile up: one that was taken twice would stay
		kit.Equal(t, "holders", held(t, pool, led.Name), 1)
		kit.OK(t, be.Release(t.Context(), id, led.Name, []backend.Ref{g.Ref}))
		kit.Equal(t, "holders after the release", held(t, pool, led.Name), 0)
		kit.Equal(t, "free after the release", survey().Free, 1)
		next := kit.Acting(t, be, other, led).Acquires(1)
		kit.Equal(t, "granted to a standby", len(next), 1)
		if next[0].Epoch <= g.Epoch {
			t.Fatalf("epoch %d after %d", next[0].Epoch, g.Epoch)
		}
		id, other, g = other, id, next[0]
	}
	// A release of another epoch leaves the leader alone.
	kit.OK(t, be.Release(t.Context(), id, led.Name, []backend.Ref{{Resource: g.Resource, Epoch: g.Epoch - 1}}))
	kit.Equal(t, "holders after a stale release", held(t, pool, led.Name), 1)
}

// wakes listens as a standby does. fromNow passes over what was notified before, wait returns what comes next.
func wakes(t testing.TB, pool *pgxpool.Pool) (fromNow func(), wait func() string) {
	t.Helper()
	conn := kit.Must[*pgx.Conn](t)(pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig))
	t.Cleanup(func() { conn.Close(context.Background()) })
	exec := func(sql string) {
		_, err := conn.Exec(t.Context(), sql)
		kit.OK(t, err)
	}
	exec("LISTEN leasegen")
	wait = func() string {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		n, err := conn.WaitForNotification(ctx)
		kit.OK(t, err)
		return n.Payload
	}
	fromNow = func() {
		exec("NOTIFY leasegen, 'so far'")
		for wait() != "so far" {
		}
	}
	return fromNow, wait
}

// Standbys are woken when both the lease and the lock are free, and not before.
func TestStandbyIsWokenInTime(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	kit.OK(t, be.Register(t.Context(), led, nil))
	fromNow, wait := wakes(t, pool)
	standby, _ := leader(t, be, time.Hour)
	for i := range pace.Rounds(14, 50) {
		id, s := leader(t, be, time.Hour)
		g := kit.Acting(t, be, id, led).Acquires(1)
		kit.Equal(t, "acquired", len(g), 1)
		fromNow()
		done := make(chan error, 1)
		go func() {
			if i%2 == 0 {
				done <- s.Close(context.Background())
			} else {
				done <- be.Release(context.Background(), id, led.Name, []backend.Ref{g[0].Ref})
			}
		}()
		wait()
		next := kit.Acting(t, be, standby, led).Acquires(1)
		kit.Equal(t, "granted to the standby that was woken", len(next), 1)
		kit.OK(t, <-done)
		kit.OK(t, be.Release(t.Context(), standby, led.Name, []backend.Ref{next[0].Ref}))
		if i%2 == 1 {
			kit.OK(t, s.Close(t.Context()))
		}
	}
}

// noteWhoCloses has the table closed tell the backends that close sessions.
func noteWhoCloses(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	exec(t, pool, `CREATE TABLE closed (pid integer);
		CREATE FUNCTION note_closed() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO public.closed VALUES (pg_backend_pid()); RETURN NEW; END';
		CREATE TRIGGER note_closed AFTER UPDATE ON leasegen.session FOR EACH ROW WHEN (NEW.state = 'closed') EXECUTE FUNCTION note_closed()`)
}

// A leader without the lock, which a stranger holds, stops on the connection that it has.
func TestLeaderWithoutTheLockStops(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	noteWhoCloses(t, pool)
	kit.OK(t, be.Register(t.Context(), led, nil))
	squatter := kit.Must[*pgx.Conn](t)(pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig))
	defer squatter.Close(context.Background())
	kit.Must[pgconn.CommandTag](t)(squatter.Exec(t.Context(), "SELECT pg_advisory_lock($1)", leasepg.LockKey(led.Name)))
	id, s := leader(t, be, time.Hour)
	kit.Equal(t, "acquired", len(kit.Acting(t, be, id, led).Acquires(1)), 1)
	pid := query[int](t, pool, "SELECT backend_pid FROM leasegen.session WHERE id = $1", id)
	kit.OK(t, s.Close(t.Context()))
	kit.Equal(t, "backend that closed it", query[int](t, pool, "SELECT pid FROM closed"), pid)
	kit.Eventually(t, "its backend has ended", func() bool {
		return query[int](t, pool, "SELECT count(*) FROM pg_stat_activity WHERE pid = $1", pid) == 0
	})
	kit.Equal(t, "backends that were ended by force", query[int](t, pool, "SELECT sessions_killed FROM pg_stat_database WHERE datname = current_database()"), 0)
	next, _ := leader(t, be, time.Hour)
	kit.Equal(t, "acquired by the next", len(kit.Acting(t, be, next, led).Acquires(1)), 1)
}

// A leader that stops while it looks after other sessions gives its lock back on the connection that has it: the standby that is
// woken finds it free, and no stranger is suspected.
func TestLeaderStopsWhileItLooks(t *testing.T) {
	t.Parallel()
	_, pool := migrated(t)
	var log bytes.Buffer
	be := leasepg.New(pool, leasepg.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	kit.OK(t, be.Register(t.Context(), led, nil))
	noteWhoCloses(t, pool)
	fromNow, wait := wakes(t, pool)
	standby, _ := leader(t, be, time.Hour)
	for range 5 {
		id, s := leader(t, be, time.Hour)
		kit.Equal(t, "acquired", len(kit.Acting(t, be, id, led).Acquires(1)), 1)
		pid := query[int](t, pool, "SELECT backend_pid FROM leasegen.session WHERE id = $1", id)
		tx := kit.Must[pgx.Tx](t)(pool.Begin(t.Context()))
		kit.Must[pgconn.CommandTag](t)(tx.Exec(t.Context(), "LOCK TABLE leasegen.session IN ACCESS EXCLUSIVE MODE"))
		kit.Eventually(t, "it looks", func() bool {
			return query[bool](t, pool, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock')", pid)
		})
		closed := make(chan error, 1)
		go func() { closed <- s.Close(context.Background()) }()
		kit.Eventually(t, "it stops", func() bool { return leasepg.Ended(be, id) })
		fromNow()
		kit.OK(t, tx.Rollback(t.Context()))
		wait()
		next := kit.Acting(t, be, standby, led).Acquires(1)
		kit.Equal(t, "granted to the standby that was woken", len(next), 1)
		kit.OK(t, <-closed)
		kit.Equal(t, "backend that closed it", query[int](t, pool, "DELETE FROM closed RETURNING pid"), pid)
		kit.OK(t, be.Release(t.Context(), standby, led.Name, kit.Refs(next)))
	}
	if strings.Contains(log.String(), "not one of its processes") {
		t.Errorf("a session is taken for a stranger: %s", log.String())
	}
}

// However many contend for it, at most one leads, in tries that overlap.
func TestAdvisoryContention(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	kit.OK(t, be.Register(t.Context(), led, nil))
	exec(t, pool, "CREATE TABLE term (epoch bigint PRIMARY KEY, ended timestamptz)")
	var wg sync.WaitGroup
	for range 6 {
		id, _ := leader(t, be, time.Hour)
		wg.Go(func() {
			for terms := 0; terms < 15; {
				gs, err := be.Acquire(context.Background(), backend.AcquireRequest{Session: id, Consumer: led, Max: 1, Attempt: kit.ID()})
				if err != nil {
					t.Error(err)
					return
				}
				for _, g := range gs {
					// The one before has ended its term: no other process is in office.
					tag, err := pool.Exec(context.Background(), `INSERT INTO term (epoch)
						SELECT $1 WHERE NOT EXISTS (SELECT FROM term WHERE ended IS NULL OR epoch >= $1)`, g.Epoch)
					if err != nil || tag.RowsAffected() != 1 {
						t.Errorf("epoch %d: another leads, or led later: %v", g.Epoch, err)
					}
					if _, err := pool.Exec(context.Background(), "UPDATE term SET ended = clock_timestamp() WHERE epoch = $1", g.Epoch); err != nil {
						t.Error(err)
					}
					if err := be.Release(context.Background(), id, led.Name, []backend.Ref{g.Ref}); err != nil {
						t.Error(err)
					}
					terms++
				}
			}
		})
	}
	wg.Wait()
	kit.Equal(t, "terms", query[int](t, pool, "SELECT count(*) FROM term"), 6*15)
	kit.Equal(t, "holders", held(t, pool, led.Name), 0)
}

// Forty leaderships, and whatever else the process owns, are one connection.
func TestFortyLeaderships(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	var infos []backend.ConsumerInfo
	spec := backend.SessionSpec{TTL: time.Minute, Advisory: true}
	for i := range 40 {
		infos = append(infos, backend.ConsumerInfo{Name: fmt.Sprint("leader-", i), Per: backend.PerCluster, Lock: backend.LockAdvisory})
		spec.Consumers = append(spec.Consumers, infos[i].Name)
		kit.OK(t, be.Register(t.Context(), infos[i], nil))
	}
	before := query[int](t, pool, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'leasegen'")
	id, s := memberSpec(t, be, spec)
	standby, _ := memberSpec(t, be, spec)
	for _, c := range infos {
		kit.Equal(t, "acquired", len(kit.Acting(t, be, id, c).Acquires(1)), 1)
		kit.Equal(t, "acquired by the standby", len(kit.Acting(t, be, standby, c).Acquires(1)), 0)
	}
	kit.Eventually(t, "connections of two processes", func() bool {
		return query[int](t, pool,
			"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'leasegen'")-before == 2*2
	})
	kit.Equal(t, "locks held by one of them", query[int](t, pool, `SELECT count(*) FROM pg_locks
		WHERE locktype = 'advisory' AND pid = (SELECT backend_pid FROM leasegen.session WHERE id = $1)`, id), 41)
	kit.OK(t, s.Close(t.Context()))
	for _, c := range infos {
		kit.Equal(t, "acquired by the standby", len(kit.Acting(t, be, standby, c).Acquires(1)), 1)
	}
}

// A key that somebody else holds is reported once, with its holder, and no process leads in between.
func TestSquattedKey(t *testing.T) {
	t.Parallel()
	pool := open(t, pgtest.DB(t))
	_, err := leasepg.Migrate(t.Context(), pool)
	kit.OK(t, err)
	var log bytes.Buffer
	be := leasepg.New(pool, leasepg.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	kit.OK(t, be.Register(t.Context(), led, nil))
	cfg := pool.Config().ConnConfig
	cfg.RuntimeParams["application_name"] = "squat"
	squatter := kit.Must[*pgx.Conn](t)(pgx.ConnectConfig(t.Context(), cfg))
	_, err = squatter.Exec(t.Context(), "SELECT pg_advisory_lock($1)", leasepg.LockKey(led.Name))
	kit.OK(t, err)
	id, _ := leader(t, be, time.Hour)
	g := kit.Acting(t, be, id, led).Acquires(1)
	kit.Equal(t, "acquired beside the squatter", len(g), 1)
	for range 5 {
		kit.OK(t, be.Release(t.Context(), id, led.Name, []backend.Ref{g[0].Ref}))
		g = kit.Acting(t, be, id, led).Acquires(1)
	}
	kit.OK(t, be.Release(t.Context(), id, led.Name, []backend.Ref{g[0].Ref}))
	told := log.String()
	kit.Equal(t, "lines", strings.Count(told, "\n"), 1)
	for _, want := range []string{fmt.Sprint("pid=", squatter.PgConn().PID()), "application_name=squat", "role=postgres", led.Name} {
		if !strings.Contains(told, want) {
			t.Errorf("%q is not told in %s", want, told)
		}
	}
	kit.OK(t, squatter.Close(t.Context()))
	kit.Eventually(t, "it leads", func() bool { return len(kit.Acting(t, be, id, led).Acquires(1)) == 1 })
	other, _ := leader(t, be, time.Hour)
	kit.Acting(t, be, other, led).Acquires(1) // a rightful leader is no squatter
	kit.Equal(t, "lines", strings.Count(log.String(), "\n"), 1)
}

// Behind a transaction pooler no session could hold the lock: refused in one line.
func TestAdvisoryBehindPooler(t *testing.T) {
	t.Parallel()
	direct := open(t, pgtest.DB(t))
	_, err := leasepg.Migrate(t.Context(), direct)
	kit.OK(t, err)
	cfg := direct.Config().Copy()
	cfg.ConnConfig.Port = uint16(misname(t, fmt.Sprintf("%s:%d", cfg.ConnConfig.Host, cfg.ConnConfig.Port)))
	cfg.ConnConfig.Fallbacks = nil
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	pool := kit.Must[*pgxpool.Pool](t)(pgxpool.NewWithConfig(t.Context(), cfg))
	defer pool.Close()
	be := leasepg.New(pool, leasepg.WithLogger(slog.New(slog.DiscardHandler)))
	kit.OK(t, be.Register(t.Context(), led, nil))
	_, err = be.OpenSession(t.Context(), backend.SessionSpec{ID: kit.ID(), TTL: time.Minute, Advisory: true, Consumers: []string{led.Name}})
	refused := func(err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "transaction pooler") || !strings.Contains(err.Error(), "lock=session") || strings.Contains(err.Error(), "\n") {
			t.Errorf("got %v", err)
		}
	}
	refused(err)
	id := kit.Join(t, be, led, time.Minute)
	_, err = be.Acquire(t.Context(), backend.AcquireRequest{Session: id.ID, Consumer: led, Max: 1, Attempt: kit.ID()})
	refused(err)
	kit.OK(t, id.Heartbeat())
	kit.Equal(t, "locks held through the pooler", query[int](t, direct,
		"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"), 0)
	kit.Equal(t, "settings left on its connections", query[string](t, pool, "SELECT current_setting('idle_session_timeout')"), "0")
}

// A leader whose connection is cut leads on if it is back before anyone else; otherwise its
// next heartbeat says that it is lost. Never do two lead, and a cut leaks no lock.
func TestLeaderIsCutOff(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	kit.OK(t, be.Register(t.Context(), led, nil))
	standby, _ := leader(t, be, time.Hour)
	addr := pgtest.Shared(t).Addr()
	link := faultproxy.Start(t, addr)
	far := leasepg.New(open(t, strings.Replace(pool.Config().ConnString(), addr, link.Addr(), 1)), leasepg.WithLogger(slog.New(slog.DiscardHandler)))
	kept := 0
	for i := 0; i < pace.Rounds(10, 20) || kept == 0 && i < 20; i++ {
		id, s := leader(t, far, time.Minute)
		var g []backend.Grant
		kit.Eventually(t, "it leads", func() bool { g = kit.Acting(t, far, id, led).Acquires(1); return len(g) == 1 })
		link.Cut()
		if i%2 == 1 {
			var next []backend.Grant
			kit.Eventually(t, "it is replaced", func() bool { next = kit.Acting(t, be, standby, led).Acquires(1); return len(next) == 1 })
			link.Heal()
			kit.Eventually(t, "it learns that it is lost", func() bool { return errors.Is(s.Heartbeat(t.Context()), backend.ErrSessionLost) })
			fenced := kit.Must[[]string](t)(be.Commit(t.Context(), id, led.Name, []backend.Progress{{Ref: g[0].Ref}}))
			kit.Equal(t, "fenced", len(fenced), 1)
			kit.OK(t, be.Release(t.Context(), standby, led.Name, []backend.Ref{next[0].Ref}))
			continue
		}
		link.Heal()
		var err error
		kit.Eventually(t, "it is back, or lost", func() bool {
			err = s.Heartbeat(t.Context())
			return err == nil || errors.Is(err, backend.ErrSessionLost)
		})
		if err == nil {
			kit.Equal(t, "holders", held(t, pool, led.Name), 1)
			kit.Equal(t, "acquired by the standby", len(kit.Acting(t, be, standby, led).Acquires(1)), 0)
			kept++
			kit.OK(t, s.Close(t.Context()))
		}
	}
	if kept == 0 {
		t.Error("no leader that was back at once was still the leader")
	}
	kit.Eventually(t, "no lock is left", func() bool { return held(t, pool, led.Name) == 0 })
}

// An acquire that its caller gives up leaks no lock: the session knows what it holds.
func TestCancelledAcquire(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	kit.OK(t, be.Register(t.Context(), led, nil))
	for range pace.Rounds(12, 30) {
		id, s := leader(t, be, time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), rand.N(3*time.Millisecond))
		attempt := kit.ID()
		gs, err := be.Acquire(ctx, backend.AcquireRequest{Session: id, Consumer: led, Max: 1, Attempt: attempt})
		cancel()
		if err != nil {
			// Unknown: the same attempt asks again.
			gs = kit.Must[[]backend.Grant](t)(be.Acquire(t.Context(), backend.AcquireRequest{Session: id, Consumer: led, Max: 1, Attempt: attempt}))
		}
		kit.Equal(t, "granted", len(gs), 1)
		kit.Equal(t, "holders", held(t, pool, led.Name), 1)
		kit.OK(t, kit.Heartbeat(t, s))
		if rand.N(2) == 0 {
			kit.OK(t, be.Release(t.Context(), id, led.Name, []backend.Ref{gs[0].Ref}))
			kit.Equal(t, "holders after the release", held(t, pool, led.Name), 0)
		}
		kit.OK(t, s.Close(t.Context()))
		kit.Equal(t, "holders after the end", held(t, pool, led.Name), 0)
	}
}

// A rolling change of lock= never gives two owners.
func TestLockChanges(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	plain := led
	plain.Lock = backend.LockSession
	kit.OK(t, be.Register(t.Context(), plain, nil))
	old := kit.Join(t, be, plain, time.Hour)
	id, s := leader(t, be, time.Hour)
	kit.Equal(t, "acquired", len(old.Acquires(1)), 1)
	kit.Equal(t, "taken from a session", len(kit.Acting(t, be, id, led).Acquires(1)), 0)
	kit.Equal(t, "holders", held(t, pool, led.Name), 0)
	kit.OK(t, old.Session.Close(t.Context()))
	kit.Equal(t, "acquired", len(kit.Acting(t, be, id, led).Acquires(1)), 1)
	old = kit.Join(t, be, plain, time.Hour)
	kit.Equal(t, "taken from a lock", len(old.Acquires(1)), 0)
	kit.OK(t, s.Close(t.Context()))
	kit.Equal(t, "acquired", len(old.Acquires(1)), 1)
}

package leasepg_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/faultproxy"
	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/part"
	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/operate"
)

// waits reports whether a session has a connection on which it waits.
func waits(t testing.TB, pool *pgxpool.Pool, id string) bool {
	t.Helper()
	return query[int](t, pool, secondHolder, id) != 0
}

// A session that could not come back for a while, and whose process waits on, is not dead: that it waits is what tells it from one that died.
func TestWaitingTellsOfLife(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	link := faultproxy.Start(t, pgtest.Shared(t).Addr())
	far := leasepg.New(open(t, strings.Replace(pool.Config().ConnString(), pgtest.Shared(t).Addr(), link.Addr(), 1)),
		leasepg.WithLogger(slog.New(slog.DiscardHandler)))
	near := kit.Join(t, be, grouped, time.Hour)
	id := kit.Join(t, far, grouped, time.Hour)
	kit.Eventually(t, "both wait", func() bool { return waits(t, pool, id.ID) && waits(t, pool, near.ID) })
	bare, began := pace.Beside(t, connecting(pool)), time.Now()
	// The link refuses new connections; open ones stay open.
	link.Refuse(func(request []byte) bool { return strings.Contains(string(request), "user\x00") })
	exec(t, pool, "SELECT pg_terminate_backend(backend_pid) FROM leasegen.session WHERE id = $1", id.ID)
	time.Sleep(3 * time.Second)
	if !lives(t, pool, id.ID, bare, began) {
		return
	}
	link.Refuse(nil)
	kit.Eventually(t, "it is back", func() bool { return id.Session.Heartbeat(t.Context()) == nil })
	// One that cannot come back, and does not wait either, is.
	link.Cut()
	kit.Eventually(t, "it is found dead", func() bool { return state(t, pool, id.ID) == "dead" })
}

// beginsToWait makes a function of the database. It looks for the process of the server that waits for a session, nudges it so many times as
// soon as it has the session's second lock, and returns it; or NULL, if a minute passes without one.
func beginsToWait(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	exec(t, pool, `CREATE FUNCTION begins_to_wait(session text, nudges int) RETURNS int LANGUAGE plpgsql AS $$
		DECLARE
			waiting int;
			give_up timestamptz := clock_timestamp() + interval '1 min';
		BEGIN
			WHILE waiting IS NULL AND clock_timestamp() < give_up LOOP
				SELECT h.pid INTO waiting FROM leasegen.lock_holders(hashtextextended('leasegen.second/' || session, 0)) h;
			END LOOP;
			FOR i IN 1..nudges LOOP
				PERFORM pg_cancel_backend(waiting), pg_sleep(0.001);
			END LOOP;
			RETURN waiting;
		END $$`)
}

// A nudge that comes while the connection that waits gets ready is answered on the same connection, too.
func TestNudgedAsItBeginsToWait(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	kit.Join(t, be, grouped, time.Hour)
	beginsToWait(t, pool)
	bare := pace.Beside(t, connecting(pool))
	for range pace.Rounds(5, 10) {
		began := time.Now()
		id := kit.Join(t, be, grouped, time.Hour).ID
		nudged := query[int](t, pool, "SELECT begins_to_wait($1, 5)", id)
		var pid int
		kit.Eventually(t, "the session waits for another", func() bool {
			pid = query[int](t, pool, secondHolder, id)
			return query[bool](t, pool, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event IN ('advisory', 'PgSleep'))", pid)
		})
		switch {
		case pid == nudged:
		case bare.BusySince(began):
			t.Log("another process of the server waits: not judged on a busy machine, where the first may have been idle for too long")
		default:
			t.Errorf("process %d of the server waits, and not %d, which was nudged", pid, nudged)
		}
	}
}

// A host that is lost as its session begins to wait leaves no connection that answers for it, nudged or not.
func TestLostAsItBeginsToWait(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	kit.Join(t, be, grouped, time.Hour)
	beginsToWait(t, pool)
	for nudges := range 5 {
		kit.Eventually(t, "a host is lost while a connection waits for it", func() bool { return loseWaiting(t, pool, nudges) })
	}
}

// loseWaiting loses a host after so many nudges, and waits until the server has ended the connection that waits for it. It reports false
// where no connection waited when the host was lost: one was just being replaced.
func loseWaiting(t *testing.T, pool *pgxpool.Pool, nudges int) bool {
	t.Helper()
	link := faultproxy.Start(t, pgtest.Shared(t).Addr())
	far := leasepg.New(open(t, strings.Replace(pool.Config().ConnString(), pgtest.Shared(t).Addr(), link.Addr(), 1)),
		leasepg.WithLogger(slog.New(slog.DiscardHandler)))
	id := kit.Join(t, far, grouped, time.Hour).ID
	if query[int](t, pool, "SELECT coalesce(begins_to_wait($1, $2), 0)", id, nudges) == 0 {
		t.Fatal("no connection waits for the session")
	}
	link.BlackHole()
	defer link.Cut()
	asked := 0
	kit.Eventually(t, "the server has ended the connection", func() bool {
		pid := query[int](t, pool, secondHolder, id)
		if pid != 0 && pid != asked { // another one if it was replaced before the host was lost
			exec(t, pool, "SELECT pg_cancel_backend($1)", pid)
			asked = pid
		}
		return pid == 0
	})
	return asked != 0
}

// A connection that has the second lock alone is none that waits for others: it does not answer for a session, and is not asked.
func TestOnlyASharedLockAnswers(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	polling := leasepg.New(pool, leasepg.WithoutWaiting())
	kit.OK(t, be.Register(t.Context(), topical, kit.Topics(1)))
	kit.Join(t, be, topical, time.Hour)
	id := kit.Join(t, polling, topical, time.Hour)
	looker := kit.Must[*pgxpool.Conn](t)(pool.Acquire(t.Context()))
	defer looker.Release()
	_, err := looker.Exec(t.Context(), "SELECT pg_advisory_lock(hashtextextended('leasegen.second/' || $1, 0))", id.ID)
	kit.OK(t, err)
	busy := make(chan error, 1)
	go func() {
		_, err := looker.Exec(t.Context(), "SELECT pg_sleep(7)")
		busy <- err
	}()
	kit.Equal(t, "how the end of one is found", slices.ContainsFunc(kit.Must[[]operate.MemberStatus](t)(be.Members(t.Context(), topical.Name)),
		func(m operate.MemberStatus) bool { return m.Session == id.ID && m.Detection == "polling" }), true)
	leasepg.Abandon(polling, id.ID)
	kit.Eventually(t, "it is found dead", func() bool { return state(t, pool, id.ID) == "dead" })
	kit.OK(t, <-busy) // it was not cancelled
}

// A connection to a standby, or to a server with another history, waits for no session: locks there show none. The log
// says that the session polls, once.
func TestWaitsOnNoOtherServer(t *testing.T) {
	t.Parallel()
	primary := pgtest.Start(t, pgtest.Config("fsync", "off"))
	_, pool := migratedAt(t, primary.DB("astray"))
	standby := primary.Replica(t)
	var astray atomic.Bool
	var dialed atomic.Int64
	var log text
	be := leasepg.New(redirected(t, pool, func(ctx context.Context, network, addr string) (net.Conn, error) {
		if astray.Load() {
			addr = standby.Addr()
			dialed.Add(1)
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}), leasepg.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	id, _ := leader(t, be, time.Hour)
	kit.Eventually(t, "it waits", func() bool { return waits(t, pool, id) })
	other := open(t, standby.DSN("astray"))
	for _, server := range []string{"a standby", "another history"} {
		astray.Store(true)
		exec(t, pool, "SELECT pg_terminate_backend(("+secondHolder+"))", id)
		told := func() bool { return strings.Contains(log.String(), "no connection waits") }
		for began := time.Now(); time.Since(began) < 1500*time.Millisecond || !told() && time.Since(began) < time.Minute; time.Sleep(5 * time.Millisecond) {
			if waits(t, other, id) && dialed.Load() > 0 {
				time.Sleep(50 * time.Millisecond) // it is there for a moment
				kit.Equal(t, "waits on "+server, waits(t, other, id), false)
			}
		}
		kit.Equal(t, "waits", waits(t, pool, id), false)
		if n := dialed.Swap(0); n == 0 || n > 20 {
			t.Errorf("%d connections to %s", n, server)
		}
		astray.Store(false)
		kit.Eventually(t, "it waits again", func() bool { return waits(t, pool, id) })
		if server == "a standby" {
			standby.Detach(primary)
			standby.Promote()
		}
	}
	kit.Equal(t, "state", state(t, pool, id), "live")
	if n := strings.Count(log.String(), "no connection waits"); n != 1 || !strings.Contains(log.String(), "recovery is in progress") {
		t.Errorf("the log does not say once that the session polls, and why:\n%s", log.String())
	}
}

// A statement that waits holds no snapshot for longer than a wait lasts, and the server logs no error when it is over.
func TestWaitingIsQuiet(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t, pgtest.Config("logging_collector", "on"), pgtest.Config("log_directory", "told"),
		pgtest.Config("log_min_messages", "warning"))
	be, pool := migratedAt(t, server.DB("quiet"))
	for range 3 {
		kit.Join(t, be, grouped, time.Hour)
	}
	const waiting = `FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%WaitFor%' AND state = 'active'
		AND pid <> pg_backend_pid()`
	kit.Eventually(t, "all wait", func() bool {
		return query[int](t, pool, "SELECT count(*) "+waiting+" AND wait_event = 'advisory'") == 3
	})
	const read = "SELECT string_agg(pg_read_file('told/' || f), '') FROM pg_ls_dir('told') f"
	before := len(query[string](t, pool, read)) // while they join one may ask for another
	oldest := 0.0
	for end := time.Now().Add(13 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		oldest = max(oldest, query[float64](t, pool, "SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8 "+waiting))
	}
	if t.Logf("the oldest statement that waited was %.1f s old", oldest); oldest < 3 || oldest > 6 {
		t.Errorf("the oldest statement that waited was %.1f s old, want about 5", oldest)
	}
	told := query[string](t, pool, read)[before:]
	if strings.Contains(told, "ERROR") || strings.Contains(told, "deadlock") {
		t.Errorf("the server logs:\n%s", told)
	}
}

// Without a connection to wait on a session polls.
func TestWithoutWaiting(t *testing.T) {
	t.Parallel()
	be, pool := migratedAt(t, pgtest.DB(t), leasepg.WithoutWaiting())
	kit.OK(t, be.Register(t.Context(), topical, kit.Topics(1)))
	id := kit.Join(t, be, topical, time.Hour)
	other := kit.Join(t, be, topical, time.Hour)
	kit.Equal(t, "waits", waits(t, pool, id.ID), false)
	detection := func(be *leasepg.Backend) string {
		return kit.Must[[]operate.MemberStatus](t)(be.Members(t.Context(), topical.Name))[0].Detection
	}
	kit.Equal(t, "how the end of one is found", detection(be), "polling")
	process, dead := part.Start(t, taking{pool.Config().ConnString(), 10 * time.Minute, topical, 1, false})
	kit.OK(t, process.Kill())
	kit.Eventually(t, "it is found", func() bool { return state(t, pool, dead) == "dead" })
	for _, s := range []*kit.Actor{id, other} {
		if err := s.Session.Heartbeat(t.Context()); errors.Is(err, backend.ErrSessionLost) {
			t.Error("a session that lives was taken for dead")
		}
	}
}

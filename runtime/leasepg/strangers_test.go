package leasepg_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/internal/part"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

// squatting is a connection of a role that may only connect. It holds locks until the test ends.
type squatting struct{ *pgx.Conn }

func (c *cast) squat(t *testing.T) squatting {
	t.Helper()
	conn := kit.Must[*pgx.Conn](t)(pgx.ConnectConfig(t.Context(), c.stranger.Config().ConnConfig))
	t.Cleanup(func() { conn.Close(context.Background()) })
	return squatting{conn}
}

// take waits for a lock, in the background; the answer comes when it has it.
func (s squatting) take(t *testing.T, function, key string) <-chan error {
	got := make(chan error, 1)
	go func() {
		_, err := s.Exec(context.WithoutCancel(t.Context()), "SELECT "+function+"("+key+")")
		got <- err
	}()
	return got
}

// text is a log that may be read while it is written.
type text struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *text) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *text) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestStrangerWaitsForALeader: a role that may only connect reads the keys of locks in pg_locks, waits for them, and has
// them the moment the leader is killed. The next leader leads anyway, and the log names the stranger.
func TestStrangerWaitsForALeader(t *testing.T) {
	t.Parallel()
	for name, function := range map[string]string{"exclusive": "pg_advisory_lock", "shared": "pg_advisory_lock_shared"} {
		t.Run(name, func(t *testing.T) {
			c := distrustful(t)
			var log text
			be := leasepg.New(c.app, leasepg.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
			kit.OK(t, be.Register(t.Context(), led, nil))
			first, _ := leader(t, be, time.Hour)
			second, _ := leader(t, be, time.Hour)
			g := kit.Acting(t, be, first, led).Acquires(1)[0]
			var waiting []<-chan error
			keys := kit.Must[pgx.Rows](t)(c.stranger.Query(t.Context(), `SELECT format('%s', (classid::bigint << 32) | objid::bigint)
				FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted AND pid = $1`,
				query[int](t, c.owner, "SELECT backend_pid FROM leasegen.session WHERE id = $1", first)))
			all := kit.Must[[]string](t)(pgx.CollectRows(keys, pgx.RowTo[string]))
			kit.Equal(t, "keys seen", len(all), 2)
			for _, key := range all {
				waiting = append(waiting, c.squat(t).take(t, function, key+"::bigint"))
			}
			kit.Eventually(t, "the stranger waits", func() bool {
				return query[int](t, c.admin, `SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
					WHERE l.locktype = 'advisory' AND NOT l.granted AND a.usename = $1`, c.strangerName) == 2
			})
			exec(t, c.admin, "SELECT pg_terminate_backend(backend_pid) FROM leasegen.session WHERE id = $1", first)
			for _, w := range waiting {
				kit.OK(t, <-w)
			}
			// The first one's process is removed, as far as the others can tell.
			var next []backend.Grant
			kit.Eventually(t, "somebody leads again", func() bool {
				for _, id := range []string{second, first} {
					grants, err := be.Acquire(t.Context(), backend.AcquireRequest{Session: id, Consumer: led, Max: 1, Attempt: kit.ID()})
					if err == nil && len(grants) > 0 {
						next = grants
						second = id
						return true
					}
				}
				return false
			})
			if next[0].Epoch <= g.Epoch {
				t.Errorf("epoch %d after %d", next[0].Epoch, g.Epoch)
			}
			if !strings.Contains(log.String(), "role="+c.strangerName) {
				t.Errorf("the log does not name the stranger:\n%s", log.String())
			}
			// Others do not lead beside it, and it gives the lease back.
			third, _ := leader(t, be, time.Hour)
			kit.Equal(t, "granted to a third", len(kit.Acting(t, be, third, led).Acquires(1)), 0)
			kit.OK(t, be.Release(t.Context(), second, led.Name, []backend.Ref{next[0].Ref}))
			kit.Equal(t, "granted to a third after the release", len(kit.Acting(t, be, third, led).Acquires(1)), 1)
		})
	}
}

// TestStrangerWithTheProcessIDOfAFormerLeader: a connection is not taken for that of a session which ended long ago for its process
// id alone. The server uses these again.
func TestStrangerWithTheProcessIDOfAFormerLeader(t *testing.T) {
	t.Parallel()
	_, pool := migrated(t)
	var log text
	be := leasepg.New(pool, leasepg.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	kit.OK(t, be.Register(t.Context(), led, nil))
	former, s := leader(t, be, time.Hour)
	kit.OK(t, s.Close(t.Context()))
	squatter := kit.Must[*pgx.Conn](t)(pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig))
	defer squatter.Close(context.Background())
	pid := squatter.PgConn().PID()
	kit.OK(t, <-squatting{squatter}.take(t, "pg_advisory_lock", fmt.Sprint(leasepg.LockKey(led.Name))))
	exec(t, pool, "UPDATE leasegen.session SET backend_pid = $2, expires_at = clock_timestamp() - interval '1 h' WHERE id = $1", former, pid)
	id, _ := leader(t, be, time.Hour)
	kit.Equal(t, "acquired beside the stranger", len(kit.Acting(t, be, id, led).Acquires(1)), 1)
	if !strings.Contains(log.String(), fmt.Sprint("pid=", pid)) {
		t.Errorf("the log does not name the stranger:\n%s", log.String())
	}
}

// TestStrangerHoldsASecondLock: a role that may only connect holds the lock by which a process that waits is known. The leader
// is found dead.
func TestStrangerHoldsASecondLock(t *testing.T) {
	t.Parallel()
	c := distrustful(t)
	be := leasepg.New(c.app)
	kit.OK(t, be.Register(t.Context(), led, nil))
	leader(t, be, time.Hour)
	dsn := strings.Replace(c.admin.Config().ConnString(), "postgres@", c.appName+"@", 1)
	process, first := part.Start(t, taking{dsn, 10 * time.Minute, led, 1, false})
	kit.OK(t, <-c.squat(t).take(t, "pg_advisory_lock_shared", "hashtextextended('leasegen.second/"+first+"', 0)"))
	kit.OK(t, process.Kill())
	kit.Eventually(t, "the leader is found dead", func() bool { return state(t, c.admin, first) == "dead" })
}

// TestStrangerHoldsNames: a role that may only connect holds every lock whose key is calculated from a name.
// Publishing, delayed events and maintenance go on; what has to wait fails soon, and names the holder.
func TestStrangerHoldsNames(t *testing.T) {
	t.Parallel()
	c := distrustful(t)
	be := leasepg.New(c.app)
	streams := backend.ConsumerInfo{Name: "streams", Per: backend.PerStream, Topics: []string{"*"}}
	kit.OK(t, be.Register(t.Context(), streams, nil))
	s := c.squat(t)
	for _, name := range []string{"leasegen.segment", "leasegen.delayed/leasegen", "leasegen.maintain/leasegen", "leasegen.migrate/leasegen", "leasegen.migrate/other",
		"leasegen.topics/topical", "leasegen.topics/streams", "leasegen.streams/streams"} {
		kit.OK(t, <-s.take(t, "pg_advisory_lock", "hashtextextended('"+name+"', 0)"))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	exec(t, c.admin, "SELECT setval('leasegen.message_id_seq', 3999990)") // partitions are needed
	kit.OK(t, be.Publish(ctx, kit.Events("x", 20)))
	kit.OK(t, be.Publish(ctx, []backend.Event{{Topic: "x", Kind: "k", After: time.Microsecond}}))
	kit.OK(t, leasepg.ReleaseDelayed(ctx, be))
	kit.Equal(t, "messages", query[int](t, c.admin, "SELECT count(*) FROM leasegen.message"), 21)
	exec(t, c.admin, "UPDATE leasegen.published_id SET at = at - interval '8 days'")
	exec(t, c.admin, "INSERT INTO leasegen.published_id (topic, id, at) VALUES ('t', 'i', now() - interval '8 days')")
	r, err := be.Maintain(ctx, nil)
	kit.OK(t, err)
	kit.Equal(t, "ids forgotten", r.IDsForgotten, 1)

	want := fmt.Sprintf("held by pid %d (role %s", s.PgConn().PID(), c.strangerName)
	var wg sync.WaitGroup
	for what, wait := range map[string]func() error{
		"registering a topic":  func() error { return be.Register(ctx, topical, []string{"x"}) },
		"registering a stream": func() error { return be.Register(ctx, streams, []string{"x"}) },
	} {
		wg.Go(func() {
			if err := wait(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %s", what, err, want)
			}
		})
	}
	wg.Wait()
	// A registering process that has its share is not to blame when a stranger waits to have the lock alone.
	registering := kit.Must[pgx.Tx](t)(c.app.Begin(ctx))
	defer registering.Rollback(context.Background())
	_, err = registering.Exec(ctx, "SELECT pg_advisory_xact_lock_shared(hashtextextended('leasegen.topics/crowded', 0))")
	kit.OK(t, err)
	waits := c.squat(t).take(t, "pg_advisory_lock", "hashtextextended('leasegen.topics/crowded', 0)")
	kit.Eventually(t, "the stranger waits", func() bool {
		return query[bool](t, c.admin, `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`)
	})
	crowded := backend.ConsumerInfo{Name: "crowded", Per: backend.PerTopic, Topics: []string{"*"}}
	if err := be.Register(ctx, crowded, []string{"x"}); err == nil || strings.Contains(err.Error(), "held by") {
		t.Errorf("registering beside another: %v, want a timeout for which that one is not blamed", err)
	}
	kit.OK(t, registering.Rollback(ctx))
	kit.OK(t, <-waits)
	// Migrations pass the stranger over, of a schema that is there and of one that is not.
	exec(t, c.admin, "DELETE FROM leasegen.migration WHERE version = (SELECT max(version) FROM leasegen.migration)")
	var log text
	logger := leasepg.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))
	_, err = leasepg.Migrate(ctx, c.owner, logger)
	if err == nil || ctx.Err() != nil {
		t.Errorf("a migration that is there already was applied again: %v", err)
	}
	_, err = leasepg.Migrate(ctx, c.admin, leasepg.WithSchema("other"), logger)
	kit.OK(t, err)
	if strings.Count(log.String(), "role="+c.strangerName) != 2 {
		t.Errorf("the log does not name the stranger:\n%s", log.String())
	}
}

package leasepg_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

// A lease that changes hands waits for the disk once, in its next owner's transaction: on a server where that takes a tenth of a second
// longer, a handover takes as much longer as one commit of a bare row, and less than two.
func TestHandoverWaitsForTheDiskOnce(t *testing.T) {
	t.Parallel()
	slow := pgtest.Start(t, pgtest.Config("commit_siblings", "0"))
	be, pool := migratedAt(t, slow.DB("handover"))
	exec(t, pool, "CREATE TABLE bare (n int); INSERT INTO bare VALUES (0)")
	reader := open(t, pool.Config().ConnString())
	longer := func(before, what func(), likely func(time.Duration) bool) time.Duration {
		// The middle one of five: one may meet the commit of something else, and wait for the rest of that alone.
		round := func() time.Duration {
			var middle [2]time.Duration
			for i, delay := range []string{"0", "100000"} {
				exec(t, pool, "ALTER SYSTEM SET commit_delay = "+delay)
				exec(t, pool, "SELECT pg_reload_conf()")
				kit.Eventually(t, "each connection has read it", func() bool {
					reader.Reset()
					return query[string](t, reader, "SELECT setting FROM pg_settings WHERE name = 'commit_delay'") == delay
				})
				var took [5]time.Duration
				for n := range took {
					before()
					began := time.Now()
					what()
					took[n] = time.Since(began)
				}
				slices.Sort(took[:])
				middle[i] = took[2]
			}
			return middle[1] - middle[0]
		}
		d := round()
		for try := 1; try < 12 && !likely(d); try++ { // the machine may be busy
			d = round()
		}
		return d
	}
	bare := longer(func() {}, func() { exec(t, pool, "UPDATE bare SET n = n + 1") }, func(d time.Duration) bool {
		return d > 90*time.Millisecond && d < 110*time.Millisecond
	})
	if bare < 50*time.Millisecond {
		t.Fatalf("a commit took %v longer: this server does not wait for its disk", bare)
	}
	for name, how := range map[string]struct {
		info  backend.ConsumerInfo
		close bool
	}{"release": {topical, false}, "end of the session": {topical, true}, "release of a leader": {led, false}, "end of a leader": {led, true}} {
		t.Run(name, func(t *testing.T) {
			spec := backend.SessionSpec{TTL: time.Hour, Advisory: how.info.Lock == backend.LockAdvisory}
			a := kit.Open(t, be, spec, how.info).Registers()
			kit.OK(t, be.Register(t.Context(), topical, []string{"x"}))
			g := a.Takes()
			var former, next *kit.Actor
			once := func(d time.Duration) bool { return d >= bare/2 && d < bare*3/2 }
			took := longer(func() {
				if former != nil {
					kit.OK(t, former.Session.Close(t.Context()))
				}
				former, next = nil, kit.Open(t, be, spec, how.info)
			}, func() {
				if how.close {
					kit.OK(t, a.Session.Close(t.Context()))
				} else {
					a.Releases(g.Ref)
					former = a
				}
				a = next
				g = a.Takes()
			}, once)
			if !once(took) {
				t.Errorf("where a commit takes %v longer, a handover takes %v longer", bare, took)
			}
			a.Releases(g.Ref)
		})
	}
}

// A server that crashes right after leases were given away may not know of it: then they are still their former owner's. A lease that
// another owner got is not the former one's any more, and what was committed is there.
func TestServerCrashesAfterARelease(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t, pgtest.Config("wal_writer_delay", "10s"))
	be, pool := migratedAt(t, server.DB("crash"))
	kit.OK(t, be.Publish(t.Context(), slices.Concat(kit.Events("kept", 5), kit.Events("given", 5), kit.Events("taken", 5))))
	kit.OK(t, be.Register(t.Context(), topical, []string{"kept", "given", "taken"}))
	unflushed := 0
	for round := range 4 {
		leaver, next := kit.Join(t, be, topical, time.Hour), kit.Join(t, be, topical, time.Hour)
		had := map[string]backend.Grant{}
		for _, g := range leaver.Acquires(3) {
			f := leaver.Reads(g.Resource, g.Cursor, 1)
			g.Cursor = f.Next
			had[g.Resource] = g
			leaver.Commits(backend.Progress{Ref: g.Ref, Seq: 1, Cursor: f.Next})
		}
		kit.Equal(t, "leases", len(had), 3)
		leaver.Releases(had["taken"].Ref)
		taken := next.Takes()
		kit.Equal(t, "position of the next owner", positionOf(t, pool, "taken"), round+1)
		leaver.Releases(had["given"].Ref)
		server.Stop(pgtest.Immediate)
		server.Start()
		pool.Reset()
		kit.Eventually(t, "the leaver is back", func() bool { return leaver.Session.Heartbeat(t.Context()) == nil })
		kit.Eventually(t, "the next owner is back", func() bool { return next.Session.Heartbeat(t.Context()) == nil })
		owned := map[string]int64{}
		for _, r := range kit.Must[[]backend.Ref](t)(be.Owned(t.Context(), leaver.ID, topical.Name)) {
			owned[r.Resource] = r.Epoch
		}
		kit.Equal(t, "epoch of what was kept", owned["kept"], had["kept"].Epoch)
		if e, is := owned["given"]; is {
			unflushed++
			kit.Equal(t, "epoch of what the server does not know to be given", e, had["given"].Epoch)
			leaver.Releases(backend.Ref{Resource: "given", Epoch: e}) // as the runtime does with what only the server knows of
		}
		if _, is := owned["taken"]; is {
			t.Error("a lease came back that another owner had got")
		}
		kit.Equal(t, "refused", fmt.Sprint(leaver.Fenced(backend.Progress{Ref: had["taken"].Ref, Seq: 2, Cursor: had["taken"].Cursor})), "[taken]")
		next.Commits(backend.Progress{Ref: taken.Ref, Seq: 1})
		given := next.Takes()
		if given.Resource != "given" || given.Epoch <= had["given"].Epoch {
			t.Errorf("granted %+v after %+v", given.Ref, had["given"].Ref)
		}
		for _, topic := range slices.Sorted(maps.Keys(had)) {
			kit.Equal(t, "position of "+topic, positionOf(t, pool, topic), round+1)
		}
		kit.OK(t, leaver.Session.Close(t.Context()))
		kit.OK(t, next.Session.Close(t.Context()))
	}
	if unflushed == 0 {
		t.Error("no release was lost: the test shows nothing")
	}
}

// positionOf is how many messages of a topic its stored position has passed.
func positionOf(t testing.TB, pool *pgxpool.Pool, topic string) int {
	t.Helper()
	return query[int](t, pool, `SELECT count(*) FROM leasegen.message m JOIN leasegen.lease l ON l.resource = m.topic AND m.id <= l.pos
		WHERE m.topic = $1`, topic)
}

// A standby has run what a takeover needs before it takes over: the connections have prepared and planned it.
func TestStandbyHasRehearsed(t *testing.T) {
	t.Parallel()
	for _, info := range []backend.ConsumerInfo{topical, grouped,
		{Name: "slots", Per: backend.PerPartition, Topics: []string{"*"}}, {Name: "streams", Per: backend.PerStream, Topics: []string{"*"}}} {
		t.Run(info.Per.String(), func(t *testing.T) {
			_, from := migrated(t)
			pool := openMax(t, from.Config().ConnString(), 1)
			be := leasepg.New(pool)
			kit.OK(t, be.Publish(t.Context(), kit.Events("x", 1)))
			a := kit.Join(t, be, info, time.Hour)
			kit.OK(t, be.Register(t.Context(), info, nil))
			owner := kit.Join(t, be, info, time.Hour)
			for len(owner.Acquires(1000)) > 0 {
			}
			pool.Reset() // another connection, which has run no statement
			a.Surveys()
			rehearsed := prepared(t, pool)
			for _, name := range []string{"AcquireLeases", "GrantedLanes", "Horizon", readBy[info.Per]} {
				if rehearsed[name] == 0 {
					t.Errorf("%s was not run on a standby's connection", name)
				}
			}
			// With a generic plan once is enough. A custom one would be made again in the takeover.
			kit.Equal(t, "statements with a plan of their arguments", query[int](t, pool, `SELECT count(*) FROM pg_prepared_statements
				WHERE custom_plans > 0 AND statement ~ '-- name: (AcquireLeases|GrantedLanes|Horizon|Fetch)'`), 0)
			kit.OK(t, owner.Session.Close(t.Context()))
			gs := a.Acquires(1000)
			if len(gs) == 0 {
				t.Fatal("nothing was to be had")
			}
			a.Reads(gs[0].Resource, gs[0].Cursor, 1)
			for name := range prepared(t, pool) {
				if _, is := rehearsed[name]; !is {
					t.Errorf("%s was prepared in the takeover", name)
				}
			}
		})
	}
}

var readBy = map[backend.Per]string{
	backend.PerTopic: "FetchTopics", backend.PerGroup: "FetchAll", backend.PerPartition: "FetchSlots", backend.PerStream: "FetchStreams",
}

func prepared(t testing.TB, on interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}) map[string]int64 {
	t.Helper()
	out := map[string]int64{}
	rows, err := on.Query(context.Background(), `SELECT substring(statement FROM '-- name: (\w+)'), generic_plans + custom_plans
		FROM pg_prepared_statements WHERE statement LIKE '-- name: %'`)
	kit.OK(t, err)
	var name string
	var plans int64
	_, err = pgx.ForEachRow(rows, []any{&name, &plans}, func() error { out[name] = plans; return nil })
	kit.OK(t, err)
	return out
}

// So has the connection of a session what its end needs, and where that leads by its lock what its beginning needs.
func TestSessionHasRehearsed(t *testing.T) {
	t.Parallel()
	be, _ := migrated(t)
	for _, info := range []backend.ConsumerInfo{grouped, led} {
		advisory := info.Lock == backend.LockAdvisory
		a := kit.Open(t, be, backend.SessionSpec{TTL: time.Hour, Advisory: advisory}, info)
		want := []string{"Hasty", "CloseSession", "LockSessionLeases", "FreeSessionLeases", "Unlock"}
		if advisory {
			want = append(want, "AcquireLeases", "GrantedLanes", "Horizon")
		}
		for _, name := range want {
			kit.Eventually(t, name+" was run on the session's connection", func() (was bool) {
				kit.OK(t, leasepg.OnSession(t.Context(), be, a.ID, func(_ context.Context, c *pgx.Conn) error {
					was = prepared(t, c)[name] > 0
					return nil
				}))
				return was
			})
		}
	}
}

// The survey in which a connection comes to rehearse does not wait for that, and the connection is not lost by it. A table that no
// survey reads is locked for long enough that no rehearsal gets it.
func TestSurveysDoNotWaitForRehearsals(t *testing.T) {
	t.Parallel()
	_, from := migrated(t)
	pool := openMax(t, from.Config().ConnString(), 2)
	a := kit.Join(t, leasepg.New(pool), topical, time.Hour)
	tx, err := from.Begin(t.Context())
	kit.OK(t, err)
	_, err = tx.Exec(t.Context(), "LOCK TABLE leasegen.parked")
	kit.OK(t, err)
	first := false // a survey returned while a rehearsal still had a connection
	for i := 0; i < 5 || i < 20 && !first; i++ {
		pool.Reset() // other connections, which have run no statement
		a.Surveys()
		first = first || pool.Stat().AcquiredConns() > 0
	}
	if !first {
		t.Error("surveys wait for rehearsals")
	}
	opened := pool.Stat().NewConnsCount()
	kit.Eventually(t, "the rehearsals have given up", func() bool { return pool.Stat().AcquiredConns() == 0 })
	a.Surveys()
	if n := pool.Stat().NewConnsCount(); n != opened {
		t.Errorf("%d connections were opened after %d: a rehearsal lost one", n-opened, opened)
	}
	kit.OK(t, tx.Rollback(t.Context()))
}

// Rehearsals of many processes do not wait for each other: each has an attempt of its own.
func TestRehearsalsAreApart(t *testing.T) {
	t.Parallel()
	_, from := migrated(t)
	tx, err := from.Begin(t.Context())
	kit.OK(t, err)
	_, err = tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock(hashtextextended('//', 0))") // of no session, consumer and attempt
	kit.OK(t, err)
	pool := openMax(t, from.Config().ConnString(), 1)
	a := kit.Join(t, leasepg.New(pool), topical, time.Hour)
	a.Surveys()
	kit.Equal(t, "it was run", prepared(t, pool)["AcquireLeases"] > 0, true)
	kit.OK(t, tx.Rollback(t.Context()))
}

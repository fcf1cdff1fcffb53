package leasepg_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/operate"
)

var (
	streamed  = backend.ConsumerInfo{Name: "streamed", Per: backend.PerStream, Topics: []string{"*"}}
	announced = backend.ConsumerInfo{Name: "announced", Per: backend.PerStream, Announced: true}
	rowed     = backend.ConsumerInfo{Name: "rowed", Per: backend.PerStream, Announced: true, Lock: backend.LockRow, TTL: time.Minute}
)

func resources(gs []backend.Grant) []string {
	var out []string
	for _, g := range gs {
		out = append(out, g.Resource)
	}
	slices.Sort(out)
	return out
}

func surveyed(t testing.TB, be *leasepg.Backend, c backend.ConsumerInfo) backend.Survey {
	t.Helper()
	return kit.Must[[]backend.Survey](t)(be.Survey(t.Context(), []string{c.Name}))[0]
}

// Leases with a time of their own expire one by one, while the session lives.
func TestRowLeasesExpireOneByOne(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	kit.OK(t, be.Register(t.Context(), rowed, []string{"a", "b", "c"}))
	id := kit.Join(t, be, rowed, time.Hour)
	other := kit.Join(t, be, rowed, time.Hour)
	gs := id.Acquires(9)
	kit.Equal(t, "acquired", len(gs), 3)
	lapse := func(resource string) {
		exec(t, pool, "UPDATE leasegen.lease SET expires_at = clock_timestamp() - interval '1 ms' WHERE resource = $1", resource)
	}
	renew := func(gs []backend.Grant) []string {
		t.Helper()
		lost := kit.Must[[]string](t)(be.Renew(t.Context(), id.ID, rowed, kit.Refs(gs)))
		slices.Sort(lost)
		return lost
	}
	kit.Equal(t, "lost", len(renew(gs)), 0)
	left := query[float64](t, pool, "SELECT min(extract(epoch FROM expires_at - clock_timestamp()))::float8 FROM leasegen.lease")
	if left < 50 || left > 60 {
		t.Errorf("%v s are left of a TTL of a minute", left)
	}
	lapse("b")
	kit.Equal(t, "lost", fmt.Sprint(renew(gs)), "[b]") // it cannot be revived
	kit.Equal(t, "free", surveyed(t, be, rowed).Free, 1)
	kit.OK(t, id.Heartbeat())
	taken := other.Acquires(9)
	kit.Equal(t, "taken", fmt.Sprint(resources(taken)), "[b]")
	kit.Equal(t, "suspicion", taken[0].Suspicion, 0) // its owner lives
	kit.Equal(t, "lost", fmt.Sprint(renew(gs)), "[b]")
	stale := slices.Clone(gs)
	stale[0].Epoch--
	kit.Equal(t, "lost with an older epoch", fmt.Sprint(slices.Contains(renew(stale[:1]), stale[0].Resource)), "true")

	// With the session all go, renewed or not.
	expire(t, pool, id.ID)
	kit.Equal(t, "lost with the session", len(renew(gs)), 3)
	kit.Equal(t, "taken", len(other.Acquires(9)), 2)
	kit.Equal(t, "free", surveyed(t, be, rowed).Free, 0)
}

// A grace counts from the end of a lease's own time.
func TestRowLeaseGrace(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	c := rowed
	c.Grace = time.Hour
	kit.OK(t, be.Register(t.Context(), c, []string{"a"}))
	id := kit.Join(t, be, c, time.Hour)
	other := kit.Join(t, be, c, time.Hour)
	kit.Equal(t, "acquired", len(id.Acquires(9)), 1)
	exec(t, pool, "UPDATE leasegen.lease SET expires_at = clock_timestamp() - interval '59 min'")
	kit.Equal(t, "free", surveyed(t, be, c).Free, 0)
	kit.Equal(t, "taken within the grace", len(other.Acquires(9)), 0)
	exec(t, pool, "UPDATE leasegen.lease SET expires_at = clock_timestamp() - interval '61 min'")
	kit.Equal(t, "free", surveyed(t, be, c).Free, 1)
	kit.Equal(t, "taken after it", len(other.Acquires(9)), 1)
}

// A renewal that meets the end of the lease's time either holds or loses it, and no other process
// gets what it holds.
func TestRenewMeetsExpiry(t *testing.T) {
	t.Parallel()
	be, _ := migrated(t)
	c := rowed
	c.TTL = 100 * time.Millisecond
	kit.OK(t, be.Register(t.Context(), c, []string{"a"}))
	id := kit.Join(t, be, c, time.Hour)
	other := kit.Join(t, be, c, time.Hour)
	kept, lost := 0, 0
	wait := c.TTL - 5*time.Millisecond // it comes to swing about the moment when the lease ends, whatever a call takes
	for round := 0; round < 60 || (kept == 0 || lost == 0) && round < 400; round++ {
		var gs []backend.Grant
		kit.Eventually(t, "the lease is free", func() bool { gs = id.Acquires(1); return len(gs) == 1 })
		time.Sleep(wait)
		var (
			wg   sync.WaitGroup
			gone []string
		)
		sent := time.Now()
		wg.Go(func() { gone = kit.Must[[]string](t)(be.Renew(context.Background(), id.ID, c, kit.Refs(gs))) })
		taken := other.Acquires(1)
		came := time.Since(sent)
		wg.Wait()
		switch {
		case len(gone) == 0:
			if came < c.TTL { // else the renewed lease may have ended, too
				kit.Equal(t, "granted to another while renewed", len(taken), 0)
			}
			kept++
			wait += rand.N(4 * time.Millisecond)
		default:
			lost++
			wait = max(0, wait-rand.N(4*time.Millisecond))
		}
	}
	if kept == 0 || lost == 0 {
		t.Errorf("%d kept, %d lost: both should happen", kept, lost)
	}
}

// A stream is owned only while it has work.
func TestRetire(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	id := kit.Join(t, be, streamed, time.Hour)
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 7))) // keys k0 to k6
	kit.OK(t, be.Register(t.Context(), streamed, nil))
	gs := id.Acquires(99)
	kit.Equal(t, "acquired", len(gs), 7)
	passed := make([]backend.Progress, len(gs))
	for i, g := range gs {
		f := kit.Fetch(t, be, streamed, g.Resource, g.Cursor, 9)
		kit.Equal(t, "messages", len(f.Messages), 1)
		passed[i] = backend.Progress{Ref: g.Ref, Seq: 1, Cursor: f.Next}
		switch g.Resource {
		case "k0": // not passed
			passed[i].Cursor = nil
		case "k1":
			passed[i].Park = []backend.Park{{ID: f.Messages[0].ID, Lane: "l", Attempt: 1, After: time.Hour}}
		}
	}
	tx := kit.Must[pgx.Tx](t)(pool.Begin(t.Context()))
	kit.OK(t, be.In(tx).Publish(t.Context(), []backend.Event{{Topic: "x", Key: "k2", Kind: "kind"}, {Topic: "x", Key: "k4", Kind: "kind"}, {Topic: "x", Key: "k4", Kind: "kind"}}))
	var k4 *backend.Progress
	for i := range passed { // behind which the uncommitted ones will be late
		if key := passed[i].Resource; key == "k2" || key == "k4" {
			kit.OK(t, be.Publish(t.Context(), []backend.Event{{Topic: "x", Key: key, Kind: "kind"}}))
			passed[i].Cursor = kit.Fetch(t, be, streamed, key, passed[i].Cursor, 9).Next
			if key == "k4" {
				k4 = &passed[i]
			}
		}
	}
	kit.Equal(t, "fenced", len(kit.Must[[]string](t)(be.Commit(t.Context(), id.ID, streamed.Name, passed))), 0)
	kit.OK(t, tx.Commit(t.Context()))
	k4.Seq, k4.Cursor = 2, kit.Fetch(t, be, streamed, "k4", k4.Cursor, 1).Next // the first of two late ones
	kit.Equal(t, "fenced", len(kit.Must[[]string](t)(be.Commit(t.Context(), id.ID, streamed.Name, []backend.Progress{*k4}))), 0)
	kit.OK(t, be.Publish(t.Context(), []backend.Event{{Topic: "x", Key: "k3", Kind: "kind"}}))

	stale := kit.Refs(gs)
	for i := range stale {
		stale[i].Epoch--
	}
	kit.OK(t, be.Retire(t.Context(), id.ID, streamed.Name, stale)) // no effect: those leases are gone
	kit.Equal(t, "owned", query[int](t, pool, "SELECT count(*) FROM leasegen.lease WHERE session IS NOT NULL"), 7)
	for range 2 {
		kit.OK(t, be.Retire(t.Context(), id.ID, streamed.Name, kit.Refs(gs)))
		kit.Equal(t, "owned", query[int](t, pool, "SELECT count(*) FROM leasegen.lease WHERE session IS NOT NULL"), 0)
		kit.Equal(t, "resources", surveyed(t, be, streamed).Resources, 5)
		kit.Equal(t, "free", surveyed(t, be, streamed).Free, 5)
	}
	// Unread, parked, late, new, and in the midst of what was late.
	kit.Equal(t, "acquired", fmt.Sprint(resources(id.Acquires(99))), "[k0 k1 k2 k3 k4]")
	kit.OK(t, be.Register(t.Context(), streamed, []string{"k5"}))
	kit.Equal(t, "acquired", fmt.Sprint(resources(id.Acquires(99))), "[k5]")
}

// Streams that the application announces rest until they are announced again.
func TestRetireAnnounced(t *testing.T) {
	t.Parallel()
	be, _ := migrated(t)
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 3)))
	id := kit.Join(t, be, announced, time.Hour)
	kit.OK(t, be.Register(t.Context(), announced, []string{"k1", "k2"}))
	gs := id.Acquires(9)
	kit.Equal(t, "acquired", len(gs), 2)
	kit.OK(t, be.Retire(t.Context(), id.ID, announced.Name, kit.Refs(gs)[:1]))
	kit.Equal(t, "acquired", len(id.Acquires(9)), 0)
	kit.OK(t, be.Register(t.Context(), announced, []string{"k1", "k2"}))
	again := id.Acquires(9)
	kit.Equal(t, "acquired", fmt.Sprint(resources(again)), fmt.Sprint(resources(gs[:1])))
	if again[0].Epoch <= gs[0].Epoch {
		t.Errorf("epoch %d after %d", again[0].Epoch, gs[0].Epoch)
	}
}

// A message that arrives while a retirement commits, too late for what that has looked at, makes the stream wanted
// again, though registering finds it wanted still.
func TestRetireMeetsRegister(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	exec(t, pool, `CREATE FUNCTION linger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END $$`)
	exec(t, pool, `CREATE CONSTRAINT TRIGGER linger AFTER UPDATE ON leasegen.lease DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW WHEN (OLD.wanted AND NOT NEW.wanted) EXECUTE FUNCTION linger()`)
	id := kit.Join(t, be, streamed, time.Hour)
	kit.OK(t, be.Register(t.Context(), streamed, []string{"k"}))
	gs := id.Acquires(1)
	blocker := kit.Must[pgx.Tx](t)(pool.Begin(t.Context()))
	_, err := blocker.Exec(t.Context(), "SELECT pg_advisory_xact_lock(1)")
	kit.OK(t, err)
	retired := make(chan error, 1)
	go func() { retired <- be.Retire(context.Background(), id.ID, streamed.Name, kit.Refs(gs)) }()
	kit.Eventually(t, "the retirement waits in its commit", func() bool {
		return query[bool](t, pool, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')")
	})
	kit.OK(t, be.Publish(t.Context(), []backend.Event{{Topic: "x", Key: "k", Kind: "kind"}}))
	kit.OK(t, be.Register(t.Context(), streamed, []string{"k"}))
	kit.OK(t, blocker.Rollback(t.Context()))
	kit.OK(t, <-retired)
	kit.Equal(t, "acquired", len(id.Acquires(1)), 1)
}

// A message that arrives while a stream is being retired is found by its next owner: no process
// sweeps, and every owner retires as soon as it sees no more work.
func TestRetireLosesNothing(t *testing.T) {
	t.Parallel()
	const publishers, each, streams, workers = 4, 150, 6, 3
	be, pool := migrated(t)
	exec(t, pool, "CREATE TABLE seen (id bigint PRIMARY KEY)")
	kit.OK(t, be.Register(t.Context(), streamed, nil))
	ctx, cancel := context.WithTimeout(t.Context(), kit.Patience(t))
	defer cancel()
	var wg sync.WaitGroup
	for range workers {
		be := leasepg.New(open(t, pool.Config().ConnString()))
		id := kit.Join(t, be, streamed, time.Hour)
		feed := kit.Must[backend.Feed](t)(be.OpenFeed(ctx, []backend.ConsumerInfo{streamed}))
		fail := func(err error) bool {
			if err != nil && ctx.Err() == nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
				cancel()
			}
			return err != nil
		}
		wg.Go(func() {
			defer feed.Close()
			for ctx.Err() == nil {
				news, err := feed.Next(ctx)
				if fail(err) {
					return
				}
				if fresh := news.Resources[streamed.Name]; len(fresh) > 0 && fail(be.Register(ctx, streamed, fresh)) {
					return
				}
			}
		})
		wg.Go(func() {
			for ctx.Err() == nil {
				gs, err := be.Acquire(ctx, backend.AcquireRequest{Session: id.ID, Consumer: streamed, Max: 2, Attempt: kit.ID()})
				if fail(err) {
					return
				}
				for _, g := range gs {
					for seq := int64(1); ; seq++ {
						fs, err := be.Fetch(ctx, backend.FetchRequest{Consumer: streamed, MaxPayload: 1 << 20,
							Items: []backend.FetchItem{{Resource: g.Resource, From: g.Cursor, Limit: 5}}})
						if fail(err) {
							return
						}
						if fs[0].Next == g.Cursor {
							break
						}
						for _, m := range fs[0].Messages {
							if _, err := pool.Exec(ctx, "INSERT INTO seen VALUES ($1)", m.ID); fail(err) {
								return
							}
						}
						g.Cursor = fs[0].Next
						if _, err := be.Commit(ctx, id.ID, streamed.Name, []backend.Progress{{Ref: g.Ref, Seq: seq, Cursor: g.Cursor}}); fail(err) {
							return
						}
					}
				}
				if len(gs) > 0 && fail(be.Retire(ctx, id.ID, streamed.Name, kit.Refs(gs))) {
					return
				}
			}
		})
	}
	var publishing sync.WaitGroup
	for range publishers {
		publishing.Go(func() {
			for range each {
				tx, err := pool.Begin(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				err = be.In(tx).Publish(ctx, []backend.Event{{Topic: "x", Key: fmt.Sprint("s", rand.N(streams)), Kind: "kind"}})
				time.Sleep(rand.N(4 * time.Millisecond))
				if err = errors.Join(err, tx.Commit(ctx)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	publishing.Wait()
	kit.Eventually(t, "everything was seen", func() bool {
		return ctx.Err() != nil || query[int](t, pool, "SELECT count(*) FROM seen") == publishers*each
	})
	kit.Eventually(t, "all streams rest", func() bool {
		return ctx.Err() != nil || query[int](t, pool, "SELECT count(*) FROM leasegen.lease WHERE wanted") == 0
	})
	cancel()
	wg.Wait()
	kit.Equal(t, "seen", query[int](t, pool, "SELECT count(*) FROM seen"), publishers*each)
}

// The looks for streams to forget go on behind as many as can not be forgotten.
func TestForgetStreamsBehindOthers(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	kit.OK(t, be.Register(t.Context(), announced, nil))
	exec(t, pool, `INSERT INTO leasegen.lease (consumer, resource, wanted, rested_at)
		SELECT $1, 'rests ' || lpad(g::text, 5, '0'), false, clock_timestamp() - CASE WHEN g % 40 = 0 THEN interval '25 h' ELSE interval '0' END
		FROM generate_series(1, 12000) g`, announced.Name)
	exec(t, pool, `INSERT INTO leasegen.dead_letter (consumer, resource, message_id, topic, key, kind, payload, published_at, failed_at, attempts, reason)
		SELECT consumer, resource, 1, 'x', '', '', '', clock_timestamp(), clock_timestamp(), 1, '' FROM leasegen.lease WHERE resource < 'rests 11000'`)
	forget := func() int {
		return kit.Must[operate.MaintainReport](t)(be.Maintain(t.Context(), nil)).StreamsForgotten
	}
	kit.Equal(t, "forgotten", forget(), 26) // of 300, 10 in a look
	exec(t, pool, "DELETE FROM leasegen.dead_letter")
	kit.Equal(t, "forgotten then", forget(), 274)
	kit.Equal(t, "left", query[int](t, pool, "SELECT count(*) FROM leasegen.lease"), 11_700)
}

// The newest dead letters are kept, as many as the consumer says, however many are counted at once.
func TestDeadLettersBeyondTheBound(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	bounded := backend.ConsumerInfo{Name: "bounded", Per: backend.PerTopic, Topics: []string{"*"}, Max: 25_000}
	kit.OK(t, be.Register(t.Context(), bounded, nil))
	exec(t, pool, `INSERT INTO leasegen.dead_letter (consumer, resource, message_id, topic, key, kind, payload, published_at, failed_at, attempts, reason)
		SELECT c, 'x', g, 'x', '', '', '', clock_timestamp(), clock_timestamp(), 1, '' FROM generate_series(1, 46000) g, unnest('{bounded,other}'::text[]) c`)
	drop := func() int {
		return kit.Must[operate.MaintainReport](t)(be.Maintain(t.Context(), []backend.ConsumerInfo{bounded})).DeadLettersDropped
	}
	kit.Equal(t, "dropped", drop(), 20_000)
	kit.Equal(t, "dropped then", drop(), 1000)
	kit.Equal(t, "dropped at last", drop(), 0)
	kit.Equal(t, "oldest", query[int](t, pool, "SELECT min(message_id) FROM leasegen.dead_letter WHERE consumer = 'bounded'"), 21_001)
	kit.Equal(t, "of others", query[int](t, pool, "SELECT count(*) FROM leasegen.dead_letter WHERE consumer = 'other'"), 46_000)
}

// Streams that have rested for long are forgotten, but none that may be asked for.
func TestForgetStreams(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	id := kit.Join(t, be, announced, time.Hour, streamed)
	kit.OK(t, be.Register(t.Context(), announced, []string{"a", "b", "c"}))
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 3)))
	kit.OK(t, be.Register(t.Context(), streamed, nil))
	gs := id.Acquires(9)
	kit.OK(t, be.Retire(t.Context(), id.ID, announced.Name, kit.Refs(gs)))
	ss := id.As(streamed).Acquires(9)
	for _, g := range ss {
		f := kit.Fetch(t, be, streamed, g.Resource, g.Cursor, 9)
		_, err := be.Commit(t.Context(), id.ID, streamed.Name, []backend.Progress{{Ref: g.Ref, Seq: 1, Cursor: f.Next}})
		kit.OK(t, err)
	}
	kit.OK(t, be.Retire(t.Context(), id.ID, streamed.Name, kit.Refs(ss)))
	kit.Equal(t, "wanted", query[int](t, pool, "SELECT count(*) FROM leasegen.lease WHERE wanted"), 0)
	forget := func() int {
		return kit.Must[operate.MaintainReport](t)(be.Maintain(t.Context(), nil)).StreamsForgotten
	}
	kit.Equal(t, "forgotten at once", forget(), 0)
	exec(t, pool, "UPDATE leasegen.lease SET rested_at = rested_at - interval '25 h'")
	kit.OK(t, be.Register(t.Context(), announced, []string{"b"}))
	kit.Equal(t, "forgotten", forget(), 2) // not b, and none that has messages
	kit.OK(t, be.Register(t.Context(), announced, []string{"a"}))
	for _, g := range id.Acquires(9) {
		if i := slices.IndexFunc(gs, func(x backend.Grant) bool { return x.Resource == g.Resource }); g.Epoch <= gs[i].Epoch {
			t.Errorf("epoch %d of %s after %d", g.Epoch, g.Resource, gs[i].Epoch)
		}
	}
}

package leasepg_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

var keyedStreams = backend.ConsumerInfo{Name: "keyed", Per: backend.PerStream, Topics: []string{"*"}}

// TestSweep: streams with unread, late or parked messages become wanted, and no others.
func TestSweep(t *testing.T) {
	c := backend.ConsumerInfo{Name: "swept", Per: backend.PerStream, Topics: []string{"x"}}
	be, pool := migrated(t)
	kit.OK(t, be.Publish(t.Context(), append(keyed("x", 20, 2), backend.Event{Topic: "y", Key: "other", Kind: "k"}, backend.Event{Topic: "x", Kind: "keyless"})))
	kit.OK(t, be.Register(t.Context(), c, nil)) // indexes the log, which an open transaction would put off
	late := begin(t, pool)
	kit.OK(t, be.In(late).Publish(t.Context(), []backend.Event{{Topic: "x", Key: "key-3", Kind: "k"}, {Topic: "x", Key: "unheard", Kind: "k"}}))
	session, grants := all(t, be, c, nil)
	kit.Equal(t, "streams", len(grants), 21)
	_, by := drainAll(t, be, c, session, grants, 10)
	kit.Equal(t, "keyless messages", len(by[""]), 1)
	for _, g := range grants {
		if g.Resource == "key-7" {
			_, err := be.Commit(t.Context(), session, c.Name, []backend.Progress{{Ref: g.Ref, Seq: 1,
				Park: []backend.Park{{ID: by["key-7"][0].ID, Lane: "key-7", Attempt: 1, Error: "e"}}}})
			kit.OK(t, err)
		}
	}
	retired := func() {
		t.Helper()
		exec(t, pool, "UPDATE leasegen.lease SET session = NULL, wanted = false")
	}
	wanted := func(want string) {
		t.Helper()
		kit.OK(t, be.Register(t.Context(), c, nil))
		kit.Equal(t, "wanted", query[string](t, pool, "SELECT coalesce(string_agg(resource, ' ' ORDER BY resource), '') FROM leasegen.lease WHERE wanted"), want)
		retired()
	}
	retired()
	wanted("key-7")
	exec(t, pool, "DELETE FROM leasegen.parked")
	wanted("")
	kit.OK(t, late.Commit(t.Context()))
	wanted("key-3 unheard")
	kit.OK(t, be.Publish(t.Context(), []backend.Event{{Topic: "x", Key: "key-5", Kind: "k"}, {Topic: "y", Key: "key-6", Kind: "k"}}))
	wanted("key-3 key-5 unheard")

	feed := kit.Must[backend.Feed](t)(be.OpenFeed(t.Context(), []backend.ConsumerInfo{c}))
	defer feed.Close()
	heard := func(why string, register func()) {
		t.Helper()
		for quiet := 0; quiet < 2; quiet++ {
			if n := kit.Must[backend.News](t)(feed.Next(t.Context())); n.Ownership || len(n.Wanted) > 0 {
				quiet = 0
			}
		}
		register()
		kit.Eventually(t, "the members hear that "+why, func() bool { return slices.Contains(kit.Must[backend.News](t)(feed.Next(t.Context())).Wanted, c.Name) })
	}
	heard("a stream is wanted again", func() { kit.OK(t, be.Register(t.Context(), c, []string{"key-9", "new", "key-9"})) })
	kit.Equal(t, "wanted", query[string](t, pool, "SELECT string_agg(resource, ' ' ORDER BY resource) FROM leasegen.lease WHERE wanted"), "key-9 new")

	// Streams that are wanted are only looked at.
	wrote := int64(0)
	for try := 0; try == 0 || try < 10 && wrote > 1; try++ { // the server's own housekeeping may write in between
		before := query[int64](t, pool, "SELECT pg_current_xact_id()::text::bigint")
		for range 5 {
			kit.OK(t, be.Register(t.Context(), c, []string{"key-9", "new"}))
		}
		wrote = query[int64](t, pool, "SELECT pg_current_xact_id()::text::bigint") - before
	}
	kit.Equal(t, "transactions that wrote, this test's look among them", wrote, 1)
}

// TestAnnouncedStreams: what the application names is wanted when it is named, and the log
// has no part in it.
func TestAnnouncedStreams(t *testing.T) {
	c := backend.ConsumerInfo{Name: "announced", Per: backend.PerStream, Announced: true}
	be, pool := migrated(t)
	kit.OK(t, be.Publish(t.Context(), keyed("x", 5, 1)))
	kit.OK(t, be.Register(t.Context(), c, nil))
	kit.Equal(t, "streams", query[int](t, pool, "SELECT count(*) FROM leasegen.lease"), 0)
	session, grants := all(t, be, c, []string{"one", "two"})
	kit.Equal(t, "streams", len(grants), 2)
	kit.OK(t, be.Retire(t.Context(), session, c.Name, kit.Refs(grants)))
	kit.OK(t, be.Register(t.Context(), c, nil))
	kit.Equal(t, "wanted", query[int](t, pool, "SELECT count(*) FROM leasegen.lease WHERE wanted"), 0)
	kit.OK(t, be.Register(t.Context(), c, []string{"two"}))
	kit.Equal(t, "wanted", query[string](t, pool, "SELECT string_agg(resource, ' ') FROM leasegen.lease WHERE wanted"), "two")
	kit.Equal(t, "indexes", query[int](t, pool, "SELECT count(*) FROM pg_indexes WHERE indexdef LIKE '%(key, id)'"), 0)
}

// TestRetireWhilePublishing: a stream that its owner retires while messages arrive is wanted
// afterwards, or was read to its end: the owner's feed need not help.
func TestRetireWhilePublishing(t *testing.T) {
	be, pool := migrated(t)
	other := leasepg.New(pool)
	session := kit.Join(t, be, keyedStreams, time.Hour)
	kit.OK(t, be.Register(t.Context(), keyedStreams, nil))
	read, published := 0, 0
	for round := range 60 {
		key := fmt.Sprint("s", round%4)
		done := make(chan error, 1)
		go func() {
			err := other.Publish(context.Background(), []backend.Event{{Topic: "x", Key: key, Kind: "k"}})
			if err == nil { // as who hears of it does
				err = other.Register(context.Background(), keyedStreams, []string{key})
			}
			done <- err
		}()
		published++
		for ended := false; ; {
			if !ended {
				select {
				case err := <-done:
					kit.OK(t, err)
					ended = true
				default:
				}
			}
			gs := session.Acquires(10)
			if len(gs) == 0 && ended {
				break
			}
			for _, g := range gs {
				ms, _ := drainAll(t, be, keyedStreams, session.ID, []backend.Grant{g}, 10)
				read += len(ms)
			}
			kit.OK(t, be.Retire(t.Context(), session.ID, keyedStreams.Name, kit.Refs(gs)))
		}
	}
	kit.Equal(t, "read", read, published)
}

// BenchmarkSweep40k is the search for forgotten streams among 40,000 that have no work.
func BenchmarkSweep40k(b *testing.B) {
	be, pool := migrated(b)
	exec(b, pool, `INSERT INTO leasegen.message (topic, key, kind, payload)
		SELECT 'x', 'key-' || g % $1, 'kind', 'x' FROM generate_series(1, 4 * $1) g`, manyLeases)
	session, grants := all(b, be, keyedStreams, nil)
	kit.Equal(b, "streams", len(grants), manyLeases)
	drainAll(b, be, keyedStreams, session, grants, 10)
	kit.OK(b, be.Retire(b.Context(), session, keyedStreams.Name, kit.Refs(grants)))
	kit.Equal(b, "wanted", query[int](b, pool, "SELECT count(*) FROM leasegen.lease WHERE wanted"), 0)
	exec(b, pool, "VACUUM ANALYZE leasegen.message, leasegen.lease")
	for b.Loop() {
		kit.OK(b, be.Register(b.Context(), keyedStreams, nil))
	}
}

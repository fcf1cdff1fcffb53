package leaseredis_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leaseredis"
	"github.com/leasegen/leasegen/runtime/operate"
)

// passUpTo reads n messages of a resource from its beginning and stores that.
func passUpTo(t testing.TB, be *leaseredis.Backend, session string, info backend.ConsumerInfo, g backend.Grant, seq int64, n int) {
	t.Helper()
	f := kit.Fetch(t, be, info, g.Resource, g.Cursor, n)
	fenced := kit.Must[[]string](t)(be.Commit(t.Context(), session, info.Name, []backend.Progress{{Ref: g.Ref, Seq: seq, Cursor: f.Next}}))
	kit.Equal(t, "fenced", len(fenced), 0)
}

// Messages that every consumer has passed go, and no others; a message that no process matches stays.
func TestTrimKeepsWhatSomebodyHasNotPassed(t *testing.T) {
	for _, tags := range []int{1, 3} {
		t.Run(fmt.Sprint(tags, " tags"), func(t *testing.T) {
			t.Parallel()
			client := redistest.Shared(t).Client(t)
			namespace := redistest.Namespace(t)
			be := on(client, namespace, leaseredis.WithTags(tags), leaseredis.WithLogger(discard))
			count := func(pattern string) (n int64) {
				for _, key := range kit.Must[[]string](t)(client.Keys(t.Context(), "{"+namespace+"?}:"+pattern).Result()) {
					n += kit.Must[int64](t)(client.XLen(t.Context(), key).Result())
				}
				return n
			}
			trim := func() int {
				return kit.Must[operate.MaintainReport](t)(be.Maintain(t.Context(), []backend.ConsumerInfo{topical, grouped})).SegmentsDropped
			}
			x := backend.ConsumerInfo{Name: "x-only", Per: backend.PerTopic, Topics: []string{"x"}}
			kit.OK(t, be.Publish(t.Context(), kit.Events("x", 10)))
			kit.OK(t, be.Publish(t.Context(), kit.Events("nobody's", 5)))
			session, g := kit.Sole(t, be, x, "x")
			passUpTo(t, be, session.ID, x, g, 1, 6)
			at := func() operate.CursorStatus {
				return kit.Must[[]operate.CursorStatus](t)(be.Cursors(t.Context(), x.Name, "x", 1))[0]
			}
			kit.Equal(t, "gone before", at().Gone, "")
			kit.Equal(t, "dropped", trim(), 6)
			first := at().Position
			kit.Equal(t, "gone", at().Gone, first)
			kit.Equal(t, "left of x", count("t:x"), 4)
			kit.Equal(t, "left of what nobody matches", count("t:nobody's"), 5)

			// One who begins now gets what is left, and holds it.
			late, lg := kit.Sole(t, be, grouped)
			passUpTo(t, be, session.ID, x, backend.Grant{Ref: g.Ref}, 2, 99)
			trim()
			if gone := at().Gone; gone != "" && (gone < first || gone >= at().Position) {
				t.Fatalf("gone up to %s, want from %s on and before %s", gone, first, at().Position)
			}
			kit.Equal(t, "left of x for the group", count("t:x"), 4)
			kit.Equal(t, "copies", count("v:grouped:*"), 9)
			passUpTo(t, be, late.ID, grouped, lg, 1, 99)
			trim()
			kit.Equal(t, "gone when all have passed it", at().Gone, at().Position)
			kit.Equal(t, "left of x when all have passed it", count("t:x"), 0)
			kit.Equal(t, "copies when they were passed", count("v:grouped:*"), 0)
			kit.Equal(t, "left of what only the group matches", count("t:nobody's"), 0)

			// Of what is empty no key is left.
			for _, pattern := range []string{"t:*", "v:*", "topics", "dirty:*"} {
				kit.Equal(t, "keys like "+pattern, len(kit.Must[[]string](t)(client.Keys(t.Context(), "{"+namespace+"?}:"+pattern).Result())), 0)
			}
			kit.OK(t, be.Publish(t.Context(), kit.Events("x", 3)))
			kit.Equal(t, "new messages", len(kit.Fetch(t, be, x, "x", nil, 9).Messages), 3)
		})
	}
}

// While much is published, little is kept: what was handled is dropped about every second.
func TestHandledMessagesDoNotPileUp(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it publishes for seconds")
	}
	for _, per := range []backend.Per{backend.PerTopic, backend.PerGroup} {
		t.Run(per.String(), func(t *testing.T) {
			client := redistest.Shared(t).Client(t)
			namespace := redistest.Namespace(t)
			be := on(client, namespace, leaseredis.WithLogger(discard))
			kit.OK(t, be.Register(t.Context(), backend.ConsumerInfo{Name: "c", Per: per, Topics: []string{"*"}}, nil))
			var n atomic.Int64
			run(t, be, lease.Spec{Name: "c", Per: per, Topics: []string{"*"}, Batch: 500, Handlers: []lease.Handler{noop("kind", &n)}})
			left := func() int64 {
				return kit.Must[int64](t)(client.XLen(t.Context(), "{"+namespace+"0}:t:x").Result()) +
					kit.Must[int64](t)(client.XLen(t.Context(), "{"+namespace+"0}:v:c:*").Result())
			}
			published := int64(0)
			for end := time.Now().Add(kit.Patience(t)); published <= 20_000 || left() >= published/2; { // without a pause, in which it could trim
				if time.Now().After(end) {
					t.Fatalf("while it was published, of %d messages %d are kept", published, left())
				}
				kit.OK(t, be.Publish(t.Context(), kit.Events("x", 1000)))
				published += 1000
			}
			kit.Eventually(t, "all is handled", func() bool { return n.Load() == published })
			kit.Eventually(t, "the rest is dropped", func() bool { return left() == 0 })
		})
	}
}

// Two processes, each with a consumer of its own, trim what both have passed without waiting for
// housekeeping; what one has not passed stays.
func TestProcessesTrimTogether(t *testing.T) {
	client := redistest.Shared(t).Client(t)
	namespace := redistest.Namespace(t)
	connect := func() *leaseredis.Backend { return on(client, namespace, leaseredis.WithLogger(discard)) }
	key := "{" + namespace + "0}:t:x"
	held := backend.ConsumerInfo{Name: "held", Per: backend.PerGroup, Topics: []string{"x"}}
	session, g := kit.Sole(t, connect(), held)
	be := connect()
	var a, b, c atomic.Int64
	for name, n := range map[string]*atomic.Int64{"a": &a, "b": &b} {
		run(t, connect(), lease.Spec{Name: name, Per: backend.PerGroup, Topics: []string{"*"}, Handlers: []lease.Handler{noop("kind", n)}})
	}
	run(t, connect(), lease.Spec{Name: "c", Per: backend.PerPartition, Topics: []string{"x"}, Handlers: []lease.Handler{noop("kind", &c)}})
	kit.Eventually(t, "all have begun", func() bool {
		st := kit.Must[[]operate.ConsumerStatus](t)(be.Status(t.Context()))
		return len(st) == 4 && st[0].Unowned+st[1].Unowned+st[2].Unowned+st[3].Unowned == 0
	})
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 100)))
	kit.Eventually(t, "all is handled", func() bool { return a.Load() == 100 && b.Load() == 100 && c.Load() == 100 })
	kit.Must[operate.MaintainReport](t)(be.Maintain(t.Context(), []backend.ConsumerInfo{held}))
	kit.Equal(t, "kept for one who has passed nothing", kit.Must[int64](t)(client.XLen(t.Context(), key).Result()), 100)
	passUpTo(t, be, session.ID, held, g, 1, 99)
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 1))) // so that somebody reads the topic
	kit.Eventually(t, "what all have passed is gone", func() bool { return kit.Must[int64](t)(client.XLen(t.Context(), key).Result()) <= 2 })
}

// Streams that are held while they have unread messages cost housekeeping hardly any time.
func TestHeldStreamsCostHousekeepingLittle(t *testing.T) {
	c := redistest.Start(t).Client(t)
	be := on(c, "held")
	info := backend.ConsumerInfo{Name: "c", Per: backend.PerStream, Topics: []string{"*"}}
	kit.OK(t, be.Register(t.Context(), info, nil))
	var es []backend.Event
	for _, key := range kit.Topics(1000) {
		es = append(es, backend.Event{Topic: "x", Key: key, Kind: "k", Payload: []byte("{}")})
	}
	kit.OK(t, be.Publish(t.Context(), es))
	maintain := func() int {
		before := commandsRun(t, c)
		kit.Must[operate.MaintainReport](t)(be.Maintain(t.Context(), []backend.ConsumerInfo{info}))
		return commandsRun(t, c) - before
	}
	for range 3 {
		if n := maintain(); n > 100 {
			t.Errorf("housekeeping ran %d commands, though nothing was published", n)
		}
	}
}

// Views with many streams that have messages left are looked at whole only while messages come, and not
// in every round.
func TestWhenAViewIsLookedAtWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		due := leaseredis.LooksDue()
		want := func(last int64, n int, want bool) {
			t.Helper()
			if got := due(last, n); got != want {
				t.Errorf("with %d streams, after message %d: due is %t", n, last, got)
			}
		}
		want(1, 300, true) // few: always
		want(1, 1000, false)
		time.Sleep(time.Hour)
		want(1, 1000, false) // no message was published
		want(2, 1000, true)
		time.Sleep(time.Minute)
		want(3, 1000, false) // not again so soon
		time.Sleep(5 * time.Minute)
		want(3, 100_000, true)
		want(3, 300, true)
	})
}

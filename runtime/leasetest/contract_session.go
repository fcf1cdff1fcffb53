package leasetest

import (
	"slices"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
)

var sessionChecks = []check{
	{"Session/Heartbeat_keeps_it_beyond_its_TTL", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, perTopic(), short).Registers("x")
		g := a.Takes()
		b := join(t, f.Again(t, be), perTopic(), long)
		for end := time.Now().Add(2 * short); time.Now().Before(end); time.Sleep(short / 5) {
			kit.OK(t, a.Session.Heartbeat(t.Context()))
			if got := b.Acquires(1); len(got) > 0 {
				t.Fatalf("a lease was taken from a session that sends heartbeats: %+v", got)
			}
		}
		a.Commits(backend.Progress{Ref: g.Ref})
	})},
	{"Session/Ends_terminally_when_it_expires", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, perTopic(), short).Registers("x", "y")
		a.Acquires(1)
		b := join(t, f.Again(t, be), perTopic(), long)
		kit.Eventually(t, "the session is no longer counted", func() bool { return len(b.Surveys().Members) == 1 })
		kit.Lost(t, "heartbeat of an expired session", a.Session.Heartbeat(t.Context()))
		_, err := be.Acquire(t.Context(), a.Request(1))
		kit.Lost(t, "acquire of an expired session", err)
		equalSlices(t, "taken over", resources(b.Acquires(2)), []string{"x", "y"})
		for range 3 {
			kit.Lost(t, "heartbeat after takeover", a.Session.Heartbeat(t.Context()))
		}
		kit.Equal(t, "members", len(b.Surveys().Members), 1)
	})},
	{"Session/Close_frees_its_leases_at_once_and_no_others", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		other := f.Again(t, be)
		a := join(t, be, perTopic(), long).Registers("1", "2", "3", "4")
		held := a.Acquires(2)
		b := join(t, other, perTopic(), long)
		kept := b.Acquires(2)
		kit.OK(t, a.Session.Close(t.Context()))
		c := join(t, other, perTopic(), long)
		got := c.Acquires(4)
		kit.Equal(t, "leases freed", len(got), 2)
		for _, g := range got {
			rises(t, g, grantOf(a, held, g.Resource))
			kit.Equal(t, "suspicion after a clean end", g.Suspicion, 0)
		}
		for _, g := range kept {
			b.Commits(backend.Progress{Ref: g.Ref})
		}
		kit.Lost(t, "heartbeat after close", a.Session.Heartbeat(t.Context()))
	})},
	{"Session/Close_can_be_repeated", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, perTopic(), long).Registers("x")
		a.Takes()
		kit.OK(t, a.Session.Close(t.Context()))
		b := join(t, be, perTopic(), long)
		g := b.Takes()
		kit.OK(t, a.Session.Close(t.Context()))
		b.Commits(backend.Progress{Ref: g.Ref})
	})},
	{"Session/Must_be_open_to_acquire", fresh(func(t testing.TB, f Factory, be backend.Backend) { // nothing revives one
		join(t, be, perTopic(), long).Registers("x")
		_, err := be.Acquire(t.Context(), backend.AcquireRequest{Session: kit.ID(), Consumer: perTopic(), Max: 1, Attempt: kit.ID()})
		kit.Lost(t, "acquire without a session", err)
	})},
	{"Session/Is_a_member_of_its_consumers_only", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		var sorted []string
		for _, consumers := range [][]string{{"c"}, {"c", "g"}, {"g"}} {
			id := kit.ID()
			sess := kit.Must[backend.Session](t)(be.OpenSession(t.Context(), backend.SessionSpec{ID: id, TTL: long, Consumers: consumers}))
			t.Cleanup(func() { sess.Close(t.Context()) })
			if slices.Contains(consumers, "c") {
				sorted = append(sorted, id)
			}
		}
		slices.Sort(sorted)
		got := kit.Must[[]backend.Survey](t)(be.Survey(t.Context(), []string{"c", "nobody"}))
		kit.Equal(t, "surveys", len(got), 2)
		equalSlices(t, "members of c, by id", sessions(got[0]), sorted)
		kit.Equal(t, "members of nobody", len(got[1].Members), 0)
	})},
}

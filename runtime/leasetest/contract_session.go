package leasetest

import (
	"slices"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

var sessionChecks = []check{
	{"Session/Heartbeat_keeps_it_beyond_its_TTL", func(t testing.TB, f Factory) {
		be := f.New(t)
		a := join(t, be, perTopic(), short).register("x")
		g := a.acquireOne()
		b := join(t, f.Again(t, be), perTopic(), long)
		for end := time.Now().Add(2 * short); time.Now().Before(end); time.Sleep(short / 5) {
			ok(t, a.sess.Heartbeat(t.Context()))
			if got := b.acquire(1); len(got) > 0 {
				t.Fatalf("a lease was taken from a session that sends heartbeats: %+v", got)
			}
		}
		a.commit(backend.Progress{Ref: g.Ref})
	}},
	{"Session/Ends_terminally_when_it_expires", func(t testing.TB, f Factory) {
		be := f.New(t)
		a := join(t, be, perTopic(), short).register("x", "y")
		a.acquire(1)
		b := join(t, f.Again(t, be), perTopic(), long)
		eventually(t, "the session is no longer counted", func() bool { return len(b.survey().Members) == 1 })
		wantLost(t, "heartbeat of an expired session", a.sess.Heartbeat(t.Context()))
		_, err := be.Acquire(t.Context(), a.request(1))
		wantLost(t, "acquire of an expired session", err)
		equalSlices(t, "taken over", resources(b.acquire(2)), []string{"x", "y"})
		for range 3 {
			wantLost(t, "heartbeat after takeover", a.sess.Heartbeat(t.Context()))
		}
		equal(t, "members", len(b.survey().Members), 1)
	}},
	{"Session/Close_frees_its_leases_at_once_and_no_others", func(t testing.TB, f Factory) {
		be := f.New(t)
		other := f.Again(t, be)
		a := join(t, be, perTopic(), long).register("1", "2", "3", "4")
		of := map[string]int64{}
		for _, g := range a.acquire(2) {
			of[g.Resource] = g.Epoch
		}
		b := join(t, other, perTopic(), long)
		kept := b.acquire(2)
		ok(t, a.sess.Close(t.Context()))
		c := join(t, other, perTopic(), long)
		got := c.acquire(4)
		equal(t, "leases freed", len(got), 2)
		for _, g := range got {
			if g.Epoch <= of[g.Resource] || of[g.Resource] == 0 {
				t.Fatalf("%s: epoch %d after %d", g.Resource, g.Epoch, of[g.Resource])
			}
			equal(t, "suspicion after a clean end", g.Suspicion, 0)
		}
		for _, g := range kept {
			b.commit(backend.Progress{Ref: g.Ref})
		}
		wantLost(t, "heartbeat after close", a.sess.Heartbeat(t.Context()))
	}},
	{"Session/Close_can_be_repeated", func(t testing.TB, f Factory) {
		be := f.New(t)
		a := join(t, be, perTopic(), long).register("x")
		a.acquireOne()
		ok(t, a.sess.Close(t.Context()))
		b := join(t, be, perTopic(), long)
		g := b.acquireOne()
		ok(t, a.sess.Close(t.Context()))
		b.commit(backend.Progress{Ref: g.Ref})
	}},
	{"Session/Must_be_open_to_acquire", func(t testing.TB, f Factory) { // nothing revives one
		be := f.New(t)
		join(t, be, perTopic(), long).register("x")
		_, err := be.Acquire(t.Context(), backend.AcquireRequest{Session: newID(), Consumer: perTopic(), Max: 1, Attempt: newID()})
		wantLost(t, "acquire without a session", err)
	}},
	{"Session/Is_a_member_of_its_consumers_only", func(t testing.TB, f Factory) {
		be := f.New(t)
		var sorted []string
		for _, consumers := range [][]string{{"c"}, {"c", "g"}, {"g"}} {
			id := newID()
			sess := must[backend.Session](t)(be.OpenSession(t.Context(), backend.SessionSpec{ID: id, TTL: long, Consumers: consumers}))
			t.Cleanup(func() { sess.Close(t.Context()) })
			if slices.Contains(consumers, "c") {
				sorted = append(sorted, id)
			}
		}
		slices.Sort(sorted)
		got := must[[]backend.Survey](t)(be.Survey(t.Context(), []string{"c", "nobody"}))
		equal(t, "surveys", len(got), 2)
		var members []string
		for _, m := range got[0].Members {
			members = append(members, m.Session)
		}
		equalSlices(t, "members of c, by id", members, sorted)
		equal(t, "members of nobody", len(got[1].Members), 0)
	}},
}

package leasetest

import (
	"context"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// replacing opens a session in place of another of the same process.
func replacing(t testing.TB, be backend.Backend, info backend.ConsumerInfo, replaces string) *holder {
	t.Helper()
	h := &holder{t: t, be: be, id: newID(), info: info}
	spec := backend.SessionSpec{ID: h.id, TTL: long, Consumers: []string{info.Name}, Replaces: replaces, Host: "host", PID: 7}
	h.sess = must[backend.Session](t)(be.OpenSession(t.Context(), spec))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		h.sess.Close(ctx)
	})
	return h
}

// A process that had no answer to OpenSession does not know whether it has a session: one that
// it has would be a member that nobody works for until it expires.
var replacesChecks = []check{
	{"Replaces/The_session_named_has_ended_when_the_new_one_is_open", func(t testing.TB, f Factory) {
		for _, info := range []backend.ConsumerInfo{perTopic(), {Name: "p", Per: backend.PerPartition, Topics: []string{"*"}}} {
			be := f.New(t)
			a := join(t, be, info, long).register("x", "y")
			stranger := join(t, f.Again(t, be), info, long)
			kept := stranger.acquire(1)
			held := a.acquire(1)
			b := replacing(t, be, info, a.id)
			counted := map[string]bool{}
			for _, m := range b.survey().Members {
				counted[m.Session] = true
			}
			if counted[a.id] || !counted[b.id] || !counted[stranger.id] || len(counted) != 2 {
				t.Fatalf("%s: members are %v, want %s and %s, without the replaced %s", info.Name, counted, b.id, stranger.id, a.id)
			}
			got := map[string]backend.Grant{}
			for _, g := range b.acquire(1000) {
				got[g.Resource] = g
			}
			g, ok1 := got[held[0].Resource]
			if !ok1 || g.Epoch <= held[0].Epoch {
				t.Fatalf("%s: the lease of the replaced session is not free: held %+v, acquired %+v", info.Name, held[0].Ref, g.Ref)
			}
			equal(t, "suspicion after a session that was replaced", g.Suspicion, 0)
			if _, taken := got[kept[0].Resource]; taken {
				t.Fatalf("%s: a lease of a session that was not named was taken", info.Name)
			}
			stranger.commit(backend.Progress{Ref: kept[0].Ref})
			wantLost(t, "heartbeat of the replaced session", a.sess.Heartbeat(t.Context()))
			_, err := be.Acquire(t.Context(), a.request(1))
			wantLost(t, "acquire of the replaced session", err)
			fenced := must[[]string](t)(be.Commit(t.Context(), a.id, info.Name, []backend.Progress{{Ref: held[0].Ref, Seq: 1}}))
			equalSlices(t, "fenced", fenced, []string{held[0].Resource})
		}
	}},
	{"Replaces/A_request_that_arrives_after_its_replacement_opens_nothing", func(t testing.TB, f Factory) {
		be := f.New(t)
		late := newID() // its request is still on its way
		b := replacing(t, be, perTopic(), late).register("x")
		b.acquireOne()
		other := f.Again(t, be)
		_, err := other.OpenSession(t.Context(), backend.SessionSpec{ID: late, TTL: long, Consumers: []string{"c"}, Host: "host", PID: 7})
		wantLost(t, "opening a session that was replaced", err)
		equal(t, "members", len(b.survey().Members), 1)
		ok(t, b.sess.Heartbeat(t.Context()))
	}},
	{"Replaces/It_can_be_repeated", func(t testing.TB, f Factory) {
		be := f.New(t)
		a := join(t, be, perTopic(), long).register("x")
		a.acquireOne()
		b := replacing(t, be, perTopic(), a.id)
		g := b.acquireOne()
		// A second copy of the request changes nothing any more, whether or not it is refused.
		spec := backend.SessionSpec{ID: b.id, TTL: long, Consumers: []string{"c"}, Replaces: a.id, Host: "host", PID: 7}
		if again, err := f.Again(t, be).OpenSession(t.Context(), spec); err == nil {
			ok(t, again.Heartbeat(t.Context()))
		}
		ok(t, b.sess.Heartbeat(t.Context()))
		b.commit(backend.Progress{Ref: g.Ref})
		equal(t, "members", len(b.survey().Members), 1)
	}},
}

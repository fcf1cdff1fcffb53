package leasetest

import (
	"slices"
	"testing"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
)

// replacing opens a session in place of another of the same process.
func replacing(t testing.TB, be backend.Backend, info backend.ConsumerInfo, replaces string) *kit.Actor {
	t.Helper()
	return kit.Open(t, be, backend.SessionSpec{TTL: long, Replaces: replaces}, info)
}

// A process that had no answer to OpenSession does not know whether it has a session: one that
// it has would be a member without a process until it expires.
var replacesChecks = []check{
	{"Replaces/The_session_named_has_ended_when_the_new_one_is_open", func(t testing.TB, f Factory) {
		for _, info := range []backend.ConsumerInfo{perTopic(), perPartition()} {
			be := f.New(t)
			a := join(t, be, info, long).Registers("x", "y")
			stranger := join(t, f.Again(t, be), info, long)
			kept := stranger.Acquires(1)
			held := a.Acquires(1)
			b := replacing(t, be, info, a.ID)
			want := []string{b.ID, stranger.ID}
			slices.Sort(want)
			equalSlices(t, "members", sessions(b.Surveys()), want)
			got := b.Acquires(1000)
			g := grantOf(b, got, held[0].Resource)
			rises(t, g, held[0])
			kit.Equal(t, "suspicion after a session that was replaced", g.Suspicion, 0)
			if slices.Contains(resources(got), kept[0].Resource) {
				t.Fatalf("%s: a lease of a session that was not named was taken", info.Per)
			}
			stranger.Commits(backend.Progress{Ref: kept[0].Ref})
			kit.Lost(t, "heartbeat of the replaced session", a.Heartbeat())
			_, err := be.Acquire(t.Context(), a.Request(1))
			kit.Lost(t, "acquire of the replaced session", err)
			fenced := kit.Must[[]string](t)(be.Commit(t.Context(), a.ID, info.Name, []backend.Progress{{Ref: held[0].Ref, Seq: 1}}))
			equalSlices(t, "fenced", fenced, []string{held[0].Resource})
		}
	}},
	{"Replaces/A_request_that_arrives_after_its_replacement_opens_nothing", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		late := kit.ID() // its request is still on its way
		b := replacing(t, be, perTopic(), late).Registers("x")
		b.Takes()
		other := f.Again(t, be)
		_, err := other.OpenSession(t.Context(), backend.SessionSpec{ID: late, TTL: long, Consumers: []string{"c"}, Host: "host", PID: 7})
		kit.Lost(t, "opening a session that was replaced", err)
		kit.Equal(t, "members", len(b.Surveys().Members), 1)
		kit.OK(t, b.Heartbeat())
	})},
	{"Replaces/It_can_be_repeated", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, perTopic(), long).Registers("x")
		a.Takes()
		b := replacing(t, be, perTopic(), a.ID)
		g := b.Takes()
		// A second copy of the request has no further effect, whether or not it is refused.
		spec := backend.SessionSpec{ID: b.ID, TTL: long, Consumers: []string{"c"}, Replaces: a.ID, Host: "host", PID: 7}
		if again, err := f.Again(t, be).OpenSession(t.Context(), spec); err == nil {
			kit.OK(t, kit.Heartbeat(t, again))
		}
		kit.OK(t, b.Heartbeat())
		b.Commits(backend.Progress{Ref: g.Ref})
		kit.Equal(t, "members", len(b.Surveys().Members), 1)
	})},
}

package leasetest

import (
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
)

// perRow is a consumer of announced streams whose leases expire one by one.
func perRow(ttl time.Duration) backend.ConsumerInfo {
	info := announced()
	info.Lock, info.TTL = backend.LockRow, ttl
	return info
}

// rowLocking skips what a backend without leases that expire one by one cannot do.
func rowLocking(run func(t testing.TB, f Factory, be backend.Backend)) func(testing.TB, Factory) {
	return streaming(func(t testing.TB, f Factory, be backend.Backend) {
		needs(t, be.Capabilities().Rows != nil, "the backend has no leases that expire one by one")
		run(t, f, be)
	})
}

func renew(h *kit.Actor, refs ...backend.Ref) (lost []string) {
	h.T.Helper()
	return kit.Must[[]string](h.T)(h.Be.Capabilities().Rows.Renew(h.T.Context(), h.ID, h.Info, refs))
}

func grantOf(h *kit.Actor, gs []backend.Grant, resource string) backend.Grant {
	h.T.Helper()
	for _, g := range gs {
		if g.Resource == resource {
			return g
		}
	}
	h.T.Fatalf("%s was not granted", resource)
	return backend.Grant{}
}

var rowChecks = []check{
	{"Row/Renew_keeps_leases_beyond_their_TTL", rowLocking(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, perRow(short), long).Registers("1", "2")
		b := join(t, f.Again(t, be), perRow(short), long)
		gs := a.Acquires(2)
		for began := time.Now(); time.Since(began) < 2*short+short/2; time.Sleep(short / 5) {
			equalSlices(t, "lost", renew(a, kit.Refs(gs)...), nil)
			kit.Equal(t, "acquired by another", len(b.Acquires(9)), 0)
		}
		a.Commits(backend.Progress{Ref: gs[0].Ref}, backend.Progress{Ref: gs[1].Ref})
	})},
	{"Row/Leases_expire_one_by_one", rowLocking(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, perRow(short), long).Registers("kept", "left")
		b := join(t, f.Again(t, be), perRow(short), long)
		sent := time.Now()
		gs := a.Acquires(2)
		kept, left := grantOf(a, gs, "kept"), grantOf(a, gs, "left")
		var got []backend.Grant
		kit.Eventually(t, "a lease expires", func() bool {
			equalSlices(t, "lost", renew(a, kept.Ref), nil)
			got = b.Acquires(9)
			return len(got) > 0
		})
		equalSlices(t, "taken", resources(got), []string{"left"})
		if took := time.Since(sent); took < short {
			t.Fatalf("taken %v after it was granted for %v", took, short)
		}
		rises(t, got[0], left)
		kit.Equal(t, "suspicion: its owner lives", got[0].Suspicion, 0)
		equalSlices(t, "lost", renew(a, kept.Ref, left.Ref), []string{"left"})
		equalSlices(t, "fenced", a.Fenced(backend.Progress{Ref: left.Ref}, backend.Progress{Ref: kept.Ref}), []string{"left"})
	})},
	{"Row/Renew_revives_nothing", rowLocking(func(t testing.TB, f Factory, be backend.Backend) {
		a, g := owner(t, be, perRow(short), "1")
		kit.Eventually(t, "it expires", func() bool { return a.Surveys().Free == 1 })
		equalSlices(t, "lost", renew(a, g.Ref), []string{"1"})
		kit.Equal(t, "free", a.Surveys().Free, 1)
		again := a.Takes() // its owner may take it again, as a new lease
		rises(t, again, g)
		equalSlices(t, "lost", renew(a, g.Ref), []string{"1"})
		equalSlices(t, "lost", renew(a, again.Ref), nil)
	})},
	{"Row/Renew_names_what_is_not_held", rowLocking(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, perRow(long), long).Registers("1", "2")
		b := join(t, f.Again(t, be), perRow(long), long)
		g := a.Acquires(1)[0]
		other := b.Takes()
		old := backend.Ref{Resource: g.Resource, Epoch: g.Epoch - 1}
		equalSlices(t, "another's", renew(a, other.Ref, g.Ref), []string{other.Resource})
		equalSlices(t, "old", renew(a, old), []string{g.Resource})
		equalSlices(t, "unknown", renew(a, backend.Ref{Resource: "unknown", Epoch: 1}), []string{"unknown"})
		a.Releases(g.Ref)
		equalSlices(t, "released", renew(a, g.Ref), []string{g.Resource})
		equalSlices(t, "nothing", renew(a), nil)
		equalSlices(t, "the other's own", renew(b, other.Ref), nil)
	})},
	{"Row/A_dead_session_renews_nothing", rowLocking(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, perRow(long), short).Registers("1")
		b := join(t, f.Again(t, be), perRow(long), long)
		g := a.Takes()
		kit.Eventually(t, "the session expires", func() bool { return b.Surveys().Free == 1 })
		equalSlices(t, "lost", renew(a, g.Ref), []string{"1"})
		kit.Equal(t, "suspicion after a crash", b.TakesOver().Suspicion, 1)
	})},
	{"Row/Grace_counts_from_the_end_of_the_lease", rowLocking(func(t testing.TB, f Factory, be backend.Backend) {
		info := perRow(short)
		info.Grace = short
		a := join(t, be, info, long).Registers("1")
		b := join(t, f.Again(t, be), info, long)
		sent := time.Now()
		a.Takes()
		b.TakesOver()
		if took := time.Since(sent); took < 2*short {
			t.Fatalf("taken %v after it was granted for %v with a grace of %v", took, short, info.Grace)
		}
	})},
}

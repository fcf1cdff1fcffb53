package leasetest

import (
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
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
		if be.Capabilities().Rows == nil {
			t.Skip("the backend has no leases that expire one by one")
		}
		run(t, f, be)
	})
}

func (h *holder) renew(refs ...backend.Ref) (lost []string) {
	h.t.Helper()
	return must[[]string](h.t)(h.be.Capabilities().Rows.Renew(h.t.Context(), h.id, h.info, refs))
}

func (h *holder) grantOf(gs []backend.Grant, resource string) backend.Grant {
	h.t.Helper()
	for _, g := range gs {
		if g.Resource == resource {
			return g
		}
	}
	h.t.Fatalf("%s was not granted", resource)
	return backend.Grant{}
}

var rowChecks = []check{
	{"Row/Renew_keeps_leases_beyond_their_TTL", rowLocking(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, perRow(short), long).register("1", "2")
		b := join(t, f.Again(t, be), perRow(short), long)
		gs := a.acquire(2)
		for began := time.Now(); time.Since(began) < 2*short+short/2; time.Sleep(short / 5) {
			equalSlices(t, "lost", a.renew(refs(gs)...), nil)
			equal(t, "acquired by another", len(b.acquire(9)), 0)
		}
		a.commit(backend.Progress{Ref: gs[0].Ref}, backend.Progress{Ref: gs[1].Ref})
	})},
	{"Row/Leases_expire_one_by_one", rowLocking(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, perRow(short), long).register("kept", "left")
		b := join(t, f.Again(t, be), perRow(short), long)
		sent := time.Now()
		gs := a.acquire(2)
		kept, left := a.grantOf(gs, "kept"), a.grantOf(gs, "left")
		var got []backend.Grant
		eventually(t, "a lease expires", func() bool {
			equalSlices(t, "lost", a.renew(kept.Ref), nil)
			got = b.acquire(9)
			return len(got) > 0
		})
		equalSlices(t, "taken", resources(got), []string{"left"})
		if took := time.Since(sent); took < short {
			t.Fatalf("taken %v after it was granted for %v", took, short)
		}
		if got[0].Epoch <= left.Epoch {
			t.Fatalf("epoch %d after %d", got[0].Epoch, left.Epoch)
		}
		equal(t, "suspicion: its owner lives", got[0].Suspicion, 0)
		equalSlices(t, "lost", a.renew(kept.Ref, left.Ref), []string{"left"})
		equalSlices(t, "fenced", a.tryCommit(backend.Progress{Ref: left.Ref}, backend.Progress{Ref: kept.Ref}), []string{"left"})
	})},
	{"Row/Renew_revives_nothing", rowLocking(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, perRow(short), long).register("1")
		g := a.acquireOne()
		eventually(t, "it expires", func() bool { return a.survey().Free == 1 })
		equalSlices(t, "lost", a.renew(g.Ref), []string{"1"})
		equal(t, "free", a.survey().Free, 1)
		again := a.acquireOne() // its owner may take it again, as a new lease
		if again.Epoch <= g.Epoch {
			t.Fatalf("epoch %d after %d", again.Epoch, g.Epoch)
		}
		equalSlices(t, "lost", a.renew(g.Ref), []string{"1"})
		equalSlices(t, "lost", a.renew(again.Ref), nil)
	})},
	{"Row/Renew_names_what_is_not_held", rowLocking(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, perRow(long), long).register("1", "2")
		b := join(t, f.Again(t, be), perRow(long), long)
		g := a.acquire(1)[0]
		other := b.acquireOne()
		old := backend.Ref{Resource: g.Resource, Epoch: g.Epoch - 1}
		equalSlices(t, "another's", a.renew(other.Ref, g.Ref), []string{other.Resource})
		equalSlices(t, "old", a.renew(old), []string{g.Resource})
		equalSlices(t, "unknown", a.renew(backend.Ref{Resource: "unknown", Epoch: 1}), []string{"unknown"})
		a.release(g.Ref)
		equalSlices(t, "released", a.renew(g.Ref), []string{g.Resource})
		equalSlices(t, "nothing", a.renew(), nil)
		equalSlices(t, "the other's own", b.renew(other.Ref), nil)
	})},
	{"Row/A_dead_session_renews_nothing", rowLocking(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, perRow(long), short).register("1")
		b := join(t, f.Again(t, be), perRow(long), long)
		g := a.acquireOne()
		eventually(t, "the session expires", func() bool { return b.survey().Free == 1 })
		equalSlices(t, "lost", a.renew(g.Ref), []string{"1"})
		equal(t, "suspicion after a crash", b.takeOver().Suspicion, 1)
	})},
	{"Row/Grace_counts_from_the_end_of_the_lease", rowLocking(func(t testing.TB, f Factory, be backend.Backend) {
		info := perRow(short)
		info.Grace = short
		a := join(t, be, info, long).register("1")
		b := join(t, f.Again(t, be), info, long)
		sent := time.Now()
		a.acquireOne()
		b.takeOver()
		if took := time.Since(sent); took < 2*short {
			t.Fatalf("taken %v after it was granted for %v with a grace of %v", took, short, info.Grace)
		}
	})},
}

package leaseredis

import (
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

func TestOneReplicaDoesTheHousekeeping(t *testing.T) {
	eachSpread(t, func(t *testing.T, a *actor) {
		a.buries(3, "x")
		info := a.info
		info.Max = 1
		sh, err := a.shape(t.Context())
		check(t, err)
		release, err := a.take(t.Context(), sh, "maintaining", time.Minute)
		check(t, err)
		b := a.another()
		r, err := b.Maintain(t.Context(), []backend.ConsumerInfo{info})
		check(t, err)
		same(t, "dropped by the other", r.DeadLettersDropped, 0)
		release()
		release() // gives back nobody else's
		r, err = b.Maintain(t.Context(), []backend.ConsumerInfo{info})
		check(t, err)
		same(t, "dropped", r.DeadLettersDropped, 2)
	})
}

func TestStreamsWithoutWorkAreForgottenAfterADay(t *testing.T) {
	eachSpread(t, func(t *testing.T, a *actor) {
		info := backend.ConsumerInfo{Name: "s", Per: backend.PerStream, Announced: true}
		b := join(t, a.Backend, info)
		gs := b.takes(9, "dead", "fresh", "old", "owned", "parked", "wanted")
		sh, err := b.shape(t.Context())
		check(t, err)
		retired := map[string]backend.Ref{}
		for _, g := range gs {
			switch g.Resource {
			case "owned":
			case "wanted":
				check(t, b.Release(t.Context(), b.id, "s", []backend.Ref{g.Ref}))
			default:
				retired[g.Resource] = g.Ref
			}
		}
		for name, ref := range retired {
			check(t, b.Retire(t.Context(), b.id, "s", []backend.Ref{ref}))
			if name != "fresh" {
				key := b.prefix(sh.tagOf(name)) + "l:s:" + name
				check(t, b.client.HSet(t.Context(), key, "since", time.Now().Add(-25*time.Hour).UnixMicro()).Err())
			}
		}
		// Something is left of two of them.
		check(t, b.client.HSet(t.Context(), b.prefix(sh.tagOf("parked"))+"pk:s:parked", "1-0", "x").Err())
		check(t, b.client.HSet(t.Context(), b.prefix(sh.tagOf("dead"))+"dx:s:dead", "1-0", "1").Err())
		maintain := func() int {
			r, err := b.Maintain(t.Context(), []backend.ConsumerInfo{info})
			check(t, err)
			return r.StreamsForgotten
		}
		same(t, "forgotten", maintain(), 1)
		known := map[string]bool{}
		for _, l := range b.leasesNow() {
			known[l.Resource] = true
		}
		if len(known) != 5 || known["old"] {
			t.Fatalf("known are %v", known)
		}
		// One that comes again has a higher epoch.
		var before backend.Ref = retired["old"]
		g := b.takesOne("old")
		if g.Epoch <= before.Epoch {
			t.Fatalf("epoch %d after %d", g.Epoch, before.Epoch)
		}
	})
}

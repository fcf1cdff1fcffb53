package leaseredis

import (
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
)

func TestOneReplicaDoesTheHousekeeping(t *testing.T) {
	eachSpread(t, func(t *testing.T, a *actor) {
		a.buries(3, "x")
		info := a.Info
		info.Max = 1
		sh, err := a.shape(t.Context())
		kit.OK(t, err)
		release, err := a.takeToken(t.Context(), sh, nil, "maintaining", time.Minute)
		kit.OK(t, err)
		b := a.another()
		r, err := b.Maintain(t.Context(), []backend.ConsumerInfo{info})
		kit.OK(t, err)
		kit.Equal(t, "dropped by the other", r.DeadLettersDropped, 0)
		release()
		release() // gives back no other process's
		r, err = b.Maintain(t.Context(), []backend.ConsumerInfo{info})
		kit.OK(t, err)
		kit.Equal(t, "dropped", r.DeadLettersDropped, 2)
	})
}

func TestStreamsWithoutWorkAreForgottenAfterADay(t *testing.T) {
	eachSpread(t, func(t *testing.T, a *actor) {
		info := backend.ConsumerInfo{Name: "s", Per: backend.PerStream, Announced: true}
		b := join(t, a.Backend, info)
		gs := b.takes(9, "dead", "fresh", "old", "owned", "parked", "wanted")
		sh, err := b.shape(t.Context())
		kit.OK(t, err)
		retired := map[string]backend.Ref{}
		for _, g := range gs {
			switch g.Resource {
			case "owned":
			case "wanted":
				kit.OK(t, b.Release(t.Context(), b.ID, "s", []backend.Ref{g.Ref}))
			default:
				retired[g.Resource] = g.Ref
			}
		}
		for name, ref := range retired {
			kit.OK(t, b.Retire(t.Context(), b.ID, "s", []backend.Ref{ref}))
			if name != "fresh" {
				key := b.prefix(sh.tagOf(name)) + "l:s:" + name
				kit.OK(t, b.client.HSet(t.Context(), key, "since", time.Now().Add(-25*time.Hour).UnixMicro()).Err())
			}
		}
		// Something is left of two of them.
		kit.OK(t, b.client.HSet(t.Context(), b.prefix(sh.tagOf("parked"))+"pk:s:parked", "1-0", "x").Err())
		kit.OK(t, b.client.HSet(t.Context(), b.prefix(sh.tagOf("dead"))+"dx:s:dead", "1-0", "1").Err())
		maintain := func() int {
			r, err := b.Maintain(t.Context(), []backend.ConsumerInfo{info})
			kit.OK(t, err)
			return r.StreamsForgotten
		}
		kit.Equal(t, "forgotten", maintain(), 1)
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

package leasetest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/operate"
)

// pausable are consumers of all kinds that a backend has, each with the resources to register.
func pausable(be backend.Backend) map[string]backend.ConsumerInfo {
	all := map[string]backend.ConsumerInfo{
		"topic": perTopic(), "group": {Name: "c", Per: backend.PerGroup, Topics: []string{"*"}},
		"cluster":   {Name: "c", Per: backend.PerCluster},
		"partition": {Name: "c", Per: backend.PerPartition, Topics: []string{"*"}},
		"grace":     {Name: "c", Per: backend.PerTopic, Topics: []string{"*"}, Grace: time.Second},
	}
	if be.Capabilities().Streams != nil {
		all["stream"], all["announced"] = perStream(), announced()
	}
	if be.Capabilities().Rows != nil {
		all["row"] = perRow(long)
	}
	return all
}

// pauses pauses the consumer of an actor, twice: the second time has no effect.
func pauses(h *kit.Actor) {
	h.T.Helper()
	for range 2 {
		kit.OK(h.T, h.Operator().Pause(h.T.Context(), h.Info.Name))
	}
	if s := h.Surveys(); !s.Paused || s.Free != 0 {
		h.T.Fatalf("survey of a consumer that is paused: %+v", s)
	}
}

// resumes is the counterpart of pauses.
func resumes(h *kit.Actor) {
	h.T.Helper()
	for range 2 {
		kit.OK(h.T, h.Operator().Resume(h.T.Context(), h.Info.Name))
	}
	if s := h.Surveys(); s.Paused {
		h.T.Fatalf("survey of a consumer that was resumed: %+v", s)
	}
}

// pausing skips what a backend without an operator cannot do.
func pausing(run func(t testing.TB, f Factory, be backend.Backend)) func(testing.TB, Factory) {
	return fresh(func(t testing.TB, f Factory, be backend.Backend) {
		kit.Operator(t, be)
		run(t, f, be)
	})
}

var pauseChecks = []check{
	{"Pause/Nothing_is_granted_until_the_consumer_is_resumed", pausing(func(t testing.TB, f Factory, be backend.Backend) {
		for kind, info := range pausable(be) {
			be := f.New(t)
			publish(t, be, events("x", 3)...)
			a := join(t, be, info, long).Registers("k", "x")
			before := a.Surveys()
			pauses(a)
			other := f.Again(t, be)
			b := join(t, other, info, long).Registers("k", "x", "new") // another process begins
			for _, h := range []*kit.Actor{a, b} {
				kit.Equal(t, kind+": acquired while paused", len(h.Acquires(9)), 0)
			}
			kit.Equal(t, kind+": members", len(b.Surveys().Members), 2)
			if n := b.Surveys().Resources; n < before.Resources {
				t.Fatalf("%s: %d resources, there were %d", kind, n, before.Resources)
			}
			resumes(a)
			if free := b.Surveys().Free; free == 0 {
				t.Fatalf("%s: no lease is free", kind)
			}
			if len(b.Acquires(1)) != 1 {
				t.Fatalf("%s: no lease was granted after the pause", kind)
			}
		}
	})},
	{"Pause/Leases_of_lock=advisory_are_not_granted_either", pausing(func(t testing.TB, f Factory, be backend.Backend) {
		info := backend.ConsumerInfo{Name: "c", Per: backend.PerCluster, Lock: backend.LockAdvisory}
		if err := be.Check(t.Context(), []backend.ConsumerInfo{info}); err != nil {
			t.Skip(err)
		}
		spec := backend.SessionSpec{TTL: long, Advisory: true}
		a := kit.Open(t, be, spec, info).Registers()
		b := kit.Open(t, f.Again(t, be), spec, info)
		g := a.Takes()
		pauses(a)
		a.Commits(backend.Progress{Ref: g.Ref})
		a.Releases(g.Ref)
		for _, h := range []*kit.Actor{a, b} {
			kit.Equal(t, "acquired while paused", len(h.Acquires(1)), 0)
			kit.OK(t, h.Heartbeat())
		}
		resumes(a)
		rises(t, b.Takes(), g)
	})},
	{"Pause/Owners_finish_what_they_are_at", pausing(func(t testing.TB, f Factory, be backend.Backend) {
		a, g, got := reading(t, be, 3)
		pauses(a)
		kit.OK(t, a.Heartbeat())
		a.Commits(backend.Progress{Ref: g.Ref, Cursor: got.Cut(2), Park: []backend.Park{{ID: got.Messages[0].ID, Lane: "k", Attempt: 1}}})
		kit.Equal(t, "messages left", len(a.Reads("x", got.Cut(2), 9).Messages), 1)
		kit.Equal(t, "parked messages that are due", len(a.Due().Messages), 1)
		equalSlices(t, "owned", kit.Must[[]backend.Ref](t)(be.Owned(t.Context(), a.ID, "c")), []backend.Ref{g.Ref})
		a.Releases(g.Ref)
		kit.Equal(t, "acquired while paused", len(a.Acquires(1)), 0)
		resumes(a)
		again := a.Takes()
		rises(t, again, g)
		equalSlices(t, "lanes", again.Lanes, []string{"k"})
		kit.Equal(t, "suspicion", again.Suspicion, 0)
		kit.Equal(t, "messages left", len(a.Reads("x", again.Cursor, 9).Messages), 1)
	})},
	{"Pause/A_repeated_attempt_returns_what_it_was_granted", pausing(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, perTopic(), long).Registers("1", "2", "3")
		req := a.Request(2)
		granted := kit.Must[[]backend.Grant](t)(be.Acquire(t.Context(), req))
		kit.Equal(t, "granted", len(granted), 2)
		pauses(a)
		again := kit.Must[[]backend.Grant](t)(be.Acquire(t.Context(), req))
		equalSlices(t, "granted to the same attempt", kit.Refs(again), kit.Refs(granted))
		a.Commits(backend.Progress{Ref: granted[0].Ref}, backend.Progress{Ref: granted[1].Ref})
		kit.Equal(t, "granted to another", len(a.Acquires(9)), 0)
		a.Releases(granted[0].Ref)
		again = kit.Must[[]backend.Grant](t)(be.Acquire(t.Context(), req))
		equalSlices(t, "what is left of the attempt", kit.Refs(again), []backend.Ref{granted[1].Ref})
	})},
	{"Pause/Leases_of_dead_sessions_wait_for_the_end_of_it", pausing(func(t testing.TB, f Factory, be backend.Backend) {
		crashed := join(t, be, perTopic(), short).Registers("x")
		g := crashed.Takes()
		a := join(t, f.Again(t, be), perTopic(), long)
		pauses(a)
		kit.Eventually(t, "the session expires", func() bool { return len(a.Surveys().Members) == 1 })
		kit.Equal(t, "taken over while paused", len(a.Acquires(1)), 0)
		kit.Equal(t, "free while paused", a.Surveys().Free, 0)
		resumes(a)
		next := a.TakesOver()
		rises(t, next, g)
		kit.Equal(t, "suspicion", next.Suspicion, 1)
	})},
	{"Pause/Is_of_one_consumer", pausing(func(t testing.TB, f Factory, be backend.Backend) {
		a := kit.Join(t, be, perTopic(), long, perGroup("*")).Registers("x")
		g := a.As(perGroup("*")).Registers()
		pauses(a)
		kit.Equal(t, "granted of the one that is paused", len(a.Acquires(1)), 0)
		s := kit.Must[[]backend.Survey](t)(be.Survey(t.Context(), []string{"g", "c"}))
		kit.Equal(t, "surveyed", s[0].Consumer+" "+s[1].Consumer, "g c")
		if s[0].Paused || s[0].Free != 1 || !s[1].Paused || s[1].Free != 0 {
			t.Fatalf("surveys: %+v", s)
		}
		g.Takes()
	})},
	{"Pause/Status_says_so_and_since_when", pausing(func(t testing.TB, f Factory, be backend.Backend) {
		op := kit.Operator(t, be)
		a, g := sole(t, be)
		b := join(t, be, perGroup("*"), long).Registers()
		status := func() map[string]operate.ConsumerStatus {
			all := map[string]operate.ConsumerStatus{}
			for _, st := range kit.Must[[]operate.ConsumerStatus](t)(op.Status(t.Context())) {
				all[st.Consumer] = st
			}
			return all
		}
		began := time.Now()
		pauses(a)
		time.Sleep(20 * time.Millisecond)
		kit.OK(t, op.Pause(t.Context(), "c")) // which does not begin it anew
		st := status()
		took := time.Since(began)
		if c := st["c"]; !c.Paused || c.PausedFor < 15*time.Millisecond || c.PausedFor > took+time.Second {
			t.Fatalf("paused %v for %v, after %v", c.Paused, c.PausedFor, took)
		}
		kit.Equal(t, "owned until the owner gives back", st["c"].Unowned, 0)
		a.Releases(g.Ref)
		kit.Equal(t, "unowned", status()["c"].Unowned, 1)
		kit.Equal(t, "another is paused", st["g"].Paused || st["g"].PausedFor != 0, false)
		b.Takes()
		resumes(a)
		if c := status()["c"]; c.Paused || c.PausedFor != 0 {
			t.Fatalf("paused %v for %v after it was resumed", c.Paused, c.PausedFor)
		}
	})},
	{"Pause/Of_a_consumer_that_is_not_known_is_an_error", pausing(func(t testing.TB, f Factory, be backend.Backend) {
		op := kit.Operator(t, be)
		sole(t, be)
		for _, do := range []func(context.Context, string) error{op.Pause, op.Resume} {
			if err := do(t.Context(), "nobody"); err == nil || !strings.Contains(err.Error(), "nobody") {
				t.Fatalf("got %v, want an error that names the consumer", err)
			}
		}
		join(t, be, backend.ConsumerInfo{Name: "nobody", Per: backend.PerTopic, Topics: []string{"*"}}, long).Registers("x").Takes()
	})},
	{"Pause/Is_news_of_ownership", pausing(func(t testing.TB, f Factory, be backend.Backend) {
		a, _ := sole(t, be)
		op := kit.Operator(t, f.Again(t, be))
		w := watch(t, be, a.Info)
		kit.OK(t, op.Pause(t.Context(), "c"))
		w.ownership("a pause")
		kit.OK(t, op.Resume(t.Context(), "c"))
		w.ownership("its end")
	})},
	{"Pause/Cursors_and_dead_letters_can_be_moved_while_it_lasts", pausing(func(t testing.TB, f Factory, be backend.Backend) {
		op := kit.Operator(t, be)
		a, g, got := reading(t, be, 3)
		a.Commits(backend.Progress{Ref: g.Ref, Cursor: got.Next, Dead: []backend.Dead{{ID: got.Messages[1].ID, Attempt: 1, Reason: "r"}}})
		pauses(a)
		a.Releases(g.Ref)
		kit.Equal(t, "replayed", kit.Must[int](t)(op.Replay(t.Context(), operate.DeadLetterFilter{Consumer: "c"})), 1)
		kit.Equal(t, "moved", kit.Must[int](t)(op.SetCursor(t.Context(), "c", "x", operate.CursorTarget{After: got.Messages[0].ID})), 1)
		kit.Equal(t, "acquired while paused", len(a.Acquires(1)), 0)
		publish(t, be, event("x", "k", 4))
		resumes(a)
		again := a.Takes()
		equalSlices(t, "messages", ids(a.Reads("x", again.Cursor, 9).Messages)[:2], ids(got.Messages)[1:])
		equalSlices(t, "replayed", parkedIDs(a.Due().Messages), ids(got.Messages)[1:2])
	})},
	{"Pause/Ends_with_the_consumer", pausing(func(t testing.TB, f Factory, be backend.Backend) {
		op, can := kit.Operator(t, be).(interface {
			Forget(ctx context.Context, consumer string) error
		})
		needs(t, can, "the backend forgets no consumers")
		a, _ := sole(t, be)
		pauses(a)
		kit.OK(t, a.Session.Close(t.Context()))
		kit.OK(t, op.Forget(t.Context(), "c"))
		b, _ := sole(t, f.Again(t, be)) // it begins again
		kit.Equal(t, "paused", b.Surveys().Paused, false)
	})},
	{"Pause/No_lease_is_granted_after_it_returned", pausing(func(t testing.TB, f Factory, be backend.Backend) {
		op := kit.Operator(t, be)
		owned := func() map[backend.Ref]bool {
			all := map[backend.Ref]bool{}
			for _, l := range kit.Must[[]operate.LeaseStatus](t)(op.Leases(t.Context(), "c", 0)) {
				if l.Session != "" {
					all[backend.Ref{Resource: l.Resource, Epoch: l.Epoch}] = true
				}
			}
			return all
		}
		names := kit.Topics(40)
		join(t, be, perTopic(), long).Registers(names...)
		for range 4 {
			h := join(t, f.Again(t, be), perTopic(), long)
			repeat(t, func() {
				gs := h.Acquires(5)
				time.Sleep(time.Millisecond)
				h.Releases(kit.Refs(gs)...)
			})
		}
		for range 10 {
			kit.Eventually(t, "a lease is granted", func() bool { return len(owned()) > 0 })
			kit.OK(t, op.Pause(t.Context(), "c"))
			before := owned()
			kit.Eventually(t, "all are given back", func() bool {
				now := owned()
				for ref := range now {
					if !before[ref] {
						t.Fatalf("%v was granted after the pause", ref)
					}
				}
				return len(now) == 0
			})
			kit.OK(t, op.Resume(t.Context(), "c"))
		}
	})},
}

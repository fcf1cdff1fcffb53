package leasetest

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
)

var leaseChecks = []check{
	{"Register/Takes_what_the_log_holds_and_the_patterns_match", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		publish(t, be, event("orders.eu", "", 1), event("orders.us", "", 1), event("mail", "", 1), event("orders.eu", "", 2))
		a := join(t, be, perTopic("orders.*"), long)
		for range 2 { // known resources are left as they are
			kit.OK(t, be.Register(t.Context(), a.Info, nil))
		}
		kit.Equal(t, "resources", a.Surveys().Resources, 2)
		equalSlices(t, "acquired", resources(a.Acquires(9)), []string{"orders.eu", "orders.us"})
	})},
	{"Register/Leaves_known_resources_as_they_are", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a, g, got := reading(t, be, 3)
		a.Commits(backend.Progress{Ref: g.Ref, Cursor: got.Cut(2)})
		a.Registers("x", "y")
		a.Commits(backend.Progress{Ref: g.Ref})
		a.Releases(g.Ref)
		x := grantOf(a, a.Acquires(9), "x")
		kit.Equal(t, "messages left", len(a.Reads("x", x.Cursor, 9).Messages), 1)
		kit.Equal(t, "resources", a.Surveys().Resources, 2)
	})},
	{"Register/Group_and_cluster_have_one_resource", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		for _, info := range []backend.ConsumerInfo{perGroup("*"), {Name: "s", Per: backend.PerCluster}} {
			kit.OK(t, be.Register(t.Context(), info, nil))
			a := join(t, be, info, long)
			equalSlices(t, "acquired", resources(a.Acquires(9)), []string{backend.Whole})
			kit.Equal(t, "acquired by another", len(join(t, f.Again(t, be), info, long).Acquires(9)), 0)
		}
	})},
	{"Register/Before_there_are_messages", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a, g := owner(t, be, perTopic("new.*"), "new.1")
		publish(t, be, event("new.1", "", 1))
		kit.Equal(t, "messages", len(a.Reads("new.1", g.Cursor, 9).Messages), 1)
	})},
	{"Acquire/Takes_what_is_unheld_and_refuses_what_is_held", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a, g := sole(t, be)
		kit.Equal(t, "suspicion", g.Suspicion, 0)
		kit.Equal(t, "mark", g.Mark, "")
		kit.Equal(t, "lanes", len(g.Lanes), 0)
		kit.Equal(t, "acquired by another", len(join(t, f.Again(t, be), perTopic(), long).Acquires(1)), 0)
		kit.Equal(t, "acquired again by the owner", len(a.Acquires(1)), 0)
	})},
	{"Acquire/Epochs_rise_over_release_close_and_crash", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		last := int64(0)
		rise := func(how string, epoch int64) {
			t.Helper()
			if epoch <= last {
				t.Fatalf("epoch %d after %d, over a %s", epoch, last, how)
			}
			last = epoch
		}
		a := join(t, be, perTopic(), long).Registers("x")
		for range 20 {
			g := a.Takes()
			rise("release", g.Epoch)
			a.Releases(g.Ref)
		}
		for range 3 {
			b := join(t, be, perTopic(), long)
			rise("close", b.Takes().Epoch)
			kit.OK(t, b.Session.Close(t.Context()))
		}
		crashed := join(t, be, perTopic(), short)
		rise("close", crashed.Takes().Epoch)
		rise("crash", a.TakesOver().Epoch)
	})},
	{"Epochs_rise_on_a_storage_that_lost_its_memory", func(t testing.TB, f Factory) {
		// A replica promoted without the newest grants has a lower previous epoch: the
		// epoch then comes from the server's clock.
		before := join(t, f.New(t), perTopic(), long).Registers("x").Takes()
		time.Sleep(time.Millisecond) // memory is not lost and replaced within a tick of the clock
		after := join(t, f.New(t), perTopic(), long).Registers("x").Takes()
		rises(t, after, before)
	}},
	{"Acquire/Is_bulk_and_bounded_by_Max", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		topics := kit.Topics(2000)
		a := join(t, be, perTopic(), long).Registers(topics...)
		first := a.Acquires(1500)
		kit.Equal(t, "first", len(first), 1500)
		rest := a.Acquires(5000)
		kit.Equal(t, "rest", len(rest), 500)
		equalSlices(t, "all", slices.Compact(resources(append(first, rest...))), topics)
		a.Releases(kit.Refs(first)...)
		kit.Equal(t, "released", len(join(t, be, perTopic(), long).Acquires(5000)), 1500)
	})},
	{"Acquire/Repeated_attempt_returns_what_it_was_granted", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, perTopic(), long).Registers("1", "2", "3", "4")
		req := a.Request(2)
		first := kit.Must[[]backend.Grant](t)(be.Acquire(t.Context(), req))
		again := kit.Must[[]backend.Grant](t)(be.Acquire(t.Context(), req))
		kit.Equal(t, "granted at first", len(first), 2)
		equalSlices(t, "granted again", slices.Compact(resources(again)), resources(first))
		for _, g := range again {
			kit.Equal(t, "granted again", g.Ref, grantOf(a, first, g.Resource).Ref)
		}
		kit.Equal(t, "still free", a.Surveys().Free, 2)
	})},
	{"Acquire/Passes_over_Exclude", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, perTopic(), long).Registers("1", "2", "3")
		req := a.Request(9)
		req.Exclude = []string{"1", "3"}
		equalSlices(t, "acquired", resources(kit.Must[[]backend.Grant](t)(be.Acquire(t.Context(), req))), []string{"2"})
	})},
	{"Acquire/Takes_over_after_the_TTL_and_not_before", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		b := join(t, f.Again(t, be), perTopic(), long)
		sent := time.Now()
		a := join(t, be, perTopic(), short).Registers("x")
		first := a.Takes()
		g := b.TakesOver()
		if took := time.Since(sent); took < short {
			t.Fatalf("taken over %v after the session was opened with a TTL of %v", took, short)
		}
		rises(t, g, first)
		kit.Equal(t, "suspicion after a crash", g.Suspicion, 1)
	})},
	{"Acquire/Waits_for_Grace_after_a_crash_but_not_after_a_release", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		info := perTopic()
		info.Grace = short
		b := join(t, be, info, long)
		sent := time.Now()
		a := join(t, be, info, short).Registers("x", "y")
		gs := a.Acquires(2)
		a.Releases(grantOf(a, gs, "y").Ref)
		equalSlices(t, "free at once", resources(b.Acquires(2)), []string{"y"})
		kit.Equal(t, "taken over", b.TakesOver().Resource, "x")
		if took := time.Since(sent); took < 2*short {
			t.Fatalf("taken over %v after the session was opened with TTL %v and grace %v", took, short, info.Grace)
		}
	})},
	{"Acquire/Grants_each_resource_once_under_contention", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		topics := kit.Topics(64)
		join(t, be, perTopic(), long).Registers(topics...)
		var mu sync.Mutex
		var got []string
		var wg sync.WaitGroup
		for range 8 {
			h := join(t, f.Again(t, be), perTopic(), long)
			wg.Go(func() {
				for n := -1; n != 0; {
					gs, err := h.Be.Acquire(t.Context(), h.Request(5))
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					got = append(got, resources(gs)...)
					mu.Unlock()
					n = len(gs)
				}
			})
		}
		wg.Wait()
		// One that finds all free resources locked by others may stop early.
		got = append(got, resources(join(t, be, perTopic(), long).Acquires(64))...)
		slices.Sort(got)
		equalSlices(t, "granted", got, topics)
	})},
	{"Register/Refuses_another_unit_of_ownership", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a, g := sole(t, be)
		for _, per := range []backend.Per{backend.PerGroup, backend.PerPartition} {
			err := f.Again(t, be).Register(t.Context(), backend.ConsumerInfo{Name: a.Info.Name, Per: per, Topics: []string{"*"}}, nil)
			if err == nil || !strings.Contains(err.Error(), "topic") || !strings.Contains(err.Error(), per.String()) {
				t.Fatalf("per=topic became per=%s: %v", per, err)
			}
		}
		a.Commits(backend.Progress{Ref: g.Ref})
		kit.Equal(t, "resources", a.Surveys().Resources, 1)
	})},
	{"Release/Of_a_dead_session_takes_nothing_from_the_next_owner", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a, g := sole(t, be)
		kit.OK(t, a.Session.Close(t.Context()))
		next := join(t, f.Again(t, be), perTopic(), long).Takes()
		for range 2 {
			for _, ref := range []backend.Ref{g.Ref, next.Ref} {
				if err := be.Release(t.Context(), a.ID, "c", []backend.Ref{ref}); err != nil && !errors.Is(err, backend.ErrSessionLost) {
					t.Fatal(err)
				}
			}
		}
		kit.Equal(t, "free", a.Surveys().Free, 0)
	})},
	{"Release/Frees_at_once_and_can_be_repeated", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a, g := sole(t, be)
		b := join(t, f.Again(t, be), perTopic(), long)
		a.Releases(g.Ref)
		a.Releases(g.Ref)
		equalSlices(t, "commit after release", a.Fenced(backend.Progress{Ref: g.Ref}), []string{"x"})
		got := b.Takes()
		kit.Equal(t, "suspicion", got.Suspicion, 0)
		a.Releases(g.Ref)
		b.Commits(backend.Progress{Ref: got.Ref})
	})},
	{"Release/Passes_over_what_is_not_held", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, perTopic(), long).Registers("x")
		b := join(t, f.Again(t, be), perTopic(), long)
		b.Releases(backend.Ref{Resource: "x", Epoch: 1}, backend.Ref{Resource: "unknown", Epoch: 1})
		g := a.Takes()
		b.Releases(g.Ref) // right epoch, another's lease
		a.Commits(backend.Progress{Ref: g.Ref})
		a.Releases(backend.Ref{Resource: "x", Epoch: g.Epoch - 1}) // own lease, old epoch
		a.Commits(backend.Progress{Ref: g.Ref})
		kit.Equal(t, "free", a.Surveys().Free, 0)
	})},
	{"Owned/Lists_what_a_session_owns", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, perTopic(), long).Registers("1", "2", "3", "4", "5")
		b := join(t, f.Again(t, be), perTopic(), long)
		owned := func(h *kit.Actor) []string {
			t.Helper()
			refs := kit.Must[[]backend.Ref](t)(h.Be.Owned(t.Context(), h.ID, h.Info.Name))
			names := slices.Sorted(slices.Values(each(refs, func(r backend.Ref) string { return r.Resource })))
			h.Commits(each(refs, func(r backend.Ref) backend.Progress { return backend.Progress{Ref: r} })...)
			return slices.Compact(names) // one may be named twice
		}
		kit.Equal(t, "before anything", len(owned(a)), 0)
		gs := a.Acquires(3)
		b.Acquires(1)
		equalSlices(t, "owned by a", owned(a), resources(gs))
		kit.Equal(t, "owned by b", len(owned(b)), 1)
		a.Releases(gs[1].Ref)
		equalSlices(t, "owned by a", owned(a), resources([]backend.Grant{gs[0], gs[2]}))
		b.Acquires(2)
		kit.Equal(t, "owned by b", len(owned(b)), 3)
		kit.Equal(t, "of another consumer", len(kit.Must[[]backend.Ref](t)(be.Owned(t.Context(), a.ID, "unknown"))), 0)
	})},
	{"Survey/Counts_resources_free_and_owned", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, perTopic(), long).Registers("1", "2", "3", "4", "5")
		b := join(t, f.Again(t, be), perTopic(), long)
		a.Acquires(3)
		b.Acquires(1)
		s := a.Surveys()
		kit.Equal(t, "resources", s.Resources, 5)
		kit.Equal(t, "free", s.Free, 1)
		owned := map[string]int{}
		for _, m := range s.Members {
			owned[m.Session] = m.Owned
		}
		kit.Equal(t, "owned by a", owned[a.ID], 3)
		kit.Equal(t, "owned by b", owned[b.ID], 1)
		if !slices.IsSortedFunc(s.Members, func(a, b backend.Member) int { return strings.Compare(a.Session, b.Session) }) {
			t.Fatalf("members are not ordered by session id: %v", s.Members)
		}
	})},
	{"Survey/Counts_leases_of_an_expired_session_as_free", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, perTopic(), short).Registers("1", "2")
		a.Acquires(2)
		kit.Equal(t, "free while owned", a.Surveys().Free, 0)
		b := join(t, be, perTopic(), long)
		kit.Eventually(t, "both are free", func() bool { return b.Surveys().Free == 2 })
	})},
}

package leasetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

var leaseChecks = []check{
	{"Register/Takes_what_the_log_holds_and_the_patterns_match", func(t testing.TB, f Factory) {
		be := f.New(t)
		publish(t, be, event("orders.eu", "", 1), event("orders.us", "", 1), event("mail", "", 1), event("orders.eu", "", 2))
		a := join(t, be, perTopic("orders.*"), long)
		for range 2 { // known resources are left as they are
			ok(t, be.Register(t.Context(), a.info, nil))
		}
		equal(t, "resources", a.survey().Resources, 2)
		equalSlices(t, "acquired", resources(a.acquire(9)), []string{"orders.eu", "orders.us"})
	}},
	{"Register/Leaves_known_resources_as_they_are", func(t testing.TB, f Factory) {
		be := f.New(t)
		publish(t, be, events("x", 3)...)
		a := join(t, be, perTopic(), long).register("x")
		g := a.acquireOne()
		fetched := a.fetch("x", g.Cursor, 2)
		a.commit(backend.Progress{Ref: g.Ref, Cursor: fetched.Next})
		a.register("x", "y")
		a.commit(backend.Progress{Ref: g.Ref})
		a.release(g.Ref)
		for _, g := range a.acquire(9) {
			if g.Resource == "x" {
				equal(t, "messages left", len(a.fetch("x", g.Cursor, 9).Messages), 1)
			}
		}
		equal(t, "resources", a.survey().Resources, 2)
	}},
	{"Register/Group_and_cluster_have_one_resource", func(t testing.TB, f Factory) {
		be := f.New(t)
		for _, info := range []backend.ConsumerInfo{perGroup("*"), {Name: "s", Per: backend.PerCluster}} {
			ok(t, be.Register(t.Context(), info, nil))
			a := join(t, be, info, long)
			equalSlices(t, "acquired", resources(a.acquire(9)), []string{backend.Whole})
			equal(t, "acquired by another", len(join(t, f.Again(t, be), info, long).acquire(9)), 0)
		}
	}},
	{"Register/Before_there_are_messages", func(t testing.TB, f Factory) {
		be := f.New(t)
		a := join(t, be, perTopic("new.*"), long).register("new.1")
		g := a.acquireOne()
		publish(t, be, event("new.1", "", 1))
		equal(t, "messages", len(a.fetch("new.1", g.Cursor, 9).Messages), 1)
	}},
	{"Acquire/Takes_what_is_unheld_and_refuses_what_is_held", func(t testing.TB, f Factory) {
		be := f.New(t)
		a := join(t, be, perTopic(), long).register("x")
		g := a.acquireOne()
		equal(t, "suspicion", g.Suspicion, 0)
		equal(t, "mark", g.Mark, "")
		equal(t, "lanes", len(g.Lanes), 0)
		equal(t, "acquired by another", len(join(t, f.Again(t, be), perTopic(), long).acquire(1)), 0)
		equal(t, "acquired again by the owner", len(a.acquire(1)), 0)
	}},
	{"Acquire/Epochs_rise_over_release_close_and_crash", func(t testing.TB, f Factory) {
		be := f.New(t)
		last := int64(0)
		rise := func(how string, epoch int64) {
			t.Helper()
			if epoch <= last {
				t.Fatalf("epoch %d after %d, over a %s", epoch, last, how)
			}
			last = epoch
		}
		a := join(t, be, perTopic(), long).register("x")
		for range 20 {
			g := a.acquireOne()
			rise("release", g.Epoch)
			a.release(g.Ref)
		}
		for range 3 {
			b := join(t, be, perTopic(), long)
			rise("close", b.acquireOne().Epoch)
			ok(t, b.sess.Close(t.Context()))
		}
		crashed := join(t, be, perTopic(), short)
		rise("close", crashed.acquireOne().Epoch)
		rise("crash", a.takeOver().Epoch)
	}},
	{"Epochs_rise_on_a_storage_that_lost_its_memory", func(t testing.TB, f Factory) {
		// A replica promoted without the newest grants has a lower previous epoch: the
		// epoch then comes from the server's clock.
		before := join(t, f.New(t), perTopic(), long).register("x").acquireOne()
		time.Sleep(time.Millisecond) // memory is not lost and replaced within a tick of the clock
		after := join(t, f.New(t), perTopic(), long).register("x").acquireOne()
		if after.Epoch <= before.Epoch {
			t.Fatalf("epoch %d was granted after %d", after.Epoch, before.Epoch)
		}
	}},
	{"Acquire/Is_bulk_and_bounded_by_Max", func(t testing.TB, f Factory) {
		be := f.New(t)
		topics := make([]string, 2000)
		for i := range topics {
			topics[i] = fmt.Sprintf("t%04d", i)
		}
		a := join(t, be, perTopic(), long).register(topics...)
		first := a.acquire(1500)
		equal(t, "first", len(first), 1500)
		rest := a.acquire(5000)
		equal(t, "rest", len(rest), 500)
		equalSlices(t, "all", slices.Compact(resources(append(first, rest...))), topics)
		a.release(refs(first)...)
		equal(t, "released", len(join(t, be, perTopic(), long).acquire(5000)), 1500)
	}},
	{"Acquire/Repeated_attempt_returns_what_it_was_granted", func(t testing.TB, f Factory) {
		be := f.New(t)
		a := join(t, be, perTopic(), long).register("1", "2", "3", "4")
		req := a.request(2)
		first := must[[]backend.Grant](t)(be.Acquire(t.Context(), req))
		again := must[[]backend.Grant](t)(be.Acquire(t.Context(), req))
		epochs := func(gs []backend.Grant) map[backend.Ref]bool {
			m := map[backend.Ref]bool{}
			for _, g := range gs {
				m[g.Ref] = true
			}
			return m
		}
		equal(t, "granted at first", len(first), 2)
		if got, want := fmt.Sprint(epochs(again)), fmt.Sprint(epochs(first)); got != want {
			t.Fatalf("the repeated attempt returned %s, first %s", got, want)
		}
		equal(t, "still free", a.survey().Free, 2)
	}},
	{"Acquire/Passes_over_Exclude", func(t testing.TB, f Factory) {
		be := f.New(t)
		a := join(t, be, perTopic(), long).register("1", "2", "3")
		req := a.request(9)
		req.Exclude = []string{"1", "3"}
		equalSlices(t, "acquired", resources(must[[]backend.Grant](t)(be.Acquire(t.Context(), req))), []string{"2"})
	}},
	{"Acquire/Takes_over_after_the_TTL_and_not_before", func(t testing.TB, f Factory) {
		be := f.New(t)
		b := join(t, f.Again(t, be), perTopic(), long)
		sent := time.Now()
		a := join(t, be, perTopic(), short).register("x")
		first := a.acquireOne()
		g := b.takeOver()
		if took := time.Since(sent); took < short {
			t.Fatalf("taken over %v after the session was opened with a TTL of %v", took, short)
		}
		if g.Epoch <= first.Epoch {
			t.Fatalf("epoch %d after %d", g.Epoch, first.Epoch)
		}
		equal(t, "suspicion after a crash", g.Suspicion, 1)
	}},
	{"Acquire/Waits_for_Grace_after_a_crash_but_not_after_a_release", func(t testing.TB, f Factory) {
		be := f.New(t)
		info := perTopic()
		info.Grace = short
		b := join(t, be, info, long)
		sent := time.Now()
		a := join(t, be, info, short).register("x", "y")
		gs := a.acquire(2)
		i := slices.IndexFunc(gs, func(g backend.Grant) bool { return g.Resource == "y" })
		a.release(gs[i].Ref)
		equalSlices(t, "free at once", resources(b.acquire(2)), []string{"y"})
		equal(t, "taken over", b.takeOver().Resource, "x")
		if took := time.Since(sent); took < 2*short {
			t.Fatalf("taken over %v after the session was opened with TTL %v and grace %v", took, short, info.Grace)
		}
	}},
	{"Acquire/Grants_each_resource_once_under_contention", func(t testing.TB, f Factory) {
		be := f.New(t)
		topics := make([]string, 64)
		for i := range topics {
			topics[i] = fmt.Sprintf("t%02d", i)
		}
		join(t, be, perTopic(), long).register(topics...)
		var mu sync.Mutex
		var got []string
		var wg sync.WaitGroup
		for range 8 {
			h := join(t, f.Again(t, be), perTopic(), long)
			wg.Go(func() {
				for n := -1; n != 0; {
					gs, err := h.be.Acquire(t.Context(), h.request(5))
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
		got = append(got, resources(join(t, be, perTopic(), long).acquire(64))...)
		slices.Sort(got)
		equalSlices(t, "granted", got, topics)
	}},
	{"Register/Refuses_another_unit_of_ownership", func(t testing.TB, f Factory) {
		be := f.New(t)
		a := join(t, be, perTopic(), long).register("x")
		g := a.acquireOne()
		for _, per := range []backend.Per{backend.PerGroup, backend.PerPartition} {
			err := f.Again(t, be).Register(t.Context(), backend.ConsumerInfo{Name: a.info.Name, Per: per, Topics: []string{"*"}}, nil)
			if err == nil || !strings.Contains(err.Error(), "topic") || !strings.Contains(err.Error(), per.String()) {
				t.Fatalf("per=topic became per=%s: %v", per, err)
			}
		}
		a.commit(backend.Progress{Ref: g.Ref})
		equal(t, "resources", a.survey().Resources, 1)
	}},
	{"Release/Of_a_dead_session_takes_nothing_from_the_next_owner", func(t testing.TB, f Factory) {
		be := f.New(t)
		a := join(t, be, perTopic(), long).register("x")
		g := a.acquireOne()
		ok(t, a.sess.Close(t.Context()))
		next := join(t, f.Again(t, be), perTopic(), long).acquireOne()
		for range 2 {
			for _, ref := range []backend.Ref{g.Ref, next.Ref} {
				if err := be.Release(t.Context(), a.id, "c", []backend.Ref{ref}); err != nil && !errors.Is(err, backend.ErrSessionLost) {
					t.Fatal(err)
				}
			}
		}
		equal(t, "free", a.survey().Free, 0)
	}},
	{"Release/Frees_at_once_and_can_be_repeated", func(t testing.TB, f Factory) {
		be := f.New(t)
		a := join(t, be, perTopic(), long).register("x")
		b := join(t, f.Again(t, be), perTopic(), long)
		g := a.acquireOne()
		a.release(g.Ref)
		a.release(g.Ref)
		equalSlices(t, "commit after release", a.tryCommit(backend.Progress{Ref: g.Ref}), []string{"x"})
		got := b.acquireOne()
		equal(t, "suspicion", got.Suspicion, 0)
		a.release(g.Ref)
		b.commit(backend.Progress{Ref: got.Ref})
	}},
	{"Release/Passes_over_what_is_not_held", func(t testing.TB, f Factory) {
		be := f.New(t)
		a := join(t, be, perTopic(), long).register("x")
		b := join(t, f.Again(t, be), perTopic(), long)
		b.release(backend.Ref{Resource: "x", Epoch: 1}, backend.Ref{Resource: "unknown", Epoch: 1})
		g := a.acquireOne()
		b.release(g.Ref) // right epoch, another's lease
		a.commit(backend.Progress{Ref: g.Ref})
		a.release(backend.Ref{Resource: "x", Epoch: g.Epoch - 1}) // own lease, old epoch
		a.commit(backend.Progress{Ref: g.Ref})
		equal(t, "free", a.survey().Free, 0)
	}},
	{"Owned/Lists_what_a_session_owns", func(t testing.TB, f Factory) {
		be := f.New(t)
		a := join(t, be, perTopic(), long).register("1", "2", "3", "4", "5")
		b := join(t, f.Again(t, be), perTopic(), long)
		owned := func(h *holder) []string {
			t.Helper()
			refs := must[[]backend.Ref](t)(h.be.Owned(t.Context(), h.id, h.info.Name))
			var names []string
			var ps []backend.Progress
			for _, r := range refs {
				names, ps = append(names, r.Resource), append(ps, backend.Progress{Ref: r})
			}
			equal(t, "fenced, of those listed", len(h.tryCommit(ps...)), 0)
			slices.Sort(names)
			return slices.Compact(names) // one may be named twice
		}
		equal(t, "before anything", len(owned(a)), 0)
		gs := a.acquire(3)
		b.acquire(1)
		equalSlices(t, "owned by a", owned(a), resources(gs))
		equal(t, "owned by b", len(owned(b)), 1)
		a.release(gs[1].Ref)
		equalSlices(t, "owned by a", owned(a), resources([]backend.Grant{gs[0], gs[2]}))
		b.acquire(2)
		equal(t, "owned by b", len(owned(b)), 3)
		equal(t, "of another consumer", len(must[[]backend.Ref](t)(be.Owned(t.Context(), a.id, "unknown"))), 0)
	}},
	{"Survey/Counts_resources_free_and_owned", func(t testing.TB, f Factory) {
		be := f.New(t)
		a := join(t, be, perTopic(), long).register("1", "2", "3", "4", "5")
		b := join(t, f.Again(t, be), perTopic(), long)
		a.acquire(3)
		b.acquire(1)
		s := a.survey()
		equal(t, "resources", s.Resources, 5)
		equal(t, "free", s.Free, 1)
		owned := map[string]int{}
		for _, m := range s.Members {
			owned[m.Session] = m.Owned
		}
		equal(t, "owned by a", owned[a.id], 3)
		equal(t, "owned by b", owned[b.id], 1)
		if !slices.IsSortedFunc(s.Members, func(a, b backend.Member) int { return cmpString(a.Session, b.Session) }) {
			t.Fatalf("members are not ordered by session id: %v", s.Members)
		}
	}},
	{"Survey/Counts_leases_of_an_expired_session_as_free", func(t testing.TB, f Factory) {
		be := f.New(t)
		a := join(t, be, perTopic(), short).register("1", "2")
		a.acquire(2)
		equal(t, "free while owned", a.survey().Free, 0)
		b := join(t, be, perTopic(), long)
		eventually(t, "both are free", func() bool { return b.survey().Free == 2 })
	}},
}

package leasetest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

var commitChecks = []check{
	{"Commit/Moves_the_cursor_for_the_next_owner", func(t testing.TB, f Factory) {
		be := f.New(t)
		publish(t, be, events("x", 5)...)
		a := join(t, be, perTopic(), long).register("x")
		b := join(t, f.Again(t, be), perTopic(), long)
		g := a.acquireOne()
		got := a.fetch("x", g.Cursor, 5)
		a.commit(backend.Progress{Ref: g.Ref, Cursor: got.Cut(3)})
		a.commit(backend.Progress{Ref: g.Ref}) // a nil cursor leaves it
		a.release(g.Ref)
		g = b.acquireOne()
		equalSlices(t, "left", ids(b.fetch("x", g.Cursor, 9).Messages), ids(got.Messages[3:]))
	}},
	{"Commit/Fenced_changes_nothing", func(t testing.TB, f Factory) {
		be := f.New(t)
		publish(t, be, events("x", 6)...)
		a := join(t, be, perTopic(), long).register("x")
		b := join(t, f.Again(t, be), perTopic(), long)
		old := a.acquireOne()
		got := a.fetch("x", old.Cursor, 6)
		id := ids(got.Messages)
		a.commit(backend.Progress{Ref: old.Ref, Cursor: got.Cut(2), Park: []backend.Park{{ID: id[0], Lane: "k", Attempt: 1, Error: "e"}}})
		a.release(old.Ref)
		g := b.acquireOne()
		b.commit(backend.Progress{Ref: g.Ref, Mark: id[3]})
		equalSlices(t, "fenced", a.tryCommit(backend.Progress{
			Ref: old.Ref, Cursor: got.Next,
			Park: []backend.Park{{ID: id[2], Lane: "l", Attempt: 1, Error: "e"}, {ID: id[0], Lane: "k", Attempt: 9, After: long, Error: "e"}},
			Done: []string{id[0]},
			Dead: []backend.Dead{{ID: id[4], Attempt: 1, Reason: "r"}, {ID: id[0], Attempt: 1, Reason: "r"}},
			Mark: id[5], Trust: true,
		}), []string{"x"})
		p := b.parked()
		equalSlices(t, "parked", parkedIDs(p.Messages), id[:1])
		equal(t, "its attempt", p.Messages[0].Attempt, 1)
		equal(t, "dead letters", len(b.deadLetters()), 0)
		b.release(g.Ref)
		g = b.acquireOne()
		equalSlices(t, "lanes", g.Lanes, []string{"k"})
		equalSlices(t, "left", ids(b.fetch("x", g.Cursor, 9).Messages), id[2:])
	}},
	{"Commit/Fences_entry_by_entry", func(t testing.TB, f Factory) {
		be := f.New(t)
		publish(t, be, append(append(events("1", 1), events("2", 1)...), events("3", 1)...)...)
		a := join(t, be, perTopic(), long).register("1", "2", "3")
		b := join(t, be, perTopic(), long)
		gs := a.acquire(3)
		slices.SortFunc(gs, func(a, b backend.Grant) int { return cmpString(a.Resource, b.Resource) })
		a.release(gs[1].Ref)
		b.acquireOne()
		var ps []backend.Progress
		for _, g := range gs {
			ps = append(ps, backend.Progress{Ref: g.Ref, Cursor: a.fetch(g.Resource, g.Cursor, 9).Next})
		}
		ps = append(ps, backend.Progress{Ref: backend.Ref{Resource: "unknown", Epoch: 1}})
		fenced := a.tryCommit(ps...)
		slices.Sort(fenced)
		equalSlices(t, "fenced", fenced, []string{"2", "unknown"})
		a.release(gs[0].Ref, gs[2].Ref)
		for _, g := range a.acquire(2) {
			equal(t, "left on "+g.Resource, len(a.fetch(g.Resource, g.Cursor, 9).Messages), 0)
		}
	}},
	{"Commit/Is_fenced_when_the_lease_was_lost_and_regained", func(t testing.TB, f Factory) {
		be := f.New(t)
		publish(t, be, events("x", 2)...)
		a := join(t, be, perTopic(), long).register("x")
		old := a.acquireOne()
		got := a.fetch("x", old.Cursor, 9)
		a.release(old.Ref)
		g := a.acquireOne()
		equalSlices(t, "fenced", a.tryCommit(backend.Progress{Ref: old.Ref, Cursor: got.Next}), []string{"x"})
		a.commit(backend.Progress{Ref: g.Ref})
		equal(t, "left", len(a.fetch("x", g.Cursor, 9).Messages), 2)
	}},
	{"Commit/Is_fenced_after_a_takeover_from_a_crashed_session", func(t testing.TB, f Factory) {
		be := f.New(t)
		publish(t, be, events("x", 2)...)
		a := join(t, be, perTopic(), short).register("x")
		old := a.acquireOne()
		got := a.fetch("x", old.Cursor, 9)
		b := join(t, f.Again(t, be), perTopic(), long)
		g := b.takeOver()
		if fenced, err := be.Commit(t.Context(), a.id, "c", []backend.Progress{{Ref: old.Ref, Cursor: got.Next}}); err == nil && !slices.Equal(fenced, []string{"x"}) {
			t.Fatal("the commit of a session that crashed and was taken over from went through")
		}
		// A stolen session id does not help either, nor does the right epoch without it.
		equalSlices(t, "another's epoch", a.fencedOrLost(backend.Progress{Ref: g.Ref, Cursor: got.Next}), []string{"x"})
		equal(t, "left", len(b.fetch("x", g.Cursor, 9).Messages), 2)
		b.commit(backend.Progress{Ref: g.Ref})
	}},
	{"Commit/Can_be_repeated", func(t testing.TB, f Factory) {
		be := f.New(t)
		publish(t, be, events("x", 4)...)
		a := join(t, be, perTopic(), long).register("x")
		g := a.acquireOne()
		got := a.fetch("x", g.Cursor, 9)
		id := ids(got.Messages)
		first := backend.Progress{
			Ref: g.Ref, Cursor: got.Next,
			Park: []backend.Park{{ID: id[0], Lane: "k", Attempt: 1, Error: "e"}, {ID: id[1], Lane: "k"}},
			Dead: []backend.Dead{{ID: id[2], Attempt: 1, Reason: "r"}},
		}
		a.commit(first)
		a.commit(first)
		p := a.parked()
		equalSlices(t, "parked", parkedIDs(p.Messages), id[:2])
		equal(t, "dead letters", len(a.deadLetters()), 1)
		second := backend.Progress{Ref: g.Ref, Done: id[:1], Dead: []backend.Dead{{ID: id[1], Attempt: 2, Reason: "r"}}}
		a.commit(second)
		a.commit(second)
		equal(t, "parked", len(a.parked().Messages), 0)
		equal(t, "dead letters", len(a.deadLetters()), 2)
	}},
	{"Commit/Counts_marks_over_owners_until_they_are_cleared", func(t testing.TB, f Factory) {
		be := f.New(t)
		publish(t, be, events("x", 2)...)
		a := join(t, be, perTopic(), long).register("x")
		for owners := 1; owners <= 3; owners++ {
			eventually(t, "the lease is free", func() bool { return a.survey().Free == 1 })
			h := join(t, be, perTopic(), short)
			g := h.acquireOne()
			equal(t, "mark count", g.MarkCount, owners-1)
			equal(t, "suspicion", g.Suspicion, owners-1)
			h.commit(backend.Progress{Ref: g.Ref, Mark: "1"})
		}
		g := a.takeOver()
		equal(t, "mark", g.Mark, "1")
		equal(t, "mark count", g.MarkCount, 3)
		equal(t, "suspicion", g.Suspicion, 3)
		a.commit(backend.Progress{Ref: g.Ref, Mark: "2"})
		a.release(g.Ref)
		g = a.acquireOne()
		equal(t, "another mark", g.Mark, "2")
		equal(t, "its count", g.MarkCount, 1)
		equal(t, "suspicion after a release", g.Suspicion, 3)
		a.commit(backend.Progress{Ref: g.Ref, Trust: true})
		a.release(g.Ref)
		g = a.acquireOne()
		equal(t, "mark after progress", g.Mark, "")
		equal(t, "suspicion after trust", g.Suspicion, 0)
	}},
}

// fencedOrLost commits; a lost session counts as fenced.
func (h *holder) fencedOrLost(p backend.Progress) []string {
	h.t.Helper()
	fenced, err := h.be.Commit(h.t.Context(), h.id, h.info.Name, []backend.Progress{p})
	if err != nil {
		wantLost(h.t, "commit", err)
		return []string{p.Resource}
	}
	return fenced
}

// laned publishes n messages on x, acquires it and passes them.
func laned(t testing.TB, be backend.Backend, n int) (*holder, backend.Grant, []string) {
	t.Helper()
	publish(t, be, events("x", n)...)
	a := join(t, be, perTopic(), long).register("x")
	g := a.acquireOne()
	got := a.fetch("x", g.Cursor, n)
	a.commit(backend.Progress{Ref: g.Ref, Cursor: got.Next})
	return a, g, ids(got.Messages)
}

var parkedChecks = []check{
	{"Parked/Comes_lane_by_lane_in_order", func(t testing.TB, f Factory) {
		be := f.New(t)
		a, g, id := laned(t, be, 6)
		a.commit(backend.Progress{Ref: g.Ref, Park: []backend.Park{
			{ID: id[0], Lane: "a", Attempt: 1, Error: "e"}, {ID: id[1], Lane: "b", Attempt: 2, Error: "e"}, {ID: id[2], Lane: "a"},
		}})
		a.commit(backend.Progress{Ref: g.Ref, Park: []backend.Park{{ID: id[3], Lane: "a"}, {ID: id[4], Lane: "b"}}})
		p := a.parked()
		var lanes = map[string][]string{}
		var order []string
		for i, m := range p.Messages {
			if i == 0 || order[len(order)-1] != m.Lane {
				order = append(order, m.Lane)
			}
			lanes[m.Lane] = append(lanes[m.Lane], m.ID)
			equal(t, "resource", m.Resource, "x")
			equal(t, "last of lane "+m.Lane, m.Last, len(lanes[m.Lane]) == map[string]int{"a": 3, "b": 2}[m.Lane])
			if len(m.Payload) == 0 || m.Kind != "order" || m.Topic != "x" {
				t.Fatalf("a parked message lost its content: %+v", m)
			}
		}
		equal(t, "runs of one lane", len(order), 2)
		equalSlices(t, "lane a", lanes["a"], []string{id[0], id[2], id[3]})
		equalSlices(t, "lane b", lanes["b"], []string{id[1], id[4]})
		equal(t, "attempt of b", p.Messages[slices.IndexFunc(p.Messages, func(m backend.ParkedMessage) bool { return m.ID == id[1] })].Attempt, 2)
		equal(t, "more", p.More, false)
		if p.Next >= 0 {
			t.Fatalf("everything is due, but Next is %v", p.Next)
		}
		a.release(g.Ref)
		equalSlices(t, "lanes of the grant", slices.Sorted(slices.Values(a.acquireOne().Lanes)), []string{"a", "b"})
	}},
	{"Parked/Waits_until_its_head_is_due", func(t testing.TB, f Factory) {
		be := f.New(t)
		a, g, id := laned(t, be, 3)
		const wait = 600 * time.Millisecond
		sent := time.Now()
		a.commit(backend.Progress{Ref: g.Ref, Park: []backend.Park{
			{ID: id[0], Lane: "k", Attempt: 1, After: wait, Error: "e"}, {ID: id[1], Lane: "k"}, {ID: id[2], Lane: "far", Attempt: 1, After: long, Error: "e"},
		}})
		p := a.parked()
		if time.Since(sent) < wait {
			equal(t, "due already", len(p.Messages), 0)
			if p.Next <= 0 || p.Next > wait {
				t.Fatalf("Next is %v, want up to %v", p.Next, wait)
			}
		}
		eventually(t, "the lane is due", func() bool { p = a.parked(); return len(p.Messages) > 0 })
		if took := time.Since(sent); took < wait {
			t.Fatalf("due %v after it was parked for %v", took, wait)
		}
		equalSlices(t, "due", parkedIDs(p.Messages), id[:2])
		if p.Next <= wait || p.Next > long {
			t.Fatalf("Next is %v, want the far lane's", p.Next)
		}
	}},
	{"Parked/Is_updated_in_its_place", func(t testing.TB, f Factory) {
		be := f.New(t)
		a, g, id := laned(t, be, 2)
		a.commit(backend.Progress{Ref: g.Ref, Park: []backend.Park{{ID: id[0], Lane: "k", Attempt: 1, Error: "e"}, {ID: id[1], Lane: "k"}}})
		a.commit(backend.Progress{Ref: g.Ref, Park: []backend.Park{{ID: id[0], Lane: "k", Attempt: 2, Error: "e"}}})
		p := a.parked()
		equalSlices(t, "order", parkedIDs(p.Messages), id)
		equal(t, "attempt", p.Messages[0].Attempt, 2)
		equal(t, "attempt of the one behind", p.Messages[1].Attempt, 0)
		a.commit(backend.Progress{Ref: g.Ref, Park: []backend.Park{{ID: id[0], Lane: "k", Attempt: 3, After: long, Error: "e"}}})
		equal(t, "due behind a head that waits", len(a.parked().Messages), 0)
	}},
	{"Parked/Limit_cuts_it_short", func(t testing.TB, f Factory) {
		be := f.New(t)
		a, g, id := laned(t, be, 5)
		var ps []backend.Park
		for _, i := range id {
			ps = append(ps, backend.Park{ID: i, Lane: "k"})
		}
		a.commit(backend.Progress{Ref: g.Ref, Park: ps})
		req := backend.ParkedRequest{Session: a.id, Consumer: a.info, Limit: 2, MaxPayload: roomy}
		p := must[backend.Parked](t)(be.FetchParked(t.Context(), req))
		equalSlices(t, "first", parkedIDs(p.Messages), id[:2])
		equal(t, "more", p.More, true)
		equal(t, "last", p.Messages[1].Last, false)
		a.commit(backend.Progress{Ref: g.Ref, Done: id[:2]})
		req.Limit = 3
		p = must[backend.Parked](t)(be.FetchParked(t.Context(), req))
		equalSlices(t, "rest", parkedIDs(p.Messages), id[2:])
		equal(t, "more", p.More, false)
		equal(t, "last", p.Messages[2].Last, true)
	}},
	{"Parked/Is_read_of_the_resources_asked_for_and_so_much_of_each", func(t testing.TB, f Factory) {
		be := f.New(t)
		for _, topic := range []string{"a", "b", "c"} {
			for i := range 4 {
				publish(t, be, event(topic, fmt.Sprint("k", i%2), i))
			}
		}
		a := join(t, be, perTopic(), long).register("a", "b", "c")
		for _, g := range a.acquire(3) {
			var ps []backend.Park
			for _, m := range a.fetch(g.Resource, g.Cursor, 9).Messages {
				ps = append(ps, backend.Park{ID: m.ID, Lane: m.Key, Attempt: 1, Error: "e"})
			}
			a.commit(backend.Progress{Ref: g.Ref, Park: ps})
		}
		read := func(req backend.ParkedRequest) (backend.Parked, string) {
			req.Session, req.Consumer, req.MaxPayload = a.id, a.info, roomy
			p := must[backend.Parked](t)(be.FetchParked(t.Context(), req))
			n := map[string]int{}
			for _, m := range p.Messages {
				n[m.Resource]++
			}
			return p, fmt.Sprint(n)
		}
		_, n := read(backend.ParkedRequest{Limit: 100})
		equal(t, "all", n, "map[a:4 b:4 c:4]")
		_, n = read(backend.ParkedRequest{Limit: 100, Resources: []string{"b"}})
		equal(t, "one asked for", n, "map[b:4]")
		_, n = read(backend.ParkedRequest{Limit: 100, Exclude: []string{"b", "c"}})
		equal(t, "two left out", n, "map[a:4]")
		p, n := read(backend.ParkedRequest{Limit: 100, PerResource: 3})
		equal(t, "three of each", n, "map[a:3 b:3 c:3]")
		equal(t, "more", p.More, true)
		p, n = read(backend.ParkedRequest{Limit: 100, PerResource: 2, Resources: []string{"a"}})
		equal(t, "two of one", n, "map[a:2]")
		equal(t, "the last of their lane", p.Messages[1].Last, true)
	}},
	{"Parked/Is_removed_by_Done_and_by_Dead", func(t testing.TB, f Factory) {
		be := f.New(t)
		a, g, id := laned(t, be, 2)
		a.commit(backend.Progress{Ref: g.Ref, Park: []backend.Park{{ID: id[0], Lane: "a", Attempt: 1, Error: "e"}, {ID: id[1], Lane: "b", Attempt: 1, Error: "e"}}})
		a.commit(backend.Progress{Ref: g.Ref, Done: id[:1], Dead: []backend.Dead{{ID: id[1], Attempt: 2, Reason: "gave up"}}})
		equal(t, "parked", len(a.parked().Messages), 0)
		d := a.deadLetters()
		equal(t, "dead letters", len(d), 1)
		equal(t, "message", d[0].MessageID, id[1])
		a.release(g.Ref)
		equal(t, "lanes", len(a.acquireOne().Lanes), 0)
	}},
	{"Parked/Belongs_to_who_owns_the_resource", func(t testing.TB, f Factory) {
		be := f.New(t)
		a, g, id := laned(t, be, 1)
		b := join(t, f.Again(t, be), perTopic(), long)
		a.commit(backend.Progress{Ref: g.Ref, Park: []backend.Park{{ID: id[0], Lane: "k", Attempt: 4, Error: "e"}}})
		equal(t, "seen by another", len(b.parked().Messages), 0)
		a.release(g.Ref)
		equal(t, "seen after release", len(a.parked().Messages), 0)
		b.acquireOne()
		p := b.parked()
		equalSlices(t, "seen by the new owner", parkedIDs(p.Messages), id)
		equal(t, "its attempt", p.Messages[0].Attempt, 4)
	}},
	{"Parked/Does_not_load_what_is_larger_than_MaxPayload", func(t testing.TB, f Factory) {
		be := f.New(t)
		a, g, id := laned(t, be, 1)
		a.commit(backend.Progress{Ref: g.Ref, Park: []backend.Park{{ID: id[0], Lane: "k", Attempt: 1, Error: "e"}}})
		p := must[backend.Parked](t)(be.FetchParked(t.Context(), backend.ParkedRequest{Session: a.id, Consumer: a.info, Limit: 9, MaxPayload: 3}))
		equal(t, "messages", len(p.Messages), 1)
		if p.Messages[0].Payload != nil || p.Messages[0].Size <= 3 {
			t.Fatalf("payload %d bytes, size %d", len(p.Messages[0].Payload), p.Messages[0].Size)
		}
	}},
}

package leasetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
)

var commitChecks = []check{
	{"Commit/Moves_the_cursor_for_the_next_owner", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a, g, got := reading(t, be, 5)
		b := join(t, f.Again(t, be), perTopic(), long)
		a.Commits(backend.Progress{Ref: g.Ref, Cursor: got.Cut(3)})
		a.Commits(backend.Progress{Ref: g.Ref}) // a nil cursor leaves it
		a.Releases(g.Ref)
		g = b.Takes()
		equalSlices(t, "left", ids(b.Reads("x", g.Cursor, 9).Messages), ids(got.Messages[3:]))
	})},
	{"Commit/Fenced_changes_nothing", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a, old, got := reading(t, be, 6)
		b := join(t, f.Again(t, be), perTopic(), long)
		id := ids(got.Messages)
		a.Commits(backend.Progress{Ref: old.Ref, Cursor: got.Cut(2), Park: []backend.Park{{ID: id[0], Lane: "k", Attempt: 1, Error: "e"}}})
		a.Releases(old.Ref)
		g := b.Takes()
		b.Commits(backend.Progress{Ref: g.Ref, Mark: id[3]})
		equalSlices(t, "fenced", a.Fenced(backend.Progress{
			Ref: old.Ref, Cursor: got.Next,
			Park: []backend.Park{{ID: id[2], Lane: "l", Attempt: 1, Error: "e"}, {ID: id[0], Lane: "k", Attempt: 9, After: long, Error: "e"}},
			Done: []string{id[0]},
			Dead: []backend.Dead{{ID: id[4], Attempt: 1, Reason: "r"}, {ID: id[0], Attempt: 1, Reason: "r"}},
			Mark: id[5], Trust: true,
		}), []string{"x"})
		p := b.Due()
		equalSlices(t, "parked", parkedIDs(p.Messages), id[:1])
		kit.Equal(t, "its attempt", p.Messages[0].Attempt, 1)
		kit.Equal(t, "dead letters", len(b.Dead()), 0)
		b.Releases(g.Ref)
		g = b.Takes()
		equalSlices(t, "lanes", g.Lanes, []string{"k"})
		equalSlices(t, "left", ids(b.Reads("x", g.Cursor, 9).Messages), id[2:])
	})},
	{"Commit/Fences_entry_by_entry", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		publish(t, be, onEach([]string{"1", "2", "3"}, 1)...)
		a := join(t, be, perTopic(), long).Registers("1", "2", "3")
		b := join(t, be, perTopic(), long)
		gs := a.Acquires(3)
		slices.SortFunc(gs, func(a, b backend.Grant) int { return strings.Compare(a.Resource, b.Resource) })
		a.Releases(gs[1].Ref)
		b.Takes()
		var ps []backend.Progress
		for _, g := range gs {
			ps = append(ps, backend.Progress{Ref: g.Ref, Cursor: a.Reads(g.Resource, g.Cursor, 9).Next})
		}
		ps = append(ps, backend.Progress{Ref: backend.Ref{Resource: "unknown", Epoch: 1}})
		fenced := a.Fenced(ps...)
		slices.Sort(fenced)
		equalSlices(t, "fenced", fenced, []string{"2", "unknown"})
		a.Releases(gs[0].Ref, gs[2].Ref)
		for _, g := range a.Acquires(2) {
			kit.Equal(t, "left on "+g.Resource, len(a.Reads(g.Resource, g.Cursor, 9).Messages), 0)
		}
	})},
	{"Commit/Is_fenced_when_the_lease_was_lost_and_regained", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a, old, got := reading(t, be, 2)
		a.Releases(old.Ref)
		g := a.Takes()
		equalSlices(t, "fenced", a.Fenced(backend.Progress{Ref: old.Ref, Cursor: got.Next}), []string{"x"})
		a.Commits(backend.Progress{Ref: g.Ref})
		kit.Equal(t, "left", len(a.Reads("x", g.Cursor, 9).Messages), 2)
	})},
	{"Commit/Is_fenced_after_a_takeover_from_a_crashed_session", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		publish(t, be, events("x", 2)...)
		a := join(t, be, perTopic(), short).Registers("x")
		old := a.Takes()
		got := a.Reads("x", old.Cursor, 9)
		b := join(t, f.Again(t, be), perTopic(), long)
		g := b.TakesOver()
		if fenced, err := be.Commit(t.Context(), a.ID, "c", []backend.Progress{{Ref: old.Ref, Cursor: got.Next}}); err == nil && !slices.Equal(fenced, []string{"x"}) {
			t.Fatal("the commit of a session that crashed and was taken over from went through")
		}
		// A stolen session id does not help either, nor does the right epoch without it.
		equalSlices(t, "another's epoch", fencedOrLost(a, backend.Progress{Ref: g.Ref, Cursor: got.Next}), []string{"x"})
		kit.Equal(t, "left", len(b.Reads("x", g.Cursor, 9).Messages), 2)
		b.Commits(backend.Progress{Ref: g.Ref})
	})},
	{"Commit/Can_be_repeated", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a, g, got := reading(t, be, 4)
		id := ids(got.Messages)
		first := backend.Progress{
			Ref: g.Ref, Cursor: got.Next,
			Park: []backend.Park{{ID: id[0], Lane: "k", Attempt: 1, Error: "e"}, {ID: id[1], Lane: "k"}},
			Dead: []backend.Dead{{ID: id[2], Attempt: 1, Reason: "r"}},
		}
		a.Commits(first)
		a.Commits(first)
		p := a.Due()
		equalSlices(t, "parked", parkedIDs(p.Messages), id[:2])
		kit.Equal(t, "dead letters", len(a.Dead()), 1)
		second := backend.Progress{Ref: g.Ref, Done: id[:1], Dead: []backend.Dead{{ID: id[1], Attempt: 2, Reason: "r"}}}
		a.Commits(second)
		a.Commits(second)
		kit.Equal(t, "parked", len(a.Due().Messages), 0)
		kit.Equal(t, "dead letters", len(a.Dead()), 2)
	})},
	{"Commit/Counts_marks_over_owners_until_they_are_cleared", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		publish(t, be, events("x", 2)...)
		a := join(t, be, perTopic(), long).Registers("x")
		for owners := 1; owners <= 3; owners++ {
			kit.Eventually(t, "the lease is free", func() bool { return a.Surveys().Free == 1 })
			h := join(t, be, perTopic(), short)
			g := h.Takes()
			kit.Equal(t, "mark count", g.MarkCount, owners-1)
			kit.Equal(t, "suspicion", g.Suspicion, owners-1)
			h.Commits(backend.Progress{Ref: g.Ref, Mark: "1"})
		}
		g := a.TakesOver()
		kit.Equal(t, "mark", g.Mark, "1")
		kit.Equal(t, "mark count", g.MarkCount, 3)
		kit.Equal(t, "suspicion", g.Suspicion, 3)
		a.Commits(backend.Progress{Ref: g.Ref, Mark: "2"})
		a.Releases(g.Ref)
		g = a.Takes()
		kit.Equal(t, "another mark", g.Mark, "2")
		kit.Equal(t, "its count", g.MarkCount, 1)
		kit.Equal(t, "suspicion after a release", g.Suspicion, 3)
		a.Commits(backend.Progress{Ref: g.Ref, Trust: true})
		a.Releases(g.Ref)
		g = a.Takes()
		kit.Equal(t, "mark after progress", g.Mark, "")
		kit.Equal(t, "suspicion after trust", g.Suspicion, 0)
	})},
}

// fencedOrLost commits; a lost session counts as fenced.
func fencedOrLost(h *kit.Actor, p backend.Progress) []string {
	h.T.Helper()
	fenced, err := h.Be.Commit(h.T.Context(), h.ID, h.Info.Name, []backend.Progress{p})
	if err != nil {
		kit.Lost(h.T, "commit", err)
		return []string{p.Resource}
	}
	return fenced
}

// laned publishes n messages on x, acquires it and passes them.
func laned(t testing.TB, be backend.Backend, n int) (*kit.Actor, backend.Grant, []string) {
	t.Helper()
	a, g, got := reading(t, be, n)
	a.Commits(backend.Progress{Ref: g.Ref, Cursor: got.Next})
	return a, g, ids(got.Messages)
}

var parkedChecks = []check{
	{"Parked/Comes_lane_by_lane_in_order", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a, g, id := laned(t, be, 6)
		a.Commits(backend.Progress{Ref: g.Ref, Park: []backend.Park{
			{ID: id[0], Lane: "a", Attempt: 1, Error: "e"}, {ID: id[1], Lane: "b", Attempt: 2, Error: "e"}, {ID: id[2], Lane: "a"},
		}})
		a.Commits(backend.Progress{Ref: g.Ref, Park: []backend.Park{{ID: id[3], Lane: "a"}, {ID: id[4], Lane: "b"}}})
		p := a.Due()
		var lanes = map[string][]string{}
		var order []string
		for i, m := range p.Messages {
			if i == 0 || order[len(order)-1] != m.Lane {
				order = append(order, m.Lane)
			}
			lanes[m.Lane] = append(lanes[m.Lane], m.ID)
			kit.Equal(t, "resource", m.Resource, "x")
			kit.Equal(t, "last of lane "+m.Lane, m.Last, len(lanes[m.Lane]) == map[string]int{"a": 3, "b": 2}[m.Lane])
			if len(m.Payload) == 0 || m.Kind != "order" || m.Topic != "x" {
				t.Fatalf("a parked message lost its content: %+v", m)
			}
		}
		kit.Equal(t, "runs of one lane", len(order), 2)
		equalSlices(t, "lane a", lanes["a"], []string{id[0], id[2], id[3]})
		equalSlices(t, "lane b", lanes["b"], []string{id[1], id[4]})
		kit.Equal(t, "attempt of b", p.Messages[slices.IndexFunc(p.Messages, func(m backend.ParkedMessage) bool { return m.ID == id[1] })].Attempt, 2)
		kit.Equal(t, "more", p.More, false)
		if p.Next >= 0 {
			t.Fatalf("everything is due, but Next is %v", p.Next)
		}
		a.Releases(g.Ref)
		equalSlices(t, "lanes of the grant", slices.Sorted(slices.Values(a.Takes().Lanes)), []string{"a", "b"})
	})},
	{"Parked/Waits_until_its_head_is_due", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a, g, id := laned(t, be, 3)
		const wait = 600 * time.Millisecond
		sent := time.Now()
		a.Commits(backend.Progress{Ref: g.Ref, Park: []backend.Park{
			{ID: id[0], Lane: "k", Attempt: 1, After: wait, Error: "e"}, {ID: id[1], Lane: "k"}, {ID: id[2], Lane: "far", Attempt: 1, After: long, Error: "e"},
		}})
		p := a.Due()
		if time.Since(sent) < wait {
			kit.Equal(t, "due already", len(p.Messages), 0)
			if p.Next <= 0 || p.Next > wait {
				t.Fatalf("Next is %v, want up to %v", p.Next, wait)
			}
		}
		kit.Eventually(t, "the lane is due", func() bool { p = a.Due(); return len(p.Messages) > 0 })
		if took := time.Since(sent); took < wait {
			t.Fatalf("due %v after it was parked for %v", took, wait)
		}
		equalSlices(t, "due", parkedIDs(p.Messages), id[:2])
		if p.Next <= wait || p.Next > long {
			t.Fatalf("Next is %v, want the far lane's", p.Next)
		}
	})},
	{"Parked/Is_due_or_announced_at_every_moment", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a, g, id := laned(t, be, 1)
		for range 50 {
			a.Commits(backend.Progress{Ref: g.Ref, Park: []backend.Park{{ID: id[0], Lane: "k", Attempt: 1, After: 3 * time.Millisecond, Error: "e"}}})
			kit.Eventually(t, "it is due", func() bool {
				p := a.Due()
				if len(p.Messages) == 0 && p.Next < 0 {
					t.Fatal("a message that waits is neither due nor announced: the runtime would look for it in seconds")
				}
				return len(p.Messages) == 1
			})
		}
	})},
	{"Parked/Is_updated_in_its_place", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a, g, id := laned(t, be, 2)
		a.Commits(backend.Progress{Ref: g.Ref, Park: []backend.Park{{ID: id[0], Lane: "k", Attempt: 1, Error: "e"}, {ID: id[1], Lane: "k"}}})
		a.Commits(backend.Progress{Ref: g.Ref, Park: []backend.Park{{ID: id[0], Lane: "k", Attempt: 2, Error: "e"}}})
		p := a.Due()
		equalSlices(t, "order", parkedIDs(p.Messages), id)
		kit.Equal(t, "attempt", p.Messages[0].Attempt, 2)
		kit.Equal(t, "attempt of the one behind", p.Messages[1].Attempt, 0)
		a.Commits(backend.Progress{Ref: g.Ref, Park: []backend.Park{{ID: id[0], Lane: "k", Attempt: 3, After: long, Error: "e"}}})
		kit.Equal(t, "due behind a head that waits", len(a.Due().Messages), 0)
	})},
	{"Parked/Limit_cuts_it_short", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a, g, id := laned(t, be, 5)
		a.Commits(backend.Progress{Ref: g.Ref, Park: each(id, func(id string) backend.Park { return backend.Park{ID: id, Lane: "k"} })})
		req := backend.ParkedRequest{Session: a.ID, Consumer: a.Info, Limit: 2, MaxPayload: kit.Roomy}
		p := kit.Must[backend.Parked](t)(be.FetchParked(t.Context(), req))
		equalSlices(t, "first", parkedIDs(p.Messages), id[:2])
		kit.Equal(t, "more", p.More, true)
		kit.Equal(t, "last", p.Messages[1].Last, false)
		a.Commits(backend.Progress{Ref: g.Ref, Done: id[:2]})
		req.Limit = 3
		p = kit.Must[backend.Parked](t)(be.FetchParked(t.Context(), req))
		equalSlices(t, "rest", parkedIDs(p.Messages), id[2:])
		kit.Equal(t, "more", p.More, false)
		kit.Equal(t, "last", p.Messages[2].Last, true)
	})},
	{"Parked/Is_read_of_the_resources_asked_for_and_so_much_of_each", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		for _, topic := range []string{"a", "b", "c"} {
			for i := range 4 {
				publish(t, be, event(topic, fmt.Sprint("k", i%2), i))
			}
		}
		a := join(t, be, perTopic(), long).Registers("a", "b", "c")
		for _, g := range a.Acquires(3) {
			var ps []backend.Park
			for _, m := range a.Reads(g.Resource, g.Cursor, 9).Messages {
				ps = append(ps, backend.Park{ID: m.ID, Lane: m.Key, Attempt: 1, Error: "e"})
			}
			a.Commits(backend.Progress{Ref: g.Ref, Park: ps})
		}
		read := func(req backend.ParkedRequest) (backend.Parked, string) {
			req.Session, req.Consumer, req.MaxPayload = a.ID, a.Info, kit.Roomy
			p := kit.Must[backend.Parked](t)(be.FetchParked(t.Context(), req))
			return p, fmt.Sprint(counts(each(p.Messages, func(m backend.ParkedMessage) string { return m.Resource })))
		}
		_, n := read(backend.ParkedRequest{Limit: 100})
		kit.Equal(t, "all", n, "map[a:4 b:4 c:4]")
		_, n = read(backend.ParkedRequest{Limit: 100, Resources: []string{"b"}})
		kit.Equal(t, "one asked for", n, "map[b:4]")
		_, n = read(backend.ParkedRequest{Limit: 100, Exclude: []string{"b", "c"}})
		kit.Equal(t, "two left out", n, "map[a:4]")
		p, n := read(backend.ParkedRequest{Limit: 100, PerResource: 3})
		kit.Equal(t, "three of each", n, "map[a:3 b:3 c:3]")
		kit.Equal(t, "more", p.More, true)
		p, n = read(backend.ParkedRequest{Limit: 100, PerResource: 2, Resources: []string{"a"}})
		kit.Equal(t, "two of one", n, "map[a:2]")
		kit.Equal(t, "the last of their lane", p.Messages[1].Last, true)
	})},
	{"Parked/Is_removed_by_Done_and_by_Dead", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a, g, id := laned(t, be, 2)
		a.Commits(backend.Progress{Ref: g.Ref, Park: []backend.Park{{ID: id[0], Lane: "a", Attempt: 1, Error: "e"}, {ID: id[1], Lane: "b", Attempt: 1, Error: "e"}}})
		a.Commits(backend.Progress{Ref: g.Ref, Done: id[:1], Dead: []backend.Dead{{ID: id[1], Attempt: 2, Reason: "gave up"}}})
		kit.Equal(t, "parked", len(a.Due().Messages), 0)
		d := a.Dead()
		kit.Equal(t, "dead letters", len(d), 1)
		kit.Equal(t, "message", d[0].MessageID, id[1])
		a.Releases(g.Ref)
		kit.Equal(t, "lanes", len(a.Takes().Lanes), 0)
	})},
	{"Parked/Belongs_to_who_owns_the_resource", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a, g, id := laned(t, be, 1)
		b := join(t, f.Again(t, be), perTopic(), long)
		a.Commits(backend.Progress{Ref: g.Ref, Park: []backend.Park{{ID: id[0], Lane: "k", Attempt: 4, Error: "e"}}})
		kit.Equal(t, "seen by another", len(b.Due().Messages), 0)
		a.Releases(g.Ref)
		kit.Equal(t, "seen after release", len(a.Due().Messages), 0)
		b.Takes()
		p := b.Due()
		equalSlices(t, "seen by the new owner", parkedIDs(p.Messages), id)
		kit.Equal(t, "its attempt", p.Messages[0].Attempt, 4)
	})},
	{"Parked/Does_not_load_what_is_larger_than_MaxPayload", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a, g, id := laned(t, be, 1)
		a.Commits(backend.Progress{Ref: g.Ref, Park: []backend.Park{{ID: id[0], Lane: "k", Attempt: 1, Error: "e"}}})
		p := kit.Must[backend.Parked](t)(be.FetchParked(t.Context(), backend.ParkedRequest{Session: a.ID, Consumer: a.Info, Limit: 9, MaxPayload: 3}))
		kit.Equal(t, "messages", len(p.Messages), 1)
		if p.Messages[0].Payload != nil || p.Messages[0].Size <= 3 {
			t.Fatalf("payload %d bytes, size %d", len(p.Messages[0].Payload), p.Messages[0].Size)
		}
	})},
}

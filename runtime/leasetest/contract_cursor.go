package leasetest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/operate"
)

// fromNow is info for a consumer that begins in the present.
func fromNow(info backend.ConsumerInfo) backend.ConsumerInfo {
	info.From = backend.FromNow
	return info
}

// everything acquires all resources and reads what there is for the consumer.
func everything(h *kit.Actor) (all []string) {
	h.T.Helper()
	for _, g := range h.Acquires(1 << 20) {
		all = append(all, payloads(pass(h, g))...)
	}
	return all
}

// cursors skips what a backend without the operator's cursors cannot do. It gives the
// operator, an owner of topic x that has passed two of its five messages, its lease, and
// the ids of all.
func cursors(run func(t testing.TB, op operate.Operator, a *kit.Actor, g backend.Grant, all []string)) func(testing.TB, Factory) {
	return func(t testing.TB, f Factory) {
		be := f.New(t)
		op := kit.Operator(t, be)
		publish(t, be, events("x", 5)...)
		a := join(t, be, perTopic("x", "y"), long).Registers("x")
		g := a.Takes()
		got := a.Reads("x", g.Cursor, 9)
		a.Commits(backend.Progress{Ref: g.Ref, Cursor: got.Cut(2),
			Park: []backend.Park{{ID: got.Messages[0].ID, Lane: "k", Attempt: 1, Error: "e"}},
			Dead: []backend.Dead{{ID: got.Messages[1].ID, Attempt: 1, Reason: "r"}}})
		run(t, op, a, g, ids(got.Messages))
	}
}

// moved checks that a cursor was moved, that its owner is fenced, and that the next owner
// reads want.
func moved(t testing.TB, op operate.Operator, a *kit.Actor, g backend.Grant, to operate.CursorTarget, want []string) {
	t.Helper()
	late := a.Reads("x", g.Cursor, 9)
	kit.Equal(t, "moved", kit.Must[int](t)(op.SetCursor(t.Context(), "c", "x", to)), 1)
	equalSlices(t, "commit of the owner before", a.Fenced(backend.Progress{Ref: g.Ref, Cursor: late.Next}), []string{"x"})
	a.Releases(g.Ref)
	again := a.Takes()
	rises(t, again, g)
	kit.Equal(t, "suspicion", again.Suspicion, 0)
	equalSlices(t, "read", ids(a.Reads("x", again.Cursor, 9).Messages), want)
}

var cursorChecks = []check{
	{"From/Now_passes_over_what_is_there", func(t testing.TB, f Factory) {
		for _, info := range []backend.ConsumerInfo{perTopic(), perGroup("*"), perPartition(), perStream()} {
			be := f.New(t)
			if be.Capabilities().Streams == nil && info.Per == backend.PerStream {
				continue
			}
			publish(t, be, event("x", "a", 1), event("x", "a", 2), event("z", "c", 1))
			a := join(t, be, fromNow(info), long)
			kit.OK(t, be.Register(t.Context(), a.Info, nil))
			publish(t, be, event("x", "a", 3), event("y", "b", 4))
			// Another replica that comes later moves no cursor; what appeared since is read from its beginning.
			again := f.Again(t, be)
			kit.OK(t, again.Register(t.Context(), a.Info, nil))
			publish(t, be, event("x", "a", 5))
			kit.OK(t, again.Register(t.Context(), a.Info, nil))
			if got := everything(a); len(got) != 3 {
				t.Fatalf("%s: read %v, want what was published after it began", info.Per, got)
			}
		}
	}},
	{"From/Now_counts_for_the_first_time_only", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		publish(t, be, events("x", 3)...)
		kit.OK(t, be.Register(t.Context(), perTopic("x"), nil))
		a := join(t, be, fromNow(perTopic("x")), long)
		kit.OK(t, f.Again(t, be).Register(t.Context(), a.Info, nil))
		kit.Equal(t, "read", len(everything(a)), 3)
	})},
	{"From/Beginning_reads_what_is_there", func(t testing.TB, f Factory) {
		for _, info := range []backend.ConsumerInfo{perTopic(), perGroup("*"), perPartition()} {
			be := f.New(t)
			publish(t, be, events("x", 3, "a", "b")...)
			a := join(t, be, info, long)
			kit.OK(t, be.Register(t.Context(), a.Info, nil))
			kit.Equal(t, info.Per.String(), len(everything(a)), 3)
		}
	}},
	{"Commit/Older_progress_changes_nothing_and_is_not_fenced", func(t testing.TB, f Factory) { olderProgress(t, f.New(t), false) }},
	{"Commit/Older_progress_beside_newer_changes_nothing_and_is_not_fenced", func(t testing.TB, f Factory) { olderProgress(t, f.New(t), true) }},
	{"Cursor/Shows_how_far_consumers_have_got", cursors(func(t testing.TB, op operate.Operator, a *kit.Actor, g backend.Grant, all []string) {
		publish(t, a.Be, event("y", "k", 1))
		a.Registers("y")
		time.Sleep(time.Millisecond) // messages have an age
		cs := kit.Must[[]operate.CursorStatus](t)(op.Cursors(t.Context(), "c", "", 9))
		kit.Equal(t, "resources", len(cs), 2)
		for i, want := range []operate.CursorStatus{
			{Resource: "x", Session: a.ID, Epoch: g.Epoch, Position: all[1], Lag: 3}, {Resource: "y", Lag: 1},
		} {
			if cs[i].OldestUnread <= 0 || cs[i].OldestUnread > time.Minute {
				t.Fatalf("the oldest unread message of %s is %v old", cs[i].Resource, cs[i].OldestUnread)
			}
			cs[i].OldestUnread = 0
			kit.Equal(t, "cursor", cs[i], want)
		}
		kit.Equal(t, "of one resource", len(kit.Must[[]operate.CursorStatus](t)(op.Cursors(t.Context(), "c", "y", 9))), 1)
		kit.Equal(t, "at most one", kit.Must[[]operate.CursorStatus](t)(op.Cursors(t.Context(), "c", "", 1))[0].Resource, "x")
	})},
	{"Cursor/Tells_what_the_log_lost", cursors(func(t testing.TB, op operate.Operator, a *kit.Actor, g backend.Grant, all []string) {
		gone := func() string {
			return kit.Must[[]operate.CursorStatus](t)(op.Cursors(t.Context(), "c", "x", 1))[0].Gone
		}
		kit.Equal(t, "gone before", gone(), "")
		r := kit.Must[operate.MaintainReport](t)(a.Be.Maintain(t.Context(), []backend.ConsumerInfo{a.Info}))
		want := "" // a backend may drop more at once only
		if r.SegmentsDropped > 0 {
			want = all[1]
		}
		kit.Equal(t, "gone", gone(), want)
	})},
	{"Cursor/Set_to_the_beginning_fences_and_forgets_failures", cursors(func(t testing.TB, op operate.Operator, a *kit.Actor, g backend.Grant, all []string) {
		moved(t, op, a, g, operate.CursorTarget{Beginning: true}, all)
		kit.Equal(t, "parked", len(a.Due().Messages), 0)
		kit.Equal(t, "dead letters", len(a.Dead()), 0)
	})},
	{"Cursor/Set_to_now_fences_and_keeps_failures", cursors(func(t testing.TB, op operate.Operator, a *kit.Actor, g backend.Grant, all []string) {
		moved(t, op, a, g, operate.CursorTarget{Now: true}, nil)
		equalSlices(t, "parked", parkedIDs(a.Due().Messages), all[:1])
		kit.Equal(t, "dead letters", len(a.Dead()), 1)
	})},
	{"Cursor/Set_after_a_message", cursors(func(t testing.TB, op operate.Operator, a *kit.Actor, g backend.Grant, all []string) {
		moved(t, op, a, g, operate.CursorTarget{After: all[3]}, all[4:])
		equalSlices(t, "parked", parkedIDs(a.Due().Messages), all[:1])
	})},
	{"Cursor/Set_on_all_resources_or_none", cursors(func(t testing.TB, op operate.Operator, a *kit.Actor, g backend.Grant, all []string) {
		publish(t, a.Be, event("y", "k", 1))
		a.Registers("y")
		kit.Equal(t, "moved", kit.Must[int](t)(op.SetCursor(t.Context(), "c", "", operate.CursorTarget{Now: true})), 2)
		kit.Equal(t, "messages left", len(everything(a)), 0)
		kit.Equal(t, "moved of an unknown resource", kit.Must[int](t)(op.SetCursor(t.Context(), "c", "nobody's", operate.CursorTarget{Now: true})), 0)
	})},
	{"Cursor/Refuses_a_target_that_is_none", cursors(func(t testing.TB, op operate.Operator, a *kit.Actor, g backend.Grant, all []string) {
		for _, to := range []operate.CursorTarget{{}, {Beginning: true, Now: true}, {Now: true, After: all[0]}, {After: "no id"}} {
			if n, err := op.SetCursor(t.Context(), "c", "x", to); err == nil {
				t.Fatalf("%+v moved %d cursors", to, n)
			}
		}
		a.Commits(backend.Progress{Ref: g.Ref})
	})},
	{"Cursor/Set_back_makes_a_retired_stream_wanted", streaming(func(t testing.TB, f Factory, be backend.Backend) {
		op := kit.Operator(t, be)
		publish(t, be, events("x", 3, "a", "b", "c")...)
		h := join(t, be, perStream(), long).Registers("a", "b", "c")
		gs := h.Acquires(9)
		for _, g := range gs {
			pass(h, g)
		}
		h.Retires(kit.Refs(gs)...)
		kit.Equal(t, "moved", kit.Must[int](t)(op.SetCursor(t.Context(), "c", "b", operate.CursorTarget{Beginning: true})), 1)
		kit.OK(t, be.Register(t.Context(), h.Info, nil))
		if got := fmt.Sprint(resources(h.Acquires(9))); got != "[b]" {
			t.Fatalf("acquired %s, want [b]", got)
		}
	})},
	{"Cursor/Announced_streams_and_singletons_have_none", streaming(func(t testing.TB, f Factory, be backend.Backend) {
		op := kit.Operator(t, be)
		for info, resource := range map[*backend.ConsumerInfo]string{
			{Name: "imports", Per: backend.PerStream, Announced: true}: "a",
			{Name: "leader", Per: backend.PerCluster}:                  backend.Whole,
		} {
			h := join(t, be, *info, long).Registers(resource)
			g := h.Takes()
			if info.Announced {
				h.Retires(g.Ref) // it has finished
			}
			for _, to := range []operate.CursorTarget{{Beginning: true}, {Now: true}, {After: "1"}} {
				if n, err := op.SetCursor(t.Context(), info.Name, "", to); n != 0 || !errors.Is(err, operate.ErrNoCursor) {
					t.Errorf("%s: %d cursors were moved to %+v, %v", info.Name, n, to, err)
				}
			}
			if shown, err := op.Cursors(t.Context(), info.Name, "", 9); len(shown) > 0 || !errors.Is(err, operate.ErrNoCursor) {
				t.Errorf("%s: cursors %+v, %v", info.Name, shown, err)
			}
			if info.Announced {
				kit.OK(t, be.Register(t.Context(), h.Info, nil))
				streams(h, 0, 0)
			} else {
				h.Commits(backend.Progress{Ref: g.Ref}) // it was not fenced
			}
		}
	})},
}

// olderProgress commits progress of topic x that was held up on its way, alone or beside
// progress of topic y that was not.
func olderProgress(t testing.TB, be backend.Backend, beside bool) {
	t.Helper()
	publish(t, be, events("x", 6)...)
	publish(t, be, events("y", 9)...)
	a, g := sole(t, be)
	got := a.Reads("x", g.Cursor, 9)
	id := func(i int) string { return got.Messages[i].ID }
	commit := func(p backend.Progress) { a.Commits(p) }
	if beside {
		a.Registers("y")
		y := a.Takes()
		other, n := a.Reads("y", y.Cursor, 9), 0
		commit = func(p backend.Progress) {
			n++
			a.Commits(backend.Progress{Ref: y.Ref, Seq: int64(n), Cursor: other.Cut(n), Dead: []backend.Dead{{ID: other.Messages[n-1].ID, Attempt: 1, Reason: "y"}}}, p)
			kit.Equal(t, "messages left on y", len(a.Reads("y", other.Cut(n), 9).Messages), 9-n)
		}
	}
	newer := backend.Progress{Ref: g.Ref, Seq: 7, Cursor: got.Cut(4), Park: []backend.Park{{ID: id(1), Lane: "k", Attempt: 2, After: time.Hour, Error: "e"}}}
	commit(newer)
	commit(newer) // its reply was lost
	commit(backend.Progress{Ref: g.Ref, Seq: 6, Cursor: got.Cut(1), Done: []string{id(1)},
		Park: []backend.Park{{ID: id(0), Lane: "k", Attempt: 1, Error: "late"}}, Dead: []backend.Dead{{ID: id(3), Attempt: 1, Reason: "late"}}})
	for _, d := range a.Dead() {
		kit.Equal(t, "topic of a dead letter", d.Topic, "y")
	}
	a.Releases(g.Ref)
	g2 := a.Takes()
	kit.Equal(t, "messages left", len(a.Reads("x", g2.Cursor, 9).Messages), 2)
	equalSlices(t, "lanes", g2.Lanes, []string{"k"})
	waiting := a.Due()
	if len(waiting.Messages) != 0 || waiting.Next < 30*time.Minute {
		t.Fatalf("parked: %+v", waiting)
	}
	commit(backend.Progress{Ref: g2.Ref, Seq: 1, Cursor: got.Cut(6)}) // numbers begin again with the epoch
	a.Releases(g2.Ref)
	kit.Equal(t, "messages left", len(a.Reads("x", a.Takes().Cursor, 9).Messages), 0)
	if beside {
		kit.Equal(t, "dead letters of y", len(a.Dead()), 4)
	}
}

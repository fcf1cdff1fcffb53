package leasetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/operate"
)

// ledger makes a check that applies to backends with a ledger.
func ledger(run func(t testing.TB, f Factory, be backend.Backend)) func(testing.TB, Factory) {
	return fresh(func(t testing.TB, f Factory, be backend.Backend) {
		needs(t, be.Capabilities().Ledger != nil, "the backend keeps no ledger")
		run(t, f, be)
	})
}

func isDone(key string) backend.OnceResult  { return backend.OnceResult{Key: key, Done: true} }
func hasFailed(k string) backend.OnceResult { return backend.OnceResult{Key: k} }

var onceChecks = []check{
	{"Once/An_item_that_is_done_stays_done", ledger(func(t testing.TB, f Factory, be backend.Backend) {
		a, g := sole(t, be)
		a.Starts(g, "i", "1", backend.OnceNew)
		a.Starts(g, "i", "1", backend.OnceNew) // the reply was lost
		a.Starts(g, "j", "2", backend.OnceNew)
		a.Tells(g, isDone("i"))
		a.Tells(g, isDone("i"))
		a.Starts(g, "i", "3", backend.OnceDone)
		a.Tells(g, isDone("j"), isDone("never begun"))
		a.Releases(g.Ref)
		b := join(t, f.Again(t, be), perTopic(), long)
		h := b.Takes()
		b.Starts(h, "i", "1", backend.OnceDone)
		b.Starts(h, "j", "2", backend.OnceDone)
		b.Starts(h, "never begun", "4", backend.OnceNew)
		// Another consumer has items of its own.
		c := join(t, be, perGroup(), long).Registers()
		c.Starts(c.Takes(), "i", "1", backend.OnceNew)
	})},
	{"Once/An_item_that_failed_may_be_started_again", ledger(func(t testing.TB, f Factory, be backend.Backend) {
		a, g := sole(t, be)
		a.Starts(g, "i", "1", backend.OnceNew)
		a.Tells(g, hasFailed("i"))
		a.Starts(g, "i", "1", backend.OnceNew)
		a.Tells(g, hasFailed("i"))
		a.Releases(g.Ref)
		b := join(t, f.Again(t, be), perTopic(), long)
		b.Starts(b.Takes(), "i", "1", backend.OnceNew)
	})},
	{"Once/The_end_is_unknown_when_the_lease_ended_without_telling", ledger(func(t testing.TB, f Factory, be backend.Backend) {
		for _, end := range []struct {
			name string
			end  func(a *kit.Actor, g backend.Grant)
		}{
			{"released", func(a *kit.Actor, g backend.Grant) { a.Releases(g.Ref) }},
			{"closed", func(a *kit.Actor, _ backend.Grant) { kit.OK(t, a.Session.Close(t.Context())) }},
		} {
			a := join(t, be, perTopic(), long).Registers("x")
			g := a.TakesOver()
			a.Starts(g, end.name, "1", backend.OnceNew)
			end.end(a, g)
			b := join(t, f.Again(t, be), perTopic(), long)
			h := b.TakesOver()
			b.Starts(h, end.name, "1", backend.OnceUnknown)
			b.Starts(h, end.name, "1", backend.OnceUnknown) // the reply was lost
			b.Releases(h.Ref)
			h = b.TakesOver()
			b.Starts(h, end.name, "1", backend.OnceUnknown)
			b.Tells(h, isDone(end.name))
			b.Starts(h, end.name, "1", backend.OnceDone)
			b.Releases(h.Ref)
		}
	})},
	{"Once/The_end_is_unknown_after_a_crash_and_not_before_its_TTL", ledger(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, perTopic(), 2*short).Registers("x", "y")
		b := join(t, f.Again(t, be), perTopic(), long)
		g := a.Takes()
		h := b.Takes()
		a.Starts(g, "i", "1", backend.OnceNew)
		b.Starts(h, "i", "2", backend.OnceBusy)
		b.Starts(h, "i", "2", backend.OnceBusy) // that did not take it
		took := b.TakesOver()                   // after the TTL
		b.Starts(h, "i", "2", backend.OnceUnknown)
		b.Starts(took, "i", "1", backend.OnceBusy) // of its own other lease
		b.Tells(h, isDone("i"))
		b.Starts(took, "i", "1", backend.OnceDone)
	})},
	{"Once/Two_leases_do_not_execute_an_item_at_once", ledger(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, perTopic(), long).Registers("x", "y", "z")
		b := join(t, f.Again(t, be), perTopic(), long)
		g, h := a.Acquires(2), b.Takes()
		a.Starts(g[0], "i", "1", backend.OnceNew)
		a.Starts(g[1], "i", "2", backend.OnceBusy)
		b.Starts(h, "i", "3", backend.OnceBusy)
		b.Tells(h, isDone("i")) // it has not begun it
		b.Starts(h, "i", "3", backend.OnceBusy)
		a.Tells(g[0], hasFailed("i"))
		b.Starts(h, "i", "3", backend.OnceNew)
		a.Starts(g[0], "i", "1", backend.OnceBusy)
		a.Tells(g[0], hasFailed("i")) // what it began has ended
		a.Starts(g[0], "i", "1", backend.OnceBusy)
		b.Tells(h, isDone("i"))
		a.Starts(g[1], "i", "2", backend.OnceDone)
	})},
	{"Once/Start_and_end_are_fenced", ledger(func(t testing.TB, f Factory, be backend.Backend) {
		a, old := sole(t, be)
		a.Starts(old, "i", "1", backend.OnceNew)
		a.Releases(old.Ref)
		b := join(t, f.Again(t, be), perTopic(), long)
		g := b.Takes()
		refused := func(stale backend.Ref) {
			t.Helper()
			_, err := be.Capabilities().Ledger.StartOnce(t.Context(), a.ID, "c", stale, "j", "2")
			if !errors.Is(err, backend.ErrFenced) {
				t.Fatalf("got %v, want ErrFenced", err)
			}
		}
		refused(old.Ref)
		refused(g.Ref) // of another session
		b.Starts(g, "j", "2", backend.OnceNew)
		kit.Equal(t, "fenced", len(a.Fenced(backend.Progress{Ref: old.Ref, Seq: 9, Once: []backend.OnceResult{isDone("i"), isDone("j")}})), 1)
		b.Starts(g, "i", "1", backend.OnceUnknown)
		b.Tells(g, hasFailed("j"))
		b.Releases(g.Ref)
		g = a.Takes()
		refused(old.Ref) // it has the lease, with another epoch
		a.Starts(g, "j", "2", backend.OnceNew)
	})},
	{"Once/An_end_held_up_on_its_way_changes_nothing", ledger(func(t testing.TB, f Factory, be backend.Backend) {
		a, g := sole(t, be)
		a.Starts(g, "i", "1", backend.OnceNew)
		a.Commits(backend.Progress{Ref: g.Ref, Seq: 5, Once: []backend.OnceResult{hasFailed("i")}})
		a.Commits(backend.Progress{Ref: g.Ref, Seq: 6})
		a.Starts(g, "i", "1", backend.OnceNew)
		a.Commits(backend.Progress{Ref: g.Ref, Seq: 5, Once: []backend.OnceResult{hasFailed("i")}})
		a.Releases(g.Ref)
		b := join(t, f.Again(t, be), perTopic(), long)
		b.Starts(b.Takes(), "i", "1", backend.OnceUnknown)
	})},
	{"Once/What_was_asked_about_is_started_anew_by_its_own_message", ledger(func(t testing.TB, f Factory, be backend.Backend) {
		a, g := sole(t, be)
		a.Starts(g, "i", "1", backend.OnceNew)
		a.Releases(g.Ref)
		g = a.Takes()
		a.Starts(g, "i", "1", backend.OnceUnknown)
		a.Tells(g, backend.OnceResult{Key: "i", Asked: "1"})
		a.Starts(g, "i", "2", backend.OnceUnknown) // another message
		a.Tells(g, backend.OnceResult{Key: "i", Asked: "2"})
		a.Starts(g, "i", "1", backend.OnceNew)
		a.Starts(g, "i", "1", backend.OnceNew) // the reply was lost
		a.Releases(g.Ref)
		g = a.Takes()
		a.Starts(g, "i", "1", backend.OnceUnknown) // asked once, answered once
		a.Tells(g, backend.OnceResult{Key: "i", Asked: "1"})
		a.Starts(g, "i", "2", backend.OnceNew)
		a.Tells(g, isDone("i"))
		a.Starts(g, "i", "1", backend.OnceDone)
	})},
	{"Once/Housekeeping_forgets_what_is_older_than_OnceKeep", ledger(func(t testing.TB, f Factory, be backend.Backend) {
		info := perTopic()
		a := join(t, be, info, long).Registers("x")
		g := a.Takes()
		a.Starts(g, "done", "1", backend.OnceNew)
		a.Starts(g, "running", "2", backend.OnceNew)
		a.Tells(g, isDone("done"))
		maintain := func(keep time.Duration) int {
			info.OnceKeep = keep
			return kit.Must[operate.MaintainReport](t)(be.Maintain(t.Context(), []backend.ConsumerInfo{info})).OnceForgotten
		}
		kit.Equal(t, "kept for ever", maintain(0), 0)
		kit.Equal(t, "kept for an hour", maintain(time.Hour), 0)
		a.Starts(g, "done", "1", backend.OnceDone)
		n := 0
		kit.Eventually(t, "the item is forgotten", func() bool { n += maintain(time.Microsecond); return n > 0 })
		a.Starts(g, "done", "1", backend.OnceNew)
		a.Tells(g, isDone("running"))
		a.Starts(g, "running", "2", backend.OnceDone) // it was not forgotten while it ran
	})},
	{"Once/A_transaction_notes_an_item_when_it_commits", transactional(func(t testing.TB, f Factory, be backend.Backend, tr backend.Transactor) {
		needs(t, be.Capabilities().Ledger != nil, "the backend keeps no ledger")
		a, g := sole(t, be)
		begin := func() backend.Tx { return kit.Must[backend.Tx](t)(tr.Begin(t.Context(), a.ID)) }
		notes := func(tx backend.Tx, key string, want bool) {
			t.Helper()
			kit.Equal(t, "first", kit.Must[bool](t)(tx.Once(t.Context(), "c", key)), want)
		}
		tx := begin()
		notes(tx, "i", true)
		notes(tx, "i", false)
		kit.OK(t, tx.Rollback(t.Context()))
		tx = begin()
		notes(tx, "i", true)
		notes(tx, "j", true)
		effect(t, f, be, tx, "i")
		kit.OK(t, tx.Commit(t.Context(), a.ID, "c", backend.Progress{Ref: g.Ref}))
		tx = begin()
		notes(tx, "i", false)
		kit.Equal(t, "of another consumer", kit.Must[bool](t)(tx.Once(t.Context(), "other", "i")), true)
		kit.OK(t, tx.Rollback(t.Context()))
		a.Starts(g, "j", "1", backend.OnceDone)
		// One that is fenced stores no note.
		tx = begin()
		notes(tx, "k", true)
		if err := tx.Commit(t.Context(), a.ID, "c", backend.Progress{Ref: backend.Ref{Resource: "x", Epoch: g.Epoch - 1}}); !errors.Is(err, backend.ErrFenced) {
			t.Fatalf("got %v, want ErrFenced", err)
		}
		a.Starts(g, "k", "2", backend.OnceNew)
		equalSlices(t, "effects", f.Effects(t, be), []string{"i"})
	})},
	{"Once/Transactions_that_note_the_same_item_wait_for_each_other", transactional(func(t testing.TB, f Factory, be backend.Backend, tr backend.Transactor) {
		needs(t, be.Capabilities().Ledger != nil, "the backend keeps no ledger")
		a, g := sole(t, be)
		for _, commit := range []bool{false, true} {
			first, second := kit.Must[backend.Tx](t)(tr.Begin(t.Context(), a.ID)), kit.Must[backend.Tx](t)(tr.Begin(t.Context(), a.ID))
			t.Cleanup(func() { // should the test end before: pools wait for their connections
				_ = first.Rollback(context.Background())
				_ = second.Rollback(context.Background())
			})
			kit.Equal(t, "first", kit.Must[bool](t)(first.Once(t.Context(), "c", "i")), true)
			type answer struct {
				first bool
				err   error
			}
			answered := make(chan answer, 1)
			go func() {
				is, err := second.Once(t.Context(), "c", "i")
				answered <- answer{is, err}
			}()
			select {
			case x := <-answered:
				t.Fatalf("answered %v while another transaction was noting the item", x)
			case <-time.After(100 * time.Millisecond):
			}
			if commit {
				kit.OK(t, first.Commit(t.Context(), a.ID, "c", backend.Progress{Ref: g.Ref}))
			} else {
				kit.OK(t, first.Rollback(t.Context()))
			}
			select {
			case x := <-answered:
				kit.OK(t, x.err)
				kit.Equal(t, "second is first", x.first, !commit)
			case <-time.After(kit.Patience(t)):
				t.Fatal("the second transaction waits for one that has ended")
			}
			kit.OK(t, second.Rollback(t.Context()))
		}
	})},
}

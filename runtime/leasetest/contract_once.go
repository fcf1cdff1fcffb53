package leasetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// ledger makes a check that applies to backends with a ledger.
func ledger(run func(t testing.TB, f Factory, be backend.Backend)) func(testing.TB, Factory) {
	return func(t testing.TB, f Factory) {
		be := f.New(t)
		if be.Capabilities().Ledger == nil {
			t.Skip("the backend keeps no ledger")
		}
		run(t, f, be)
	}
}

// starts asks for the execution of an item under a lease.
func (h *holder) starts(g backend.Grant, key, message string, want backend.OnceState) {
	h.t.Helper()
	got, err := h.be.Capabilities().Ledger.StartOnce(h.t.Context(), h.id, h.info.Name, g.Ref, key, message)
	ok(h.t, err)
	if got != want {
		h.t.Fatalf("start of %s: got state %d, want %d", key, got, want)
	}
}

// tells stores how it ended.
func (h *holder) tells(g backend.Grant, r ...backend.OnceResult) {
	h.t.Helper()
	h.seq++
	h.commit(backend.Progress{Ref: g.Ref, Seq: h.seq, Once: r})
}

func isDone(key string) backend.OnceResult  { return backend.OnceResult{Key: key, Done: true} }
func hasFailed(k string) backend.OnceResult { return backend.OnceResult{Key: k} }

var onceChecks = []check{
	{"Once/An_item_that_is_done_stays_done", ledger(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, perTopic(), long).register("x")
		g := a.acquireOne()
		a.starts(g, "i", "1", backend.OnceNew)
		a.starts(g, "i", "1", backend.OnceNew) // the reply was lost
		a.starts(g, "j", "2", backend.OnceNew)
		a.tells(g, isDone("i"))
		a.tells(g, isDone("i"))
		a.starts(g, "i", "3", backend.OnceDone)
		a.tells(g, isDone("j"), isDone("never begun"))
		a.release(g.Ref)
		b := join(t, f.Again(t, be), perTopic(), long)
		h := b.acquireOne()
		b.starts(h, "i", "1", backend.OnceDone)
		b.starts(h, "j", "2", backend.OnceDone)
		b.starts(h, "never begun", "4", backend.OnceNew)
		// Another consumer has items of its own.
		c := join(t, be, perGroup(), long).register()
		c.starts(c.acquireOne(), "i", "1", backend.OnceNew)
	})},
	{"Once/An_item_that_failed_may_be_started_again", ledger(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, perTopic(), long).register("x")
		g := a.acquireOne()
		a.starts(g, "i", "1", backend.OnceNew)
		a.tells(g, hasFailed("i"))
		a.starts(g, "i", "1", backend.OnceNew)
		a.tells(g, hasFailed("i"))
		a.release(g.Ref)
		b := join(t, f.Again(t, be), perTopic(), long)
		b.starts(b.acquireOne(), "i", "1", backend.OnceNew)
	})},
	{"Once/The_end_is_unknown_when_the_lease_ended_without_telling", ledger(func(t testing.TB, f Factory, be backend.Backend) {
		for _, end := range []struct {
			name string
			end  func(a *holder, g backend.Grant)
		}{
			{"released", func(a *holder, g backend.Grant) { a.release(g.Ref) }},
			{"closed", func(a *holder, _ backend.Grant) { ok(t, a.sess.Close(t.Context())) }},
		} {
			a := join(t, be, perTopic(), long).register("x")
			g := a.takeOver()
			a.starts(g, end.name, "1", backend.OnceNew)
			end.end(a, g)
			b := join(t, f.Again(t, be), perTopic(), long)
			h := b.takeOver()
			b.starts(h, end.name, "1", backend.OnceUnknown)
			b.starts(h, end.name, "1", backend.OnceUnknown) // the reply was lost
			b.release(h.Ref)
			h = b.takeOver()
			b.starts(h, end.name, "1", backend.OnceUnknown)
			b.tells(h, isDone(end.name))
			b.starts(h, end.name, "1", backend.OnceDone)
			b.release(h.Ref)
		}
	})},
	{"Once/The_end_is_unknown_after_a_crash_and_not_before_its_TTL", ledger(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, perTopic(), 2*short).register("x", "y")
		b := join(t, f.Again(t, be), perTopic(), long)
		g := a.acquireOne()
		h := b.acquireOne()
		a.starts(g, "i", "1", backend.OnceNew)
		b.starts(h, "i", "2", backend.OnceBusy)
		b.starts(h, "i", "2", backend.OnceBusy) // that did not take it
		took := b.takeOver()                    // after the TTL
		b.starts(h, "i", "2", backend.OnceUnknown)
		b.starts(took, "i", "1", backend.OnceBusy) // of its own other lease
		b.tells(h, isDone("i"))
		b.starts(took, "i", "1", backend.OnceDone)
	})},
	{"Once/Two_leases_do_not_execute_an_item_at_once", ledger(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, perTopic(), long).register("x", "y", "z")
		b := join(t, f.Again(t, be), perTopic(), long)
		g, h := a.acquire(2), b.acquireOne()
		a.starts(g[0], "i", "1", backend.OnceNew)
		a.starts(g[1], "i", "2", backend.OnceBusy)
		b.starts(h, "i", "3", backend.OnceBusy)
		b.tells(h, isDone("i")) // it has not begun it
		b.starts(h, "i", "3", backend.OnceBusy)
		a.tells(g[0], hasFailed("i"))
		b.starts(h, "i", "3", backend.OnceNew)
		a.starts(g[0], "i", "1", backend.OnceBusy)
		a.tells(g[0], hasFailed("i")) // what it began has ended
		a.starts(g[0], "i", "1", backend.OnceBusy)
		b.tells(h, isDone("i"))
		a.starts(g[1], "i", "2", backend.OnceDone)
	})},
	{"Once/Start_and_end_are_fenced", ledger(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, perTopic(), long).register("x")
		old := a.acquireOne()
		a.starts(old, "i", "1", backend.OnceNew)
		a.release(old.Ref)
		b := join(t, f.Again(t, be), perTopic(), long)
		g := b.acquireOne()
		refused := func(stale backend.Ref) {
			t.Helper()
			_, err := be.Capabilities().Ledger.StartOnce(t.Context(), a.id, "c", stale, "j", "2")
			if !errors.Is(err, backend.ErrFenced) {
				t.Fatalf("got %v, want ErrFenced", err)
			}
		}
		refused(old.Ref)
		refused(g.Ref) // of another session
		b.starts(g, "j", "2", backend.OnceNew)
		equal(t, "fenced", len(a.tryCommit(backend.Progress{Ref: old.Ref, Seq: 9, Once: []backend.OnceResult{isDone("i"), isDone("j")}})), 1)
		b.starts(g, "i", "1", backend.OnceUnknown)
		b.tells(g, hasFailed("j"))
		b.release(g.Ref)
		g = a.acquireOne()
		refused(old.Ref) // it has the lease, with another epoch
		a.starts(g, "j", "2", backend.OnceNew)
	})},
	{"Once/An_end_held_up_on_its_way_changes_nothing", ledger(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, perTopic(), long).register("x")
		g := a.acquireOne()
		a.starts(g, "i", "1", backend.OnceNew)
		a.commit(backend.Progress{Ref: g.Ref, Seq: 5, Once: []backend.OnceResult{hasFailed("i")}})
		a.commit(backend.Progress{Ref: g.Ref, Seq: 6})
		a.starts(g, "i", "1", backend.OnceNew)
		a.commit(backend.Progress{Ref: g.Ref, Seq: 5, Once: []backend.OnceResult{hasFailed("i")}})
		a.release(g.Ref)
		b := join(t, f.Again(t, be), perTopic(), long)
		b.starts(b.acquireOne(), "i", "1", backend.OnceUnknown)
	})},
	{"Once/What_was_asked_about_is_started_anew_by_its_own_message", ledger(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, perTopic(), long).register("x")
		g := a.acquireOne()
		a.starts(g, "i", "1", backend.OnceNew)
		a.release(g.Ref)
		g = a.acquireOne()
		a.starts(g, "i", "1", backend.OnceUnknown)
		a.tells(g, backend.OnceResult{Key: "i", Asked: "1"})
		a.starts(g, "i", "2", backend.OnceUnknown) // another message
		a.tells(g, backend.OnceResult{Key: "i", Asked: "2"})
		a.starts(g, "i", "1", backend.OnceNew)
		a.starts(g, "i", "1", backend.OnceNew) // the reply was lost
		a.release(g.Ref)
		g = a.acquireOne()
		a.starts(g, "i", "1", backend.OnceUnknown) // asked once, answered once
		a.tells(g, backend.OnceResult{Key: "i", Asked: "1"})
		a.starts(g, "i", "2", backend.OnceNew)
		a.tells(g, isDone("i"))
		a.starts(g, "i", "1", backend.OnceDone)
	})},
	{"Once/Housekeeping_forgets_what_is_older_than_OnceKeep", ledger(func(t testing.TB, f Factory, be backend.Backend) {
		info := perTopic()
		a := join(t, be, info, long).register("x")
		g := a.acquireOne()
		a.starts(g, "done", "1", backend.OnceNew)
		a.starts(g, "running", "2", backend.OnceNew)
		a.tells(g, isDone("done"))
		maintain := func(keep time.Duration) int {
			info.OnceKeep = keep
			return must[operate.MaintainReport](t)(be.Maintain(t.Context(), []backend.ConsumerInfo{info})).OnceForgotten
		}
		equal(t, "kept for ever", maintain(0), 0)
		equal(t, "kept for an hour", maintain(time.Hour), 0)
		a.starts(g, "done", "1", backend.OnceDone)
		n := 0
		eventually(t, "the item is forgotten", func() bool { n += maintain(time.Microsecond); return n > 0 })
		a.starts(g, "done", "1", backend.OnceNew)
		a.tells(g, isDone("running"))
		a.starts(g, "running", "2", backend.OnceDone) // it was not forgotten while it ran
	})},
	{"Once/A_transaction_notes_an_item_when_it_commits", transactional(func(t testing.TB, f Factory, be backend.Backend, tr backend.Transactor) {
		if be.Capabilities().Ledger == nil {
			t.Skip("the backend keeps no ledger")
		}
		a := join(t, be, perTopic(), long).register("x")
		g := a.acquireOne()
		begin := func() backend.Tx { return must[backend.Tx](t)(tr.Begin(t.Context())) }
		notes := func(tx backend.Tx, key string, want bool) {
			t.Helper()
			equal(t, "first", must[bool](t)(tx.Once(t.Context(), "c", key)), want)
		}
		tx := begin()
		notes(tx, "i", true)
		notes(tx, "i", false)
		ok(t, tx.Rollback(t.Context()))
		tx = begin()
		notes(tx, "i", true)
		notes(tx, "j", true)
		effect(t, f, be, tx, "i")
		ok(t, tx.Commit(t.Context(), a.id, "c", backend.Progress{Ref: g.Ref}))
		tx = begin()
		notes(tx, "i", false)
		equal(t, "of another consumer", must[bool](t)(tx.Once(t.Context(), "other", "i")), true)
		ok(t, tx.Rollback(t.Context()))
		a.starts(g, "j", "1", backend.OnceDone)
		// One that is fenced notes nothing.
		tx = begin()
		notes(tx, "k", true)
		if err := tx.Commit(t.Context(), a.id, "c", backend.Progress{Ref: backend.Ref{Resource: "x", Epoch: g.Epoch - 1}}); !errors.Is(err, backend.ErrFenced) {
			t.Fatalf("got %v, want ErrFenced", err)
		}
		a.starts(g, "k", "2", backend.OnceNew)
		equalSlices(t, "effects", f.Effects(t, be), []string{"i"})
	})},
	{"Once/Transactions_that_note_the_same_item_wait_for_each_other", transactional(func(t testing.TB, f Factory, be backend.Backend, tr backend.Transactor) {
		if be.Capabilities().Ledger == nil {
			t.Skip("the backend keeps no ledger")
		}
		a := join(t, be, perTopic(), long).register("x")
		g := a.acquireOne()
		for _, commit := range []bool{false, true} {
			first, second := must[backend.Tx](t)(tr.Begin(t.Context())), must[backend.Tx](t)(tr.Begin(t.Context()))
			t.Cleanup(func() { // should the test end before: pools wait for their connections
				_ = first.Rollback(context.Background())
				_ = second.Rollback(context.Background())
			})
			equal(t, "first", must[bool](t)(first.Once(t.Context(), "c", "i")), true)
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
				ok(t, first.Commit(t.Context(), a.id, "c", backend.Progress{Ref: g.Ref}))
			} else {
				ok(t, first.Rollback(t.Context()))
			}
			select {
			case x := <-answered:
				ok(t, x.err)
				equal(t, "second is first", x.first, !commit)
			case <-time.After(patience(t)):
				t.Fatal("the second transaction waits for one that has ended")
			}
			ok(t, second.Rollback(t.Context()))
		}
	})},
}

package leasetest

import (
	"errors"
	"testing"

	"github.com/leasegen/leasegen/runtime/backend"
)

// transactional makes a check that applies to backends with transactions.
func transactional(run func(t testing.TB, f Factory, be backend.Backend, tr backend.Transactor)) func(testing.TB, Factory) {
	return func(t testing.TB, f Factory) {
		be := f.New(t)
		tr := be.Capabilities().Tx
		if tr == nil || f.Effect == nil {
			t.Skip("the backend has no transactions")
		}
		run(t, f, be, tr)
	}
}

func effect(t testing.TB, f Factory, be backend.Backend, tx backend.Tx, value string) {
	t.Helper()
	ok(t, f.Effect(t.Context(), be, tx.Handle(), value))
}

var txChecks = []check{
	{"Tx/Commits_effects_together_with_progress", transactional(func(t testing.TB, f Factory, be backend.Backend, tr backend.Transactor) {
		publish(t, be, events("x", 3)...)
		a := join(t, be, perTopic(), long).register("x")
		g := a.acquireOne()
		got := a.fetch("x", g.Cursor, 9)
		id := ids(got.Messages)
		tx := must[backend.Tx](t)(tr.Begin(t.Context()))
		effect(t, f, be, tx, "1")
		effect(t, f, be, tx, "2")
		equal(t, "effects before commit", len(f.Effects(t, be)), 0)
		ok(t, tx.Commit(t.Context(), a.id, "c", backend.Progress{Ref: g.Ref, Cursor: got.Cut(2), Dead: []backend.Dead{{ID: id[1], Attempt: 1, Reason: "r"}}}))
		ok(t, tx.Rollback(t.Context())) // no-op
		equalSlices(t, "effects", f.Effects(t, be), []string{"1", "2"})
		equal(t, "dead letters", len(a.deadLetters()), 1)
		a.release(g.Ref)
		equalSlices(t, "left", ids(a.fetch("x", a.acquireOne().Cursor, 9).Messages), id[2:])
	})},
	{"Tx/Fenced_rolls_back", transactional(func(t testing.TB, f Factory, be backend.Backend, tr backend.Transactor) {
		publish(t, be, events("x", 3)...)
		a := join(t, be, perTopic(), long).register("x")
		old := a.acquireOne()
		got := a.fetch("x", old.Cursor, 9)
		tx := must[backend.Tx](t)(tr.Begin(t.Context()))
		effect(t, f, be, tx, "stale")
		a.release(old.Ref)
		b := join(t, f.Again(t, be), perTopic(), long)
		g := b.acquireOne()
		err := tx.Commit(t.Context(), a.id, "c", backend.Progress{Ref: old.Ref, Cursor: got.Next, Dead: []backend.Dead{{ID: got.Messages[0].ID, Attempt: 1, Reason: "r"}}})
		if !errors.Is(err, backend.ErrFenced) {
			t.Fatalf("got %v, want ErrFenced", err)
		}
		ok(t, tx.Rollback(t.Context()))
		equal(t, "effects", len(f.Effects(t, be)), 0)
		equal(t, "dead letters", len(b.deadLetters()), 0)
		equal(t, "left", len(b.fetch("x", g.Cursor, 9).Messages), 3)
	})},
	{"Tx/Rollback_undoes_everything", transactional(func(t testing.TB, f Factory, be backend.Backend, tr backend.Transactor) {
		a := join(t, be, perTopic(), long).register("x")
		g := a.acquireOne()
		tx := must[backend.Tx](t)(tr.Begin(t.Context()))
		effect(t, f, be, tx, "undone")
		ok(t, tx.Rollback(t.Context()))
		equal(t, "effects", len(f.Effects(t, be)), 0)
		if err := tx.Commit(t.Context(), a.id, "c", backend.Progress{Ref: g.Ref}); err == nil {
			t.Fatal("a transaction was committed after its rollback")
		}
		equal(t, "effects", len(f.Effects(t, be)), 0)
		a.commit(backend.Progress{Ref: g.Ref})
	})},
}

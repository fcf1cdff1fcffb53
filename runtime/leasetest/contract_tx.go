package leasetest

import (
	"errors"
	"testing"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
)

// transactional makes a check that applies to backends with transactions.
func transactional(run func(t testing.TB, f Factory, be backend.Backend, tr backend.Transactor)) func(testing.TB, Factory) {
	return func(t testing.TB, f Factory) {
		be := f.New(t)
		tr := be.Capabilities().Tx
		needs(t, tr != nil && f.Effect != nil, "the backend has no transactions")
		run(t, f, be, tr)
	}
}

func effect(t testing.TB, f Factory, be backend.Backend, tx backend.Tx, value string) {
	t.Helper()
	kit.OK(t, f.Effect(t.Context(), be, tx.Handle(), value))
}

var txChecks = []check{
	{"Tx/Commits_effects_together_with_progress", transactional(func(t testing.TB, f Factory, be backend.Backend, tr backend.Transactor) {
		a, g, got := reading(t, be, 3)
		id := ids(got.Messages)
		tx := kit.Must[backend.Tx](t)(tr.Begin(t.Context(), a.ID))
		effect(t, f, be, tx, "1")
		effect(t, f, be, tx, "2")
		kit.Equal(t, "effects before commit", len(f.Effects(t, be)), 0)
		kit.OK(t, tx.Commit(t.Context(), a.ID, "c", backend.Progress{Ref: g.Ref, Cursor: got.Cut(2), Dead: []backend.Dead{{ID: id[1], Attempt: 1, Reason: "r"}}}))
		kit.OK(t, tx.Rollback(t.Context())) // no-op
		equalSlices(t, "effects", f.Effects(t, be), []string{"1", "2"})
		kit.Equal(t, "dead letters", len(a.Dead()), 1)
		a.Releases(g.Ref)
		equalSlices(t, "left", ids(a.Reads("x", a.Takes().Cursor, 9).Messages), id[2:])
	})},
	{"Tx/Fenced_rolls_back", transactional(func(t testing.TB, f Factory, be backend.Backend, tr backend.Transactor) {
		a, old, got := reading(t, be, 3)
		tx := kit.Must[backend.Tx](t)(tr.Begin(t.Context(), a.ID))
		effect(t, f, be, tx, "stale")
		a.Releases(old.Ref)
		b := join(t, f.Again(t, be), perTopic(), long)
		g := b.Takes()
		err := tx.Commit(t.Context(), a.ID, "c", backend.Progress{Ref: old.Ref, Cursor: got.Next, Dead: []backend.Dead{{ID: got.Messages[0].ID, Attempt: 1, Reason: "r"}}})
		if !errors.Is(err, backend.ErrFenced) {
			t.Fatalf("got %v, want ErrFenced", err)
		}
		kit.OK(t, tx.Rollback(t.Context()))
		kit.Equal(t, "effects", len(f.Effects(t, be)), 0)
		kit.Equal(t, "dead letters", len(b.Dead()), 0)
		kit.Equal(t, "left", len(b.Reads("x", g.Cursor, 9).Messages), 3)
	})},
	{"Tx/Rollback_undoes_everything", transactional(func(t testing.TB, f Factory, be backend.Backend, tr backend.Transactor) {
		a, g := sole(t, be)
		tx := kit.Must[backend.Tx](t)(tr.Begin(t.Context(), a.ID))
		effect(t, f, be, tx, "undone")
		kit.OK(t, tx.Rollback(t.Context()))
		kit.Equal(t, "effects", len(f.Effects(t, be)), 0)
		if err := tx.Commit(t.Context(), a.ID, "c", backend.Progress{Ref: g.Ref}); err == nil {
			t.Fatal("a transaction was committed after its rollback")
		}
		kit.Equal(t, "effects", len(f.Effects(t, be)), 0)
		a.Commits(backend.Progress{Ref: g.Ref})
	})},
}

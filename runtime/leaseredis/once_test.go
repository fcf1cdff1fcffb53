package leaseredis

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
)

// items are some names that lie under all tags of a namespace with four.
func items() (names []string) {
	for i := range 12 {
		names = append(names, fmt.Sprint("item", i))
	}
	return names
}

func TestLostRepliesOfTheLedger(t *testing.T) {
	eachSpread(t, func(t *testing.T, a *actor) {
		g := a.takesOne("x")
		sh, err := a.shape(t.Context())
		kit.OK(t, err)
		faults := a.breaks()
		for _, item := range items() {
			start := func() error {
				state, err := a.StartOnce(t.Context(), a.ID, "c", g.Ref, item, "m")
				if err == nil {
					kit.Equal(t, "state of "+item, state, backend.OnceNew)
				}
				return err
			}
			tell := func(p backend.Progress) func() error {
				return func() error {
					_, err := a.Commit(t.Context(), a.ID, "c", []backend.Progress{p})
					return err
				}
			}
			faults.loseReply(scripts.startonce)
			again(t, faults, start)
			if sh.tagOf(item) != sh.leaseTag("c", "x") {
				faults.loseReply(scripts.heldseq)
				again(t, faults, start)
			}
			failed := a.next(g, backend.Progress{Once: []backend.OnceResult{{Key: item}}})
			faults.loseReply(scripts.endonce)
			again(t, faults, tell(failed))
			kit.OK(t, start())
			kit.OK(t, tell(failed)()) // it was held up on its way
			done := a.next(g, backend.Progress{Once: []backend.OnceResult{{Key: item, Done: true}}})
			faults.loseReply(scripts.commit) // how it ended is stored, the rest is unknown
			again(t, faults, tell(done))
			a.Starts(g, item, "m", backend.OnceDone)
		}
	})
}

func TestAnItemThatWasToldBeforeACrashIsDone(t *testing.T) {
	eachSpread(t, func(t *testing.T, a *actor) {
		a.publishes(1, "x")
		g := a.takesOne("x")
		got := a.reads(g, 9)
		faults := a.breaks()
		died := errors.New("the process died")
		for _, item := range items() {
			a.Starts(g, item, got.Messages[0].ID, backend.OnceNew)
		}
		p := a.next(g, backend.Progress{Cursor: got.Next})
		for _, item := range items() {
			p.Once = append(p.Once, backend.OnceResult{Key: item, Done: true})
		}
		faults.onCall(scripts.commit, func() error { return died })
		if _, err := a.Commit(t.Context(), a.ID, "c", []backend.Progress{p}); !errors.Is(err, died) {
			t.Fatalf("got %v", err)
		}
		faults.onCall(scripts.commit, nil)
		kit.OK(t, a.Release(t.Context(), a.ID, "c", []backend.Ref{g.Ref}))
		b := a.another()
		h := b.takesOne("x")
		kit.Equal(t, "redelivered", len(b.reads(h, 9).Messages), 1)
		for _, item := range items() {
			b.Starts(h, item, got.Messages[0].ID, backend.OnceDone)
		}
	})
}

// A message that is asked about must be a dead letter before that is noted: else it would be
// executed again, unasked, after a crash in between.
func TestNobodyIsAskedBeforeTheDeadLetterIsThere(t *testing.T) {
	eachSpread(t, func(t *testing.T, a *actor) {
		a.publishes(1, "x")
		g := a.takesOne("x")
		for _, item := range items() {
			a.Starts(g, item, "other", backend.OnceNew)
		}
		kit.OK(t, a.Release(t.Context(), a.ID, "c", []backend.Ref{g.Ref}))
		g = a.takesOne("x")
		got := a.reads(g, 9)
		id := got.Messages[0].ID
		p := a.next(g, backend.Progress{Cursor: got.Next, Dead: []backend.Dead{{ID: id, Attempt: 1, Reason: "unknown"}}})
		for _, item := range items() {
			a.Starts(g, item, id, backend.OnceUnknown)
			p.Once = append(p.Once, backend.OnceResult{Key: item, Asked: id})
		}
		faults := a.breaks()
		died := errors.New("the process died")
		faults.onCall(scripts.commit, func() error { return died })
		if _, err := a.Commit(t.Context(), a.ID, "c", []backend.Progress{p}); !errors.Is(err, died) {
			t.Fatalf("got %v", err)
		}
		faults.onCall(scripts.commit, nil)
		for _, item := range items() {
			a.Starts(g, item, id, backend.OnceUnknown)
		}
		a.Commits(p)
		for _, item := range items() {
			a.Starts(g, item, id, backend.OnceNew)
		}
	})
}

func TestItemsOfALeaseThatIsHeldAreNotForgotten(t *testing.T) {
	eachSpread(t, func(t *testing.T, a *actor) {
		gs := a.takes(2, "x", "y")
		info := a.Info
		info.OnceKeep = time.Microsecond
		for _, item := range items() {
			a.Starts(gs[0], item+"x", "m", backend.OnceNew)
			a.Starts(gs[1], item+"y", "m", backend.OnceNew)
		}
		kit.OK(t, a.Release(t.Context(), a.ID, "c", []backend.Ref{gs[0].Ref}))
		r, err := a.Maintain(t.Context(), []backend.ConsumerInfo{info})
		kit.OK(t, err)
		kit.Equal(t, "forgotten", r.OnceForgotten, len(items()))
		for _, item := range items() {
			a.Starts(gs[1], item+"x", "m", backend.OnceNew)
			a.Starts(gs[1], item+"y", "m", backend.OnceNew) // the same lease asks again
		}
	})
}

package leasetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
)

// inEffectsWorld makes a scenario for backends with transactions.
func inEffectsWorld(run func(t testing.TB, w *world)) func(testing.TB, Factory) {
	return inWorld(func(t testing.TB, w *world) {
		needs(t, w.be.Capabilities().Tx != nil && w.f.Effect != nil, "the backend has no transactions")
		run(t, w)
	})
}

// inTx makes handlers of the transaction form: they write the effect, and then do h.
func (w *world) inTx(h handler) func(p *process) []lease.Handler {
	return func(p *process) []lease.Handler {
		return []lease.Handler{lease.OneTx("order", func(ctx context.Context, tx any, m lease.Message[payload]) error {
			return p.wrap(func(ctx context.Context, p *process, m lease.Message[payload]) error {
				if err := w.f.Effect(ctx, w.be, tx, fmt.Sprintf("%s/%s/%d", m.Topic, m.Key, m.Payload.N)); err != nil {
					return err
				}
				return h(ctx, p, m)
			})(ctx, m)
		})}
	}
}

// effectsAre checks that the effects of messages 1 to n of each topic were written
// exactly once, but for the missing, in the order of the numbers per key.
func (w *world) effectsAre(topics []string, n int, missing ...int) {
	w.t.Helper()
	seen, last := map[string]bool{}, map[string]int{}
	for _, e := range w.f.Effects(w.t, w.be) {
		if seen[e] {
			w.t.Fatalf("the effect of %s was written twice", e)
		}
		seen[e] = true
		i := strings.LastIndexByte(e, '/')
		var num int
		fmt.Sscan(e[i+1:], &num)
		if num <= last[e[:i]] {
			w.t.Fatalf("the effect of #%d of %s was written after that of #%d", num, e[:i], last[e[:i]])
		}
		last[e[:i]] = num
		if slices.Contains(missing, num) {
			w.t.Fatalf("the effect of %s was written although it failed", e)
		}
	}
	kit.Equal(w.t, "effects", len(seen), len(topics)*(n-len(missing)))
}

var txScenarios = []check{
	{"Effects_of_the_transaction_form_happen_exactly_once", inEffectsWorld(func(t testing.TB, w *world) {
		w.publish(events("x", 40, "a", "b", "c")...)
		w.startWith(spec(), w.inTx(func(_ context.Context, _ *process, m lease.Message[payload]) error {
			switch {
			case m.Payload.N == 5 && m.Attempt < 3, m.Payload.N == 9:
				return errHandler
			case m.Payload.N == 12:
				panic("12")
			case m.Payload.N == 20:
				return lease.DeadLetter("20")
			}
			return nil
		}), lease.WithBatch(15))
		w.drained()
		kit.Equal(t, "dead letters", len(w.dead()), 3)
		w.effectsAre([]string{"x"}, 40, 9, 12, 20)
	})},
	{"Effects_of_the_batch_transaction_form_happen_exactly_once", inEffectsWorld(func(t testing.TB, w *world) {
		w.publish(events("x", 40, "a", "b", "c")...)
		w.startWith(spec(), func(*process) []lease.Handler {
			return []lease.Handler{lease.BatchTx("order", func(ctx context.Context, tx any, ms []lease.Message[payload]) error {
				for _, m := range ms {
					if err := w.f.Effect(ctx, w.be, tx, fmt.Sprintf("%s/%s/%d", m.Topic, m.Key, m.Payload.N)); err != nil {
						return err
					}
					if m.Payload.N == 9 {
						return errHandler
					}
				}
				return nil
			})}
		}, lease.WithBatch(15))
		w.drained()
		kit.Equal(t, "dead letters", len(w.dead()), 1)
		w.effectsAre([]string{"x"}, 40, 9)
	})},
	{"Effects_survive_crashes_zombies_and_lost_replies_exactly_once", inEffectsWorld(func(t testing.TB, w *world) {
		topics := names("t", 3)
		w.publish(onEach(topics, 40, "a", "b")...)
		slow := w.inTx(func(ctx context.Context, p *process, m lease.Message[payload]) error {
			time.Sleep(time.Millisecond)
			return nil
		})
		// The zombie is cut off in the middle of a transaction and wakes when others are done.
		entered := make(chan struct{}, 9)
		opened, wake := w.gate()
		zombie := w.startWith(mortal(), w.inTx(on(10, func(_ context.Context, p *process, m lease.Message[payload]) error {
			p.link.cut()
			entered <- struct{}{}
			<-opened
			return nil
		})), lease.WithBatch(4))
		arrive(t, entered)
		p := w.startWith(mortal(), slow, lease.WithBatch(4))
		for _, op := range []string{"Tx.Commit", "Begin", "Acquire", "Release"} {
			p.link.loseReplies(op, 2)
		}
		kit.Eventually(t, "it is at work", func() bool { return slices.ContainsFunc(p.calls(), func(c call) bool { return c.err == nil }) })
		p.crash()
		q := w.startWith(mortal(), slow, lease.WithBatch(4))
		for _, op := range []string{"Tx.Commit", "Begin", "Acquire"} {
			q.link.loseReplies(op, 2)
		}
		w.drained()
		wake()
		zombie.link.mend()
		kit.Eventually(t, "the zombie is back", func() bool { return len(w.owners()) == 2 })
		kit.Equal(t, "lost replies of Tx.Commit", q.link.left("Tx.Commit"), 0)
		for _, topic := range topics {
			w.publish(event(topic, "a", 41))
		}
		w.finished(3 * 41)
		w.effectsAre(topics, 41)
		kit.Equal(t, "dead letters", len(w.dead()), 0)
	})},
	{"A_transaction_of_a_handler_that_is_told_to_stop_is_rolled_back", inEffectsWorld(func(t testing.TB, w *world) {
		w.publish(events("x", 2)...)
		s := spec()
		s.Drain = time.Millisecond
		entered := make(chan struct{}, 9)
		p := w.startWith(s, w.inTx(on(2, stays(entered))))
		arrive(t, entered)
		p.stop()
		if n := len(w.f.Effects(t, w.be)); n > 1 {
			t.Fatalf("%d effects, want at most that of #1", n)
		}
		w.startWith(s, w.inTx(fine))
		w.drained()
		w.effectsAre([]string{"x"}, 2)
		for _, c := range w.of(2) {
			kit.Equal(t, "attempt", c.attempt, 1)
			if c.err != nil && !errors.Is(c.cancelledCause, lease.ErrHandover) {
				t.Fatalf("cause %v", c.cancelledCause)
			}
		}
	})},
}

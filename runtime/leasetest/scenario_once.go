package leasetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/operate"
)

// itemOf is the item of a message of the suite: its number.
func itemOf(p *payload) string { return fmt.Sprint(p.N) }

// onceEach makes handlers that execute each item once.
func onceEach(u lease.OnUnknown, h handler) func(p *process) []lease.Handler {
	return func(p *process) []lease.Handler {
		return []lease.Handler{lease.Once(lease.One("order", p.wrap(h)), itemOf, u)}
	}
}

// patient is spec for processes that do not lose their leases on a slow machine.
func patient() lease.Spec {
	s := spec()
	s.TTL = long
	return s
}

// executed are the items whose execution ended well, in the order of that.
func (w *world) executed() []int {
	out := numbers(w.successes())
	slices.Sort(out)
	return out
}

func upTo(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i + 1
	}
	return out
}

// inOnceWorld makes a scenario for backends with a ledger.
func inOnceWorld(run func(t testing.TB, w *world)) func(testing.TB, Factory) {
	return inWorld(func(t testing.TB, w *world) {
		needs(t, w.be.Capabilities().Ledger != nil, "the backend keeps no ledger")
		run(t, w)
	})
}

var onceScenarios = []check{
	{"Once_Items_named_by_several_messages_are_executed_once", inOnceWorld(func(t testing.TB, w *world) {
		w.publish(onEach([]string{"x", "y", "z"}, 12, "a", "b")...)
		w.publish(onEach([]string{"x", "y", "z"}, 12, "b", "c")...)
		h := func(ctx context.Context, p *process, m lease.Message[payload]) error {
			time.Sleep(5 * time.Millisecond)
			return failing(5, 1)(ctx, p, m) // a known failure: it is executed again
		}
		s := patient()
		s.Retry.Max = 9
		w.startWith(s, onceEach(lease.OnUnknownPark, h), lease.WithWorkers(3))
		w.startWith(s, onceEach(lease.OnUnknownPark, h))
		w.drained()
		equalSlices(t, "executed", w.executed(), upTo(12))
		kit.Equal(t, "dead letters", len(w.dead()), 0)
		for _, n := range upTo(12) {
			kit.Equal(t, "executions of an item at once", atOnce(w.of(n)), 1)
			for _, c := range w.of(n) {
				kit.Equal(t, "idempotency key", c.once, fmt.Sprint("c/", n))
				if n != 5 {
					kit.Equal(t, "attempt", c.attempt, 1) // waiting is no failure
				}
			}
		}
	})},
	{"Once_An_unknown_item_is_executed_again_with_its_idempotency_key", inOnceWorld(func(t testing.TB, w *world) {
		w.publish(events("x", 6)...)
		p := w.startWith(mortal(), onceEach(lease.OnUnknownRetry, on(4, dies)))
		kit.Eventually(t, "the crash", p.crashed)
		w.startWith(patient(), onceEach(lease.OnUnknownRetry, fine))
		w.drained()
		kit.Eventually(t, "the call that crashed has ended", func() bool { return slices.ContainsFunc(p.calls(), func(c call) bool { return c.n == 4 }) })
		equalSlices(t, "executions of #4", each(w.of(4), func(c call) string { return c.once }), []string{"c/4", "c/4"})
		equalSlices(t, "executed", w.executed()[len(w.executed())-3:], []int{4, 5, 6})
		kit.Equal(t, "dead letters", len(w.dead()), 0)
	})},
	{"Once_An_unknown_item_is_parked_until_it_is_replayed", inOnceWorld(func(t testing.TB, w *world) {
		w.publish(events("x", 6)...)
		p := w.startWith(mortal(), onceEach(lease.OnUnknownPark, on(4, dies)))
		kit.Eventually(t, "the crash", p.crashed)
		var fours atomic.Int32
		w.startWith(patient(), onceEach(lease.OnUnknownPark, on(4, func(_ context.Context, _ *process, m lease.Message[payload]) error {
			fours.Add(1)
			return nil
		})))
		kit.Eventually(t, "the dead letter of #4", func() bool {
			return slices.ContainsFunc(w.dead(), func(d operate.DeadLetterInfo) bool { return len(w.of(4)) > 0 && d.MessageID == w.of(4)[0].id })
		})
		w.drained()
		// Of those executed before the crash some may not have been reported; those too are asked about.
		for _, n := range []int{5, 6} {
			kit.Equal(t, "executions", len(w.of(n)), 1)
		}
		kit.Equal(t, "executions of #4 before the replay", fours.Load(), 0)
		// A second message of the item does not execute it either.
		dead := len(w.dead())
		w.publish(event("x", "k", 4))
		kit.Eventually(t, "a second dead letter of #4", func() bool { return len(w.dead()) == dead+1 })
		kit.Equal(t, "executions of #4 before the replay", fours.Load(), 0)
		kit.Equal(t, "replayed", kit.Must[int](t)(w.operator().Replay(t.Context(), operate.DeadLetterFilter{Consumer: "c"})), dead+1)
		w.drained()
		kit.Equal(t, "executions of #4", fours.Load(), 1)
		kit.Equal(t, "dead letters", len(w.dead()), 0)
	})},
	{"Once_Lost_replies_and_cut_links_do_not_execute_twice", inOnceWorld(func(t testing.TB, w *world) {
		w.publish(events("x", 30, "a", "b", "c")...)
		var calls [31]atomic.Int32
		p := w.startWith(patient(), onceEach(lease.OnUnknownPark, func(_ context.Context, p *process, m lease.Message[payload]) error {
			calls[m.Payload.N].Add(1)
			if m.Payload.N%10 == 0 {
				p.link.loseReplies("Commit", 2)
			}
			return nil
		}))
		p.link.loseReplies("StartOnce", 3)
		w.drained()
		kit.Equal(t, "dead letters", len(w.dead()), 0)
		for n := 1; n <= 30; n++ {
			kit.Equal(t, fmt.Sprintf("executions of #%d", n), calls[n].Load(), 1)
		}
		kit.Equal(t, "replies left", p.link.left("StartOnce"), 0)
	})},
	{"Once_An_item_without_a_key_becomes_a_dead_letter", inOnceWorld(func(t testing.TB, w *world) {
		w.publish(event("x", "", 1), event("x", "other", 2), event("x", "good", 3))
		w.startWith(spec(), func(p *process) []lease.Handler {
			return []lease.Handler{lease.Once(lease.One("order", p.wrap(fine)), func(e *payload) string {
				if e.N == 2 {
					return "bad\x00key"
				}
				return e.Key
			}, lease.OnUnknownRetry)}
		})
		kit.Eventually(t, "the dead letters", func() bool { return len(w.dead()) == 2 })
		w.handled(1)
		kit.Equal(t, "reason", w.dead()[0].Reason, "the key is empty")
		equalSlices(t, "executed", w.executed(), []int{3})
	})},
	{"Once_Effects_of_an_item_happen_exactly_once_in_transactions", inEffectsWorld(func(t testing.TB, w *world) {
		needs(t, w.be.Capabilities().Ledger != nil, "the backend keeps no ledger")
		w.publish(onEach([]string{"x", "y", "z"}, 20, "a", "b")...)
		w.publish(onEach([]string{"x", "y", "z"}, 20, "b", "c")...)
		handlers := func(p *process) []lease.Handler {
			return []lease.Handler{lease.Once(lease.OneTx("order", func(ctx context.Context, tx any, m lease.Message[payload]) error {
				if p.crashed() {
					return p.hang(ctx)
				}
				if err := w.f.Effect(ctx, w.be, tx, itemOf(&m.Payload)); err != nil {
					return err
				}
				if m.Payload.N == 7 && m.Attempt == 1 {
					return errHandler
				}
				if m.Payload.N == 13 && p.name == "p1" {
					p.crash()
					return p.hang(ctx)
				}
				return nil
			}), itemOf, lease.OnUnknownPark)}
		}
		s := mortal()
		s.Retry.Max = 20
		for range 3 {
			w.startWith(s, handlers, lease.WithBatch(5))
		}
		w.drained()
		allOnce(t, "effects of items", counts(w.f.Effects(t, w.be)), 20)
		kit.Equal(t, "dead letters", len(w.dead()), 0)
	})},
}

var traceScenarios = []check{
	{"Publish_Trace_context_goes_from_publisher_to_handler", inWorld(func(t testing.TB, w *world) {
		const parent, state = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "rojo=00f067aa0ba902b7"
		ctx := lease.ContextWithTrace(t.Context(), parent, state)
		typ := lease.EventType[payload]{Kind: "order"}
		kit.OK(t, lease.Publish(ctx, w.be, "x", typ, []payload{{N: 1}}))
		kit.OK(t, lease.Publish(t.Context(), w.be, "x", typ, []payload{{N: 2}}))
		kit.OK(t, lease.Publish(ctx, lease.With(w.be, lease.After(time.Millisecond), lease.Headers(map[string]string{"tenant": "7"})), "x", typ, []payload{{N: 3}}))
		var mu sync.Mutex
		seen := map[int]string{}
		w.start(spec(), func(ctx context.Context, _ *process, m lease.Message[payload]) error {
			mu.Lock()
			defer mu.Unlock()
			p, s := lease.TraceFromContext(ctx)
			seen[m.Payload.N] = p + " " + s + " " + m.Headers["tenant"]
			return nil
		})
		w.handled(3)
		mu.Lock()
		defer mu.Unlock()
		kit.Equal(t, "trace of #1", seen[1], parent+" "+state+" ")
		kit.Equal(t, "trace of #2", seen[2], "  ")
		kit.Equal(t, "trace of #3", seen[3], parent+" "+state+" 7")
	})},
}

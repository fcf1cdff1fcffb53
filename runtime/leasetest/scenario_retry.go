package leasetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/operate"
)

var errHandler = errors.New("carrier: 503")

// failing fails message n while attempts are at most upTo.
func failing(n, upTo int) handler {
	return func(_ context.Context, _ *process, m lease.Message[payload]) error {
		if m.Payload.N == n && m.Attempt <= upTo {
			return errHandler
		}
		return nil
	}
}

// retried publishes 30 messages of keys a, b, c; #4 of key a fails twice and then succeeds.
func retried(t testing.TB, f Factory, order lease.Order) *world {
	t.Helper()
	w := newWorld(t, f)
	w.publish(events("x", 30, "a", "b", "c")...)
	s := spec()
	s.Retry.Order = order
	s.Retry.Min, s.Retry.Cap = 50*time.Millisecond, 50*time.Millisecond
	w.start(s, failing(4, 2))
	w.finished(30)
	cs := w.of(4)
	kit.Equal(t, "attempts of the failing message", len(cs), 3)
	for i, c := range cs {
		kit.Equal(t, "attempt", c.attempt, i+1)
	}
	kit.Equal(t, "calls", len(w.history(func(call) bool { return true })), 32)
	return w
}

// before counts the messages that pass keep and were handled before #4 was.
func (w *world) before4(keep func(call) bool) int {
	n := 0
	for _, c := range w.successes() {
		if c.n == 4 {
			break
		}
		if keep(c) {
			n++
		}
	}
	return n
}

var retryScenarios = []check{
	{"Retry_then_succeed_order=key_lets_other_keys_flow", func(t testing.TB, f Factory) {
		w := retried(t, f, lease.OrderKey)
		inOrder(t, w.successes(), byKey)
		kit.Equal(t, "other keys handled before it", w.before4(func(c call) bool { return c.key != "a" }), 20)
	}},
	{"Retry_then_succeed_order=block_holds_the_resource", func(t testing.TB, f Factory) {
		w := retried(t, f, lease.OrderBlock)
		inOrder(t, w.successes(), byTopic)
	}},
	{"Retry_then_succeed_order=none_holds_only_the_message", func(t testing.TB, f Factory) {
		w := retried(t, f, lease.OrderNone)
		kit.Equal(t, "all others handled before it", w.before4(func(call) bool { return true }), 29)
	}},
	{"Backoff_and_attempts_survive_a_restart", inWorld(func(t testing.TB, w *world) {
		w.publish(events("x", 3)...)
		const wait = 1500 * time.Millisecond
		h := func(_ context.Context, _ *process, m lease.Message[payload]) error {
			if m.Payload.N == 1 && m.Attempt == 1 {
				return lease.RetryAfter(wait, errHandler)
			}
			return nil
		}
		p := w.start(spec(), h)
		kit.Eventually(t, "it failed and is parked", func() bool { return w.status().ParkedKeys == 1 && w.status().LagTotal == 0 })
		p.stop()
		w.start(spec(), h)
		w.handled(3)
		cs := w.of(1)
		kit.Equal(t, "calls", len(cs), 2)
		kit.Equal(t, "attempt", cs[1].attempt, 2)
		if waited := cs[1].began.Sub(cs[0].ended); waited < wait {
			t.Fatalf("retried after %v, want %v", waited, wait)
		}
		inOrder(t, w.successes(), byKey)
	})},
	{"Dead_letter_after_exactly_Max_attempts_and_on_with_the_next", func(t testing.TB, f Factory) {
		for _, order := range []lease.Order{lease.OrderKey, lease.OrderBlock, lease.OrderNone} {
			w := newWorld(t, f)
			w.publish(events("x", 10)...)
			s := spec()
			s.Retry.Order = order
			w.start(s, failing(4, 99))
			w.finished(9)
			kit.Equal(t, "attempts", len(w.of(4)), 3)
			d := w.deadLetters(1)
			kit.Equal(t, "its attempts", d[0].Attempts, 3)
			says(t, d[0], errHandler.Error())
			if order != lease.OrderNone {
				inOrder(t, w.successes(), byKey)
			}
		}
	}},
	{"Panic_and_Goexit_are_failures_of_the_message", func(t testing.TB, f Factory) {
		for name, fall := range map[string]func(){"boom": func() { panic("boom") }, "Goexit": func() { runtime.Goexit() }} {
			w := newWorld(t, f)
			w.publish(events("x", 10, "a", "b")...)
			w.start(spec(), on(4, func(_ context.Context, _ *process, m lease.Message[payload]) error {
				fall()
				return nil
			}))
			w.finished(9)
			kit.Equal(t, "attempts", len(w.of(4)), 3)
			d := w.deadLetters(1)
			says(t, d[0], name)
		}
	}},
	{"DeadLetter_gives_up_at_once", inWorld(func(t testing.TB, w *world) {
		w.publish(events("x", 3)...)
		w.start(spec(), on(2, func(_ context.Context, _ *process, m lease.Message[payload]) error {
			return fmt.Errorf("wrapped: %w", lease.DeadLetter("no such customer"))
		}))
		w.finished(2)
		kit.Equal(t, "attempts", len(w.of(2)), 1)
		d := w.deadLetters(1)
		says(t, d[0], "no such customer")
	})},
	{"A_failing_batch_isolates_the_culprit", inWorld(func(t testing.TB, w *world) {
		w.publish(events("x", 20, "a", "b")...)
		var mu sync.Mutex
		done, culprit := map[int]int{}, 0
		w.startWith(spec(), func(*process) []lease.Handler {
			return []lease.Handler{lease.Batch("order", func(_ context.Context, ms []lease.Message[payload]) error {
				mu.Lock()
				defer mu.Unlock()
				for _, m := range ms {
					if m.Payload.N == 7 {
						if len(ms) == 1 {
							culprit++
						}
						return errHandler
					}
				}
				for _, m := range ms {
					done[m.Payload.N]++
				}
				return nil
			})}
		}, lease.WithBatch(10))
		w.drained()
		d := w.deadLetters(1)
		kit.Equal(t, "its attempts", d[0].Attempts, 3)
		mu.Lock()
		defer mu.Unlock()
		kit.Equal(t, "calls of the culprit alone", culprit, 3)
		allOnce(t, "handled", done, 19)
	})},
	{"Restarts_and_handovers_consume_no_attempts", inWorld(func(t testing.TB, w *world) {
		w.publish(events("x", 3)...)
		s := spec()
		s.Drain = time.Millisecond
		var tame atomic.Bool
		entered := make(chan struct{}, 9)
		h := on(2, func(ctx context.Context, p *process, m lease.Message[payload]) error {
			if tame.Load() {
				return nil
			}
			return stays(entered)(ctx, p, m)
		})
		for range 5 { // more than Retry.Max
			p := w.start(s, h)
			arrive(t, entered)
			p.stop()
		}
		for _, c := range w.of(2) {
			kit.Equal(t, "attempt", c.attempt, 1)
			if !errors.Is(c.cancelledCause, lease.ErrHandover) {
				t.Fatalf("the cause of the cancellation is %v, want ErrHandover", c.cancelledCause)
			}
		}
		tame.Store(true)
		w.start(s, h)
		w.handled(3)
		cs := w.of(2)
		kit.Equal(t, "calls", len(cs), 6)
		kit.Equal(t, "attempt at last", cs[5].attempt, 1)
		kit.Equal(t, "dead letters", len(w.dead()), 0)
	})},
	{"Replay_brings_a_dead_letter_back_to_a_running_consumer", inWorld(func(t testing.TB, w *world) {
		w.publish(events("x", 5)...)
		var mended atomic.Bool
		w.start(spec(), func(_ context.Context, _ *process, m lease.Message[payload]) error {
			if m.Payload.N%2 == 0 && !mended.Load() {
				return errHandler
			}
			return nil
		})
		kit.Eventually(t, "two dead letters", func() bool { return len(w.dead()) == 2 })
		mended.Store(true)
		replayed := time.Now()
		kit.Equal(t, "replayed", kit.Must[int](t)(w.operator().Replay(t.Context(), operate.DeadLetterFilter{Consumer: "c"})), 2)
		w.finished(5)
		if took, limit := time.Since(replayed), 4*time.Second+slack(t, w.be); took > limit {
			t.Errorf("it took %v, more than %v: the consumer was not told", took, limit)
		}
		kit.Equal(t, "dead letters", len(w.dead()), 0)
		firstAttempts(t, w.successes())
	})},
	{"A_handler_that_runs_too_long_is_reported_once_and_cancelled_if_so_configured", inWorld(func(t testing.TB, w *world) {
		w.publish(events("x", 3)...)
		p := w.start(spec(), func(ctx context.Context, _ *process, m lease.Message[payload]) error {
			if m.Payload.N == 2 && m.Attempt == 1 {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}, lease.WithStuckAfter(time.Second, true)) // a busy machine takes no second for the other attempt
		w.handled(3)
		cs := w.of(2)
		kit.Equal(t, "calls", len(cs), 2)
		kit.Equal(t, "attempt", cs[1].attempt, 2)
		reports := func() (n int) { // of other calls there may be some, on a machine that is busy
			for _, o := range observations[operate.ObservedStuck](p) {
				if o.ID == cs[0].id {
					n++
				}
			}
			return n
		}
		kit.Eventually(t, "a report", func() bool { return reports() > 0 })
		kit.Equal(t, "reports", reports(), 1)
	})},
}

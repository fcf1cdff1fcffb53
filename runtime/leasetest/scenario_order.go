package leasetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
)

var orderScenarios = []check{
	{"Messages_of_a_topic_are_handled_once_and_in_order", inWorld(func(t testing.TB, w *world) {
		w.publish(onEach([]string{"a", "b", "c"}, 60, "x", "y")...)
		w.start(spec(), fine, lease.WithBatch(7))
		w.handled(180)
		w.publish(event("d", "x", 1)) // a topic that is new while it runs
		w.finished(181)
		inOrder(t, w.successes(), byTopic)
		kit.Equal(t, "calls", len(w.successes()), 181)
		firstAttempts(t, w.successes())
	})},
	{"A_group_has_one_order_over_all_its_topics", inWorld(func(t testing.TB, w *world) {
		for n := 1; n <= 60; n++ {
			w.publish(event(fmt.Sprint("t", n%7), fmt.Sprint(n%3), n), event("noise", "", n))
		}
		s := spec()
		s.Per, s.Topics = backend.PerGroup, []string{"t*"}
		for range 2 {
			w.start(s, fine, lease.WithBatch(9))
		}
		w.finished(60)
		inOrder(t, w.successes(), func(call) string { return "the group" })
		kit.Equal(t, "calls", len(w.successes()), 60)
	})},
	{"Concurrent_publishers_while_it_is_consumed", inWorld(func(t testing.TB, w *world) {
		s := spec()
		s.Workers = 4
		w.start(s, fine)
		wait := publishers(t, w.f, w.be, 16, 20, func(p, i int) []backend.Event {
			return []backend.Event{event(fmt.Sprint("t", i%3), fmt.Sprint(p), i+1)}
		})
		wait()
		w.finished(320)
		inOrder(t, w.successes(), byKey)
		kit.Equal(t, "calls", len(w.successes()), 320)
	})},
	{"Workers_never_handle_two_messages_of_a_key_at_once", inWorld(func(t testing.TB, w *world) {
		keys := []string{"a", "b", "c", "d", "e"}
		w.publish(events("x", 200, keys...)...)
		s := spec()
		s.Workers = 4
		w.start(s, slowly)
		w.handled(200)
		for _, key := range keys {
			kit.Equal(t, "messages of a key handled at once", atOnce(w.history(func(c call) bool { return c.key == key })), 1)
		}
		if most := atOnce(w.successes()); most < 2 || most > 4 {
			t.Fatalf("%d keys were handled at once, want 2 to 4", most)
		}
		inOrder(t, w.successes(), byKey)
	})},
	{"A_batch_holds_messages_of_one_kind_in_order", inWorld(func(t testing.TB, w *world) {
		for n := 1; n <= 50; n++ {
			e := event("x", "k", n)
			e.Kind = []string{"one", "one", "two", "one", "two"}[n%5]
			w.publish(e)
		}
		var mu sync.Mutex
		var got []int
		var largest int
		take := func(kind string) lease.Handler {
			return lease.Batch(kind, func(_ context.Context, ms []lease.Message[payload]) error {
				mu.Lock()
				defer mu.Unlock()
				largest = max(largest, len(ms))
				for _, m := range ms {
					if m.Kind != kind {
						t.Errorf("the handler of %q got a message of kind %q", kind, m.Kind)
					}
					got = append(got, m.Payload.N)
				}
				return nil
			})
		}
		w.startWith(spec(), func(*process) []lease.Handler { return []lease.Handler{take("one"), take("two")} }, lease.WithBatch(10))
		kit.Eventually(t, "all are handled", func() bool { mu.Lock(); defer mu.Unlock(); return len(got) >= 50 })
		mu.Lock()
		defer mu.Unlock()
		kit.Equal(t, "messages", len(got), 50)
		kit.Equal(t, "in order", slices.IsSorted(got), true)
		if largest < 2 || largest > 10 {
			t.Fatalf("the largest batch had %d messages, want 2 to 10", largest)
		}
	})},
	{"A_stopping_process_finishes_its_call_and_starts_no_other", inWorld(func(t testing.TB, w *world) {
		w.publish(events("x", 10)...)
		entered := make(chan struct{})
		opened, leave := w.gate()
		p := w.start(spec(), on(3, func(ctx context.Context, p *process, m lease.Message[payload]) error {
			close(entered)
			<-opened
			return ctx.Err() // not cancelled: the drain time is not over
		}))
		arrive(t, entered)
		p.stopIt()
		q := w.start(spec(), fine)
		time.Sleep(200 * time.Millisecond) // enough for q to take the lease, were it free
		kit.Equal(t, "calls of the next owner while the handler runs", len(q.calls()), 0)
		leave()
		p.stop()
		w.handled(10)
		kit.Equal(t, "last call of the process that stopped", p.calls()[len(p.calls())-1].n, 3)
		inOrder(t, w.successes(), byTopic)
		kit.Equal(t, "calls", len(w.history(func(call) bool { return true })), 10)
		w.apart()
	})},
	{"A_group_takes_a_consumer_once", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		s := spec()
		s.Handlers = []lease.Handler{lease.One("order", func(context.Context, lease.Message[payload]) error { return nil })}
		a := kit.Must[*lease.Consumer](t)(lease.NewConsumer(be, s))
		b := kit.Must[*lease.Consumer](t)(lease.NewConsumer(be, s))
		g := lease.NewGroup()
		kit.OK(t, g.Add(a))
		if g.Add(b) == nil {
			t.Fatal("the group took two consumers of one name")
		}
	})},
	{"Two_subscribers_in_one_process_take_turns", inWorld(func(t testing.TB, w *world) {
		w.publish(events("x", 100)...)
		s := spec()
		s.Per = backend.PerGroup
		a := w.start(s, slowly, lease.WithBatch(5))
		w.start(s, slowly, lease.WithBatch(5))
		w.handled(30)
		a.stop()
		w.handled(100)
		w.apart()
		inOrder(t, w.successes(), byTopic)
		kit.Equal(t, "calls", len(w.successes()), 100)
	})},
}

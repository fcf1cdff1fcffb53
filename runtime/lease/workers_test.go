package lease_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
)

// Workers handle different keys at once and never one key at once, in order, whatever
// fails in between.
func TestWorkers(t *testing.T) {
	for _, form := range []string{"one", "batch"} {
		t.Run(form, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				be := leasemem.New()
				const n, keys = 200, 10
				publish(t, be, "x", 0, n, func(m *note) string { return fmt.Sprint(m.N % keys) })
				var mu sync.Mutex
				busy, most := map[string]bool{}, 0
				var got seen
				do := func(m lease.Message[note]) error {
					mu.Lock()
					if busy[m.Key] {
						t.Errorf("two messages of key %s at once", m.Key)
					}
					busy[m.Key] = true
					most = max(most, len(busy))
					mu.Unlock()
					defer func() {
						mu.Lock()
						defer mu.Unlock()
						delete(busy, m.Key)
					}()
					time.Sleep(10 * time.Millisecond)
					if m.Attempt == 1 {
						switch m.Payload.N % 23 {
						case 3:
							return errLink
						case 5:
							panic("5")
						case 7:
							runtime.Goexit()
						}
					}
					got.add(m.Key, m.Payload.N)
					return nil
				}
				h := lease.One("note", func(_ context.Context, m lease.Message[note]) error { return do(m) })
				if form == "batch" {
					h = lease.Batch("note", func(_ context.Context, ms []lease.Message[note]) error {
						if len(ms) > 1 && ms[0].Payload.N%2 == 0 {
							return errors.New("one by one, please")
						}
						var errs []error
						for _, m := range ms {
							if len(ms) > 1 && m.Payload.N%23 < 8 && m.Payload.N%23 > 2 {
								return errLink
							}
						}
						for _, m := range ms {
							errs = append(errs, do(m))
						}
						return errors.Join(errs...)
					})
				}
				start(t, newConsumer(t, be, lease.Spec{Workers: 4, Batch: 30, Retry: lease.Retry{Min: time.Millisecond}, Handlers: []lease.Handler{h}}))
				drained(t, be)
				if most < 2 || most > 4 {
					t.Errorf("%d keys at once, want 2 to 4", most)
				}
				if got.count() != n {
					t.Errorf("%d handled, want each of %d once", got.count(), n)
				}
				for k := range keys {
					if ns := got.of(fmt.Sprint(k)); !slices.IsSorted(ns) {
						t.Errorf("key %d: %v", k, ns)
					}
				}
			})
		})
	}
}

// Stops and failures that make workers of one resource end at different messages lose
// no message, let none be handled twice and keep the order of keys.
func TestWorkersStop(t *testing.T) {
	for _, order := range []lease.Order{lease.OrderKey, lease.OrderBlock, lease.OrderNone} {
		t.Run(order.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				be := leasemem.New()
				publish(t, be, "x", 0, 100, func(m *note) string { return fmt.Sprint(m.N % 7) })
				var got seen
				s := lease.Spec{Workers: 4, Retry: lease.Retry{Order: order, Min: 10 * time.Millisecond}, Handlers: one(func(_ context.Context, m lease.Message[note]) error {
					time.Sleep(time.Duration(m.Payload.N%7+1) * 20 * time.Millisecond)
					if m.Payload.N%9 == 4 && m.Attempt < 3 {
						return errLink
					}
					got.add(m.Key, m.Payload.N)
					return nil
				})}
				for range 5 {
					stop := start(t, newConsumer(t, be, s))
					time.Sleep(300 * time.Millisecond)
					stop()
				}
				start(t, newConsumer(t, be, s))
				time.Sleep(time.Minute)
				drained(t, be)
				if n := got.count(); n != 100 {
					t.Errorf("%d handled, want each of 100 once", n)
				}
				for k := range 7 {
					ns := got.of(fmt.Sprint(k))
					if order != lease.OrderNone && !slices.IsSorted(ns) {
						t.Errorf("key %d: %v", k, ns)
					}
					slices.Sort(ns)
					if want := (100 - k + 6) / 7; len(slices.Compact(ns)) != want {
						t.Errorf("key %d: %v, want %d messages", k, ns, want)
					}
				}
			})
		})
	}
}

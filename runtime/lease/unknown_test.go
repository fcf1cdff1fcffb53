package lease_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/operate"
)

// A kind that this version has no handler for waits with what the order says, whatever the form of
// the handlers around it, and the version that has one goes on where it waits.
func TestUnknownKindsWaitForAnotherVersion(t *testing.T) {
	for _, order := range []lease.Order{lease.OrderKey, lease.OrderBlock, lease.OrderNone} {
		for _, form := range []string{"one", "workers", "batch", "transaction"} {
			t.Run(fmt.Sprintf("order=%v/%s", order, form), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					be := leasemem.New()
					var got seen
					handlers := func(kinds ...string) (hs []lease.Handler) {
						for _, k := range kinds {
							switch form {
							case "transaction":
								hs = append(hs, lease.OneTx(k, func(_ context.Context, _ *leasemem.Tx, m lease.Message[note]) error {
									got.add(m.Key, m.Payload.N)
									return nil
								}))
							case "batch":
								hs = append(hs, lease.Batch(k, func(_ context.Context, ms []lease.Message[note]) error {
									for _, m := range ms {
										got.add(m.Key, m.Payload.N)
									}
									return nil
								}))
							default:
								hs = append(hs, lease.One(k, func(_ context.Context, m lease.Message[note]) error {
									got.add(m.Key, m.Payload.N)
									return nil
								}))
							}
						}
						return hs
					}
					// Of key a the second of four is of the newer kind, of key b none.
					var es []lease.Event
					for n := range 4 {
						kind := "note"
						if n == 1 {
							kind = "newer"
						}
						es = append(es, lease.Event{Topic: "x", Key: "a", Kind: kind, Payload: fmt.Appendf(nil, `{"N":%d}`, n)},
							lease.Event{Topic: "x", Key: "b", Kind: "note", Payload: fmt.Appendf(nil, `{"N":%d}`, n)})
					}
					if err := be.Publish(t.Context(), es); err != nil {
						t.Fatal(err)
					}
					s := lease.Spec{Handlers: handlers("note"), Retry: lease.Retry{Order: order}}
					if form == "workers" {
						s.Workers = 3
					}
					stop := start(t, newConsumer(t, be, s))
					pass(5 * time.Minute)
					want := map[lease.Order]string{lease.OrderKey: "[0] [0 1 2 3]", lease.OrderBlock: "[0] [0]", lease.OrderNone: "[0 2 3] [0 1 2 3]"}[order]
					if order == lease.OrderBlock && form == "workers" {
						want = fmt.Sprint(got.of("a"), " ", got.of("b")) // workers that got further are not called back
						if slices.Contains(got.of("a"), 2) {
							t.Errorf("handled %s although the first of a waits", want)
						}
					}
					if have := fmt.Sprint(got.of("a"), " ", got.of("b")); have != want {
						t.Errorf("handled %s while one waits, want %s", have, want)
					}
					stop()
					s.Handlers = handlers("note", "newer")
					start(t, newConsumer(t, be, s))
					drained(t, be)
					if n := len(deadLetters(t, be)); n != 0 {
						t.Errorf("%d dead letters", n)
					}
					for _, key := range []string{"a", "b"} {
						have := got.of(key)
						if order == lease.OrderNone {
							slices.Sort(have)
						}
						if !slices.Equal(have, []int{0, 1, 2, 3}) {
							t.Errorf("of key %s handled %v", key, have)
						}
					}
				})
			})
		}
	}
}

// A message that no process takes becomes a dead letter when its time is over, which neither handovers nor
// restarts set back, and costs little until then.
func TestUnknownKindsWaitTheirTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		var calls atomic.Int64
		counting := be.Share(leasemem.WithFaults(func(_ context.Context, op string, phase leasemem.Phase) error {
			if phase == leasemem.Before && (op == "FetchParked" || op == "Commit") {
				calls.Add(1)
			}
			return nil
		}))
		var rec recorder
		err := be.Publish(t.Context(), []lease.Event{
			{Topic: "x", Key: "a", Kind: "strange", Payload: []byte(`{}`)}, {Topic: "x", Key: "a", Kind: "strange", Payload: []byte(`{}`)},
			{Topic: "x", Key: "a", Kind: "note", Payload: []byte(`{"N":0}`)},
		})
		if err != nil {
			t.Fatal(err)
		}
		var got seen
		s := lease.Spec{UnknownWait: time.Hour, Handlers: one(func(_ context.Context, m lease.Message[note]) error {
			got.add("x", m.Payload.N)
			return nil
		})}
		began := time.Now()
		for range 3 {
			stop := start(t, newConsumer(t, counting, s, lease.WithObserver(&rec)))
			pass(15 * time.Minute)
			stop()
		}
		start(t, newConsumer(t, counting, s, lease.WithObserver(&rec)))
		pass(time.Until(began.Add(time.Hour - time.Minute)))
		if n := len(deadLetters(t, be)); n != 0 || got.count() != 0 {
			t.Fatalf("%d dead letters and %d handled before the hour is over", n, got.count())
		}
		// A look every 15 s at most, one commit for each, and the looks that are made anyway.
		if n := calls.Load(); n > 2500 {
			t.Errorf("%d calls in an hour for two messages that wait", n)
		}
		pass(2 * time.Minute)
		ds := deadLetters(t, be)
		if len(ds) != 2 || got.count() != 1 {
			t.Fatalf("%d dead letters and %d handled after the hour, want 2 and 1", len(ds), got.count())
		}
		want := `consumer a has no handler for kind "strange", and no replica that does has taken it within 1h0m0s`
		if ds[0].Reason != want || ds[0].Attempts != 0 {
			t.Errorf("reason %q after %d attempts, want %q", ds[0].Reason, ds[0].Attempts, want)
		}
		told := observed[operate.ObservedUnknown](&rec)
		if len(told) != 4 || told[0] != (operate.ObservedUnknown{Consumer: "a", Kind: "strange", Wait: time.Hour}) {
			t.Errorf("told %+v, want once by each process", told)
		}
	})
}

// The time of a message that no version takes begins when it is found so, not while it waits behind one
// that fails, nor until its own retry. A lane of such messages does not wait for each in turn.
func TestTheWaitForAnotherVersionBeginsWithIt(t *testing.T) {
	event := func(kind string, n int) lease.Event {
		return lease.Event{Topic: "x", Key: "a", Kind: kind, Payload: fmt.Appendf(nil, `{"N":%d}`, n)}
	}
	for _, batch := range []int{1, 100} {
		for _, order := range []lease.Order{lease.OrderKey, lease.OrderBlock} {
			t.Run(fmt.Sprintf("behind one that fails, batch=%d order=%v", batch, order), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					be := leasemem.New()
					if err := be.Publish(t.Context(), []lease.Event{event("note", 0), event("newer", 1), event("newer", 2), event("newer", 3), event("note", 4)}); err != nil {
						t.Fatal(err)
					}
					var got seen
					s := lease.Spec{Batch: batch, Retry: lease.Retry{Order: order}, Handlers: one(func(_ context.Context, m lease.Message[note]) error {
						if m.Attempt == 1 && m.Payload.N == 0 {
							return lease.RetryAfter(20*time.Minute, errLink)
						}
						got.add("x", m.Payload.N)
						return nil
					})}
					start(t, newConsumer(t, be, s))
					pass(29 * time.Minute)
					if ds := deadLetters(t, be); len(ds) > 0 {
						t.Fatalf("%d dead letters 9 minutes after the messages were found to be of a kind that no version takes: %+v", len(ds), ds)
					}
					pass(2 * time.Minute)
					if order == lease.OrderBlock { // what was not read before waits its own time
						pass(11 * time.Minute * 3)
					}
					if ds := deadLetters(t, be); len(ds) != 3 || fmt.Sprint(got.of("x")) != "[0 4]" {
						t.Errorf("%d dead letters and %v handled, want 3 and [0 4]", len(ds), got.of("x"))
					}
				})
			})
		}
	}
	t.Run("until its retry", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			be := leasemem.New()
			if err := be.Publish(t.Context(), []lease.Event{event("newer", 0)}); err != nil {
				t.Fatal(err)
			}
			known := one(func(context.Context, lease.Message[note]) error { return nil })
			handled := false
			newer := append([]lease.Handler{lease.One("newer", func(_ context.Context, m lease.Message[note]) error {
				if m.Attempt == 1 {
					return lease.RetryAfter(20*time.Minute, errLink)
				}
				handled = true
				return nil
			})}, known...)
			stop := start(t, newConsumer(t, be, lease.Spec{Handlers: newer}))
			pass(time.Minute)
			stop()
			stop = start(t, newConsumer(t, be, lease.Spec{Handlers: known}))
			pass(28 * time.Minute)
			stop()
			start(t, newConsumer(t, be, lease.Spec{Handlers: newer}))
			pass(time.Minute)
			if ds := deadLetters(t, be); len(ds) > 0 || !handled {
				t.Errorf("dead letters %+v, handled: %v", ds, handled)
			}
		})
	})
}

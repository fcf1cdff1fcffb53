package lease_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/operate"
)

// A read of parked messages that failed is repeated soon, not when the next hint comes.
func TestParkedReadFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		publish(t, be, "x", 0, 1, nil)
		var link faults
		var tried atomic.Int64 // when, in ms
		var failed atomic.Bool
		var attempts []time.Time
		link.on("FetchParked", before(func(context.Context) error {
			if at := tried.Load(); at > 0 && time.Now().UnixMilli() > at+50 && failed.CompareAndSwap(false, true) {
				return errLink
			}
			return nil
		}))
		start(t, newConsumer(t, link.share(be), lease.Spec{Retry: lease.Retry{Min: 100 * time.Millisecond, Jitter: -1}, Handlers: one(func(context.Context, lease.Message[note]) error {
			attempts = append(attempts, time.Now())
			if tried.CompareAndSwap(0, time.Now().UnixMilli()) {
				return errLink
			}
			return nil
		})}))
		pass(10 * time.Second)
		if len(attempts) != 2 {
			t.Fatalf("%d attempts, want 2", len(attempts))
		}
		if d := attempts[1].Sub(attempts[0]); d < 100*time.Millisecond || d > 1200*time.Millisecond {
			t.Errorf("tried again after %v, want the backoff and at most a second", d)
		}
	})
}

// A retry whose wait is shorter than storing it takes comes when it is stored, not when the next hint does.
func TestARetryThatIsStoredLate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		publish(t, be, "x", 0, 1, nil)
		var link faults
		link.on("Commit", before(func(context.Context) error {
			time.Sleep(300 * time.Millisecond)
			return nil
		}))
		var attempts []time.Time
		start(t, newConsumer(t, link.share(be), lease.Spec{Retry: lease.Retry{Min: 20 * time.Millisecond, Jitter: -1}, Handlers: one(func(context.Context, lease.Message[note]) error {
			if attempts = append(attempts, time.Now()); len(attempts) == 1 {
				return errLink
			}
			return nil
		})}))
		pass(10 * time.Second)
		if len(attempts) != 2 {
			t.Fatalf("%d attempts, want 2", len(attempts))
		}
		if d := attempts[1].Sub(attempts[0]); d < 320*time.Millisecond || d > 400*time.Millisecond {
			t.Errorf("tried again after %v, want 300 ms of storing and 20 ms of backoff", d)
		}
	})
}

// Retries come at the times that the backoff says.
func TestRetriesComeInTime(t *testing.T) {
	for _, order := range []lease.Order{lease.OrderKey, lease.OrderBlock, lease.OrderNone} {
		t.Run(order.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				be := leasemem.New()
				publish(t, be, "x", 0, 1, nil)
				var at []time.Time
				start(t, newConsumer(t, be, lease.Spec{Retry: lease.Retry{Max: 5, Min: time.Second, Cap: 3 * time.Second, Jitter: -1, Order: order}, Handlers: one(func(_ context.Context, m lease.Message[note]) error {
					if at = append(at, time.Now()); m.Attempt != len(at) {
						t.Errorf("attempt %d is told as %d", len(at), m.Attempt)
					}
					if m.Attempt == 3 {
						return lease.RetryAfter(5*time.Minute, errLink)
					}
					return errLink
				})}))
				pass(10 * time.Minute)
				want := []time.Duration{time.Second, 2 * time.Second, 5 * time.Minute, 3 * time.Second}
				if len(at) != 5 {
					t.Fatalf("%d attempts, want 5", len(at))
				}
				for i, w := range want {
					if d := at[i+1].Sub(at[i]); d < w || d > w+50*time.Millisecond {
						t.Errorf("attempt %d came %v after the one before, want %v", i+2, d, w)
					}
				}
				if ds := deadLetters(t, be); len(ds) != 1 || ds[0].Attempts != 5 || ds[0].Reason != "connection reset" {
					t.Errorf("dead letters %+v", ds)
				}
			})
		})
	}
}

// Dead letters replayed while messages of their keys flow are handled once, and those
// that fail again hold back their key again, not for ever.
func TestReplayIntoTheFlow(t *testing.T) {
	for _, order := range []lease.Order{lease.OrderKey, lease.OrderBlock, lease.OrderNone} {
		t.Run(order.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				be := leasemem.New()
				var calm atomic.Bool
				var mu sync.Mutex
				times := map[int]int{}
				start(t, newConsumer(t, be, lease.Spec{Batch: 3, Retry: lease.Retry{Max: 3, Min: 10 * time.Millisecond, Order: order}, Handlers: one(func(_ context.Context, m lease.Message[note]) error {
					time.Sleep(time.Millisecond)
					if m.Payload.N%5 == 0 && (!calm.Load() || m.Attempt < 3) {
						return errLink
					}
					mu.Lock()
					defer mu.Unlock()
					times[m.Payload.N]++
					return nil
				})}))
				key := func(n *note) string { return fmt.Sprint(n.N % 3) }
				publish(t, be, "x", 0, 60, key)
				drained(t, be)
				if ds := deadLetters(t, be); len(ds) != 12 {
					t.Fatalf("%d dead letters, want 12", len(ds))
				}
				calm.Store(true)
				for i := range 6 {
					publish(t, be, "x", 60+10*i, 70+10*i, key)
					if n, err := be.Replay(t.Context(), operate.DeadLetterFilter{Limit: 2}); err != nil || n != 2 {
						t.Fatal(n, err)
					}
					time.Sleep(7 * time.Millisecond)
				}
				drained(t, be)
				mu.Lock()
				defer mu.Unlock()
				for i := range 120 {
					if times[i] != 1 {
						t.Errorf("#%d was handled %d times, want once", i, times[i])
					}
				}
				if ds := deadLetters(t, be); len(ds) > 0 {
					t.Errorf("%d dead letters are left", len(ds))
				}
			})
		})
	}
}

// A replay whose news is lost with the feed is found when the feed is back.
func TestReplayWhileTheFeedIsDown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		publish(t, be, "x", 0, 1, nil)
		var link faults
		var got seen
		var calm atomic.Bool
		start(t, newConsumer(t, link.share(be), lease.Spec{Retry: lease.Retry{Max: 1}, Handlers: one(func(_ context.Context, m lease.Message[note]) error {
			if !calm.Load() {
				return errLink
			}
			got.add(m.Topic, m.Payload.N)
			return nil
		})}))
		drained(t, be)
		calm.Store(true)
		link.on("FeedNext", before(func(context.Context) error { return errLink }))
		time.Sleep(20100 * time.Millisecond)
		if _, err := be.Replay(t.Context(), operate.DeadLetterFilter{}); err != nil {
			t.Fatal(err)
		}
		link.on("FeedNext", nil)
		time.Sleep(1100 * time.Millisecond) // the pause between tries to open the feed
		got.ordered(t, "x", 1)
	})
}

// Lanes longer than one read of parked messages, over many resources and with few
// hands, keep their order.
func TestLongLanes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		const topics, n = 5, 400
		var calm atomic.Bool
		for i := range topics {
			publish(t, be, fmt.Sprint(i), 0, n, func(m *note) string { return fmt.Sprint(m.N % 2) })
		}
		var got seen
		start(t, newConsumer(t, be, lease.Spec{Batch: 50, Retry: lease.Retry{Max: 1000, Min: 10 * time.Millisecond, Cap: 10 * time.Millisecond}, Handlers: one(func(_ context.Context, m lease.Message[note]) error {
			if m.Payload.N == 1 && !calm.Load() {
				return errLink
			}
			got.add(m.Topic+"/"+m.Key, m.Payload.N)
			return nil
		})}, lease.WithConcurrency(2)))
		eventually(t, "the other keys are handled", func() bool { return got.count() == topics*n/2 })
		calm.Store(true)
		drained(t, be)
		for i := range topics {
			for k := range 2 {
				if ns := got.of(fmt.Sprintf("%d/%d", i, k)); len(ns) != n/2 || !slices.IsSorted(ns) {
					t.Errorf("topic %d, key %d: %d messages, in order: %v", i, k, len(ns), slices.IsSorted(ns))
				}
			}
		}
	})
}

// Parked messages change owners with their resource, and keep their attempts.
func TestParkedChangeHands(t *testing.T) {
	for _, form := range []string{"one", "tx"} {
		t.Run(form, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				be := leasemem.New()
				publish(t, be, "x", 0, 20, func(m *note) string { return fmt.Sprint(m.N % 4) })
				var got seen
				var e effects
				attempts := map[int]int{}
				do := func(m lease.Message[note]) error {
					attempts[m.Payload.N]++
					if m.Attempt != attempts[m.Payload.N] && form == "one" {
						t.Errorf("#%d: attempt %d is told as %d", m.Payload.N, attempts[m.Payload.N], m.Attempt)
					}
					if m.Payload.N < 2 && m.Attempt < 6 {
						return errLink
					}
					got.add(m.Key, m.Payload.N)
					return nil
				}
				h := one(func(_ context.Context, m lease.Message[note]) error { return do(m) })
				if form == "tx" {
					h = oneTx(func(_ context.Context, tx *leasemem.Tx, m lease.Message[note]) error {
						e.write(tx, m.Payload.N)
						return do(m)
					})
				}
				s := lease.Spec{Retry: lease.Retry{Min: time.Second, Cap: time.Second, Jitter: -1}, Handlers: h}
				for range 4 {
					stop := start(t, newConsumer(t, be, s))
					time.Sleep(1300 * time.Millisecond)
					stop()
				}
				start(t, newConsumer(t, be, s))
				drained(t, be)
				for k := range 4 {
					if ns := slices.Compact(got.of(fmt.Sprint(k))); len(ns) < 5 || form == "one" && !slices.IsSorted(ns) {
						t.Errorf("key %d: %v", k, ns)
					}
				}
				if form == "tx" {
					slices.Sort(e.all)
					e.are(t, 20)
				}
			})
		})
	}
}

// Parked messages that were read under one epoch and arrive under the next, which may be
// after their effects, are not handled from that old answer.
func TestParkedReadOutlivesItsLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		publish(t, be, "x", 0, 3, func(*note) string { return "k" })
		var link faults
		var e effects
		var rec recorder
		var handling, held, lost atomic.Bool
		read := make(chan struct{})
		link.on("FetchParked", func(ctx context.Context, phase leasemem.Phase) error {
			if phase == leasemem.After && handling.Load() && held.CompareAndSwap(false, true) {
				close(read)
				for len(observed[operate.ObservedAcquire](&rec)) < 2 && ctx.Err() == nil {
					time.Sleep(time.Millisecond)
				}
			}
			return nil
		})
		link.on("TxCommit", func(_ context.Context, phase leasemem.Phase) error {
			if phase == leasemem.After && held.Load() && lost.CompareAndSwap(false, true) {
				return errLink // so that the lease is given back and taken again
			}
			return nil
		})
		start(t, newConsumer(t, link.share(be), lease.Spec{Retry: lease.Retry{Min: time.Millisecond}, Handlers: oneTx(func(ctx context.Context, tx *leasemem.Tx, m lease.Message[note]) error {
			if m.Payload.N == 0 && m.Attempt == 1 {
				return errLink
			}
			if m.Payload.N == 0 && handling.CompareAndSwap(false, true) {
				<-read // the parked messages, this one among them, again
			}
			e.write(tx, m.Payload.N)
			return nil
		})}, lease.WithObserver(&rec)))
		pass(20 * time.Second)
		if n := len(observed[operate.ObservedAcquire](&rec)); n != 2 || !lost.Load() {
			t.Fatalf("the lease was acquired %d times, want 2; a reply was lost: %v", n, lost.Load())
		}
		if st := status(t, be); st.ParkedKeys > 0 {
			t.Errorf("%d keys are still parked", st.ParkedKeys)
		}
		e.are(t, 3)
	})
}

// A first lease without parked messages does not set off a read of them: the grant would
// have told.
func TestFirstLeaseReadsNothingParked(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		var link faults
		var got seen
		var reads atomic.Int64
		link.on("FetchParked", before(func(context.Context) error { reads.Add(1); return nil }))
		start(t, newConsumer(t, link.share(be), lease.Spec{Handlers: one(func(_ context.Context, m lease.Message[note]) error {
			got.add(m.Topic, m.Payload.N)
			return nil
		})}))
		pass(20 * time.Second) // a standby, so to speak
		publish(t, be, "x", 0, 1, nil)
		eventually(t, "handled", func() bool { return got.count() == 1 })
		pass(time.Second)
		if n := reads.Load(); n != 0 {
			t.Errorf("parked messages were read %d times", n)
		}
		pass(10 * time.Second)
		if reads.Load() == 0 {
			t.Error("they are not even read now and then")
		}
	})
}

// A dead letter that is replayed while the reply of the first Acquire is under way comes at
// once, though the grant does not know of it.
func TestReplayWhileAcquiring(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		publish(t, be, "x", 0, 1, nil)
		stop := start(t, newConsumer(t, be, lease.Spec{Handlers: one(func(context.Context, lease.Message[note]) error {
			return lease.DeadLetter("bad")
		})}))
		eventually(t, "it is dead", func() bool { return len(deadLetters(t, be)) == 1 })
		stop()
		var link faults
		var acquired time.Time
		link.on("Acquire", func(ctx context.Context, phase leasemem.Phase) error {
			if phase == leasemem.After {
				if n, err := be.Replay(ctx, operate.DeadLetterFilter{}); n != 1 || err != nil {
					t.Errorf("replayed %d, %v", n, err)
				}
				time.Sleep(time.Second)
				acquired = time.Now()
			}
			return nil
		})
		handled := make(chan time.Time, 1)
		start(t, newConsumer(t, link.share(be), lease.Spec{Handlers: one(func(context.Context, lease.Message[note]) error {
			handled <- time.Now()
			return nil
		})}))
		if took := (<-handled).Sub(acquired); took > 100*time.Millisecond {
			t.Errorf("it came %v after the lease", took)
		}
	})
}

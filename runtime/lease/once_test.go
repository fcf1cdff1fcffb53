package lease_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/operate"
)

func noteKey(n *note) string { return fmt.Sprint("item ", n.N) }

// onceNote makes handlers that execute each note once.
func onceNote(u lease.OnUnknown, f func(ctx context.Context, m lease.Message[note]) error) []lease.Handler {
	return []lease.Handler{lease.Once(lease.One("note", f), noteKey, u)}
}

func TestOnceIsRefusedWhereItCannotBe(t *testing.T) {
	be := leasemem.New()
	one := lease.One("note", func(context.Context, lease.Message[note]) error { return nil })
	for _, c := range []struct {
		name string
		be   lease.Backend
		h    lease.Handler
		want string
	}{
		{"batch", be, lease.Once(lease.Batch("note", func(context.Context, []lease.Message[note]) error { return nil }), noteKey, 0), "One and OneTx only"},
		{"run", be, lease.Once(lease.Run(func(context.Context, lease.Lease) error { return nil }), noteKey, 0), "One and OneTx only"},
		{"no key", be, lease.Once[note](one, nil, 0), "no key function"},
		{"no such policy", be, lease.Once(one, noteKey, 7), "OnUnknown 7"},
		{"no ledger", bare{be}, lease.Once(one, noteKey, 0), "keeps no ledger"},
	} {
		_, err := lease.NewConsumer(c.be, lease.Spec{Name: "a", Per: lease.PerTopic, Topics: []string{"*"}, Handlers: []lease.Handler{c.h}})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

func TestIdempotencyKeyIsTheIDWithoutOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		publish(t, be, "x", 0, 1, nil)
		var got lease.Message[note]
		start(t, newConsumer(t, be, lease.Spec{Handlers: one(func(_ context.Context, m lease.Message[note]) error { got = m; return nil })}))
		pass(time.Second)
		if got.ID == "" || got.IdempotencyKey != got.ID {
			t.Errorf("key %q, id %q", got.IdempotencyKey, got.ID)
		}
	})
}

func TestItemWaitsWhileAnotherHandlerExecutesIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		publish(t, be, "x", 0, 1, nil)
		publish(t, be, "y", 0, 1, nil) // the same item
		var calls, attempts atomic.Int32
		h := onceNote(lease.OnUnknownPark, func(_ context.Context, m lease.Message[note]) error {
			calls.Add(1)
			attempts.Add(int32(m.Attempt))
			time.Sleep(30 * time.Second)
			return nil
		})
		// Once in another process, and once in the same.
		for range 2 {
			start(t, newConsumer(t, be.Share(), lease.Spec{Handlers: h}))
		}
		pass(10 * time.Second)
		if s := status(t, be); calls.Load() != 1 || s.ParkedKeys != 1 {
			t.Errorf("%d calls, %d parked, want one each", calls.Load(), s.ParkedKeys)
		}
		pass(time.Minute)
		if s := status(t, be); calls.Load() != 1 || s.ParkedKeys+int(s.LagTotal)+s.DeadLetters != 0 {
			t.Errorf("%d calls, then %+v", calls.Load(), s)
		}
	})
}

func TestItemsOfOneBatchAreExecutedOnce(t *testing.T) {
	for _, workers := range []int{1, 4} {
		bubble(t, func(t *testing.T) {
			be := leasemem.New()
			for i := range 3 { // each item thrice, under other keys
				publish(t, be, "x", 0, 20, func(n *note) string { return fmt.Sprint(n.N, i) })
			}
			var calls [20]atomic.Int32
			start(t, newConsumer(t, be, lease.Spec{Workers: workers, Handlers: onceNote(lease.OnUnknownPark, func(_ context.Context, m lease.Message[note]) error {
				calls[m.Payload.N].Add(1)
				time.Sleep(time.Millisecond)
				return nil
			})}))
			pass(time.Minute)
			for i := range calls {
				if n := calls[i].Load(); n != 1 {
					t.Errorf("%d workers: item %d was executed %d times", workers, i, n)
				}
			}
			if s := status(t, be); s.LagTotal+int64(s.ParkedKeys+s.DeadLetters) != 0 {
				t.Errorf("%d workers: left %+v", workers, s)
			}
		})
	}
}

func TestKnownFailuresAreRetriedAndUnknownOnesParked(t *testing.T) {
	fail := func(how string, m lease.Message[note]) error {
		if m.Attempt > 1 {
			return nil
		}
		switch how {
		case "panic":
			panic("boom")
		case "goexit":
			runtime.Goexit()
		}
		return errors.New("boom")
	}
	for _, how := range []string{"error", "panic", "goexit"} {
		bubble(t, func(t *testing.T) {
			be := leasemem.New()
			publish(t, be, "x", 0, 1, nil)
			var calls int
			start(t, newConsumer(t, be, lease.Spec{Handlers: onceNote(lease.OnUnknownPark, func(_ context.Context, m lease.Message[note]) error {
				calls++
				return fail(how, m)
			})}))
			pass(time.Minute)
			if calls != 2 || len(deadLetters(t, be)) != 0 {
				t.Errorf("%s: %d calls, dead letters %v", how, calls, deadLetters(t, be))
			}
		})
	}
}

// The error of a handler whose lease was lost has no meaning for the item.
func TestErrorAfterTheLeaseIsUnknown(t *testing.T) {
	for _, u := range []lease.OnUnknown{lease.OnUnknownRetry, lease.OnUnknownPark} {
		bubble(t, func(t *testing.T) {
			be := leasemem.New()
			var f faults
			publish(t, be, "x", 0, 1, nil)
			var calls atomic.Int32
			h := func(ctx context.Context, _ lease.Message[note]) error {
				if calls.Add(1) == 1 {
					<-ctx.Done() // the lease is lost
					return errors.New("interrupted")
				}
				return nil
			}
			start(t, newConsumer(t, f.share(be), lease.Spec{Handlers: onceNote(u, h)}))
			pass(time.Second)
			f.crash()
			start(t, newConsumer(t, be.Share(), lease.Spec{Handlers: onceNote(u, h)}))
			pass(time.Minute)
			dead := deadLetters(t, be)
			if u == lease.OnUnknownRetry {
				if calls.Load() != 2 || len(dead) != 0 {
					t.Errorf("retry: %d calls, dead letters %v", calls.Load(), dead)
				}
				return
			}
			if calls.Load() != 1 || len(dead) != 1 || !strings.Contains(dead[0].Reason, "outcome of an earlier execution is unknown") {
				t.Fatalf("park: %d calls, dead letters %v", calls.Load(), dead)
			}
			if _, err := be.Replay(t.Context(), operate.DeadLetterFilter{}); err != nil {
				t.Fatal(err)
			}
			pass(time.Minute)
			if calls.Load() != 2 || len(deadLetters(t, be)) != 0 {
				t.Errorf("after the replay: %d calls, dead letters %v", calls.Load(), deadLetters(t, be))
			}
		})
	}
}

// The same when the time to drain is over: the lease is given back, the item is unknown.
func TestErrorAfterDrainIsUnknown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		publish(t, be, "x", 0, 1, nil)
		var calls atomic.Int32
		h := onceNote(lease.OnUnknownPark, func(ctx context.Context, _ lease.Message[note]) error {
			calls.Add(1)
			<-ctx.Done()
			return errors.New("interrupted")
		})
		stop := start(t, newConsumer(t, be, lease.Spec{Handlers: h, Drain: time.Second}))
		pass(time.Second)
		stop()
		start(t, newConsumer(t, be, lease.Spec{Handlers: h}))
		pass(time.Minute)
		if n := len(deadLetters(t, be)); calls.Load() != 1 || n != 1 {
			t.Errorf("%d calls, %d dead letters, want one each", calls.Load(), n)
		}
	})
}

func TestWaitingForAnotherHandlerIsNoFailure(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		publish(t, be, "x", 0, 1, nil)
		publish(t, be, "y", 0, 1, nil)
		var attempts []int
		start(t, newConsumer(t, be, lease.Spec{Handlers: onceNote(lease.OnUnknownPark, func(_ context.Context, m lease.Message[note]) error {
			if attempts = append(attempts, m.Attempt); len(attempts) == 1 {
				time.Sleep(30 * time.Second)
				return lease.RetryAfter(time.Hour, errors.New("boom")) // the other message is next
			}
			return nil
		})}))
		pass(time.Minute)
		if !slices.Equal(attempts, []int{1, 1}) {
			t.Errorf("attempts %v", attempts)
		}
	})
}

// A process that is stopped before it calls the handler says so.
func TestItemThatWasNotCalledIsNotUnknown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		var f faults
		publish(t, be, "x", 0, 1, nil)
		entered := make(chan struct{})
		f.on("StartOnce", func(ctx context.Context, phase leasemem.Phase) error {
			if phase == leasemem.After {
				close(entered)
				time.Sleep(time.Second) // in between the process drains
			}
			return nil
		})
		var calls atomic.Int32
		h := onceNote(lease.OnUnknownPark, func(context.Context, lease.Message[note]) error { calls.Add(1); return nil })
		stop := start(t, newConsumer(t, f.share(be), lease.Spec{Handlers: h}))
		<-entered
		stop()
		if calls.Load() != 0 {
			t.Fatalf("%d calls after the stop", calls.Load())
		}
		start(t, newConsumer(t, be.Share(), lease.Spec{Handlers: h}))
		pass(time.Minute)
		if calls.Load() != 1 || len(deadLetters(t, be)) != 0 {
			t.Errorf("%d calls, dead letters %v", calls.Load(), deadLetters(t, be))
		}
	})
}

func TestBadItemsBecomeDeadLetters(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		publish(t, be, "x", 0, 5, nil)
		keys := []string{"", strings.Repeat("k", 513), "\xff", "a\x00b", "fine"}
		var calls, panics int
		h := lease.Once(lease.One("note", func(context.Context, lease.Message[note]) error { calls++; return nil }),
			func(n *note) string {
				if n.N == 4 && panics == 0 {
					panics++
					panic("boom") // a failure like that of a handler
				}
				return keys[n.N]
			}, lease.OnUnknownRetry)
		start(t, newConsumer(t, be, lease.Spec{Handlers: []lease.Handler{h}}))
		pass(time.Minute)
		var reasons []string
		for _, d := range deadLetters(t, be) {
			reasons = append(reasons, d.Reason)
		}
		want := []string{"the key is empty", "the key is 513 bytes long, at most 512 are allowed",
			"the key is not UTF-8 text without NUL", "the key is not UTF-8 text without NUL"}
		if !slices.Equal(reasons, want) || calls != 1 {
			t.Errorf("%d calls, reasons %q", calls, reasons)
		}
	})
}

// Two processes note two items in opposite orders, in transactions that wait for each other.
func TestTransactionsThatWaitForEachOtherGoOn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		ctx := t.Context()
		typ := lease.EventType[note]{Kind: "note"}
		for topic, ns := range map[string][]note{"x": {{1}, {2}}, "y": {{2}, {1}}} {
			if err := lease.Publish(ctx, be, topic, typ, ns); err != nil {
				t.Fatal(err)
			}
		}
		done := map[int]int{}
		var rec recorder
		h := []lease.Handler{lease.Once(lease.OneTx("note", func(_ context.Context, tx *leasemem.Tx, m lease.Message[note]) error {
			tx.Do(func() { done[m.Payload.N]++ })
			time.Sleep(time.Second)
			return nil
		}), noteKey, lease.OnUnknownRetry)}
		start(t, newConsumer(t, be, lease.Spec{Handlers: h}, lease.WithObserver(&rec)))
		pass(time.Minute)
		parked := 0
		for _, o := range observed[operate.ObservedCommit](&rec) {
			parked += o.Parked
		}
		if done[1] != 1 || done[2] != 1 || parked != 0 {
			t.Errorf("executed %v, %d messages were set aside", done, parked)
		}
		if s := status(t, be); s.LagTotal+int64(s.ParkedKeys+s.DeadLetters) != 0 {
			t.Errorf("left %+v", s)
		}
	})
}

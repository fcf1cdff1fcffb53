package lease_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/operate"
)

// replica is a process that can crash.
type replica struct {
	faults
	crashed atomic.Bool
	stop    func()
}

// die is what a handler does when its process crashes in it.
func (r *replica) die(ctx context.Context) error {
	r.crashed.Store(true)
	r.crash()
	<-ctx.Done()
	return ctx.Err()
}

// run starts a replica.
func run(t *testing.T, be *leasemem.Backend, s lease.Spec, handlers func(r *replica) []lease.Handler, opts ...lease.Option) *replica {
	r := &replica{}
	s.Handlers = handlers(r)
	if s.TTL == 0 {
		s.TTL = 2 * time.Second
	}
	r.stop = start(t, newConsumer(t, r.share(be), s, opts...))
	return r
}

// keepRunning starts one replica after the other until done, and returns how many crashed.
func keepRunning(t *testing.T, be *leasemem.Backend, s lease.Spec, handlers func(r *replica) []lease.Handler, done func() bool) (crashes int) {
	t.Helper()
	r := run(t, be, s, handlers)
	for deadline := time.Now().Add(10 * time.Minute); !done(); time.Sleep(10 * time.Millisecond) {
		if r.crashed.Load() {
			crashes++
			r = run(t, be, s, handlers)
		}
		if time.Now().After(deadline) {
			t.Fatalf("not done after %d crashes: %+v", crashes, status(t, be))
		}
	}
	return crashes
}

// The message that kills its process is found wherever it is and whatever the batch.
func TestKillerIsFound(t *testing.T) {
	for _, form := range []string{"one", "tx", "batch"} {
		for _, batch := range []int{1, 3, 50} {
			for _, at := range []int{0, 7, 39} {
				t.Run(fmt.Sprintf("%s-%d-%d", form, batch, at), func(t *testing.T) {
					bubble(t, func(t *testing.T) {
						be := leasemem.New()
						publish(t, be, "x", 0, 40, nil)
						handlers := func(r *replica) []lease.Handler {
							do := func(ctx context.Context, m lease.Message[note]) error {
								if m.Payload.N == at {
									return r.die(ctx)
								}
								return nil
							}
							switch form {
							case "tx":
								return oneTx(func(ctx context.Context, _ *leasemem.Tx, m lease.Message[note]) error { return do(ctx, m) })
							case "batch":
								return []lease.Handler{lease.Batch("note", func(ctx context.Context, ms []lease.Message[note]) error {
									for _, m := range ms {
										if err := do(ctx, m); err != nil {
											return err
										}
									}
									return nil
								})}
							}
							return one(do)
						}
						crashes := keepRunning(t, be, lease.Spec{Batch: batch}, handlers, func() bool { return status(t, be).LagTotal == 0 })
						if crashes != 5 {
							t.Errorf("%d crashes, want 2 to suspect and 3 to convict", crashes)
						}
						ds := deadLetters(t, be)
						if len(ds) != 1 || ds[0].MessageID != fmt.Sprint(at+1) || !strings.Contains(ds[0].Reason, "the process died 3 times") {
							t.Errorf("dead letters %+v", ds)
						}
						ls, _ := be.Leases(t.Context(), "a", 0)
						if ls[0].Suspicion > 0 && at < 39 {
							t.Errorf("the resource is still suspected: %+v", ls[0])
						}
					})
				})
			}
		}
	}
}

// The message that kills its process is found as soon, however far the workers got ahead of a slow
// one before.
func TestKillerAheadOfASlowMessage(t *testing.T) {
	for _, at := range []int{1, 20, 40, 70} {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				be := leasemem.New()
				publish(t, be, "x", 0, 80, func(n *note) string { return fmt.Sprint(n.N) })
				handlers := func(r *replica) []lease.Handler {
					return one(func(ctx context.Context, m lease.Message[note]) error {
						switch m.Payload.N {
						case 0:
							pauseFor(ctx, 500*time.Millisecond)
						case at:
							return r.die(ctx)
						}
						return ctx.Err()
					})
				}
				crashes := keepRunning(t, be, lease.Spec{Batch: 5, Workers: 4}, handlers, func() bool { return status(t, be).LagTotal == 0 })
				if crashes != 5 {
					t.Errorf("%d crashes, want 2 to suspect and 3 to convict", crashes)
				}
				if ds := deadLetters(t, be); len(ds) != 1 || ds[0].MessageID != fmt.Sprint(at+1) {
					t.Errorf("dead letters %+v", ds)
				}
			})
		})
	}
}

// A message that kills its process when it is tried again is found, though others of
// the resource keep failing.
func TestKillerAmongParked(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		publish(t, be, "x", 0, 30, func(n *note) string { return fmt.Sprint(n.N) })
		handlers := func(r *replica) []lease.Handler {
			return one(func(ctx context.Context, m lease.Message[note]) error {
				switch {
				case m.Payload.N == 20 && m.Attempt > 1:
					return r.die(ctx)
				case m.Payload.N >= 10 && m.Payload.N < 25 && m.Attempt < 40:
					return errLink
				}
				return nil
			})
		}
		s := lease.Spec{Batch: 4, Retry: lease.Retry{Max: 100, Min: 50 * time.Millisecond, Cap: 100 * time.Millisecond}}
		crashes := keepRunning(t, be, s, handlers, func() bool {
			s := status(t, be)
			return s.LagTotal == 0 && s.ParkedKeys == 0
		})
		if crashes > 6 {
			t.Errorf("%d crashes", crashes)
		}
		if ds := deadLetters(t, be); len(ds) != 1 || ds[0].MessageID != "21" {
			t.Errorf("dead letters %+v", ds)
		}
	})
}

// Being interrupted by stops while it is handled with care does not convict a message.
func TestInterruptedMessageIsNotBlamed(t *testing.T) {
	for _, form := range []string{"one", "tx", "parked", "parked-tx"} {
		t.Run(form, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				be := leasemem.New()
				publish(t, be, "x", 0, 3, nil)
				var calm atomic.Bool
				handlers := func(r *replica) []lease.Handler {
					do := func(ctx context.Context, m lease.Message[note]) error {
						switch {
						case calm.Load() || m.Payload.N > 0:
							return nil
						case strings.HasPrefix(form, "parked") && m.Attempt == 1:
							return errLink
						}
						<-ctx.Done()
						return ctx.Err()
					}
					if strings.HasSuffix(form, "tx") {
						return oneTx(func(ctx context.Context, _ *leasemem.Tx, m lease.Message[note]) error { return do(ctx, m) })
					}
					return one(do)
				}
				s := lease.Spec{Drain: time.Second, Retry: lease.Retry{Min: time.Millisecond}}
				for range 2 {
					r := run(t, be, s, handlers)
					time.Sleep(time.Second)
					r.crash()
					time.Sleep(5 * time.Second)
				}
				for range 5 {
					r := run(t, be, s, handlers)
					time.Sleep(time.Second)
					r.stop()
				}
				calm.Store(true)
				run(t, be, s, handlers)
				drained(t, be)
				if ds := deadLetters(t, be); len(ds) > 0 {
					t.Errorf("dead letters %+v", ds)
				}
			})
		})
	}
}

// A resource that was suspected and makes progress is trusted again.
func TestTrustComesBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		var calm atomic.Bool
		handlers := func(r *replica) []lease.Handler {
			return one(func(ctx context.Context, m lease.Message[note]) error {
				if !calm.Load() {
					return r.die(ctx)
				}
				return nil
			})
		}
		publish(t, be, "x", 0, 10, nil)
		for range 3 {
			run(t, be, lease.Spec{Batch: 2}, handlers)
			time.Sleep(5 * time.Second)
		}
		calm.Store(true)
		var rec recorder
		run(t, be, lease.Spec{Batch: 2}, handlers, lease.WithObserver(&rec))
		drained(t, be)
		eventually(t, "trust", func() bool {
			ls, err := be.Leases(t.Context(), "a", 0)
			return err == nil && ls[0].Suspicion == 0
		})
		pass(time.Second) // until all is observed
		if o := observed[operate.ObservedAcquire](&rec); len(o) != 1 || !o[0].Crashed {
			t.Errorf("%+v", o)
		}
	})
}

// A partition is no crash of the handler: it is cancelled with ErrLost, uncounted.
func TestLossIsNoAttempt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		publish(t, be, "x", 0, 1, nil)
		causes := make(chan error, 1)
		r := run(t, be, lease.Spec{}, func(*replica) []lease.Handler {
			return one(func(ctx context.Context, m lease.Message[note]) error {
				<-ctx.Done()
				causes <- context.Cause(ctx)
				return ctx.Err()
			})
		})
		time.Sleep(time.Second)
		r.crash()
		cut := time.Now()
		if err := <-causes; !errors.Is(err, lease.ErrLost) {
			t.Errorf("cause %v", err)
		}
		if took := time.Since(cut); took > 1750*time.Millisecond {
			t.Errorf("belief ended %v after the partition began, want TTL minus margin at most", took)
		}
		var got seen
		run(t, be, lease.Spec{}, func(*replica) []lease.Handler {
			return one(func(_ context.Context, m lease.Message[note]) error {
				got.add(m.Topic, m.Attempt)
				return nil
			})
		})
		drained(t, be)
		if a := got.of("x"); len(a) != 1 || a[0] != 1 {
			t.Errorf("attempts %v", a)
		}
	})
}

package lease_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/operate"
)

// effects are what committed transactions did.
type effects struct {
	mu  sync.Mutex
	all []int
}

func (e *effects) write(tx *leasemem.Tx, n int) {
	tx.Do(func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.all = append(e.all, n)
	})
}

// are checks that the effects are those of 0 to n-1 in order, but for the missing.
func (e *effects) are(t *testing.T, n int, missing ...int) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	var want []int
	for i := range n {
		if !slices.Contains(missing, i) {
			want = append(want, i)
		}
	}
	if !slices.Equal(e.all, want) {
		t.Errorf("effects %v, want %v", e.all, want)
	}
}

// deferring is a backend whose transactions are refused at commit when a handler has
// done what a deferred constraint forbids.
type deferring struct {
	*leasemem.Backend
}

type deferringTx struct {
	backend.Tx
	h *deferredHandle
}

// deferredHandle is the Handle of a deferringTx.
type deferredHandle struct {
	*leasemem.Tx
	bad bool
}

func (b *deferring) Capabilities() backend.Capabilities {
	caps := b.Backend.Capabilities()
	caps.Tx = b
	return caps
}

func (b *deferring) Begin(ctx context.Context, session string) (backend.Tx, error) {
	tx, err := b.Backend.Begin(ctx, session)
	if err != nil {
		return nil, err
	}
	return &deferringTx{tx, &deferredHandle{Tx: tx.Handle().(*leasemem.Tx)}}, nil
}

func (t *deferringTx) Handle() any { return t.h }

func (t *deferringTx) Commit(ctx context.Context, session, consumer string, p backend.Progress) error {
	if t.h.bad {
		return fmt.Errorf("%w: constraint violated", backend.ErrRolledBack)
	}
	return t.Tx.Commit(ctx, session, consumer, p)
}

// A message whose effects cannot be committed fails like any other: it is found among
// those of its transaction, tried again and given up on, without a handover.
func TestRefusedCommits(t *testing.T) {
	for _, form := range []string{"one", "batch"} {
		t.Run(form, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				be := &deferring{leasemem.New()}
				publish(t, be, "x", 0, 20, nil)
				var e effects
				var rec recorder
				do := func(tx *deferredHandle, m lease.Message[note]) {
					n := m.Payload.N
					tx.bad = tx.bad || n == 3 && m.Attempt < 3 || n == 17
					e.write(tx.Tx, n)
				}
				h := lease.OneTx("note", func(_ context.Context, tx *deferredHandle, m lease.Message[note]) error {
					do(tx, m)
					return nil
				})
				if form == "batch" {
					h = lease.BatchTx("note", func(_ context.Context, tx *deferredHandle, ms []lease.Message[note]) error {
						for _, m := range ms {
							do(tx, m)
						}
						return nil
					})
				}
				start(t, newConsumer(t, be, lease.Spec{Batch: 10, Handlers: []lease.Handler{h}, Retry: lease.Retry{Max: 4}}, lease.WithObserver(&rec)))
				drained(t, be.Backend)
				e.are(t, 20, 17)
				ds := deadLetters(t, be.Backend)
				if len(ds) != 1 || ds[0].Attempts != 4 {
					t.Errorf("dead letters %+v, want #17 after 4 attempts", ds)
				}
				if n := len(observed[operate.ObservedAcquire](&rec)); n != 1 {
					t.Errorf("the lease was acquired %d times, want 1", n)
				}
			})
		})
	}
}

// After a commit whose outcome is unknown the lease changes hands, and the next owner
// starts from what was stored: effects happen once either way.
func TestUnknownCommits(t *testing.T) {
	for phase, name := range map[leasemem.Phase]string{leasemem.Before: "not-committed", leasemem.After: "committed"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				be := leasemem.New()
				var link faults
				var e effects
				var rec recorder
				publish(t, be, "x", 0, 30, nil)
				var commits atomic.Int64
				link.on("TxCommit", func(_ context.Context, p leasemem.Phase) error {
					if p == phase {
						if commits.Add(1)%3 == 1 {
							return errLink
						}
					}
					return nil
				})
				start(t, newConsumer(t, link.share(be), lease.Spec{Batch: 4, Retry: lease.Retry{Min: time.Millisecond}, Handlers: oneTx(func(_ context.Context, tx *leasemem.Tx, m lease.Message[note]) error {
					if m.Attempt != 1 && m.Payload.N != 5 {
						t.Errorf("#%d: attempt %d", m.Payload.N, m.Attempt)
					}
					e.write(tx, m.Payload.N)
					if m.Payload.N == 5 && m.Attempt == 1 {
						return errLink // and so it is handled parked, too
					}
					return nil
				})}, lease.WithObserver(&rec)))
				drained(t, be)
				e.mu.Lock()
				slices.Sort(e.all)
				e.mu.Unlock()
				e.are(t, 30)
				if n := len(observed[operate.ObservedLoss](&rec)); n > 0 {
					t.Errorf("%d losses", n)
				}
			})
		})
	}
}

// A commit that always fails costs a bounded number of handovers.
func TestCommitsThatKeepFailingArePaced(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		var link faults
		publish(t, be, "x", 0, 1, nil)
		var rec recorder
		link.on("TxCommit", before(func(context.Context) error { return errLink }))
		start(t, newConsumer(t, link.share(be), lease.Spec{Handlers: oneTx(func(context.Context, *leasemem.Tx, lease.Message[note]) error { return nil })}, lease.WithObserver(&rec)))
		time.Sleep(10 * time.Second)
		if n := len(observed[operate.ObservedAcquire](&rec)); n < 3 || n > 250 {
			t.Errorf("%d handovers in 10s", n)
		}
	})
}

// Handlers with and without a transaction take turns in one resource, and whatever goes
// wrong in them, effects are written once, in order.
func TestMixedForms(t *testing.T) {
	for batch := range 7 {
		t.Run(fmt.Sprint("batch-", batch+1), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				be := leasemem.New()
				var events []lease.Event
				kinds := []string{"tx", "tx", "plain", "bulk", "bulk", "none", "bulk", "plain", "plain", "tx", "broken"}
				const n = 66
				for i := range n {
					payload := fmt.Appendf(nil, `{"N":%d}`, i)
					if kinds[i%11] == "broken" {
						payload = []byte("?")
					}
					events = append(events, lease.Event{Topic: "x", Key: fmt.Sprint(i), Kind: kinds[i%11], Payload: payload})
				}
				if err := be.Publish(t.Context(), events); err != nil {
					t.Fatal(err)
				}
				var e effects
				var plain seen
				bad := map[int]func(){
					9: func() { panic("9") }, 11: func() { runtime.Goexit() }, 12: func() { panic(errLink) },
					14: func() { runtime.Goexit() }, 15: func() { panic("15") }, 31: func() { panic(31) },
				}
				trip := func(m lease.Message[note]) {
					if f := bad[m.Payload.N]; f != nil && m.Attempt == 1 {
						f()
					}
				}
				tx := func(_ context.Context, tx *leasemem.Tx, m lease.Message[note]) error {
					e.write(tx, m.Payload.N)
					trip(m)
					return nil
				}
				start(t, newConsumer(t, be, lease.Spec{Batch: batch + 1, UnknownWait: -1, Retry: lease.Retry{Min: time.Millisecond, Order: lease.OrderBlock}, Handlers: []lease.Handler{
					lease.OneTx("tx", tx),
					lease.OneTx("broken", tx),
					lease.BatchTx("bulk", func(_ context.Context, x *leasemem.Tx, ms []lease.Message[note]) error {
						for _, m := range ms {
							e.write(x, m.Payload.N)
							trip(m)
						}
						return nil
					}),
					lease.One("plain", func(_ context.Context, m lease.Message[note]) error {
						trip(m)
						plain.add("x", m.Payload.N)
						return nil
					}),
				}}))
				drained(t, be)
				if ds := deadLetters(t, be); len(ds) != 12 {
					t.Errorf("%d dead letters, want 6 of an unknown kind and 6 undecodable", len(ds))
				}
				var missing []int
				for i := range n {
					switch kinds[i%11] {
					case "plain", "none", "broken":
						missing = append(missing, i)
					}
				}
				e.are(t, n, missing...)
				if got := plain.of("x"); len(got) != 18 || !slices.IsSorted(got) {
					t.Errorf("without a transaction: %v", got)
				}
			})
		})
	}
}

// A stop in the middle of a transaction commits what was handled alone.
func TestStopInTheMiddleOfATransaction(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		publish(t, be, "x", 0, 10, nil)
		var e effects
		h := oneTx(func(ctx context.Context, tx *leasemem.Tx, m lease.Message[note]) error {
			time.Sleep(time.Second)
			e.write(tx, m.Payload.N)
			return nil
		})
		stop := start(t, newConsumer(t, be, lease.Spec{Handlers: h}))
		time.Sleep(3500 * time.Millisecond)
		stop()
		e.are(t, 4)
		stop = start(t, newConsumer(t, be, lease.Spec{Handlers: h, Drain: time.Millisecond}))
		time.Sleep(2500 * time.Millisecond)
		stop() // the call under way is cancelled, and with it the whole transaction
		e.are(t, 4)
		start(t, newConsumer(t, be, lease.Spec{Handlers: h}))
		eventually(t, "all committed", func() bool { return status(t, be).LagTotal == 0 })
		e.are(t, 10)
	})
}

// A handler that takes a transaction is refused at once when the backend has another type.
func TestForeignTransaction(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		publish(t, be, "x", 0, 1, nil)
		start(t, newConsumer(t, be, lease.Spec{Retry: lease.Retry{Max: 1}, Handlers: []lease.Handler{
			lease.OneTx("note", func(context.Context, fmt.Stringer, lease.Message[note]) error { return nil }),
		}}))
		drained(t, be)
		ds := deadLetters(t, be)
		if want := "the handler takes a fmt.Stringer, the backend's transactions are *leasemem.Tx"; len(ds) != 1 || ds[0].Reason != want {
			t.Errorf("dead letters %+v, want one with reason %q", ds, want)
		}
	})
}

// A transaction that a newer epoch fences has no effect.
func TestFencedTransaction(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		publish(t, be, "x", 0, 3, nil)
		var link faults
		var e effects
		var rec recorder
		var fenced atomic.Bool
		link.on("TxCommit", before(func(context.Context) error {
			if fenced.CompareAndSwap(false, true) {
				return backend.ErrFenced
			}
			return nil
		}))
		stop := start(t, newConsumer(t, link.share(be), lease.Spec{Handlers: oneTx(func(ctx context.Context, tx *leasemem.Tx, m lease.Message[note]) error {
			e.write(tx, m.Payload.N)
			return nil
		})}, lease.WithObserver(&rec)))
		eventually(t, "the loss", func() bool { return len(observed[operate.ObservedLoss](&rec)) == 1 })
		// No other process has it after all: the backend counts it as this process's, which gives it back and takes it.
		eventually(t, "all committed", func() bool { return status(t, be).LagTotal == 0 })
		e.are(t, 3)
		if n := len(observed[operate.ObservedFenced](&rec)); n != 1 {
			t.Errorf("%d fenced writes were told, want 1", n)
		}
		stop()
		if n := len(observed[operate.ObservedLoss](&rec)); n != 1 {
			t.Errorf("the loss was told %d times", n)
		}
	})
}

// fragile is a backend whose connections break under handlers.
type fragile struct {
	*leasemem.Backend
	broken atomic.Bool // the transaction under way is
}

type fragileTx struct {
	backend.Tx
	b *fragile
}

func (b *fragile) Capabilities() backend.Capabilities {
	caps := b.Backend.Capabilities()
	caps.Tx = b
	return caps
}

func (b *fragile) Begin(ctx context.Context, session string) (backend.Tx, error) {
	b.broken.Store(false)
	tx, err := b.Backend.Begin(ctx, session)
	return &fragileTx{tx, b}, err
}

func (t *fragileTx) Lost() bool { return t.b.broken.Load() }

// A connection that breaks under a handler is not the message's failure, unless it
// happens over and over.
func TestLostConnections(t *testing.T) {
	for _, c := range []struct {
		name             string
		breaks, attempts int // how often the connection breaks; what the handler sees at last
		parked           bool
	}{
		{"now and then", 3, 1, false},
		{"of a parked message", 3, 2, true},
		{"over and over", 4, 2, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				be := &fragile{Backend: leasemem.New()}
				publish(t, be, "x", 0, 10, nil)
				var e effects
				breaks, last, failed := c.breaks, 0, !c.parked
				start(t, newConsumer(t, be, lease.Spec{Handlers: oneTx(func(_ context.Context, tx *leasemem.Tx, m lease.Message[note]) error {
					if m.Payload.N == 4 {
						last = m.Attempt
						if !failed {
							failed = true
							return errors.New("not yet")
						}
						if breaks > 0 {
							breaks--
							be.broken.Store(true)
							return errors.New("conn closed")
						}
					}
					e.write(tx, m.Payload.N)
					return nil
				})}))
				drained(t, be.Backend)
				e.are(t, 10)
				if last != c.attempts {
					t.Errorf("handled at attempt %d, want %d", last, c.attempts)
				}
			})
		})
	}
}

// A commit that is refused is tried again: failures beside it are observed once.
func TestFailuresAreToldOnceWhenACommitIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		var f faults
		left := 1
		f.on("TxCommit", before(func(context.Context) error {
			if left--; left == 0 {
				return fmt.Errorf("%w: a deferred constraint", backend.ErrRolledBack)
			}
			return nil
		}))
		rec := &recorder{}
		c := newConsumer(t, f.share(be), lease.Spec{Retry: lease.Retry{Min: time.Hour, Cap: time.Hour, Order: lease.OrderNone},
			Handlers: oneTx(func(_ context.Context, _ *leasemem.Tx, m lease.Message[note]) error {
				switch m.Payload.N {
				case 2:
					return lease.DeadLetter("bad")
				case 3:
					return errors.New("not now")
				}
				return nil
			})}, lease.WithObserver(rec))
		publish(t, be, "x", 0, 6, nil)
		stop := start(t, c)
		pass(time.Minute)
		stop()
		if dead, retries := observed[operate.ObservedDeadLetter](rec), observed[operate.ObservedRetry](rec); len(dead) != 1 || len(retries) != 1 || left > 0 {
			t.Errorf("observed %v and %v, want each once", dead, retries)
		}
	})
}

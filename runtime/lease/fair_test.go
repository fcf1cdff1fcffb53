package lease_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/operate"
)

// Keys that keep failing take no more than their turn: what comes of a healthy key is handled
// in between.
func TestRetriesStarveNothing(t *testing.T) {
	for _, order := range []lease.Order{lease.OrderKey, lease.OrderNone} {
		for _, workers := range []int{1, 16} {
			t.Run(fmt.Sprint(order, "-", workers), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					be := leasemem.New()
					publish(t, be, "x", 0, 100*workers, func(n *note) string { return fmt.Sprint(n.N) })
					var healthy atomic.Int64
					c := newConsumer(t, be, lease.Spec{Workers: workers, Retry: lease.Retry{Max: 1 << 30, Min: 100 * time.Millisecond, Cap: 500 * time.Millisecond, Order: order},
						Handlers: one(func(_ context.Context, m lease.Message[note]) error {
							if m.Key == "healthy" {
								healthy.Add(1)
								return nil
							}
							time.Sleep(100 * time.Millisecond) // ten seconds for one turn of all: there is always one that is due
							return errLink
						})})
					start(t, c)
					pass(30 * time.Second) // all of them have failed
					publish(t, be, "x", 0, 30, func(*note) string { return "healthy" })
					pass(30 * time.Second)
					if n := healthy.Load(); n != 30 {
						t.Errorf("%d of 30 healthy messages were handled in 30 s", n)
					}
				})
			})
		}
	}
}

// Due messages run on all workers, those of one lane in order.
func TestRetriesUseWorkers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		publish(t, be, "x", 0, 160, func(n *note) string { return fmt.Sprint(n.N % 16) })
		var mu sync.Mutex
		got := map[string][]int{}
		at, most := 0, 0
		start(t, newConsumer(t, be, lease.Spec{Workers: 16, Batch: 200, Retry: lease.Retry{Min: time.Second, Jitter: -1}, Handlers: one(func(_ context.Context, m lease.Message[note]) error {
			if m.Payload.N < 16 && m.Attempt == 1 {
				return errLink
			}
			mu.Lock()
			at++
			most = max(most, at)
			mu.Unlock()
			time.Sleep(100 * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			at--
			got[m.Key] = append(got[m.Key], m.Payload.N)
			return nil
		})}))
		pass(4 * time.Second)
		if status(t, be).ParkedKeys != 0 || most != 16 {
			t.Errorf("%d messages at once at most, %d keys left", most, status(t, be).ParkedKeys)
		}
		for key, ns := range got {
			if len(ns) != 10 || !slices.IsSorted(ns) {
				t.Errorf("key %s: %v", key, ns)
			}
		}
	})
}

// With order=none messages that fail are due by themselves, and still those of one key are not
// handled at once: neither among themselves nor beside fresh ones.
func TestDueMessagesOfAKeyAreHandledOneByOne(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		key := func(n *note) string { return fmt.Sprint(n.N % 3) }
		publish(t, be, "x", 0, 90, key)
		var mu sync.Mutex
		busy, done := map[string]int{}, 0
		start(t, newConsumer(t, be, lease.Spec{Workers: 16, Batch: 40, Retry: lease.Retry{Order: lease.OrderNone, Min: time.Second, Jitter: -1},
			Handlers: one(func(_ context.Context, m lease.Message[note]) error {
				mu.Lock()
				if busy[m.Key]++; busy[m.Key] > 1 {
					t.Errorf("%d messages of key %s are handled at once", busy[m.Key], m.Key)
				}
				mu.Unlock()
				time.Sleep(10 * time.Millisecond)
				mu.Lock()
				defer mu.Unlock()
				busy[m.Key]--
				if m.Attempt == 1 && m.Payload.N%2 == 0 {
					return errLink
				}
				done++
				return nil
			})}))
		pass(1500 * time.Millisecond)
		publish(t, be, "x", 90, 180, key) // fresh ones beside those that are due
		eventually(t, "all are handled", func() bool { mu.Lock(); defer mu.Unlock(); return done == 180 })
	})
}

// A replayed message waits in the lane of its key, and is not handled beside those that wait in another
// lane with the same key.
func TestReplayedMessagesOfAKeyAreHandledOneByOne(t *testing.T) {
	for _, order := range []lease.Order{lease.OrderBlock, lease.OrderKey, lease.OrderNone} {
		t.Run(order.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				be := leasemem.New()
				publish(t, be, "x", 0, 2, func(*note) string { return "k" })
				first := one(func(_ context.Context, m lease.Message[note]) error {
					if m.Payload.N == 0 {
						return lease.DeadLetter("later")
					}
					return lease.RetryAfter(5*time.Second, errLink)
				})
				stop := start(t, newConsumer(t, be, lease.Spec{Retry: lease.Retry{Order: lease.OrderBlock}, Handlers: first}))
				pass(time.Second)
				stop()
				if n, err := be.Replay(t.Context(), operate.DeadLetterFilter{}); n != 1 || err != nil {
					t.Fatal(n, err)
				}
				pass(5 * time.Second)
				var busy, done atomic.Int64
				start(t, newConsumer(t, be, lease.Spec{Workers: 4, Retry: lease.Retry{Order: order}, Handlers: one(func(_ context.Context, m lease.Message[note]) error {
					if n := busy.Add(1); n > 1 {
						t.Errorf("%d messages of one key are handled at once", n)
					}
					time.Sleep(10 * time.Millisecond)
					busy.Add(-1)
					done.Add(1)
					return nil
				})}))
				eventually(t, "both are handled", func() bool { return done.Load() == 2 })
			})
		})
	}
}

// A resource whose due messages are many and slow holds up those of no other.
func TestBusyResourceHoldsUpNoRetry(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		publish(t, be, "busy", 0, 1000, func(n *note) string { return fmt.Sprint(n.N) })
		var tried []time.Time
		start(t, newConsumer(t, be, lease.Spec{Retry: lease.Retry{Max: 1 << 30, Min: 10 * time.Millisecond, Cap: 10 * time.Millisecond, Jitter: -1},
			Handlers: one(func(_ context.Context, m lease.Message[note]) error {
				if m.Topic == "other" {
					if tried = append(tried, time.Now()); len(tried) == 1 {
						return lease.RetryAfter(time.Second, errLink)
					}
					return nil
				}
				if m.Attempt > 1 {
					time.Sleep(20 * time.Millisecond)
				}
				return errLink
			})}))
		pass(10 * time.Second)
		publish(t, be, "other", 0, 1, nil)
		pass(10 * time.Second)
		if len(tried) != 2 {
			t.Fatalf("the other resource's message was tried %d times", len(tried))
		}
		if d := tried[1].Sub(tried[0]); d > 2*time.Second {
			t.Errorf("its retry came after %v, want 1 s", d)
		}
	})
}

// poisoned is a backend for which calls that name one resource fail, or hang.
type poisoned struct {
	*leasemem.Backend
	resource string
	op       string
	hang     bool
	calls    atomic.Int64
}

func (b *poisoned) meets(ctx context.Context, op string, resources ...string) error {
	if b.op != op || len(resources) > 0 && !slices.Contains(resources, b.resource) {
		return nil
	}
	b.calls.Add(1)
	if !b.hang {
		return errLink
	}
	<-ctx.Done()
	return ctx.Err()
}

func (b *poisoned) Fetch(ctx context.Context, req backend.FetchRequest) ([]backend.Fetched, error) {
	var names []string
	for _, i := range req.Items {
		names = append(names, i.Resource)
	}
	if err := b.meets(ctx, "Fetch", names...); err != nil {
		return nil, err
	}
	return b.Backend.Fetch(ctx, req)
}

func (b *poisoned) Commit(ctx context.Context, session, consumer string, ps []backend.Progress) ([]string, error) {
	var names []string
	for _, p := range ps {
		names = append(names, p.Resource)
	}
	if err := b.meets(ctx, "Commit", names...); err != nil {
		return nil, err
	}
	return b.Backend.Commit(ctx, session, consumer, ps)
}

func (b *poisoned) FetchParked(ctx context.Context, req backend.ParkedRequest) (backend.Parked, error) {
	if !slices.Contains(req.Exclude, b.resource) {
		if err := b.meets(ctx, "FetchParked", req.Resources...); err != nil {
			return backend.Parked{}, err
		}
	}
	return b.Backend.FetchParked(ctx, req)
}

// A resource for which the backend fails or hangs stops itself alone, retries of the others
// included, and is not asked for without a pause.
func TestPoisonResource(t *testing.T) {
	for _, op := range []string{"Fetch", "Commit", "FetchParked"} {
		for _, hang := range []bool{false, true} {
			t.Run(fmt.Sprint(op, "-hangs-", hang), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					be := &poisoned{Backend: leasemem.New(), resource: "t7", op: op, hang: hang}
					var got seen
					var mu sync.Mutex
					tried := map[string]bool{}
					for topic := range 40 {
						publish(t, be, fmt.Sprint("t", topic), 0, 10, nil)
					}
					start(t, newConsumer(t, be, lease.Spec{Retry: lease.Retry{Min: 10 * time.Millisecond}, Handlers: one(func(_ context.Context, m lease.Message[note]) error {
						mu.Lock()
						defer mu.Unlock()
						if id := m.ID; !tried[id] && m.Payload.N%5 == 3 {
							tried[id] = true
							return errLink
						}
						got.add(m.Topic, m.Payload.N)
						return nil
					})}))
					for round := range 6 {
						pass(20 * time.Second)
						for topic := range 40 {
							name := fmt.Sprint("t", topic)
							if n := len(got.of(name)); n != 10*(round+1) && name != be.resource {
								t.Fatalf("round %d: %d messages of %s were handled, want %d", round, n, name, 10*(round+1))
							}
							publish(t, be, name, 10*round+10, 10*round+20, nil)
						}
					}
					if n := be.calls.Load(); n > 400 {
						t.Errorf("%d calls failed in two minutes", n)
					}
				})
			})
		}
	}
}

// slowly is a backend whose reads take long for each message.
type slowly struct {
	*leasemem.Backend
	each time.Duration
}

func (b *slowly) Fetch(ctx context.Context, req backend.FetchRequest) ([]backend.Fetched, error) {
	fs, err := b.Backend.Fetch(ctx, req)
	for _, f := range fs {
		select {
		case <-time.After(time.Duration(len(f.Messages)) * b.each):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return fs, err
}

// A read that takes too long is asked for less and given more time, until it succeeds.
func TestSlowReadsAskForLess(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := &slowly{leasemem.New(), 90 * time.Millisecond}
		publish(t, be, "x", 0, 1000, nil)
		var got seen
		start(t, newConsumer(t, be, lease.Spec{Handlers: one(func(_ context.Context, m lease.Message[note]) error {
			got.add(m.Topic, m.Payload.N)
			return nil
		})}))
		pass(5 * time.Minute)
		got.ordered(t, "x", 1000)
	})
}

// confused is a backend that answers reads with those of other resources.
type confused struct {
	*leasemem.Backend
	times atomic.Int64
}

func (b *confused) Fetch(ctx context.Context, req backend.FetchRequest) ([]backend.Fetched, error) {
	fs, err := b.Backend.Fetch(ctx, req)
	if b.times.Add(-1) >= 0 {
		slices.Reverse(fs)
		for i := range fs {
			fs[i].Cut = nil
		}
	}
	return fs, err
}

// Answers for what was not asked are refused.
func TestWrongAnswersAreRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := &confused{Backend: leasemem.New()}
		be.times.Store(6)
		for topic := range 4 {
			publish(t, be, fmt.Sprint("t", topic), 0, 30, nil)
		}
		var got seen
		start(t, newConsumer(t, be, lease.Spec{Handlers: one(func(ctx context.Context, m lease.Message[note]) error {
			if l, _ := lease.FromContext(ctx); l.Resource != m.Topic {
				t.Errorf("a message of %s came under the lease of %s", m.Topic, l.Resource)
			}
			got.add(m.Topic, m.Payload.N)
			return nil
		})}))
		pass(time.Minute)
		for topic := range 4 {
			got.ordered(t, fmt.Sprint("t", topic), 30)
		}
	})
}

// Changes that a handler makes in place do not reach its next call.
func TestCallsShareNothing(t *testing.T) {
	spoil := func(m *lease.Message[[]byte]) {
		for i := range m.Payload {
			m.Payload[i] = 'x'
		}
		_ = append(m.Payload, "overrun"...)
		m.Headers["h"] = "x"
		m.Headers["new"] = "x"
	}
	whole := func(m *lease.Message[[]byte]) bool {
		return strings.HasPrefix(string(m.Payload), `{"N":`) && m.Headers["h"] == "v" && len(m.Headers) == 1
	}
	forms := map[string]func(call func(m *lease.Message[[]byte]) error) lease.Handler{
		"one": func(call func(m *lease.Message[[]byte]) error) lease.Handler {
			return lease.One("note", func(_ context.Context, m lease.Message[[]byte]) error { return call(&m) })
		},
		"tx": func(call func(m *lease.Message[[]byte]) error) lease.Handler {
			return lease.OneTx("note", func(_ context.Context, _ *leasemem.Tx, m lease.Message[[]byte]) error { return call(&m) })
		},
		"batch": func(call func(m *lease.Message[[]byte]) error) lease.Handler {
			return lease.Batch("note", func(_ context.Context, ms []lease.Message[[]byte]) error {
				for i := range ms {
					if err := call(&ms[i]); err != nil {
						return err
					}
				}
				return nil
			})
		},
		"batchtx": func(call func(m *lease.Message[[]byte]) error) lease.Handler {
			return lease.BatchTx("note", func(_ context.Context, _ *leasemem.Tx, ms []lease.Message[[]byte]) error {
				for i := range ms {
					if err := call(&ms[i]); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	for name, form := range forms {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				be := leasemem.New()
				for i := range 20 {
					e := lease.Event{Topic: "x", Kind: "note", Key: fmt.Sprint(i), Payload: fmt.Appendf(nil, `{"N":%d}`, i), Headers: map[string]string{"h": "v"}}
					if err := be.Publish(t.Context(), []lease.Event{e}); err != nil {
						t.Fatal(err)
					}
				}
				var calls, spoilt int
				h := form(func(m *lease.Message[[]byte]) error {
					calls++
					if !whole(m) {
						spoilt++
					}
					spoil(m)
					if calls%3 == 0 {
						return errLink
					}
					return nil
				})
				start(t, newConsumer(t, be, lease.Spec{Handlers: []lease.Handler{h}, Retry: lease.Retry{Max: 100, Min: time.Millisecond}}))
				drained(t, be)
				if spoilt > 0 {
					t.Errorf("%d of %d calls saw what another had changed", spoilt, calls)
				}
			})
		})
	}
}

// With order=block no later message is handled while a message waits, whatever the workers.
func TestBlockedResourceWaitsWithWorkers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		publish(t, be, "x", 0, 100, func(n *note) string { return fmt.Sprint(n.N) })
		var mu sync.Mutex
		var failed bool
		var later []int
		start(t, newConsumer(t, be, lease.Spec{Workers: 4, Retry: lease.Retry{Min: 10 * time.Second, Order: lease.OrderBlock}, Handlers: one(func(_ context.Context, m lease.Message[note]) error {
			time.Sleep(time.Millisecond * time.Duration(1+m.Payload.N%4))
			mu.Lock()
			defer mu.Unlock()
			if m.Payload.N == 5 && m.Attempt == 1 {
				failed = true
				return errLink
			}
			if failed && m.Payload.N > 8 { // those at work at that moment may end
				later = append(later, m.Payload.N)
			}
			return nil
		})}))
		pass(7 * time.Second)
		mu.Lock()
		if len(later) > 0 {
			t.Errorf("handled during the wait: %v", later)
		}
		mu.Unlock()
		drained(t, be)
	})
}

// A slow key holds back its own messages, and not those of the other workers.
func TestSlowKeyHoldsBackItself(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		publish(t, be, "x", 0, 1000, func(n *note) string { return fmt.Sprint("k", n.N) })
		var quick atomic.Int64
		start(t, newConsumer(t, be, lease.Spec{Workers: 16, Handlers: one(func(ctx context.Context, m lease.Message[note]) error {
			if m.Payload.N == 3 {
				time.Sleep(time.Hour)
				return nil
			}
			quick.Add(1)
			return nil
		})}))
		pass(10 * time.Second)
		if n := quick.Load(); n != 999 {
			t.Errorf("%d of 999 other messages were handled beside a slow one", n)
		}
		pass(2 * time.Hour)
		drained(t, be)
	})
}

// A message is blamed for the end of its process only if it ran alone: neither a slow one
// beside the killer nor one that runs for hours while the machine fails under it.
func TestOnlyTheKillerIsBlamed(t *testing.T) {
	t.Run("beside a killer", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			be := leasemem.New()
			publish(t, be, "killer", 0, 5, nil)
			publish(t, be, "slow", 0, 5, nil)
			handlers := func(r *replica) []lease.Handler {
				return one(func(ctx context.Context, m lease.Message[note]) error {
					switch {
					case m.Topic == "killer" && m.Payload.N == 2:
						pauseFor(ctx, 300*time.Millisecond)
						if ctx.Err() == nil {
							return r.die(ctx)
						}
					case m.Topic == "slow" && m.Payload.N == 2:
						pauseFor(ctx, 20*time.Second)
					}
					return ctx.Err()
				})
			}
			keepRunning(t, be, lease.Spec{}, handlers, func() bool { return status(t, be).LagTotal == 0 })
			drained(t, be)
			ds := deadLetters(t, be)
			if len(ds) != 1 || ds[0].Resource != "killer" {
				t.Errorf("dead letters %+v, want the killer's alone", ds)
			}
		})
	})
	// With a leader in its group, which ends the process soon or does not.
	beside := func(t *testing.T, be *leasemem.Backend, message func(ctx context.Context, r *replica) error, lead func(ctx context.Context, r *replica) error, most int) (crashes int) {
		begin := func() *replica {
			r := &replica{}
			g, link := lease.NewGroup(), r.share(be)
			for _, s := range []lease.Spec{
				{Handlers: one(func(ctx context.Context, m lease.Message[note]) error { return message(ctx, r) })},
				{Name: "leader", Per: lease.PerCluster, Handlers: []lease.Handler{lease.Run(func(ctx context.Context, _ lease.Lease) error { return lead(ctx, r) })}},
			} {
				s.TTL = 2 * time.Second
				if err := g.Add(newConsumer(t, link, s)); err != nil {
					t.Fatal(err)
				}
			}
			start(t, g)
			return r
		}
		r := begin()
		for deadline := time.Now().Add(3 * time.Minute); crashes < most && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			if r.crashed.Load() {
				crashes++
				r = begin()
			}
		}
		return crashes
	}
	t.Run("beside a Run handler that kills", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			be := leasemem.New()
			publish(t, be, "slow", 0, 2, nil)
			crashes := beside(t, be, func(ctx context.Context, _ *replica) error {
				pauseFor(ctx, 5*time.Second)
				return ctx.Err()
			}, func(ctx context.Context, r *replica) error {
				if pauseFor(ctx, 3*time.Second); ctx.Err() == nil {
					return r.die(ctx)
				}
				return ctx.Err()
			}, 12)
			if ds := deadLetters(t, be); len(ds) > 0 || crashes != 12 {
				t.Errorf("%d crashes, dead letters %+v", crashes, ds)
			}
		})
	})
	t.Run("beside a Run handler that goes on", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			be := leasemem.New()
			publish(t, be, "killer", 0, 1, nil)
			crashes := beside(t, be, func(ctx context.Context, r *replica) error { return r.die(ctx) }, func(ctx context.Context, _ *replica) error {
				<-ctx.Done()
				return ctx.Err()
			}, 20)
			if ds := deadLetters(t, be); len(ds) != 1 || crashes != 5 {
				t.Errorf("%d crashes, want 5; dead letters %+v", crashes, ds)
			}
		})
	})
	t.Run("long item, crashes from outside", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			be := leasemem.New()
			publish(t, be, "long", 0, 1, nil)
			handlers := func(*replica) []lease.Handler {
				return one(func(ctx context.Context, m lease.Message[note]) error {
					pauseFor(ctx, 20*time.Minute)
					return ctx.Err()
				})
			}
			for range 12 {
				r := run(t, be, lease.Spec{}, handlers)
				pass(3 * time.Minute)
				r.crash()
				pass(time.Minute)
			}
			run(t, be, lease.Spec{}, handlers)
			pass(30 * time.Minute)
			if ds, s := deadLetters(t, be), status(t, be); len(ds) > 0 || s.LagTotal != 0 {
				t.Errorf("dead letters %+v, %d left", ds, s.LagTotal)
			}
		})
	})
}

func pauseFor(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

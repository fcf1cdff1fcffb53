package lease_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/operate"
)

// moving is a backend whose reads pass over messages of others: they always say that
// there may be more, and those that bring none move the cursor anyway.
type moving struct {
	*leasemem.Backend
	empty atomic.Int64 // reads without messages
}

type movedCursor struct {
	at backend.Cursor
	n  int64
}

func inner(c backend.Cursor) backend.Cursor {
	if m, ok := c.(movedCursor); ok {
		return m.at
	}
	return c
}

func (b *moving) Fetch(ctx context.Context, req backend.FetchRequest) ([]backend.Fetched, error) {
	for i := range req.Items {
		req.Items[i].From = inner(req.Items[i].From)
	}
	fs, err := b.Backend.Fetch(ctx, req)
	for i := range fs {
		if fs[i].More = len(fs[i].Messages) > 0; !fs[i].More {
			fs[i].Next = movedCursor{fs[i].Next, b.empty.Add(1)}
		}
	}
	return fs, err
}

func (b *moving) Commit(ctx context.Context, session, consumer string, ps []backend.Progress) ([]string, error) {
	mine := make([]backend.Progress, len(ps))
	for i, p := range ps {
		mine[i] = p
		mine[i].Cursor = inner(p.Cursor)
	}
	return b.Backend.Commit(ctx, session, consumer, mine)
}

// A read that finds no more must not store a cursor beyond messages that were
// read before it and still wait for their turn.
func TestCursorStaysBeforeMessagesThatWait(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		var got seen
		var link faults
		publish(t, be, "x", 0, 3, nil)
		commits := make(chan struct{})
		link.on("Commit", before(func(context.Context) error { <-commits; return nil }))
		link.on("Fetch", before(func(context.Context) error { time.Sleep(100 * time.Millisecond); return nil }))
		b := &moving{Backend: link.share(be)}
		start(t, newConsumer(t, b, lease.Spec{Batch: 1, Handlers: one(func(ctx context.Context, m lease.Message[note]) error {
			if m.Payload.N == 2 {
				<-ctx.Done()
				return ctx.Err()
			}
			got.add(m.Topic, m.Payload.N)
			return nil
		})}))
		eventually(t, "two batches wait to be stored, and the third for them", func() bool {
			return got.count() == 2 && b.empty.Load() > 0
		})
		synctest.Wait()
		close(commits)
		synctest.Wait()
		link.crash()
		start(t, newConsumer(t, be, lease.Spec{Handlers: one(func(_ context.Context, m lease.Message[note]) error {
			got.add(m.Topic, m.Payload.N)
			return nil
		})}))
		time.Sleep(20 * time.Second) // the TTL
		got.ordered(t, "x", 3)
	})
}

// Messages read for a lease that is just being released are dropped.
func TestReadDuringRelease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		var link faults
		var rec recorder
		var got seen
		publish(t, be, "x", 0, 1, nil)
		var reads atomic.Int64
		read := make(chan struct{})
		link.on("Fetch", before(func(context.Context) error {
			if reads.Add(1) == 2 {
				<-read
			}
			return nil
		}))
		link.on("Release", func(_ context.Context, phase leasemem.Phase) error {
			if phase == leasemem.After {
				time.Sleep(time.Second)
			}
			return nil
		})
		stop := start(t, newConsumer(t, &moving{Backend: link.share(be)}, lease.Spec{Handlers: one(func(_ context.Context, m lease.Message[note]) error {
			got.add(m.Topic, m.Payload.N)
			return nil
		})}, lease.WithObserver(&rec)))
		drained(t, be)
		stopped := stopping(stop)
		synctest.Wait()
		close(read)
		stopped()
		if n := len(observed[operate.ObservedFenced](&rec)) + len(observed[operate.ObservedLoss](&rec)); n > 0 {
			t.Errorf("%d losses and fenced writes were told, none happened", n)
		}
	})
}

// A lease can be acquired again before the reply to its release has come.
func TestAcquiredAgainWhileTheReleaseIsUnderWay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		var p, q faults
		var got seen
		h := one(func(_ context.Context, m lease.Message[note]) error {
			got.add(m.Topic, m.Payload.N)
			return nil
		})
		for _, topic := range []string{"a", "b", "c", "d"} {
			publish(t, be, topic, 0, 1, nil)
		}
		var rec recorder
		start(t, newConsumer(t, p.share(be), lease.Spec{Handlers: h}, lease.WithObserver(&rec)))
		eventually(t, "four handled", func() bool { return got.count() == 4 })
		reply := make(chan struct{})
		p.on("Release", func(_ context.Context, phase leasemem.Phase) error {
			if phase == leasemem.After {
				<-reply
			}
			return nil
		})
		q.on("Acquire", before(func(context.Context) error { return errLink }))
		stop := start(t, newConsumer(t, q.share(be), lease.Spec{Handlers: h}))
		eventually(t, "two are released", func() bool { return status(t, be).Unowned == 2 })
		stop()
		publish(t, be, "z", 0, 1, nil) // a reason to acquire one more
		eventually(t, "one is acquired", func() bool { return status(t, be).Unowned == 2 })
		time.Sleep(time.Second)
		p.on("Release", nil)
		close(reply)
		for _, topic := range []string{"a", "b", "c", "d"} {
			publish(t, be, topic, 1, 2, nil)
		}
		eventually(t, "all handled", func() bool { return got.count() == 9 })
		pass(time.Second) // until all is observed
		owned := map[string]int{}
		for _, o := range observed[operate.ObservedAcquire](&rec) {
			owned[o.Resource]++
		}
		for _, o := range observed[operate.ObservedRelease](&rec) {
			owned[o.Resource]--
		}
		for r, n := range owned {
			if n != 1 {
				t.Errorf("%s: %d acquired more often than released, want 1", r, n)
			}
		}
	})
}

// Resources whose turn to be read has passed do not hold up those behind them.
func TestManyTopicsChangeHands(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		const topics = 3000
		var events []lease.Event
		name := func(i int) string { return "t" + string(rune('a'+i%26)) + time.Duration(i).String() }
		for i := range topics {
			events = append(events, lease.Event{Topic: name(i), Kind: "note", Payload: []byte(`{"N":0}`)})
		}
		if err := be.Publish(t.Context(), events); err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		times := map[string]int{}
		h := one(func(_ context.Context, m lease.Message[note]) error {
			mu.Lock()
			defer mu.Unlock()
			times[m.Topic]++
			return nil
		})
		for range 3 {
			start(t, newConsumer(t, be, lease.Spec{Handlers: h}))
		}
		drained(t, be)
		if err := be.Publish(t.Context(), events); err != nil {
			t.Fatal(err)
		}
		drained(t, be)
		mu.Lock()
		defer mu.Unlock()
		for i := range topics {
			if n := times[name(i)]; n != 2 {
				t.Fatalf("the topic %s was handled %d times, want 2", name(i), n)
			}
		}
	})
}

// Followers read with a failing message stay behind it whatever the order says.
func TestOrders(t *testing.T) {
	for _, c := range []struct {
		order lease.Order
		want  map[int]bool // messages handled while #1 waits for its retry
	}{
		{lease.OrderKey, map[int]bool{0: true, 2: true, 4: true}},
		{lease.OrderBlock, map[int]bool{0: true}},
		{lease.OrderNone, map[int]bool{0: true, 2: true, 3: true, 4: true, 5: true}},
	} {
		t.Run(c.order.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				be := leasemem.New()
				publish(t, be, "x", 0, 6, func(n *note) string { return string(rune('a' + n.N%2)) })
				var got seen
				var failed atomic.Bool
				start(t, newConsumer(t, be, lease.Spec{
					Batch: 2, Retry: lease.Retry{Min: time.Minute, Cap: time.Minute, Jitter: -1, Order: c.order},
					Handlers: one(func(_ context.Context, m lease.Message[note]) error {
						if m.Payload.N == 1 && failed.CompareAndSwap(false, true) {
							return errLink
						}
						got.add("x", m.Payload.N)
						return nil
					}),
				}))
				time.Sleep(30 * time.Second)
				early := got.of("x")
				if len(early) != len(c.want) {
					t.Errorf("handled %v while #1 waits, want %v", early, c.want)
				}
				for _, n := range early {
					if !c.want[n] {
						t.Errorf("#%d was handled while #1 waits", n)
					}
				}
				time.Sleep(time.Minute)
				if all := got.of("x"); len(all) != 6 {
					t.Errorf("handled %v in the end", all)
				}
			})
		})
	}
}

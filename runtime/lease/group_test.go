package lease_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
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

func handleAll(got *seen) []lease.Handler {
	return one(func(_ context.Context, m lease.Message[note]) error {
		got.add(m.Topic, m.Payload.N)
		return nil
	})
}

func TestGroupRefuses(t *testing.T) {
	be := leasemem.New()
	if err := lease.NewGroup().Run(t.Context()); err == nil {
		t.Error("an empty group runs")
	}
	g := lease.NewGroup()
	var got seen
	if err := g.Add(newConsumer(t, be, lease.Spec{Handlers: handleAll(&got)})); err != nil {
		t.Fatal(err)
	}
	if err := g.Add(newConsumer(t, be, lease.Spec{Handlers: handleAll(&got)})); err == nil || !strings.Contains(err.Error(), `"a"`) {
		t.Errorf("a second consumer of the same name: %v", err)
	}
	if err := g.Add(newConsumer(t, be.Share(), lease.Spec{Handlers: handleAll(&got)})); err != nil {
		t.Errorf("the same name on another backend: %v", err)
	}
	var link faults
	link.on("Check", before(func(context.Context) error { return errLink }))
	c := newConsumer(t, link.share(be), lease.Spec{Handlers: handleAll(&got)})
	if err := c.Run(t.Context()); !errors.Is(err, errLink) || !strings.Contains(err.Error(), `"a"`) {
		t.Errorf("a backend that cannot be used: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Run(ended); err != nil {
		t.Errorf("stopped before it began: %v", err)
	}
}

// opened records the sessions that are opened.
type opened struct {
	*leasemem.Backend
	mu    sync.Mutex
	specs []backend.SessionSpec
}

func (b *opened) OpenSession(ctx context.Context, s backend.SessionSpec) (backend.Session, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.specs = append(b.specs, s)
	return b.Backend.OpenSession(ctx, s)
}

// Consumers of one group share a session when their TTL and margin are the same. An impatient
// one is free for the others.
func TestGroupSharesASession(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := &opened{Backend: leasemem.New()}
		var got seen
		g := lease.NewGroup()
		recs := map[string]*recorder{}
		for _, s := range []lease.Spec{
			{Name: "slow", TTL: time.Minute}, {Name: "quick", TTL: 3 * time.Second}, {Name: "twin", TTL: 3 * time.Second, Per: lease.PerGroup},
			{Name: "wide", TTL: 3 * time.Second, Margin: 1500 * time.Millisecond},
		} {
			s.Handlers = handleAll(&got)
			recs[s.Name] = &recorder{}
			if err := g.Add(newConsumer(t, be, s, lease.WithObserver(recs[s.Name]))); err != nil {
				t.Fatal(err)
			}
		}
		stop := start(t, g)
		publish(t, be, "x", 0, 5, nil)
		eventually(t, "all handled by each", func() bool { return got.count() == 20 })
		time.Sleep(30 * time.Second)
		stop()
		opened := map[string]time.Duration{}
		for _, s := range be.specs {
			opened[strings.Join(s.Consumers, " ")] = s.TTL
		}
		if want := map[string]time.Duration{"slow": time.Minute, "quick twin": 3 * time.Second, "wide": 3 * time.Second}; !maps.Equal(opened, want) {
			t.Errorf("sessions %v, want %v", opened, want)
		}
		for name, want := range map[string]int{"slow": 1, "quick": 30, "twin": 30, "wide": 30} {
			if n := len(observed[operate.ObservedHeartbeat](recs[name])); n < want*4/5 || n > want*6/5 {
				t.Errorf("%s: %d heartbeats in 30s, want %d", name, n, want)
			}
			so := observed[operate.ObservedSession](recs[name])
			if len(so) != 2 || !so[0].Open || so[1].Open || !strings.Contains(so[1].Reason, "stopped") {
				t.Errorf("%s: %+v", name, so)
			}
		}
	})
}

// A session that follows a lost one names it, so that what it still holds need not expire; not with
// a grace, for which others are to wait.
func TestSessionReplacesTheLostOne(t *testing.T) {
	for _, grace := range []time.Duration{0, time.Minute} {
		bubble(t, func(t *testing.T) {
			var link faults
			be := &opened{Backend: link.share(leasemem.New())}
			var got seen
			start(t, newConsumer(t, be, lease.Spec{Grace: grace, Handlers: handleAll(&got)}))
			pass(time.Second)
			link.on("SessionHeartbeat", before(func(context.Context) error { return backend.ErrSessionLost }))
			pass(15 * time.Second) // a few heartbeats
			link.on("SessionHeartbeat", nil)
			pass(time.Minute)
			if len(be.specs) < 2 || be.specs[0].Replaces != "" || (be.specs[1].Replaces == be.specs[0].ID) != (grace == 0) {
				t.Errorf("grace %v: sessions %+v", grace, be.specs)
			}
		})
	}
}

// Sessions that die as soon as they are opened are not opened in a tight loop.
func TestShortLivedSessionsArePaced(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		const topics = 200
		for i := range topics {
			publish(t, be, fmt.Sprint(i), 0, 1, nil)
		}
		var link faults
		var opens atomic.Int64
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		link.on("OpenSession", before(func(context.Context) error {
			if opens.Add(1) > 1000 {
				cancel() // time stands still while it loops
			}
			return nil
		}))
		link.on("Acquire", before(func(context.Context) error { return backend.ErrSessionLost }))
		var got seen
		done := make(chan error, 1)
		go func() {
			done <- newConsumer(t, link.share(be), lease.Spec{TTL: time.Second, Handlers: handleAll(&got)}).Run(ctx)
		}()
		time.Sleep(20 * time.Second)
		if n := opens.Load(); n < 10 || n > 100 {
			t.Errorf("%d sessions in 20s", n)
		}
		link.on("Acquire", nil)
		time.Sleep(2 * time.Second)
		if n := got.count(); n != topics {
			t.Errorf("%d handled, want %d", n, topics)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Every call of the backend may fail for a long time: none is repeated in a tight
// loop, and afterwards the work goes on.
func TestFailingBackendIsNotHammered(t *testing.T) {
	for _, op := range []string{"OpenSession", "Register", "Survey", "Acquire", "OpenFeed", "FeedNext", "Fetch", "FetchParked", "Commit", "Begin", "TxCommit", "SessionHeartbeat", "Release", "Maintain"} {
		t.Run(op, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				be := leasemem.New()
				var link faults
				var e effects
				publish(t, be, "x", 0, 10, nil)
				publish(t, be, "y", 10, 20, nil)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var calls atomic.Int64
				link.on(op, before(func(context.Context) error {
					if calls.Add(1) > 5000 {
						cancel() // time stands still while it loops
					}
					return errLink
				}))
				done := make(chan error, 1)
				go func() {
					done <- newConsumer(t, link.share(be), lease.Spec{Retry: lease.Retry{Min: time.Second}, Handlers: oneTx(func(_ context.Context, tx *leasemem.Tx, m lease.Message[note]) error {
						if m.Payload.N == 3 && m.Attempt == 1 {
							return errLink
						}
						e.write(tx, m.Payload.N)
						return nil
					})}).Run(ctx)
				}()
				pass(time.Minute)
				if n := calls.Load(); n > 1000 {
					t.Errorf("%d calls in a minute", n)
				}
				link.on(op, nil)
				time.Sleep(time.Minute)
				drained(t, be)
				synctest.Wait()
				if len(e.all) != 20 {
					t.Errorf("%d effects, want 20", len(e.all))
				}
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A handler that never returns after its lease was lost keeps this process from its resource,
// and from no other, until it returns.
func TestHandlerThatNeverReturns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		var link faults
		var stuck, fine seen
		gate := make(chan struct{})
		publish(t, be, "x", 0, 1, nil)
		g, b := lease.NewGroup(), link.share(be)
		for _, c := range []*lease.Consumer{
			newConsumer(t, b, lease.Spec{Name: "stuck", TTL: 4 * time.Second, Handlers: one(func(_ context.Context, m lease.Message[note]) error {
				if m.Payload.N == 0 {
					<-gate
				}
				stuck.add(m.Topic, m.Payload.N)
				return nil
			})}),
			newConsumer(t, b, lease.Spec{Name: "a", TTL: 4 * time.Second, Handlers: handleAll(&fine)}),
		} {
			if err := g.Add(c); err != nil {
				t.Fatal(err)
			}
		}
		start(t, g)
		eventually(t, "the other has handled", func() bool { return fine.count() == 1 })
		for range 3 { // lost sessions
			link.on("SessionHeartbeat", before(func(context.Context) error { return errLink }))
			time.Sleep(5 * time.Second)
			link.on("SessionHeartbeat", nil)
			time.Sleep(5 * time.Second)
		}
		publish(t, be, "x", 1, 3, nil)
		publish(t, be, "y", 1, 3, nil)
		time.Sleep(10 * time.Second)
		if n := fine.count(); n != 5 {
			t.Errorf("the other consumer handled %d, want 5", n)
		}
		if x, y := stuck.of("x"), stuck.of("y"); len(x) != 0 || len(y) != 2 {
			t.Errorf("the stuck consumer handled %v of x, on which it hangs, and %v of y", x, y)
		}
		close(gate)
		time.Sleep(time.Second)
		if got := stuck.of("x"); len(got) != 4 || got[0] != 0 || got[1] != 0 || got[2] != 1 {
			t.Errorf("handled %v of x, want 0 again and the rest", got)
		}
	})
}

func TestMaintainReports(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		publish(t, be, "x", 0, 5, nil)
		var rec recorder
		start(t, newConsumer(t, be, lease.Spec{Handlers: one(func(context.Context, lease.Message[note]) error {
			return lease.DeadLetter("no")
		})}, lease.WithObserver(&rec), lease.WithDeadLetters(lease.DeadLetters{Keep: time.Hour, Max: 2})))
		time.Sleep(2 * time.Minute)
		if n := len(deadLetters(t, be)); n != 2 {
			t.Errorf("%d dead letters are kept, want 2", n)
		}
		dropped := 0
		for _, o := range observed[operate.ObservedMaintain](&rec) {
			dropped += o.DeadLettersDropped
		}
		if dropped != 3 {
			t.Errorf("%d dropped dead letters were told, want 3", dropped)
		}
		time.Sleep(time.Hour)
		if n := len(deadLetters(t, be)); n != 0 {
			t.Errorf("%d dead letters outlive Keep", n)
		}
	})
}

// A call over a connection that went silent is given up and repeated.
func TestSilentConnections(t *testing.T) {
	for _, op := range []string{"OpenSession", "Register", "Survey", "Acquire", "Fetch", "FetchParked", "Commit", "Begin", "TxCommit", "Release"} {
		t.Run(op, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				be := leasemem.New()
				var link faults
				var got seen
				var silent atomic.Bool
				link.on(op, before(func(ctx context.Context) error {
					if silent.CompareAndSwap(false, true) {
						<-ctx.Done()
						return ctx.Err()
					}
					return nil
				}))
				publish(t, be, "x", 0, 3, nil)
				publish(t, be, "y", 0, 3, nil)
				h := []lease.Handler{
					lease.OneTx("note", func(_ context.Context, tx *leasemem.Tx, m lease.Message[note]) error {
						if m.Payload.N == 0 && m.Attempt == 1 {
							return errLink
						}
						tx.Do(func() { got.add(m.Topic, m.Payload.N) })
						return nil
					}),
				}
				s := lease.Spec{TTL: 20 * time.Second, Handlers: h, Retry: lease.Retry{Order: lease.OrderBlock}}
				start(t, newConsumer(t, link.share(be), s))
				time.Sleep(time.Second)
				stop := start(t, newConsumer(t, be, s)) // so that one is released
				pass(2 * time.Minute)
				stop()
				drained(t, be)
				if !silent.Load() {
					t.Fatal("the operation was not used")
				}
				got.ordered(t, "x", 3)
				got.ordered(t, "y", 3)
			})
		})
	}
}

package lease_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/operate"
)

// stopping stops in the background and returns how long that took.
func stopping(stop func()) (took func() time.Duration) {
	began, done := time.Now(), make(chan time.Duration, 1)
	go func() { stop(); done <- time.Since(began) }()
	return func() time.Duration { return <-done }
}

func TestStopFinishesTheCallUnderWay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		publish(t, be, "x", 0, 5, nil)
		var got seen
		h := one(func(ctx context.Context, m lease.Message[note]) error {
			time.Sleep(2 * time.Second)
			if ctx.Err() != nil {
				t.Errorf("#%d was cancelled: %v", m.Payload.N, context.Cause(ctx))
			}
			got.add(m.Topic, m.Payload.N)
			return nil
		})
		var rec recorder
		stop := start(t, newConsumer(t, be, lease.Spec{Handlers: h}, lease.WithObserver(&rec)))
		time.Sleep(3 * time.Second) // in the middle of #1
		if took := stopping(stop)(); took > 1100*time.Millisecond {
			t.Errorf("stopping took %v, the call under way needed 1s", took)
		}
		got.ordered(t, "x", 2)
		if n := len(observed[operate.ObservedLoss](&rec)); n > 0 {
			t.Errorf("%d losses were told", n)
		}
		began := time.Now()
		start(t, newConsumer(t, be, lease.Spec{Handlers: h}))
		drained(t, be)
		if took := time.Since(began); took > 7*time.Second {
			t.Errorf("the next owner took %v for three messages of 2s", took)
		}
		got.ordered(t, "x", 5)
	})
}

func TestDrainTimeIsEachConsumersOwn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		publish(t, be, "x", 0, 1, nil)
		g := lease.NewGroup()
		causes := map[string]chan error{"short": make(chan error, 1), "long": make(chan error, 1)}
		for name, drain := range map[string]time.Duration{"short": time.Second, "long": 20 * time.Second} {
			err := g.Add(newConsumer(t, be, lease.Spec{Name: name, Drain: drain, Handlers: one(func(ctx context.Context, m lease.Message[note]) error {
				select {
				case <-ctx.Done():
				case <-time.After(8 * time.Second):
				}
				causes[name] <- context.Cause(ctx)
				return ctx.Err()
			})}))
			if err != nil {
				t.Fatal(err)
			}
		}
		stop := start(t, g)
		time.Sleep(2 * time.Second)
		if took := stopping(stop)(); took < 5*time.Second || took > 7*time.Second {
			t.Errorf("stopping took %v, want the 6s that the longer call still needed", took)
		}
		if err := <-causes["short"]; !errors.Is(err, lease.ErrHandover) {
			t.Errorf("the call over its drain time ended with cause %v, want ErrHandover", err)
		}
		if err := <-causes["long"]; err != nil {
			t.Errorf("the call within its drain time ended with cause %v", err)
		}
	})
}

func TestHandlerThatIgnoresTheStop(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		publish(t, be, "x", 0, 1, nil)
		publish(t, be, "y", 0, 1, nil)
		gate := make(chan struct{})
		var got seen
		stop := start(t, newConsumer(t, be, lease.Spec{TTL: 4 * time.Second, Drain: time.Second, Handlers: one(func(ctx context.Context, m lease.Message[note]) error {
			if m.Topic == "x" {
				<-gate
			}
			got.add(m.Topic, m.Payload.N)
			return nil
		})}))
		eventually(t, "y handled", func() bool { return got.count() == 1 })
		if took := stopping(stop)(); took > 2100*time.Millisecond {
			t.Errorf("stopping took %v, want the drain time and a quarter of the TTL", took)
		}
		ls, err := be.Leases(t.Context(), "a", 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range ls {
			if owned := l.Session != ""; owned != (l.Resource == "x") {
				t.Errorf("%s is owned: %v; only that on which a handler runs is to be", l.Resource, owned)
			}
		}
		close(gate)
	})
}

func TestStopWhileTheBackendIsDown(t *testing.T) {
	for _, op := range []string{"Commit", "Release", "Acquire", "SessionClose", "Fetch", "Survey", "FeedNext", "FetchParked"} {
		for _, hangs := range []bool{false, true} {
			t.Run(op+map[bool]string{true: "-hangs", false: "-fails"}[hangs], func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					be := leasemem.New()
					var link faults
					var got seen
					publish(t, be, "x", 0, 2, nil)
					link.on(op, before(func(ctx context.Context) error {
						if hangs {
							<-ctx.Done()
						}
						return errLink
					}))
					h := one(func(_ context.Context, m lease.Message[note]) error { got.add(m.Topic, m.Payload.N); return nil })
					stop := start(t, newConsumer(t, link.share(be), lease.Spec{TTL: 8 * time.Second, Drain: 3 * time.Second, Handlers: h}))
					time.Sleep(20 * time.Second)
					if took := stopping(stop)(); took > 8*time.Second {
						t.Errorf("stopping took %v", took)
					}
					start(t, newConsumer(t, be, lease.Spec{Handlers: h}))
					time.Sleep(10 * time.Second)
					drained(t, be)
				})
			})
		}
	}
}

// Run does not return before its handlers, even when the session was lost in between.
func TestRunOutlivesItsHandlers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		publish(t, be, "x", 0, 1, nil)
		var link faults
		entered, returned := make(chan struct{}), false
		stop := start(t, newConsumer(t, link.share(be), lease.Spec{TTL: 8 * time.Second, Handlers: one(func(ctx context.Context, m lease.Message[note]) error {
			close(entered)
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), lease.ErrLost) {
				t.Errorf("cause %v, want ErrLost", context.Cause(ctx))
			}
			time.Sleep(time.Second)
			returned = true
			return ctx.Err()
		})}))
		<-entered
		link.crash()
		time.Sleep(7300 * time.Millisecond) // belief has ended, the handler is on its way out
		stop()
		if !returned {
			t.Error("Run returned before its handler")
		}
	})
}

// A process that stops while an Acquire is under way gives back what that brings: no lease
// is lost, and the leases need not expire.
func TestStopAwaitsAnAcquire(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		publish(t, be, "x", 0, 1, nil)
		asked := make(chan struct{}, 1)
		var f faults
		f.on("Acquire", func(_ context.Context, phase leasemem.Phase) error {
			if phase == leasemem.After {
				asked <- struct{}{}
				time.Sleep(time.Second) // the reply is on its way
			}
			return nil
		})
		handler := one(func(context.Context, lease.Message[note]) error { return nil })
		var rec recorder
		stop := start(t, newConsumer(t, f.share(be), lease.Spec{Handlers: handler}, lease.WithObserver(&rec)))
		<-asked
		stop()
		if n := len(observed[operate.ObservedLoss](&rec)); n > 0 {
			t.Errorf("%d losses were told", n)
		}
		if a, r := len(observed[operate.ObservedAcquire](&rec)), len(observed[operate.ObservedRelease](&rec)); a != 1 || r != 1 {
			t.Errorf("%d leases were acquired and %d released, want 1 and 1", a, r)
		}
	})
}

// A process stops at once though its Acquire fails again and again.
func TestStopWhileAcquireFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		publish(t, be, "x", 0, 1, nil)
		tried := make(chan struct{}, 100)
		var f faults
		f.on("Acquire", before(func(context.Context) error {
			tried <- struct{}{}
			return errLink
		}))
		handler := one(func(context.Context, lease.Message[note]) error { return nil })
		stop := start(t, newConsumer(t, f.share(be), lease.Spec{Handlers: handler}))
		<-tried
		<-tried
		asked := time.Now()
		stop()
		if took := time.Since(asked); took > 2*time.Second {
			t.Errorf("it took %v to stop", took)
		}
	})
}

// A lease that rests when a process stops is given away by the end of its session, in one step, and
// is reported as released.
func TestStopReleasesWithTheSession(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		publish(t, be, "x", 0, 1, nil)
		publish(t, be, "y", 0, 1, nil)
		var link faults
		var got seen
		var rec recorder
		released, closed := 0, 0
		link.on("Release", before(func(context.Context) error { released++; return nil }))
		link.on("SessionClose", before(func(context.Context) error {
			if closed++; closed < 3 {
				return errLink
			}
			return nil
		}))
		h := one(func(_ context.Context, m lease.Message[note]) error { got.add(m.Topic, m.Payload.N); return nil })
		stop := start(t, newConsumer(t, link.share(be), lease.Spec{TTL: time.Hour, Handlers: h}, lease.WithObserver(&rec)))
		eventually(t, "both handled", func() bool { return got.count() == 2 })
		pass(time.Second)
		if took := stopping(stop)(); took > time.Second {
			t.Errorf("stopping took %v", took)
		}
		if released != 0 || closed != 3 {
			t.Errorf("%d calls of Release and %d of Close, want 0 and 3: two that fail and one that does not", released, closed)
		}
		if r, l := len(observed[operate.ObservedRelease](&rec)), len(observed[operate.ObservedLoss](&rec)); r != 2 || l != 0 {
			t.Errorf("%d releases and %d losses were told, want 2 and 0", r, l)
		}
		publish(t, be, "x", 1, 2, nil)
		var next recorder
		start(t, newConsumer(t, be, lease.Spec{Handlers: h}, lease.WithObserver(&next)))
		eventually(t, "the next owner is at work", func() bool { return got.count() == 3 })
		for _, a := range observed[operate.ObservedAcquire](&next) {
			if a.Crashed {
				t.Errorf("%s was taken over as from a crash", a.Resource)
			}
		}
	})
}

// A consumer at rest does not keep its leases until another one's call has returned, though
// giving them away fails at first.
func TestWhatRestsDoesNotWaitForOthers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		publish(t, be, "x", 0, 1, nil)
		var link faults
		tries := 0
		link.on("Release", before(func(context.Context) error {
			if tries++; tries < 3 {
				return errLink
			}
			return nil
		}))
		shared, g := link.share(be), lease.NewGroup()
		var rec recorder
		for name, takes := range map[string]time.Duration{"slow": 10 * time.Second, "fast": 0} {
			err := g.Add(newConsumer(t, shared, lease.Spec{Name: name, Drain: time.Minute, Handlers: one(func(context.Context, lease.Message[note]) error {
				time.Sleep(takes)
				return nil
			})}, lease.WithObserver(&rec)))
			if err != nil {
				t.Fatal(err)
			}
		}
		stop := start(t, g)
		time.Sleep(2 * time.Second)
		took := stopping(stop)
		pass(time.Second)
		if r := observed[operate.ObservedRelease](&rec); len(r) != 1 || r[0].Consumer != "fast" {
			t.Errorf("released while the slow call runs: %+v, want the topic of fast", r)
		}
		if d := took(); d < 7*time.Second || d > 9*time.Second {
			t.Errorf("stopping took %v, want the 8s that the slow call still needed", d)
		}
		if r := observed[operate.ObservedRelease](&rec); len(r) != 2 {
			t.Errorf("released in the end: %+v, want both topics", r)
		}
	})
}

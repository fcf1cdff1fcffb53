package lease_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/operate"
)

// sharedOut waits until n processes own all of want resources between them, as evenly as can
// be, and returns how long that took.
func sharedOut(t *testing.T, be *leasemem.Backend, want, n int) time.Duration {
	t.Helper()
	began := time.Now()
	eventually(t, fmt.Sprintf("%d slots are shared by %d processes", want, n), func() bool {
		s, err := be.Survey(t.Context(), []string{"a"})
		if err != nil {
			t.Fatal(err)
		}
		owned := 0
		for _, m := range s[0].Members {
			owned += m.Owned
			if m.Owned < want/n || m.Owned > (want+n-1)/n {
				return false
			}
		}
		return len(s[0].Members) == n && owned == want
	})
	return time.Since(began)
}

// 1,024 slots settle quickly on 8 processes that come and go, each move of a slot is short,
// and every message is handled once, those of a key in order.
func TestPartitionsSettleQuickly(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New(leasemem.WithSlots(1024))
		var got seen
		var rec recorder
		s := lease.Spec{Per: lease.PerPartition, Handlers: byKey(&got)}
		ctx, cancel := context.WithCancel(context.Background())
		var publishing sync.WaitGroup
		published := 0
		publishing.Go(func() {
			for ctx.Err() == nil {
				publish(t, be, "x", published, published+10, func(v *note) string { return fmt.Sprint(v.N % 500) })
				published += 10
				time.Sleep(2 * time.Millisecond)
			}
		})
		staying, stay := context.WithCancel(context.Background())
		leaving, leave := context.WithCancel(context.Background())
		var stopping sync.WaitGroup
		for n := range 8 {
			ctx, c := staying, newConsumer(t, be, s, lease.WithObserver(&rec))
			if n >= 3 {
				ctx = leaving
			}
			stopping.Go(func() {
				if err := c.Run(ctx); err != nil {
					t.Errorf("Run: %v", err)
				}
			})
		}
		defer func() { leave(); stay(); stopping.Wait() }()
		if took := sharedOut(t, be, 1024, 8); took > 2*time.Second {
			t.Errorf("1,024 slots on 8 processes took %v", took)
		}
		first := len(observed[operate.ObservedAcquire](&rec))
		if first > 2*1024 {
			t.Errorf("%d moves while 8 processes started at once", first)
		}
		leave()
		if took := sharedOut(t, be, 1024, 3); took > time.Second {
			t.Errorf("1,024 slots on the 3 that stayed took %v", took)
		}
		pass(10 * time.Millisecond) // until all are reported
		// A process that hears later that it is to leave may have taken what others gave away: each slot moves twice at most.
		if moved := len(observed[operate.ObservedAcquire](&rec)) - first; moved < 640 || moved > 2*640 {
			t.Errorf("%d slots moved, 640 are the least", moved)
		}
		cancel()
		publishing.Wait()
		eventually(t, "all are handled", func() bool { return got.count() >= published })
		for k := range 500 {
			ns := got.of(fmt.Sprint(k))
			if !slices.IsSorted(ns) || len(ns) != len(slices.Compact(ns)) {
				t.Fatalf("key %d: %v", k, ns)
			}
		}
		if n := got.count(); n != published {
			t.Errorf("%d of %d messages handled", n, published)
		}
		if n := len(observed[operate.ObservedLoss](&rec)); n > 0 {
			t.Errorf("%d leases were lost", n)
		}
	})
}

// A slot that is handed over rests for milliseconds only.
func TestPartitionHandoverIsShort(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New(leasemem.WithSlots(64))
		var rec recorder
		released, acquired := map[backend.Ref]time.Time{}, map[backend.Ref]time.Time{}
		var mu sync.Mutex
		obs := operate.ObserverFunc(func(o operate.Observation) {
			rec.Observe(o)
			mu.Lock()
			defer mu.Unlock()
			switch x := o.(type) {
			case operate.ObservedRelease:
				released[backend.Ref{Resource: x.Resource, Epoch: x.Epoch}] = time.Now()
			case operate.ObservedAcquire:
				acquired[backend.Ref{Resource: x.Resource, Epoch: x.Epoch}] = time.Now()
			}
		})
		s := lease.Spec{Per: lease.PerPartition, Handlers: handleAll(&seen{})}
		for n := range 4 {
			start(t, newConsumer(t, be, s, lease.WithObserver(obs)))
			sharedOut(t, be, 64, n+1)
			pass(time.Second)
		}
		mu.Lock()
		defer mu.Unlock()
		if len(released) == 0 {
			t.Error("no slot was handed over")
		}
		for ref, since := range released {
			rested := time.Hour
			for next, at := range acquired {
				if next.Resource == ref.Resource && next.Epoch > ref.Epoch {
					rested = min(rested, at.Sub(since))
				}
			}
			if rested > 10*time.Millisecond {
				t.Errorf("slot %s rested for %v", ref.Resource, rested)
			}
		}
	})
}

// Sessions whose consumers all hold their leases by advisory locks say so to the backend.
func TestAdvisorySessions(t *testing.T) {
	for _, mixed := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			be := &sessions{Backend: leasemem.New()}
			g := lease.NewGroup()
			for i := range 3 {
				s := singleton(func(ctx context.Context, _ lease.Lease) error { <-ctx.Done(); return nil })
				s.Name = fmt.Sprint("leader", i)
				if i > 0 || !mixed {
					s.Lock = lease.LockAdvisory
				}
				if err := g.Add(newConsumer(t, be, s)); err != nil {
					t.Fatal(err)
				}
			}
			stop := start(t, g)
			pass(time.Second)
			stop()
			if len(be.specs) != 1 || be.specs[0].Advisory == mixed || len(be.specs[0].Consumers) != 3 {
				t.Errorf("sessions %+v", be.specs)
			}
		})
	}
}

// sessions records which were opened.
type sessions struct {
	*leasemem.Backend
	specs []backend.SessionSpec
}

func (s *sessions) OpenSession(ctx context.Context, spec backend.SessionSpec) (backend.Session, error) {
	s.specs = append(s.specs, spec)
	return s.Backend.OpenSession(ctx, spec)
}

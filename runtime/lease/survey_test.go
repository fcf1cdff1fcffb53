package lease_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
)

// lateSurveys is a backend whose surveys take their time.
type lateSurveys struct {
	*leasemem.Backend
	delay    atomic.Int64
	n        atomic.Int64
	answered chan struct{} // gets a token for each answer after a delay
}

func (b *lateSurveys) Survey(ctx context.Context, consumers []string) ([]backend.Survey, error) {
	b.n.Add(1)
	if d := time.Duration(b.delay.Load()); d > 0 {
		time.Sleep(d)
		defer func() {
			select {
			case b.answered <- struct{}{}:
			default:
			}
		}()
	}
	return b.Backend.Survey(ctx, consumers)
}

// A standby whose last survey alone took long, as the first on a new connection does, takes over at once. It would else rest as if
// the server were late.
func TestOneLateSurveyDelaysNoTakeover(t *testing.T) {
	bubble(t, func(t *testing.T) {
		mem := leasemem.New()
		be := &lateSurveys{Backend: mem, answered: make(chan struct{}, 1)}
		var mu sync.Mutex
		var owned time.Time
		leader := func(ctx context.Context, _ lease.Lease) error { <-ctx.Done(); return nil }
		standby := func(ctx context.Context, l lease.Lease) error {
			mu.Lock()
			owned = time.Now()
			mu.Unlock()
			return leader(ctx, l)
		}
		spec := lease.Spec{Per: lease.PerCluster, TTL: 5 * time.Second, Handlers: []lease.Handler{lease.Run(leader)}}
		stop := start(t, newConsumer(t, mem, spec))
		pass(time.Second)
		spec.Handlers = []lease.Handler{lease.Run(standby)}
		start(t, newConsumer(t, be, spec))
		pass(10 * time.Second)
		be.delay.Store(int64(60 * time.Millisecond))
		<-be.answered
		be.delay.Store(0)
		stopped := time.Now()
		stop()
		pass(10 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		if took := owned.Sub(stopped); owned.IsZero() || took > 20*time.Millisecond {
			t.Errorf("the standby led after %v", took)
		}
	})
}

// A server that is late with each survey is not asked more often because much happens.
func TestLateSurveysAreRare(t *testing.T) {
	bubble(t, func(t *testing.T) {
		mem := leasemem.New()
		be := &lateSurveys{Backend: mem, answered: make(chan struct{}, 1)}
		const took, tested = 60 * time.Millisecond, 10 * time.Second
		be.delay.Store(int64(took))
		start(t, newConsumer(t, be, lease.Spec{TTL: 5 * time.Second, Handlers: handleAll(&seen{})}))
		pass(time.Second)
		before := be.n.Load()
		for i, began := 0, time.Now(); time.Since(began) < tested; i++ {
			s, err := mem.OpenSession(t.Context(), backend.SessionSpec{ID: fmt.Sprint("other ", i), TTL: time.Second, Consumers: []string{"a"}})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			pass(10 * time.Millisecond)
		}
		if n, most := be.n.Load()-before, int64(tested/(5*took))+1; n > most || n < most/2 {
			t.Errorf("%d surveys in %v, each of which took %v; want at most %d, and at least half as many", n, tested, took, most)
		}
	})
}

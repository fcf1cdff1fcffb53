package lease

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// idleBackend and idleStreams are never called.
type (
	idleBackend struct{ Backend }
	idleStreams struct{ backend.Streamer }
)

func (idleBackend) Capabilities() backend.Capabilities {
	return backend.Capabilities{Streams: idleStreams{}}
}

// An Acquire whose answer comes while the process drains starts no Run handler, however the runner looks at its leases then:
// the handler would not be stopped.
func TestNoRunStartsOnLeasesGrantedWhileStopping(t *testing.T) {
	t.Parallel()
	var began atomic.Int64
	run := func(ctx context.Context, _ Lease) error {
		began.Add(1)
		<-ctx.Done()
		return ctx.Err()
	}
	c, err := NewConsumer(idleBackend{}, Spec{Name: "feeds", Per: PerStream, Capacity: 1000, Handlers: []Handler{Run(run)},
		Streams: func(context.Context) ([]string, error) { return nil, nil }})
	if err != nil {
		t.Fatal(err)
	}
	grants := make([]backend.Grant, 300)
	for i := range grants {
		grants[i].Ref = backend.Ref{Resource: strconv.Itoa(i), Epoch: 1}
	}
	for range 50 {
		s := &session{id: "s", ttl: time.Hour, margin: time.Second, log: c.logger, gate: newGate(), observe: c.observe,
			ownership: &changes{wake: make(chan struct{}, 1)}, settled: make(chan struct{}, 1), belief: &belief{anchored: now()}}
		s.ctx, s.end = context.WithCancelCause(t.Context())
		w := newWork(c, s, &process{be: idleBackend{}})
		w.own.giveAll()
		var wg sync.WaitGroup
		var taken atomic.Bool
		wg.Go(func() {
			for !taken.Load() {
				w.run.step()
			}
		})
		w.own.accept(grants, now())
		taken.Store(true)
		wg.Wait()
		if !w.own.resting() {
			t.Error("not all leases are about to be released")
		}
		s.end(ErrHandover)
	}
	if n := began.Load(); n > 0 {
		t.Errorf("%d handlers began", n)
	}
}

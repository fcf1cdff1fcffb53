package lease_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/operate"
)

func singleton(f func(ctx context.Context, l lease.Lease) error) lease.Spec {
	return lease.Spec{Per: lease.PerCluster, Handlers: []lease.Handler{lease.Run(f)}}
}

// While replicas come and go, one Run runs, and each has a higher epoch.
func TestClusterHasOneRunner(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		var running, runs atomic.Int64
		var last atomic.Int64
		work := func(ctx context.Context, l lease.Lease) error {
			if n := running.Add(1); n > 1 {
				t.Errorf("%d run at once", n)
			}
			defer running.Add(-1)
			runs.Add(1)
			if l.Epoch <= last.Swap(l.Epoch) {
				t.Errorf("epoch %d came twice or late", l.Epoch)
			}
			if l.Consumer != "a" || l.Resource != backend.Whole || l.Session == "" {
				t.Errorf("lease %+v", l)
			}
			if in, ok := lease.FromContext(ctx); !ok || in != l {
				t.Errorf("the context holds %+v", in)
			}
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), lease.ErrHandover) {
				t.Errorf("cause %v, want ErrHandover", context.Cause(ctx))
			}
			return ctx.Err()
		}
		stop := start(t, newConsumer(t, be, singleton(work)))
		eventually(t, "it runs", func() bool { return running.Load() == 1 })
		for i := range 5 {
			next := start(t, newConsumer(t, be, singleton(work)))
			time.Sleep(time.Minute)
			if n := runs.Load(); n != int64(i+1) {
				t.Errorf("%d runs after %d stops: it moved without a reason", n, i)
			}
			stop()
			stop = next
			began := time.Now()
			eventually(t, "the standby runs", func() bool { return running.Load() == 1 })
			if took := time.Since(began); took > 100*time.Millisecond {
				t.Errorf("the standby ran after %v", took)
			}
		}
	})
}

func TestClusterTakeover(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		causes, ran := make(chan error, 1), make(chan int64, 2)
		s := func(r *replica) lease.Spec {
			return singleton(func(ctx context.Context, l lease.Lease) error {
				ran <- l.Epoch
				<-ctx.Done()
				if r != nil {
					causes <- context.Cause(ctx)
				}
				return ctx.Err()
			})
		}
		r := &replica{}
		start(t, newConsumer(t, r.share(be), s(r)))
		first := <-ran
		start(t, newConsumer(t, be, s(nil)))
		time.Sleep(time.Second)
		r.crash()
		cut := time.Now()
		if err := <-causes; !errors.Is(err, lease.ErrLost) {
			t.Errorf("cause %v, want ErrLost", err)
		}
		lost := time.Since(cut)
		second := <-ran
		if took := time.Since(cut); took <= lost || took > 17*time.Second {
			t.Errorf("taken over %v after the crash, lost after %v", took, lost)
		}
		if second <= first {
			t.Errorf("epoch %d after %d", second, first)
		}
	})
}

// A Run that returns, panics or ends its goroutine while its lease is held is called
// again after a backoff, which is forgotten once it has run for long.
func TestClusterRunReturns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		var began []time.Time
		var rec recorder
		ends := []func() error{
			func() error { return nil },
			func() error { return errLink },
			func() error { panic("boom") },
			func() error { runtime.Goexit(); return nil },
			func() error { time.Sleep(time.Hour); return nil },
		}
		s := singleton(func(ctx context.Context, l lease.Lease) error {
			began = append(began, time.Now())
			if n := len(began); n <= len(ends) {
				return ends[n-1]()
			}
			<-ctx.Done()
			return nil
		})
		s.Retry = lease.Retry{Min: time.Second, Cap: 3 * time.Second, Jitter: -1}
		stop := start(t, newConsumer(t, be, s, lease.WithObserver(&rec)))
		time.Sleep(2 * time.Hour)
		stop()
		want := []time.Duration{time.Second, 2 * time.Second, 3 * time.Second, 3 * time.Second, time.Hour + time.Second}
		if len(began) != len(want)+1 {
			t.Fatalf("%d runs, want %d", len(began), len(want)+1)
		}
		for i, w := range want {
			if d := began[i+1].Sub(began[i]).Round(time.Millisecond); d != w {
				t.Errorf("call %d began %v after the one before, want %v", i+2, d, w)
			}
		}
		var failed int
		for _, o := range observed[operate.ObservedHandle](&rec) {
			if o.Err != nil {
				failed++
			}
		}
		if failed != 3 {
			t.Errorf("%d failed calls were told, want 3", failed)
		}
	})
}

// A Run that ignores its context keeps the lease: no other process runs until it returns.
func TestClusterRunThatIgnoresTheStop(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		gate := make(chan struct{})
		var other atomic.Bool
		stubborn := singleton(func(ctx context.Context, l lease.Lease) error { <-gate; return nil })
		stubborn.Drain, stubborn.TTL = 5*time.Second, 4*time.Second
		stop := start(t, newConsumer(t, be, stubborn))
		time.Sleep(time.Second)
		start(t, newConsumer(t, be, singleton(func(ctx context.Context, l lease.Lease) error {
			other.Store(true)
			<-ctx.Done()
			return nil
		})))
		time.Sleep(time.Second)
		stopped := stopping(stop)
		time.Sleep(5 * time.Second)
		if other.Load() {
			t.Error("released while Run runs")
		}
		if took := stopped(); took < 5*time.Second || took > 6100*time.Millisecond {
			t.Errorf("stopping took %v", took)
		}
		time.Sleep(5 * time.Second)
		if !other.Load() {
			t.Error("not taken over after the TTL")
		}
		close(gate)
	})
}

package lease_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
)

// pooled is a backend whose calls and transactions share a few connections.
type pooled struct {
	*leasemem.Backend
	free chan struct{}
}

func newPooled(n int) *pooled { return &pooled{leasemem.New(), make(chan struct{}, n)} }

func (b *pooled) take(ctx context.Context) error {
	select {
	case b.free <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *pooled) Fetch(ctx context.Context, req backend.FetchRequest) ([]backend.Fetched, error) {
	if err := b.take(ctx); err != nil {
		return nil, err
	}
	defer func() { <-b.free }()
	return b.Backend.Fetch(ctx, req)
}

func (b *pooled) Commit(ctx context.Context, session, consumer string, p []backend.Progress) ([]string, error) {
	if err := b.take(ctx); err != nil {
		return nil, err
	}
	defer func() { <-b.free }()
	return b.Backend.Commit(ctx, session, consumer, p)
}

func (b *pooled) Capabilities() backend.Capabilities {
	caps := b.Backend.Capabilities()
	caps.Tx = b
	return caps
}

func (b *pooled) Begin(ctx context.Context, session string) (backend.Tx, error) {
	if err := b.take(ctx); err != nil {
		return nil, err
	}
	tx, err := b.Backend.Begin(ctx, session)
	if err != nil {
		<-b.free
		return nil, err
	}
	return &pooledTx{tx, sync.OnceFunc(func() { <-b.free })}, nil
}

type pooledTx struct {
	backend.Tx
	give func()
}

func (t *pooledTx) Commit(ctx context.Context, session, consumer string, p backend.Progress) error {
	err := t.Tx.Commit(ctx, session, consumer, p)
	if !errors.Is(err, backend.ErrRolledBack) {
		t.give()
	}
	return err
}

func (t *pooledTx) Rollback(ctx context.Context) error {
	defer t.give()
	return t.Tx.Rollback(ctx)
}

// A transaction that holds a connection never waits for another one: pools smaller than the
// handlers at work cost time alone.
func TestSmallPools(t *testing.T) {
	for _, size := range []int{1, 2, 4} {
		for _, order := range []lease.Order{lease.OrderKey, lease.OrderBlock, lease.OrderNone} {
			t.Run(fmt.Sprint(size, "-", order), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					be := newPooled(size)
					var e effects
					var bad atomic.Int64
					for topic := range 8 {
						publish(t, be, fmt.Sprint("t", topic), topic*20, topic*20+20, func(n *note) string { return fmt.Sprint(n.N % 4) })
					}
					handlers := oneTx(func(_ context.Context, tx *leasemem.Tx, m lease.Message[note]) error {
						if m.Payload.N%5 == 2 && m.Attempt < 3 {
							bad.Add(1)
							return errLink
						}
						e.write(tx, m.Payload.N)
						return nil
					})
					start(t, newConsumer(t, be, lease.Spec{Batch: 3, Handlers: handlers, Retry: lease.Retry{Min: time.Millisecond, Order: order}}))
					pass(time.Minute)
					e.mu.Lock()
					defer e.mu.Unlock()
					slices.Sort(e.all)
					if len(e.all) != 160 || len(slices.Compact(e.all)) != 160 || bad.Load() < 64 {
						t.Errorf("%d effects of 160 after %d failures", len(e.all), bad.Load())
					}
				})
			})
		}
	}
}

// A message that is tried alone has its mark stored while others wait for it to end: none of them may
// hold a connection in between.
func TestSmallPoolsAfterCrashes(t *testing.T) {
	for _, size := range []int{1, 2} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				be := newPooled(size)
				for topic := range 6 {
					publish(t, be, fmt.Sprint("suspected", topic), 0, 10, nil)
				}
				for range 3 { // twice to be suspected, once to leave marks
					r := run(t, be.Backend, lease.Spec{}, func(*replica) []lease.Handler {
						return oneTx(func(ctx context.Context, _ *leasemem.Tx, _ lease.Message[note]) error {
							pauseFor(ctx, time.Minute)
							return ctx.Err()
						})
					})
					pass(5 * time.Second)
					r.crash()
					pass(10 * time.Second)
				}
				for topic := range 12 {
					publish(t, be, fmt.Sprint("fresh", topic), 0, 10, nil)
				}
				var e effects
				start(t, newConsumer(t, be, lease.Spec{Batch: 2, Handlers: oneTx(func(_ context.Context, tx *leasemem.Tx, m lease.Message[note]) error {
					time.Sleep(time.Millisecond)
					e.write(tx, m.Payload.N)
					return nil
				})}))
				pass(20 * time.Second)
				e.mu.Lock()
				defer e.mu.Unlock()
				if len(e.all) != 180 {
					t.Errorf("%d effects of 180 in 20 s", len(e.all))
				}
			})
		})
	}
}

// Package leasemem keeps sessions, leases and messages in the memory of one
// process. It is the reference for what the other backends do, and serves
// quickstarts and tests: no data outlives the process, and none is shared
// with another one.
//
// A [Backend] is one process's handle on a storage. [Backend.Share] gives another
// handle on the same storage, as a second replica would have.
package leasemem

import (
	"context"
	"sync"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/backend/rows"
)

// Backend is a lease.Backend with all that backends may have: transactions, streams, leases
// that expire one by one, a ledger, and what operators use. All methods
// may be called from many goroutines at once.
type Backend struct {
	store      *store
	faults     Faults
	middleware []backend.PublishMiddleware
	around     backend.Publishing
}

var _ backend.Backend = (*Backend)(nil)

// Option changes a Backend.
type Option func(*Backend)

// Phase says when during a call a fault hook is asked.
type Phase int

const (
	// Before the call has an effect: an error means that it had none.
	Before Phase = iota
	// After the call has had its effect: an error hides that, like a lost reply.
	After
)

// Faults is asked twice in every call of a Backend or of what it hands out. op is
// the method's name; those of other types than Backend carry the type's name in
// front: SessionHeartbeat, SessionClose, FeedNext, TxCommit, TxRollback. The error it
// returns is what the caller gets; it delays the call by waiting, until ctx ends
// at the latest.
type Faults func(ctx context.Context, op string, phase Phase) error

// WithFaults lets f make calls of this handle fail. Other handles on the same
// storage are not concerned: this is how a test cuts one replica off.
func WithFaults(f Faults) Option { return func(b *Backend) { b.faults = f } }

// WithClock replaces the clock that judges sessions and stamps messages. Default
// time.Now. Waits for news use real time whatever the clock.
func WithClock(now func() time.Time) Option { return func(b *Backend) { b.store.now = now } }

// WithPublishMiddleware puts middleware around publishing, by this handle and in handlers' transactions, the first
// outermost. Given again, it adds more inside.
func WithPublishMiddleware(m ...backend.PublishMiddleware) Option {
	return func(b *Backend) { b.middleware = append(b.middleware, m...) }
}

// New returns a backend with an empty storage.
func New(opts ...Option) *Backend {
	b := &Backend{store: &store{
		now:   time.Now,
		Rows:  rows.New(),
		feeds: map[*feed]struct{}{},
	}}
	b.store.Log = b.store
	b.store.log.slotCount = defaultSlots
	b.store.log.restore(nil, 0)
	b.apply(opts)
	return b
}

// Share returns another handle on b's storage, without b's faults.
func (b *Backend) Share(opts ...Option) *Backend {
	s := &Backend{store: b.store}
	s.apply(opts)
	return s
}

func (b *Backend) apply(opts []Option) {
	for _, o := range opts {
		o(b)
	}
	b.around = backend.NewPublishing(b.middleware...)
}

// Check returns nil: memory can always be used.
func (b *Backend) Check(ctx context.Context, consumers []backend.ConsumerInfo) error {
	for _, c := range consumers {
		if err := backend.CheckNames(c.Name); err != nil {
			return err
		}
	}
	_, err := call(ctx, b, "Check", func(*store, time.Time) (struct{}, error) { return struct{}{}, nil })
	return err
}

// store is what all handles share. Its methods are called with mu held.
type store struct {
	mu  sync.Mutex
	now func() time.Time

	*rows.Rows
	feeds  map[*feed]struct{}
	ledger ledger
	outbox outbox

	log log
}

// call runs f as one atomic step, between the two moments at which it may be made to fail.
func call[T any](ctx context.Context, b *Backend, op string, f func(s *store, now time.Time) (T, error)) (T, error) {
	var zero T
	if err := b.fault(ctx, op, Before); err != nil {
		return zero, err
	}
	v, err := locked(b.store, f)
	if ferr := b.fault(ctx, op, After); ferr != nil {
		return zero, ferr
	}
	return v, err
}

// do is call for steps without a result.
func do(ctx context.Context, b *Backend, op string, f func(s *store, now time.Time) error) error {
	_, err := call(ctx, b, op, func(s *store, now time.Time) (struct{}, error) { return struct{}{}, f(s, now) })
	return err
}

func locked[T any](s *store, f func(s *store, now time.Time) (T, error)) (T, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.At = s.now()
	return f(s, s.At)
}

func (b *Backend) fault(ctx context.Context, op string, phase Phase) error {
	if phase == Before {
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	if b.faults == nil {
		return nil
	}
	return b.faults(ctx, op, phase)
}

// Capabilities are all that there are.
func (b *Backend) Capabilities() backend.Capabilities {
	return backend.Capabilities{Rows: b, Streams: b, Ledger: b, Tx: b, Operator: b}
}

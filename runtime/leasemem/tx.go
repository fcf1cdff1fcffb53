package leasemem

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// Tx is what handlers of the transaction form get on this backend. Work that is done
// through it happens when the runtime commits, together with the move of the cursor, or
// not at all. It is used by one goroutine.
type Tx struct {
	effects []func()
	events  []backend.Event
	around  backend.Publishing
}

// Do adds an effect. It runs at commit, after the epoch was found current and
// before anyone else can own the lease. fn must be short, must not panic and must
// not call the backend.
func (t *Tx) Do(fn func()) { t.effects = append(t.effects, fn) }

// Publish appends events to the log at commit.
func (t *Tx) Publish(ctx context.Context, events []backend.Event) error {
	return t.around.Publish(ctx, events, true, t.publish)
}

func (t *Tx) publish(_ context.Context, events []backend.Event) error {
	if err := backend.CheckEvents(events); err != nil {
		return err
	}
	t.events = append(t.events, events...)
	return nil
}

// Begin starts a transaction.
func (b *Backend) Begin(ctx context.Context, _ string) (backend.Tx, error) {
	return call(ctx, b, "Begin", func(*store, time.Time) (backend.Tx, error) {
		return &transaction{backend: b, tx: &Tx{around: b.around}, over: make(chan struct{})}, nil
	})
}

// transaction is the backend.Tx around a Tx, which has no Commit for handlers to call.
type transaction struct {
	backend *Backend
	tx      *Tx
	ended   bool
	over    chan struct{} // closed at the end
	noted   []itemName    // items, to be done at commit
	waits   itemName      // held by another transaction
}

func (t *transaction) Handle() any { return t.tx }

func (t *transaction) Commit(ctx context.Context, session, consumer string, p backend.Progress) error {
	return do(ctx, t.backend, "TxCommit", func(s *store, now time.Time) error {
		if t.ended {
			return errors.New("leasemem: commit: the transaction has ended")
		}
		fenced, err := s.commit(session, consumer, []backend.Progress{p}, now)
		if len(fenced) > 0 {
			err = backend.ErrFenced
		}
		t.end(s, err == nil, now)
		if err != nil {
			return err
		}
		for _, fn := range t.tx.effects {
			fn()
		}
		s.publish(slices.Clone(t.tx.events), now)
		return nil
	})
}

// Lost is false: there is no connection to lose.
// Intact is always nil: handlers cannot end the transaction.
func (t *transaction) Intact() error { return nil }

func (t *transaction) Lost() bool { return false }

func (t *transaction) Rollback(ctx context.Context) error {
	return do(ctx, t.backend, "TxRollback", func(s *store, now time.Time) error {
		t.end(s, false, now)
		return nil
	})
}

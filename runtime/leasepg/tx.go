package leasepg

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/leasegen/leasegen/runtime/backend"
)

// turns bounds how many transactions of handlers are open at once, so that they leave a
// connection of the pool for calls that give leases back and store progress, and for handlers
// that ask the pool for another one: no process waits for one who waits for a connection.
type turns chan struct{}

func turnsFor(conns int32) turns { return make(turns, max(1, int(conns)-1)) }

// wait waits for a turn before the pool is asked for a connection.
func (t turns) wait(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the %d transactions that handlers may have open at once, one less than the pool has connections, are all at work: %w; "+
			"raise MaxConns, or have fewer handlers at work (lease.WithConcurrency)", cap(t), ctx.Err())
	}
}

func (t turns) giveBack() { <-t }

// transactor opens transactions for effects of handlers.
type transactor struct {
	*sessions
	commits  *commits
	handlers turns // of transactions that handlers have open
}

// Begin opens a transaction for a handler's effects, in one round trip. It waits while
// MaxConns-1 of them are open. Should the process freeze in it, the server ends it after
// the session's TTL, so that it cannot hold up the next owner.
func (tr *transactor) Begin(ctx context.Context, session string) (backend.Tx, error) {
	if err := tr.handlers.wait(ctx); err != nil {
		return nil, tr.fail("begin", err)
	}
	idle := 15 * time.Second // of a session that has ended, so that none of it can be committed
	if s := tr.session(session); s != nil {
		idle = max(s.spec.TTL, time.Second)
	}
	mark := rand.Text()
	tx, err := tr.pool.BeginTx(ctx, pgx.TxOptions{BeginQuery: fmt.Sprintf(
		"begin isolation level read committed read write; set local synchronous_commit = on; set local idle_in_transaction_session_timeout = %d; "+
			"select pg_catalog.set_config('lease.effects', pg_catalog.concat('%s/', current_user), true)",
		idle.Milliseconds(), mark)})
	if err != nil {
		tr.handlers.giveBack()
		return nil, tr.fail("begin", err)
	}
	return &effects{tr: tr, tx: tx, mark: mark, done: sync.OnceFunc(tr.handlers.giveBack)}, nil
}

// effects is a transaction that a handler writes its effects in.
type effects struct {
	tr        *transactor
	tx        pgx.Tx
	mark      string      // gone with the transaction, however that ends
	done      func()      // gives the turn back, once
	abandoned atomic.Bool // by the handler
	forgetful atomic.Bool // the connection has lost the prepared statements that pgx counts on
}

// Handle returns the pgx.Tx that handlers write in.
func (t *effects) Handle() any { return pgx.Tx(handlerTx{t.tx, t}) }

// Lost reports that the server or the network ended the connection.
func (t *effects) Lost() bool { return t.tx.Conn().IsClosed() }

// handlerTx is the transaction as a handler has it. Only the runtime ends it: what a
// handler committed itself would be there without the fence and the cursor, and the
// connection of a transaction that has ended belongs to the pool again.
type handlerTx struct {
	pgx.Tx
	effects *effects
}

// Commit refuses. A savepoint, which Begin gives, can be committed.
func (handlerTx) Commit(context.Context) error {
	return errors.New("leasepg: the transaction is committed with the message's progress when the handler returns nil; do not commit it")
}

// Rollback makes the runtime roll back, and count a failure, when the handler returns.
func (t handlerTx) Rollback(context.Context) error {
	t.effects.abandoned.Store(true)
	return nil
}

// Exec notices what outlives a rollback: without its prepared statements the connection fails the calls that come next on it.
func (t handlerTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	tag, err := t.Tx.Exec(ctx, sql, args...)
	if tag.String() == "DEALLOCATE ALL" {
		t.effects.forgetful.Store(true)
	}
	return tag, err
}

var errAbandoned = errors.New("the handler rolled its transaction back; a handler that fails returns an error")

// Commit stores progress and commits. If the lease is not held under its epoch any more, it rolls back.
func (t *effects) Commit(ctx context.Context, session, consumer string, p backend.Progress) error {
	if t.abandoned.Load() {
		_ = t.Rollback(ctx) // the error that matters is the handler's
		return t.tr.fail("commit effects of "+consumer, fmt.Errorf("%w: %w", backend.ErrRolledBack, errAbandoned))
	}
	if wrong := t.Intact(); wrong != nil {
		_ = t.Rollback(ctx)
		return t.tr.fail("commit effects of "+consumer, fmt.Errorf("%w: %w", backend.ErrRolledBack, wrong))
	}
	fenced, err := t.tr.commits.commit(ctx, t.tx, t.mark, session, consumer, []backend.Progress{p})
	if err == nil && len(fenced) > 0 {
		err = backend.ErrFenced
	}
	if err != nil {
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == noStatement {
			t.forgetful.Store(true)
		}
		_ = t.Rollback(ctx) // the error that matters is err
		return t.tr.fail("commit effects of "+consumer, refused(t.tr.disowned(ctx, err)))
	}
	defer t.done() // whatever comes of it, the connection goes back
	return t.tr.fail("commit effects of "+consumer, refused(t.tx.Commit(ctx)))
}

// Intact tells why the transaction cannot be committed any more. A handler that returns nil has seen no error
// of it, or passed over it. If it cannot see that, because a handler has begun another transaction, the mark shows it.
func (t *effects) Intact() error {
	switch c := t.tx.Conn().PgConn(); {
	case c.IsClosed():
		return errors.New("the connection of the transaction was closed before the handler returned")
	case c.IsBusy():
		return errors.New("the handler returned with rows open: read them to their end, or close them")
	case c.TxStatus() == 'I':
		return errors.New("the handler ended its transaction by SQL of its own")
	case t.forgetful.Load():
		return errors.New("the handler deallocated the prepared statements of its connection, which the pool shares")
	}
	return nil
}

// disowned tells a handler that has changed its role from a role that lacks rights: the pool's has them.
func (tr *transactor) disowned(ctx context.Context, err error) error {
	if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "42501" { // insufficient_privilege
		return err
	}
	if missing, e := tr.queries(tr.pool).MissingGrants(ctx); e != nil || missing != "" {
		return err
	}
	return fmt.Errorf("%w: the handler has changed the role of its transaction: %w", backend.ErrRolledBack, err)
}

// refused marks errors for which what the handler did in the transaction is to blame: a
// deferred constraint or trigger, a conflict, a statement whose error it passed over, or
// that it ended the transaction itself.
func refused(err error) error {
	blame := errors.Is(err, pgx.ErrTxCommitRollback) || errors.Is(err, pgx.ErrTxClosed)
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && len(pg.Code) == 5 {
		switch pg.Code[:2] {
		case "22", "23", "40", "44", "P0": // data, constraints, conflicts, views' checks, raised by triggers
			blame = true
		case "25":
			blame = pg.Code == "25P02" // in_failed_sql_transaction
		case "LG":
			blame = pg.Code == notTheHandlers
		case "26": // leasepg.New's caller would have heard of a pooler without prepared statements
			blame = true
		}
	}
	if blame {
		return fmt.Errorf("%w: %w", backend.ErrRolledBack, err)
	}
	return err
}

// Rollback undoes everything. It is a no-op after Commit.
func (t *effects) Rollback(ctx context.Context) error {
	defer t.done()
	if t.forgetful.Load() {
		_ = t.tx.Conn().Close(ctx) // the server rolls back, and the pool opens another one
	}
	err := t.tx.Rollback(ctx)
	if errors.Is(err, pgx.ErrTxClosed) {
		return nil
	}
	return t.tr.fail("roll back", err)
}

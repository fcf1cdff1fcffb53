package leasepg

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
)

// waiter waits, on a connection of its own, for the lock of the session that follows one in the ring. While it has that connection
// it holds the session's second lock on it.
type waiter struct {
	s    *session
	conn *pgx.Conn
	met  bool // it has had a connection
	told throttle
}

const (
	// waitIdle is how long a process has to go on after a statement with which it waits has ended.
	waitIdle = time.Second
	// waitAgain is the longest time between tries to connect, and waitTold between two log lines about these.
	waitAgain = 10 * time.Second
	waitTold  = time.Minute
	// A wait that lasts less was none.
	waitLeast = 5 * time.Millisecond
)

// wait waits for others until ctx ends or the session has ended. While it has no connection the session polls.
func (w *waiter) wait(ctx context.Context) {
	defer close(w.s.waited)
	defer w.drop()
	ring := watcher{s: w.s, use: w.use}
	defer ring.settle()
	var next aim
	var again, failed time.Duration
	quick := 0 // waits in a row that were over at once
	for ctx.Err() == nil {
		asked := time.Now()
		err := w.link(ctx)
		began, at := time.Now(), next
		if err == nil {
			next, again, err = ring.look(ctx, at)
		}
		switch {
		case err == nil:
			failed = 0
		case ctx.Err() != nil || errors.Is(err, backend.ErrSessionLost):
			return
		case w.conn != nil && !w.conn.IsClosed() && code(err) == canceled:
			next, again = aim{}, 0 // nudged between two statements
		default:
			w.drop()
			failed = min(max(2*failed, watchAgain), waitAgain)
			next, again = aim{}, failed
			if (failed > watchEvery || began.Sub(asked) > longest) && w.told.ready(time.Now(), waitTold) {
				w.s.ss.log.Warn("leasepg: no connection waits for the end of other processes: this one looks for them itself until one does",
					"session", w.s.spec.ID, "reason", err)
			}
		}
		switch {
		case time.Since(began) >= waitLeast:
			quick = 0
		case again == 0 && (at.most > 0 || err != nil): // what it waits for is no reason to look: without a pause it would be busy with that
			quick++
			again = min(time.Millisecond<<min(quick, 10), watchEvery)
		}
		if again > 0 {
			ring.pause(ctx, again)
		}
	}
}

const canceled = "57014" // query_canceled

// use runs f on the connection, for as long as a wait lasts and the server may then take.
func (w *waiter) use(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, waitMost+w.s.patience())
	defer cancel()
	return f(ctx, w.conn)
}

// link opens the connection where there is none. The session before this one in the ring then waits for this one.
func (w *waiter) link(ctx context.Context) error {
	if w.conn != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, linkMost)
	defer cancel()
	c, err := w.s.ss.connect(ctx)
	if err != nil {
		return err
	}
	if err := w.ready(ctx, c); err != nil {
		closeConn(c)
		if errors.Is(err, backend.ErrSessionLost) { // the heartbeat connection tells whether it is
			return errors.New("the connection leads to a server with another history than the session's")
		}
		return err
	}
	if w.met {
		w.s.comeBack()
	}
	w.conn, w.met = c, true
	w.s.waits.Store(true)
	return nil
}

// ready makes a connection one that waits, or gives up when ctx ends. The connection takes its lock only after the settings by which the
// server ends it with its process: a nudge in one transaction with them would take them back, and leave the lock.
func (w *waiter) ready(ctx context.Context, c *pgx.Conn) error {
	id := w.s.spec.ID
	err := w.s.ss.pipeline(ctx, c, w.s.ss.expect(ctx, id), w.s.guard(ctx), // a standby, whose locks show no session, has no history
		func(q *leasedb.Queries) error {
			return q.PrepareWaiting(ctx, leasedb.PrepareWaitingParams{IdleMs: waitIdle.Milliseconds(), LockMs: waitMost.Milliseconds()})
		})
	if err != nil {
		return err
	}
	steps := []step{func(q *leasedb.Queries) error { return q.HoldSecond(ctx, id) }}
	if !w.met {
		steps = append(steps, func(q *leasedb.Queries) error { return q.NudgeBefore(ctx, id) })
	}
	for {
		// Others may nudge it as soon as it has its lock. It stays, since another connection may not be possible now.
		if err = w.s.ss.pipeline(ctx, c, steps...); code(err) != canceled {
			return err
		}
	}
}

// drop gives the connection up.
func (w *waiter) drop() {
	w.s.waits.Store(false)
	if w.conn == nil {
		return
	}
	closeConn(w.conn)
	select { // a statement that waits is cancelled at the server
	case <-w.conn.PgConn().CleanupDone():
	case <-time.After(time.Second):
	}
	w.conn = nil
}

package lease

import (
	"context"
	"errors"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// inTx handles p.ms[from:to] in a transaction and commits it with their progress. When a
// message fails, the transaction is rolled back, the messages before it are handled again, and
// their effects commit together with the failed message's fate; so each message is
// called at most twice, and once more in a batch. Only when the commit itself is refused no message is known to be at fault: then
// ever shorter parts are tried. It returns false when the lease cannot go on.
//
// All progress made before is stored first, and the gate is entered: neither is waited for while the
// transaction holds a connection. Storing may need one, and so does a message that is tried alone.
func (t *turn) inTx(ctx context.Context, from, to int) bool {
	out := t.p.out
	if !t.r.store.flush(t.h) {
		return false
	}
	if !t.h.only {
		if !t.r.s.gate.enter(ctx) {
			clear(out[from:])
			return true
		}
		defer t.r.s.gate.leave()
	}
	end, single := to, 0
	for {
		tx, err := t.begin(ctx)
		if err != nil {
			clear(out[from:])
			return false
		}
		clear(out[from:end])
		q := t.sequence(from, end)
		q.single = single
		q.join(tx)
		q.run(ctx)
		if q.failed {
			lost := tx.Lost() || q.conflict
			t.rollback(tx)
			if ctx.Err() != nil {
				clear(out[from:])
				return true
			}
			if lost && t.interrupted(ctx) {
				continue
			}
			single = max(single, q.single)
			if q.out[q.i].verdict != undecided {
				end = from + q.i // goes again without the failed one
				if end == from {
					t.settle(from, from+1)
					clear(out[from+1:])
					return true
				}
			}
			continue
		}
		upto := from + prefix(q.out)
		if upto == end && end < to && out[end].verdict != undecided {
			upto++
		}
		clear(out[upto:])
		if upto == from {
			t.rollback(tx)
			return true
		}
		g, n := t.progress(from, upto)
		g.Seq = t.r.store.nextSeq(t.h)
		began := time.Now()
		err = do(of(ctx, "commit", t.h.Resource), func(ctx context.Context) error { return tx.Commit(ctx, t.r.s.id, t.r.info.Name, g) })
		if err == nil {
			t.h.interruptions = 0
			t.tell(from, upto)
			t.noteLanes(from, upto)
			t.r.committed(t.h, n, time.Since(began))
			return true
		}
		if !errors.Is(err, backend.ErrRolledBack) {
			clear(out[from:])
			t.uncertain(ctx, err)
			return false
		}
		t.rollback(tx)
		if upto == from+1 {
			if out[from].verdict == handled { // else its fate was decided before, and is stored without the transaction
				out[from] = q.judgeAt(0, examine(err))
			}
			t.settle(from, upto)
			return true
		}
		clear(out[from:])
		end = from + (upto-from)/2
	}
}

// join makes the handlers of q take tx.
func (q *sequence) join(tx backend.Tx) {
	q.tx, q.joined = tx.Handle(), tx
}

// interruptionLimit is how often in a row a handler may lose its connection before that
// counts as its failure: a handler that always outlives its transaction is one.
const interruptionLimit = 3

// interrupted reports that a lost connection shall not count, and waits a little.
func (t *turn) interrupted(ctx context.Context) bool {
	if t.h.interruptions == interruptionLimit {
		t.h.interruptions = 0
		return false
	}
	t.h.interruptions++
	pause(ctx, jitter(50*time.Millisecond<<t.h.interruptions))
	return true
}

// uncertainPause spaces out the handovers that a commit costs which keeps failing.
const uncertainPause = 250 * time.Millisecond

// uncertain deals with a commit that was fenced, or that may or may not have happened.
// In the second case it gives the lease back: the release waits for the transaction's
// end, and the next owner, with a new epoch, starts from what was really stored.
func (t *turn) uncertain(ctx context.Context, err error) {
	if errors.Is(err, backend.ErrFenced) {
		t.r.own.fenced(t.h)
		return
	}
	t.r.course.refused.Store(time.Now().UnixNano())
	t.r.log.Warn("the outcome of a commit is unknown, giving the lease back", "resource", t.h.Resource, "error", err)
	pause(ctx, jitter(uncertainPause))
	t.h.advance(leaseGiving)
}

// begin tries until a transaction is open or the lease ends.
func (t *turn) begin(ctx context.Context) (backend.Tx, error) {
	defer t.r.course.waiting("a transaction for " + t.h.Resource + ": the backend begins none")()
	var failed backoff
	for {
		tx, err := call(of(ctx, "begin"), func(ctx context.Context) (backend.Tx, error) { return t.r.caps.Tx.Begin(ctx, t.r.s.id) })
		if err == nil || t.h.stopped(ctx) {
			return tx, err
		}
		failed.pause(ctx, t.r.log, "begin failed", err)
	}
}

// rollback undoes a transaction even after its lease has ended.
func (t *turn) rollback(tx backend.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.r.s.ctx), t.r.s.ttl/3)
	defer cancel()
	if err := tx.Rollback(ctx); err != nil {
		t.r.log.Warn("rollback failed; the server will do it", "error", err)
	}
}

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
func (w *work) inTx(ctx context.Context, h *held, p *pass, from, to int) bool {
	out := p.out
	if !w.store.flush(h) {
		return false
	}
	if !h.only {
		if !w.s.gate.enter(ctx) {
			clear(out[from:])
			return true
		}
		defer w.s.gate.leave()
	}
	end, single := to, 0
	for {
		tx, err := w.begin(ctx, h)
		if err != nil {
			clear(out[from:])
			return false
		}
		clear(out[from:end])
		q := w.sequence(h, p, from, end)
		q.single = single
		q.join(tx)
		q.run(ctx)
		if q.failed {
			lost := tx.Lost() || q.conflict
			w.rollback(tx)
			if ctx.Err() != nil {
				clear(out[from:])
				return true
			}
			if lost && w.interrupted(ctx, h) {
				continue
			}
			single = max(single, q.single)
			if q.out[q.i].verdict != undecided {
				end = from + q.i // goes again without the failed one
				if end == from {
					w.settle(h, p, from, from+1)
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
			w.rollback(tx)
			return true
		}
		g, n := w.progress(h, p, from, upto)
		g.Seq = w.store.nextSeq(h)
		err = do(of(ctx, "commit", h.Resource), func(ctx context.Context) error { return tx.Commit(ctx, w.s.id, w.info.Name, g) })
		if err == nil {
			h.interruptions = 0
			w.noteLanes(h, p, from, upto)
			w.committed(h, n)
			return true
		}
		if !errors.Is(err, backend.ErrRolledBack) {
			clear(out[from:])
			w.uncertain(ctx, h, err)
			return false
		}
		w.rollback(tx)
		if upto == from+1 {
			if out[from].verdict == handled { // else its fate was decided before, and is stored without the transaction
				out[from] = q.judgeAt(0, examine(err))
			}
			w.settle(h, p, from, upto)
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
func (w *work) interrupted(ctx context.Context, h *held) bool {
	if h.interruptions == interruptionLimit {
		h.interruptions = 0
		return false
	}
	h.interruptions++
	pause(ctx, jitter(50*time.Millisecond<<h.interruptions))
	return true
}

// uncertainPause spaces out the handovers that a commit costs which keeps failing.
const uncertainPause = 250 * time.Millisecond

// uncertain deals with a commit that was fenced, or that may or may not have happened.
// In the second case it gives the lease back: the release waits for the transaction's
// end, and the next owner, with a new epoch, starts from what was really stored.
func (w *work) uncertain(ctx context.Context, h *held, err error) {
	if errors.Is(err, backend.ErrFenced) {
		w.fenced(h)
		return
	}
	w.log.Warn("the outcome of a commit is unknown, giving the lease back", "resource", h.Resource, "error", err)
	pause(ctx, jitter(uncertainPause))
	h.giving.Store(true)
}

// begin tries until a transaction is open or the lease ends.
func (w *work) begin(ctx context.Context, h *held) (backend.Tx, error) {
	defer w.course.waiting("a transaction for " + h.Resource + ": the backend begins none")()
	var failed backoff
	for {
		tx, err := call(of(ctx, "begin"), w.caps.Tx.Begin)
		if err == nil || h.stopped(ctx) {
			return tx, err
		}
		failed.pause(ctx, w.log, "begin failed", err)
	}
}

// rollback undoes a transaction even after its lease has ended.
func (w *work) rollback(tx backend.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.s.ctx), w.s.ttl/3)
	defer cancel()
	if err := tx.Rollback(ctx); err != nil {
		w.log.Warn("rollback failed; the server will do it", "error", err)
	}
}

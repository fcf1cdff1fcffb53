package lease

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"runtime/debug"
	"slices"
	"sync"
	"time"
)

// process handles a batch of one resource and hands over its progress. Consecutive
// messages whose handlers take a transaction share one; the others share a commit.
func (w *work) process(ctx context.Context, h *held, f Fetched) {
	out := make([]outcome, len(f.Messages))
	done := 0
	for done < len(out) && !h.stopped(ctx) {
		end, tx := w.segment(f.Messages, done)
		ok := true
		switch {
		case h.careful():
			ok = w.alone(ctx, h, f, done, out, tx)
		case tx:
			ok = w.inTx(ctx, h, f, done, end, out)
		default:
			w.lanes(ctx, h, f.Messages[done:end], out[done:end])
			w.settleFresh(h, f, out, done, prefix(out))
		}
		upto := prefix(out)
		if !ok || upto == done {
			break
		}
		h.doubt = max(h.doubt-(upto-done), 0)
		if done = upto; w.c.spec.Retry.Order == OrderBlock && len(h.lanes) > 0 {
			break
		}
	}
	if done < len(out) {
		w.rewind(h, f.Cut(done))
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trust(h)
	h.dirty = h.dirty || h.doubt > 0 // there may be nothing else to get past
}

// segment returns the end of the run of messages from i on whose handlers all take a
// transaction, or all do not. Messages without a handler go with any.
func (w *work) segment(ms []Raw, i int) (end int, tx bool) {
	if !w.c.hasTx {
		return len(ms), false
	}
	known := false
	for end = i; end < len(ms); end++ {
		hd := w.c.handlerFor(ms[end].Kind)
		if hd == nil {
			continue
		}
		if known && hd.tx != tx {
			break
		}
		known, tx = true, hd.tx
	}
	return end, tx
}

// prefix counts the messages decided before the first that is not.
func prefix(out []outcome) int {
	n := slices.IndexFunc(out, func(o outcome) bool { return o.verdict == undecided })
	if n < 0 {
		return len(out)
	}
	return n
}

// rewind makes the messages from cursor on be read again, if the lease is still held.
func (w *work) rewind(h *held, cursor Cursor) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h.cursor, h.next, h.dirty = cursor, nil, true
	h.reads++
}

// stopped says to begin no further call: the lease has ended or is being given away.
func (h *held) stopped(ctx context.Context) bool { return h.giving.Load() || ctx.Err() != nil }

// lanes handles messages by as many workers as the consumer has, those of one key by
// the same one.
func (w *work) lanes(ctx context.Context, h *held, ms []Raw, out []outcome) {
	if w.c.spec.Workers == 1 || len(ms) == 1 {
		q := &sequence{w: w, h: h, ms: ms, out: out}
		q.run(ctx)
		return
	}
	type lane struct {
		index []int
		seq   sequence
	}
	lanes := make([]lane, w.c.spec.Workers)
	seed := maphash.MakeSeed()
	for i := range ms {
		l := &lanes[maphash.String(seed, ms[i].Key)%uint64(len(lanes))]
		l.index = append(l.index, i)
		l.seq.ms = append(l.seq.ms, ms[i])
	}
	var wg sync.WaitGroup
	for i := range lanes {
		q := &lanes[i].seq
		if len(q.ms) == 0 {
			continue
		}
		q.w, q.h, q.out = w, h, make([]outcome, len(q.ms))
		wg.Go(func() { q.run(ctx) })
	}
	wg.Wait()
	for i := range lanes {
		l := &lanes[i]
		for j, i := range l.index {
			out[i] = l.seq.out[j]
		}
	}
	// Where one worker had to stop and others got further, what it left is parked, due
	// at once: the cursor can pass it, and nothing is handled twice.
	for last := len(out) - 1; last >= 0; last-- {
		if out[last].verdict == undecided {
			continue
		}
		for i := range out[:last] {
			if out[i].verdict == undecided {
				out[i] = outcome{verdict: parked, lane: w.c.spec.Retry.Order.lane(&ms[i])}
			}
		}
		break
	}
}

// sequence handles messages in order.
type sequence struct {
	w   *work
	h   *held
	tx  any // nil outside a transaction
	ms  []Raw
	out []outcome

	i, n   int                 // the call under way takes ms[i : i+n]
	single int                 // messages before this index are handled one by one
	behind map[string]struct{} // keys that failed in this sequence
	failed bool                // stop: a message failed and what comes after has to wait for it
	parked bool                // the messages were parked; they do not wait behind their own lane
	watch  watched
}

// run handles messages until all are decided or it has to stop. It survives handlers
// that end their goroutine: the rest goes on in a new one.
func (q *sequence) run(ctx context.Context) {
	if !q.w.s.alive() {
		return
	}
	q.w.watching(q, true)
	defer q.w.watching(q, false)
	for {
		ended := make(chan bool, 1)
		go func() {
			ok := false
			defer func() { ended <- ok }()
			q.loop(ctx)
			ok = true
		}()
		if <-ended {
			return
		}
		q.fail(ctx, errGoexit)
		if q.failed {
			return
		}
	}
}

func (q *sequence) loop(ctx context.Context) {
	for q.i < len(q.ms) && !q.failed && !q.h.stopped(ctx) {
		if q.out[q.i].verdict != undecided || q.decide(q.i) {
			q.i++
			continue
		}
		hd := q.w.c.handlerFor(q.ms[q.i].Kind)
		q.n = 1
		if hd.batch && q.i >= q.single {
			for j := q.i + 1; j < len(q.ms) && q.out[j].verdict == undecided && !q.decide(j) && q.w.c.handlerFor(q.ms[j].Kind) == hd; j++ {
				q.n++
			}
		}
		if err := q.call(ctx, hd, q.ms[q.i:q.i+q.n]); err != nil {
			q.fail(ctx, err)
			continue
		}
		for j := q.i; j < q.i+q.n; j++ {
			q.out[j] = outcome{verdict: handled}
		}
		q.i += q.n
	}
}

// decide settles what needs no handler: messages behind a failed one of their key,
// of a kind nobody takes, or too large.
func (q *sequence) decide(j int) bool {
	m, o := &q.ms[j], &q.out[j]
	switch hd := q.w.c.handlerFor(m.Kind); {
	case q.waits(m):
		*o = outcome{verdict: parked, lane: m.Key}
	case hd == nil && q.w.c.spec.Unknown == UnknownSkip:
		o.verdict = skipped
	case hd == nil:
		*o = outcome{verdict: dead, attempt: m.Attempt, reason: oneLine(fmt.Sprintf("consumer %s has no handler for kind %q", q.w.info.Name, m.Kind))}
	case m.Size > q.w.c.maxPayload:
		*o = outcome{verdict: dead, attempt: m.Attempt, reason: fmt.Sprintf("payload of %d bytes is over the limit of %d bytes", m.Size, q.w.c.maxPayload)}
	default:
		return false
	}
	return true
}

func (q *sequence) waits(m *Raw) bool {
	if q.parked || q.w.c.spec.Retry.Order != OrderKey {
		return false
	}
	_, before := q.h.lanes[m.Key]
	_, here := q.behind[m.Key]
	return before || here
}

// fail deals with the failed call of ms[i : i+n].
func (q *sequence) fail(ctx context.Context, err error) {
	if ctx.Err() != nil {
		// The lease ended under the handler. Its error says nothing about the message.
		q.failed = true
		return
	}
	if de, ok := errors.AsType[*decodeError](err); ok {
		j := q.i + de.index
		q.out[j] = q.w.c.spec.Retry.judge(&q.ms[j], err)
		return
	}
	if q.tx != nil {
		// The transaction is spoilt; inTx decides.
		q.failed = true
		if q.n == 1 {
			q.out[q.i] = q.w.c.spec.Retry.judge(&q.ms[q.i], err)
		} else {
			q.single = q.i + q.n
		}
		return
	}
	if q.n > 1 {
		q.single = q.i + q.n
		return
	}
	o := q.w.c.spec.Retry.judge(&q.ms[q.i], err)
	q.out[q.i] = o
	if o.verdict == parked {
		switch q.w.c.spec.Retry.Order {
		case OrderKey:
			if q.behind == nil {
				q.behind = map[string]struct{}{}
			}
			q.behind[o.lane] = struct{}{}
		case OrderBlock:
			q.failed = true
		}
	}
	q.i++
}

// inTx handles f.Messages[from:to] in a transaction and commits it with their
// progress. When a message fails, the transaction is rolled back, the messages before
// it are handled again, and their effects commit together with the failed message's
// fate; so each message is called at most twice. Only when the commit itself is refused
// nobody says which message is to blame: then ever shorter parts are tried. It returns
// false when the lease cannot go on.
func (w *work) inTx(ctx context.Context, h *held, f Fetched, from, to int, out []outcome) bool {
	end, single := to, 0
	for {
		tx, err := w.begin(ctx, h)
		if err != nil {
			clear(out[from:])
			return false
		}
		clear(out[from:end])
		q := &sequence{w: w, h: h, tx: tx.Handle(), ms: f.Messages[from:end], out: out[from:end], single: single}
		q.run(ctx)
		if q.failed {
			w.rollback(tx)
			if ctx.Err() != nil {
				clear(out[from:])
				return true
			}
			single = max(single, q.single)
			if q.out[q.i].verdict != undecided {
				end = from + q.i // goes again without the failed one
				if end == from {
					w.settleFresh(h, f, out, from, from+1)
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
		if !w.flush(h) {
			w.rollback(tx)
			clear(out[from:])
			return true
		}
		p, n := w.progress(h, f, out, from, upto)
		err = do(ctx, func(ctx context.Context) error { return tx.Commit(ctx, w.s.id, w.info.Name, p) })
		if err == nil {
			w.noteParked(h, p.Park)
			w.committed(h, n)
			return true
		}
		clear(out[from:])
		if !errors.Is(err, ErrRolledBack) {
			w.uncertain(ctx, h, err)
			return false
		}
		w.rollback(tx)
		if upto == from+1 {
			out[from] = w.c.spec.Retry.judge(&f.Messages[from], err)
			w.settleFresh(h, f, out, from, upto)
			return true
		}
		end = from + (upto-from)/2
	}
}

// uncertainPause spaces out the handovers that a commit costs which keeps failing.
const uncertainPause = 250 * time.Millisecond

// uncertain deals with a commit that was fenced, or that may or may not have happened.
// In the second case it gives the lease back: the release waits for the transaction's
// end, and the next owner, with a new epoch, starts from what was really stored.
func (w *work) uncertain(ctx context.Context, h *held, err error) {
	if errors.Is(err, ErrFenced) {
		w.fenced(h)
		return
	}
	w.log.Warn("the outcome of a commit is unknown, giving the lease back", "resource", h.Resource, "error", err)
	pause(ctx, jitter(uncertainPause))
	h.giving.Store(true)
}

// begin tries until a transaction is open or the lease ends.
func (w *work) begin(ctx context.Context, h *held) (Tx, error) {
	var failed backoff
	for {
		tx, err := call(ctx, w.be.(Transactor).Begin)
		if err == nil || h.stopped(ctx) {
			return tx, err
		}
		failed.pause(ctx, w.log, "begin failed", err)
	}
}

// rollback undoes a transaction even after its lease has ended.
func (w *work) rollback(tx Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.s.ctx), w.s.ttl/3)
	defer cancel()
	if err := tx.Rollback(ctx); err != nil {
		w.log.Warn("rollback failed; the server will do it", "error", err)
	}
}

// alone handles one message of a resource whose owners keep crashing: it is marked
// durably first, and given up on when its mark has outlived several owners.
func (w *work) alone(ctx context.Context, h *held, f Fetched, i int, out []outcome, tx bool) bool {
	m := &f.Messages[i]
	ok := true
	switch {
	case w.killed(h, m.ID):
		out[i] = w.killer(h, m)
		w.settleFresh(h, f, out, i, i+1)
	case !w.mark(h, m.ID):
		return false
	case tx:
		ok = w.inTx(ctx, h, f, i, i+1, out)
	default:
		w.lanes(ctx, h, f.Messages[i:i+1], out[i:i+1])
		w.settleFresh(h, f, out, i, i+prefix(out[i:i+1]))
	}
	if out[i].verdict == undecided {
		w.unmark(h)
		return false
	}
	return w.flush(h) && ok
}

// mark stores that the message id is about to be handled alone.
func (w *work) mark(h *held, id string) bool {
	w.handOver(h, Progress{Ref: h.ref, Mark: id}, counts{})
	return w.flush(h)
}

// unmark takes the mark back from a message that was interrupted: its owner, who tells,
// has not crashed over it.
func (w *work) unmark(h *held) { w.handOver(h, Progress{Ref: h.ref}, counts{}) }

// markLimit is how many owners may crash over one marked message.
const markLimit = 2

func (w *work) killed(h *held, id string) bool { return h.marked == id && h.markCount >= markLimit }

func (w *work) killer(h *held, m *Raw) outcome {
	return outcome{verdict: dead, attempt: m.Attempt + h.markCount,
		reason: fmt.Sprintf("the process died %d times while handling this message", h.markCount)}
}

// call runs one handler call, timed and guarded against panics.
func (q *sequence) call(ctx context.Context, hd *Handler, ms []Raw) (err error) {
	q.watch.calls.Add(1) // first, see reportStuck
	if q.w.c.cancelStuck {
		var cancel context.CancelCauseFunc
		ctx, cancel = context.WithCancelCause(ctx)
		defer cancel(nil)
		q.watch.cancel.Store(&cancel)
	}
	var began time.Time
	if q.w.c.observer != nil {
		began = time.Now()
	}
	q.watch.message.Store(&ms[0])
	returned := false
	defer func() {
		q.watch.message.Store(nil)
		if r := recover(); r != nil {
			err = &panicError{r}
			q.w.log.Error("handler panicked", "resource", q.h.Resource, "kind", ms[0].Kind, "id", ms[0].ID,
				"panic", oneLine(fmt.Sprint(r)), "stack", string(debug.Stack()))
		} else if !returned {
			err = errGoexit
		}
		if q.w.c.observer != nil {
			q.w.c.observe(ObservedHandle{Consumer: q.h.Consumer, Resource: q.h.Resource, Kind: ms[0].Kind, Epoch: q.h.Epoch,
				Count: len(ms), Duration: time.Since(began), Err: err})
		}
	}()
	err = hd.call(ctx, q.tx, ms, q.h.Epoch)
	returned = true
	return err
}

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
	w  *work
	h  *held
	tx any // nil outside a transaction
	// ledger is the transaction's; conflict says that what failed is noting an item in it.
	ledger   LedgerTx
	conflict bool

	ms  []Raw
	out []outcome

	i, n    int                 // the call under way takes ms[i : i+n]
	single  int                 // messages before this index are handled one by one
	item    string              // being executed by a handler made with Once
	behind  map[string]struct{} // keys that failed in this sequence
	failed  bool                // stop: a message failed and what comes after has to wait for it
	blocked bool                // stop: a message waits for another version of the consumer, and the resource with it
	parked  bool                // the messages were parked; they do not wait behind their own lane
	waited  time.Duration       // parked: for how long
	sure    time.Time           // when the session was last known to be alive
	watch   watched
}

// run handles messages until all are decided or it has to stop. It survives handlers
// that end their goroutine: the rest goes on in a new one.
func (q *sequence) run(ctx context.Context) {
	if !q.alive() {
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
		q.endOnce(ctx, errGoexit)
		q.fail(ctx, errGoexit)
		if q.failed {
			return
		}
	}
}

// alive asks the session's clocks, unless they were asked just now. A process that was
// frozen may get here before the timer that ends its belief.
func (q *sequence) alive() bool {
	t := time.Now()
	if t.Sub(q.sure) < time.Millisecond {
		return true
	}
	q.sure = t
	return q.w.alive(q.h)
}

func (q *sequence) loop(ctx context.Context) {
	for q.i < len(q.ms) && !q.failed && !q.blocked && !q.h.stopped(ctx) && q.alive() {
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
		if hd.once != nil && !q.admit(ctx, hd) {
			continue
		}
		err := q.call(ctx, hd, q.ms[q.i:q.i+q.n])
		q.endOnce(ctx, err)
		if err != nil {
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
// of a kind or topic this process does not take, or too large. The one of these that waits is
// settled in its turn only, since what comes before it may fail.
func (q *sequence) decide(j int) bool {
	m, o := &q.ms[j], &q.out[j]
	switch hd := q.w.c.handlerFor(m.Kind); {
	case q.waits(m):
		*o = outcome{verdict: parked, lane: m.Key}
	case q.w.foreign(m), hd == nil && q.w.c.spec.Unknown != UnknownSkip:
		if j > q.i {
			break
		}
		if *o = q.unknown(m, q.waited); o.verdict == parked {
			q.hold(*o)
		}
	case hd == nil:
		o.verdict = skipped
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
	q.setAside(q.w.c.spec.Retry.judge(&q.ms[q.i], err))
}

// setAside notes what becomes of ms[i], which is not handled now, and what waits behind it.
func (q *sequence) setAside(o outcome) {
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
	if !hd.batch {
		ctx = withTraceOf(ctx, &ms[0])
	}
	err = hd.call(ctx, q.tx, ms, q.h.Epoch)
	returned = true
	return err
}

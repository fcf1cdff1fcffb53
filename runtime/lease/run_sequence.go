package lease

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// sequence handles messages in order.
type sequence struct {
	*turn
	// tx is what handlers are given of the transaction joined; both are nil outside one. conflict says that what
	// failed is noting an item in it.
	tx       any
	joined   backend.Tx
	conflict bool

	ms    []backend.Raw
	out   []outcome
	from  int   // ms[0] is p.ms[from],
	index []int // or, if set, ms[i] is p.ms[index[i]]

	// halt is shared by the workers of a pass: with OrderBlock none begins a message after
	// the first that failed.
	halt *atomic.Int64
	// only says that the call runs alone in the process: see gate.
	only bool

	i, n    int                 // the call under way takes ms[i : i+n]
	single  int                 // messages before this index are handled one by one
	item    string              // being executed by a handler made with Once
	itemKey string              // the idempotency key of the item admitted last
	behind  map[string]struct{} // keys that failed in this sequence
	late    map[string]bool     // by parked lane: its last message was of a kind that no version took in time
	failed  bool                // stop: a message failed and what comes after has to wait for it
	blocked bool                // stop: a message waits for another version of the consumer, and the resource with it
	sure    time.Time           // when the session was last known to be alive
	watch   watched
}

// at is the place in the pass of ms[i].
func (q *sequence) at(i int) int {
	if q.index != nil {
		return q.index[i]
	}
	return q.from + i
}

// lane is the queue in which ms[i] waits when it is set aside.
func (q *sequence) lane(i int) string {
	if q.p.parked != nil {
		return q.p.parked[q.at(i)].Lane
	}
	return q.r.c.spec.Retry.Order.lane(&q.ms[i])
}

// run handles messages until all are decided or it has to stop. It survives handlers
// that end their goroutine: the rest goes on in a new one.
func (q *sequence) run(ctx context.Context) {
	if !q.alive() {
		return
	}
	q.r.c.calls.watching(q, true)
	defer q.r.c.calls.watching(q, false)
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
		q.fail(ctx, examine(errGoexit))
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
	return q.r.own.alive(q.h)
}

func (q *sequence) loop(ctx context.Context) {
	for q.i < len(q.ms) && !q.failed && !q.blocked && !q.h.stopped(ctx) && q.alive() {
		if q.halt != nil && int64(q.at(q.i)) > q.halt.Load() {
			return
		}
		if q.out[q.i].verdict != undecided || q.decide(q.i) {
			q.noteLate(q.i)
			q.i++
			continue
		}
		hd := q.r.c.handlerFor(q.ms[q.i].Kind)
		q.n = 1
		if hd.batch && q.i >= q.single {
			for j := q.i + 1; j < len(q.ms) && q.out[j].verdict == undecided && !q.decide(j) && q.r.c.handlerFor(q.ms[j].Kind) == hd; j++ {
				q.n++
			}
		}
		if hd.once != nil && !q.admit(ctx, hd) {
			continue
		}
		failed := q.call(ctx, hd, q.ms[q.i:q.i+q.n])
		if failed == nil && q.joined != nil {
			if err := q.joined.Intact(); err != nil { // before the next message pays for it
				failed = examine(err)
			}
		}
		q.r.course.step(handling)
		if failed != nil {
			q.endOnce(ctx, failed.err)
			q.fail(ctx, failed)
			continue
		}
		q.endOnce(ctx, nil)
		for j := q.i; j < q.i+q.n; j++ {
			q.out[j] = outcome{verdict: handled}
			q.noteLate(j)
		}
		q.i += q.n
	}
}

// decide settles what needs no handler: messages behind a failed one of their key,
// of a kind or topic this process does not take, or too large. The one of these that waits is
// settled in its turn only, since what comes before it may fail.
func (q *sequence) decide(j int) bool {
	m, o := &q.ms[j], &q.out[j]
	switch hd := q.r.c.handlerFor(m.Kind); {
	case q.waits(j):
		if *o = (outcome{verdict: parked, lane: q.lane(j)}); q.p.parked != nil {
			o.verdict = stays
		}
	case q.r.foreign(m), hd == nil && q.r.c.spec.Unknown != UnknownSkip:
		if j > q.i {
			break
		}
		if *o = q.unknown(j); o.verdict == parked {
			q.blocked = q.holds(o.lane)
		}
	case hd == nil:
		o.verdict = skipped
	case m.Size > q.r.c.maxPayload:
		*o = outcome{verdict: dead, attempt: m.Attempt, reason: fmt.Sprintf("payload of %d bytes is over the limit of %d bytes", m.Size, q.r.c.maxPayload)}
	default:
		return false
	}
	return true
}

// waits reports that a message before ms[i] in its lane has failed.
func (q *sequence) waits(i int) bool {
	lane := q.lane(i)
	if _, here := q.behind[lane]; here {
		return true
	}
	before := q.p.behind
	if q.p.parked == nil {
		if q.r.c.spec.Retry.Order != OrderKey {
			return false
		}
		before = q.h.lanes
	}
	_, ok := before[lane]
	return ok
}

// fail deals with the failed call of ms[i : i+n].
func (q *sequence) fail(ctx context.Context, f *failure) {
	if ctx.Err() != nil {
		// The lease ended under the handler. Its error has no meaning for the message.
		q.failed = true
		return
	}
	if f.decode != nil {
		j := q.i + f.decode.index
		q.out[j] = q.judgeAt(j, f)
		return
	}
	if q.n > 1 {
		q.r.log.Info("a batch failed; its messages are handled one by one", "resource", q.h.Resource, "kind", q.ms[q.i].Kind,
			"messages", q.n, "error", f.reason)
	}
	if q.tx != nil {
		// The transaction is spoilt; inTx decides.
		q.failed = true
		if q.n == 1 {
			q.out[q.i] = q.judge(f)
		} else {
			q.single = q.i + q.n
		}
		return
	}
	if q.n > 1 {
		q.single = q.i + q.n
		return
	}
	q.setAside(q.judge(f))
}

func (q *sequence) judge(f *failure) outcome { return q.judgeAt(q.i, f) }

func (q *sequence) judgeAt(i int, f *failure) outcome {
	o := q.r.c.spec.Retry.judge(&q.ms[i], f)
	if o.verdict == parked {
		o.lane = q.lane(i)
	}
	return o
}

// setAside notes what becomes of ms[i], which is not handled now, and what waits behind it.
func (q *sequence) setAside(o outcome) {
	q.out[q.i] = o
	if o.verdict == parked && q.holds(o.lane) {
		q.failed = true
	}
	q.i++
}

// holds notes what waits behind ms[i], which is not handled now: its lane, or with OrderBlock all that comes after it, of
// which it reports true.
func (q *sequence) holds(lane string) (all bool) {
	switch {
	case q.p.parked != nil || q.r.c.spec.Retry.Order == OrderKey:
		if q.behind == nil {
			q.behind = map[string]struct{}{}
		}
		q.behind[lane] = struct{}{}
	case q.r.c.spec.Retry.Order == OrderBlock:
		q.halts(q.i)
		return true
	}
	return false
}

// halts keeps the other workers from beginning what comes after ms[i].
func (q *sequence) halts(i int) {
	if q.halt == nil {
		return
	}
	for at := int64(q.at(i)); ; {
		before := q.halt.Load()
		if before <= at || q.halt.CompareAndSwap(before, at) {
			return
		}
	}
}

// call runs one handler call, timed and guarded against panics, and judges its error where a
// panic of the error's own methods is caught, too.
func (q *sequence) call(ctx context.Context, hd *Handler, ms []backend.Raw) (failed *failure) {
	if !q.only && q.tx == nil { // see inTx
		if !q.r.s.gate.enter(ctx) {
			return examine(context.Cause(ctx))
		}
		defer q.r.s.gate.leave()
	}
	q.watch.calls.Add(1) // first, see reportStuck
	if q.r.c.cancelStuck {
		var cancel context.CancelCauseFunc
		ctx, cancel = context.WithCancelCause(ctx)
		defer cancel(nil)
		q.watch.cancel.Store(&cancel)
	}
	var began time.Time
	if q.r.c.observer != nil {
		began = time.Now()
	}
	q.watch.message.Store(&ms[0])
	returned := false
	defer func() {
		q.watch.message.Store(nil)
		if r := recover(); r != nil {
			failed = examine(&panicError{r})
			q.r.log.Error("handler panicked", "resource", q.h.Resource, "kind", ms[0].Kind, "id", ms[0].ID,
				"panic", failed.reason, "stack", string(debug.Stack()))
		} else if !returned {
			failed = examine(errGoexit)
		}
		if q.r.c.observer != nil {
			o := operate.ObservedHandle{Consumer: q.h.Consumer, Resource: q.h.Resource, Kind: ms[0].Kind, Epoch: q.h.Epoch,
				Count: len(ms), Duration: time.Since(began)}
			for i := range ms {
				o.Attempt = max(o.Attempt, ms[i].Attempt+1)
				if at := ms[i].PublishedAt; i == 0 || at.Before(o.PublishedAt) {
					o.PublishedAt = at
				}
			}
			if failed != nil {
				o.Err = failed.err
			}
			q.r.c.observe(o)
		}
	}()
	if !hd.batch {
		ctx = withTraceOf(ctx, &ms[0])
	}
	d := delivery{epoch: q.h.Epoch}
	if hd.once != nil {
		d.item = q.itemKey
	}
	if by := q.r.c.around; by != nil {
		d.by = &wrapped{by: by, call: Call{Consumer: q.h.Consumer, Resource: q.h.Resource, Epoch: q.h.Epoch, Kind: ms[0].Kind, Batch: hd.batch, Tx: hd.tx}, raws: ms}
	}
	err := hd.call(ctx, q.tx, ms, d)
	if err != nil {
		failed = examine(err)
	}
	returned = true
	return failed
}

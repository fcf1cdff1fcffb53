package lease

import (
	"context"
	"errors"
	"time"
)

// parkedAtLeast is how often parked messages are looked for without a reason, in case
// a hint was lost.
const parkedAtLeast = 5 * time.Second

const parkedLimit = 500 // messages in one FetchParked

// parkedState is guarded by work.mu.
type parkedState struct {
	due      time.Time // when to look next
	fetching bool
	laned    map[*held]struct{} // have parked lanes
	yielding map[*held]struct{} // hold back fresh messages until parked ones were looked at
}

// parkedDue makes the scheduler look for parked messages after d at the latest.
func (w *work) parkedDue(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dueIn(d)
	w.kick()
}

func (w *work) dueIn(d time.Duration) {
	if t := time.Now().Add(d); t.Before(w.parked.due) {
		w.parked.due = t
	}
}

// yieldTo lets the parked messages of h go before its fresh ones.
func (w *work) yieldTo(h *held) {
	h.yield = true
	w.parked.yielding[h] = struct{}{}
	w.parked.due = time.Time{}
}

// stepParked looks for due messages when it is time, and returns when to look again.
func (w *work) stepParked() time.Duration {
	if w.parked.fetching || len(w.held) == 0 {
		return parkedAtLeast
	}
	if wait := time.Until(w.parked.due); wait > 0 {
		return wait
	}
	w.parked.fetching = true
	w.parked.due = time.Now().Add(parkedAtLeast)
	for h := range w.parked.laned {
		h.yield = true
		w.parked.yielding[h] = struct{}{}
	}
	began := w.ticks
	w.calls.Go(func() {
		found, err := call(w.s.ctx, func(ctx context.Context) (Parked, error) {
			return w.be.FetchParked(ctx, ParkedRequest{Session: w.s.id, Consumer: w.info, Limit: parkedLimit, MaxPayload: w.c.maxPayload})
		})
		w.mu.Lock()
		defer w.mu.Unlock()
		w.parked.fetching = false
		if err != nil {
			if w.s.ctx.Err() == nil {
				w.log.Warn("reading parked messages failed, trying again", "error", err)
			}
			w.dueIn(time.Second)
			w.kick()
			return
		}
		w.deliverParked(found, began)
		w.kick()
	})
	return parkedAtLeast
}

// deliverParked lines up the resources that have been held and idle since before the
// parked messages were read; what was read of the others may be out of date, and is
// read again when they are idle.
func (w *work) deliverParked(found Parked, began uint64) {
	if found.Next >= 0 {
		w.dueIn(found.Next)
	}
	if found.More {
		w.dueIn(5 * time.Millisecond)
	}
	due := map[*held][]ParkedMessage{}
	for _, m := range found.Messages {
		if h := w.held[m.Resource]; h != nil && !h.giving.Load() {
			due[h] = append(due[h], m)
			h.yield = true
			w.parked.yielding[h] = struct{}{}
		}
	}
	for h := range w.parked.yielding {
		if !h.idle() || h.idleAt > began || h.busyAt > began || len(h.waited) > 0 {
			if h.idle() && len(h.waited) == 0 {
				w.parked.due = time.Time{} // it became idle meanwhile
			}
			continue // settled asks again for the others
		}
		delete(w.parked.yielding, h)
		h.yield = false
		h.waited = due[h]
		w.queueReady(h)
		w.queueFetch(h)
	}
}

// processParked handles due parked messages of one resource, lane by lane. A message
// that fails again holds back the rest of its lane.
func (w *work) processParked(ctx context.Context, h *held, ms []ParkedMessage) {
	for len(ms) > 0 {
		lane := ms[0].Lane
		n := 1
		for n < len(ms) && ms[n].Lane == lane {
			n++
		}
		for i := range ms[:n] {
			if h.stopped(ctx) {
				return
			}
			if !w.parkedOne(ctx, h, &ms[i]) {
				break
			}
			if ms[i].Last {
				delete(h.lanes, lane)
			}
		}
		ms = ms[n:]
	}
}

// parkedOne handles one parked message and reports whether it is out of the way.
func (w *work) parkedOne(ctx context.Context, h *held, m *ParkedMessage) bool {
	if h.careful() {
		if w.killed(h, m.ID) {
			return w.settleParked(h, m, w.killer(h, &m.Raw))
		}
		if !w.mark(h, m.ID) {
			return false
		}
	}
	hd := w.c.handlerFor(m.Kind)
	if hd != nil && hd.tx {
		return w.parkedInTx(ctx, h, m)
	}
	q := w.parkedSequence(h, m)
	q.run(ctx)
	return w.settleParked(h, m, q.out[0])
}

// parkedInTx is parkedOne for handlers that take a transaction.
func (w *work) parkedInTx(ctx context.Context, h *held, m *ParkedMessage) bool {
	tx, err := w.begin(ctx, h)
	if err != nil {
		return w.settleParked(h, m, outcome{})
	}
	q := w.parkedSequence(h, m)
	q.join(tx)
	q.run(ctx)
	o := q.out[0]
	if o.verdict != handled && (tx.Lost() || q.conflict) && ctx.Err() == nil && w.interrupted(ctx, h) {
		o = outcome{}
		w.parkedDue(0)
	}
	if o.verdict == handled {
		o = outcome{}
		if w.flush(h) {
			p := Progress{Ref: h.ref, Seq: h.nextSeq(), Done: []string{m.ID}}
			err = do(ctx, func(ctx context.Context) error {
				return tx.Commit(ctx, w.s.id, w.info.Name, p)
			})
			switch {
			case err == nil:
				h.interruptions = 0
				w.committed(h, counts{handled: 1})
				return true
			case errors.Is(err, ErrRolledBack):
				o = w.c.spec.Retry.judge(&m.Raw, err)
			default:
				w.uncertain(ctx, h, err)
			}
		}
	}
	w.rollback(tx)
	return w.settleParked(h, m, o)
}

func (w *work) parkedSequence(h *held, m *ParkedMessage) *sequence {
	return &sequence{w: w, h: h, ms: []Raw{m.Raw}, out: make([]outcome, 1), parked: true, waited: m.Waited}
}

// settleParked hands over what became of a parked message.
func (w *work) settleParked(h *held, m *ParkedMessage, o outcome) bool {
	p := Progress{Ref: h.ref}
	var n counts
	switch o.verdict {
	case handled:
		p.Done, n.handled = []string{m.ID}, 1
	case skipped:
		p.Done, n.skipped = []string{m.ID}, 1
	case dead:
		p.Dead, n.dead = []Dead{w.giveUp(h, &m.Raw, &o)}, 1
		p.Once = o.ask(m.ID)
	case parked:
		p.Park, n.parked = []Park{{ID: m.ID, Lane: m.Lane, Attempt: o.attempt, After: o.after, Error: o.reason}}, 1
		w.noteParked(h, p.Park)
	case undecided:
		if h.careful() {
			w.unmark(h)
		}
		return false
	}
	w.handOver(h, p, n)
	return o.verdict != parked
}

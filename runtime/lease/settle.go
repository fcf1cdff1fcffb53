package lease

import "context"

// counts says what became of messages, for the observer.
type counts struct{ handled, parked, dead, skipped int }

// progress turns the decisions on f.Messages[from:to] into what is to be stored, and
// notes the lanes that come into being.
func (w *work) progress(h *held, f Fetched, out []outcome, from, to int) (Progress, counts) {
	p := Progress{Ref: h.ref, Cursor: f.Next}
	if to < len(out) {
		p.Cursor = f.Cut(to)
	}
	var n counts
	for i := from; i < to; i++ {
		m, o := &f.Messages[i], &out[i]
		switch o.verdict {
		case handled:
			n.handled++
		case skipped:
			n.skipped++
		case parked:
			n.parked++
			p.Park = append(p.Park, Park{ID: m.ID, Lane: o.lane, Attempt: o.attempt, After: o.after, Error: o.reason})
		case dead:
			n.dead++
			p.Dead = append(p.Dead, w.giveUp(h, m, o))
			p.Once = append(p.Once, o.ask(m.ID)...)
		}
	}
	return p, n
}

func (w *work) giveUp(h *held, m *Raw, o *outcome) Dead {
	w.log.Warn("dead letter", "resource", h.Resource, "kind", m.Kind, "id", m.ID, "attempts", o.attempt, "reason", o.reason)
	w.c.observe(ObservedDeadLetter{Consumer: h.Consumer, Resource: h.Resource, Kind: m.Kind, ID: m.ID, Reason: o.reason, Attempts: o.attempt})
	return Dead{ID: m.ID, Attempt: o.attempt, Reason: o.reason}
}

// noteParked remembers new lanes and when they are due. It is called by whoever runs h.
func (w *work) noteParked(h *held, ps []Park) {
	for _, p := range ps {
		h.addLane(p.Lane)
		if p.Attempt > 0 || p.After > 0 {
			w.parkedDue(p.After)
		}
	}
}

// settleFresh hands over the progress made on f.Messages[from:to].
func (w *work) settleFresh(h *held, f Fetched, out []outcome, from, to int) {
	if from == to {
		return
	}
	p, n := w.progress(h, f, out, from, to)
	w.noteParked(h, p.Park)
	w.handOver(h, p, n)
}

func (w *work) handOver(h *held, p Progress, n counts) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.submit(h, p, n)
}

// storeQueue is progress that waits to be stored, merged by lease.
type storeQueue struct {
	wake   chan struct{}
	order  []*held
	byHeld map[*held]*entry
}

type entry struct {
	p     Progress
	n     counts
	parts int
}

// submit queues progress. The caller holds w.mu.
func (w *work) submit(h *held, p Progress, n counts) {
	if h.gone {
		return
	}
	h.uncommitted++
	e := w.queue.byHeld[h]
	if e == nil {
		e = &entry{}
		w.queue.byHeld[h] = e
		w.queue.order = append(w.queue.order, h)
	}
	e.parts++
	e.p.Ref, e.p.Mark = p.Ref, p.Mark
	if p.Cursor != nil {
		e.p.Cursor = p.Cursor
	}
	e.p.Trust = e.p.Trust || p.Trust
	e.p.Park = append(e.p.Park, p.Park...)
	e.p.Done = append(e.p.Done, p.Done...)
	e.p.Dead = append(e.p.Dead, p.Dead...)
	e.p.Once = append(e.p.Once, p.Once...)
	e.n = counts{e.n.handled + n.handled, e.n.parked + n.parked, e.n.dead + n.dead, e.n.skipped + n.skipped}
	select {
	case w.queue.wake <- struct{}{}:
	default:
	}
}

const storeItems = 1000 // leases in one Commit

// store commits what is queued until the session ends. While one commit is under way
// the next one gathers, so the number of round trips does not grow with the resources.
func (w *work) store() {
	defer func() {
		w.mu.Lock()
		w.stored.Broadcast()
		w.mu.Unlock()
	}()
	for {
		select {
		case <-w.queue.wake:
		case <-w.s.ctx.Done():
			return
		}
		for {
			hs, es := w.takeQueued()
			if len(hs) == 0 {
				break
			}
			if !w.commit(hs, es) {
				return
			}
		}
	}
}

func (w *work) takeQueued() (hs []*held, es []*entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := &w.queue
	for len(q.order) > 0 && len(hs) < storeItems {
		h := pop(&q.order)
		e := q.byHeld[h]
		delete(q.byHeld, h)
		if h.gone { // a lease of the same name may be held again
			h.uncommitted -= e.parts
			continue
		}
		e.p.Seq = h.nextSeq()
		hs, es = append(hs, h), append(es, e)
	}
	return hs, es
}

// commit stores entries in one call, repeated until its outcome is known.
func (w *work) commit(hs []*held, es []*entry) bool {
	ps := make([]Progress, len(es))
	for i, e := range es {
		ps[i] = e.p
	}
	var failed backoff
	var fenced []string
	for {
		if !w.s.alive() {
			return false
		}
		var err error
		if fenced, err = call(w.s.ctx, func(ctx context.Context) ([]string, error) {
			return w.be.Commit(ctx, w.s.id, w.info.Name, ps)
		}); err == nil {
			break
		}
		if isLost(err) {
			w.s.lose("the backend declared the session dead")
			return false
		}
		failed.pause(w.s.ctx, w.log, "commit failed", err)
	}
	refused := make(map[string]bool, len(fenced))
	for _, r := range fenced {
		refused[r] = true
	}
	for i, h := range hs {
		if refused[h.Resource] {
			w.fenced(h)
		} else {
			w.committed(h, es[i].n)
		}
	}
	w.mu.Lock()
	for i, h := range hs {
		h.uncommitted -= es[i].parts
		for _, p := range es[i].p.Park {
			if p.Attempt > 0 || p.After > 0 {
				w.dueIn(p.After) // it waits from now on; who looked before it was stored did not see it
			}
		}
		w.settled(h)
	}
	w.stored.Broadcast()
	w.mu.Unlock()
	w.kick()
	return true
}

// nextSeq numbers what is stored of h. The caller holds w.mu, or nothing of h is queued.
func (h *held) nextSeq() int64 {
	h.seq++
	return h.seq
}

func (w *work) committed(h *held, n counts) {
	if n != (counts{}) {
		w.c.observe(ObservedCommit{Consumer: h.Consumer, Resource: h.Resource, Epoch: h.Epoch,
			Handled: n.handled, Parked: n.parked, Dead: n.dead, Skipped: n.skipped})
	}
}

// fenced is called when a write was refused because the lease has a newer epoch.
func (w *work) fenced(h *held) {
	w.c.observe(ObservedFenced{Consumer: h.Consumer, Resource: h.Resource, Session: h.Session, Epoch: h.Epoch})
	w.lose(h, "a write was refused: the lease has a newer epoch")
	w.s.hintOwnership() // it may be free
	if w.info.Lock != LockAdvisory {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	h.locked = true
	w.unlock(h)
}

// unlock gives back the lock of a lease that was lost while the session lives, and nothing
// runs on it any more: it would keep out whoever's turn is next. The caller holds w.mu.
func (w *work) unlock(h *held) {
	if h.locked && !h.running {
		h.locked = false
		w.calls.Go(func() { w.release([]*held{h}) })
	}
}

// flush waits until all progress of h is stored, and reports whether it was.
func (w *work) flush(h *held) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for h.uncommitted > 0 && !h.gone && w.s.ctx.Err() == nil {
		w.stored.Wait()
	}
	return !h.gone && w.s.ctx.Err() == nil
}

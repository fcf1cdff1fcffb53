package lease

import (
	"context"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// counts says what became of messages, for the observer.
type counts struct{ handled, parked, dead, skipped int }

// progress turns the decisions on p.ms[from:to] into what is to be stored.
func (w *work) progress(h *held, p *pass, from, to int) (backend.Progress, counts) {
	g := backend.Progress{Ref: h.ref}
	if p.parked == nil {
		g.Cursor = p.cursor(to)
	}
	var n counts
	for i := from; i < to; i++ {
		m, o := &p.ms[i], &p.out[i]
		switch o.verdict {
		case handled:
			n.handled++
		case skipped:
			n.skipped++
		case parked:
			n.parked++
			g.Park = append(g.Park, backend.Park{ID: m.ID, Lane: o.lane, Attempt: o.attempt, After: o.after, Error: o.reason})
			if o.failed {
				w.log.Info("handler failed, trying the message again", "resource", h.Resource, "kind", m.Kind, "id", m.ID,
					"attempt", o.attempt, "after", o.after, "error", o.reason)
			}
		case dead:
			n.dead++
			g.Dead = append(g.Dead, w.giveUp(h, m, o))
			g.Once = append(g.Once, o.ask(m.ID)...)
		}
		if p.parked != nil && (o.verdict == handled || o.verdict == skipped) {
			g.Done = append(g.Done, m.ID)
		}
	}
	return g, n
}

// noteLanes remembers the lanes that the decisions on p.ms[from:to] have made or emptied, and
// when they are due. It is called by whoever runs h.
func (w *work) noteLanes(h *held, p *pass, from, to int) {
	for i := from; i < to; i++ {
		w.noteLate(h, p, i)
		switch o := &p.out[i]; {
		case o.verdict == parked:
			h.addLane(o.lane)
			if o.attempt > 0 || o.after > 0 {
				w.parkedDue(o.after)
			}
			if p.parked != nil {
				p.behind[o.lane] = struct{}{}
			}
		case p.parked != nil && o.verdict != stays && p.parked[i].Last:
			delete(h.lanes, p.parked[i].Lane)
		}
	}
}

// noteLate keeps in mind which lanes wait for another version, and have outlived a message.
func (w *work) noteLate(h *held, p *pass, i int) {
	o := &p.out[i]
	if p.parked == nil || o.verdict == stays {
		return
	}
	if lane := p.parked[i].Lane; o.late && !p.parked[i].Last {
		if h.late == nil {
			h.late = map[string]struct{}{}
		}
		h.late[lane] = struct{}{}
	} else {
		delete(h.late, lane)
	}
}

func (w *work) giveUp(h *held, m *backend.Raw, o *outcome) backend.Dead {
	w.log.Warn("dead letter", "resource", h.Resource, "kind", m.Kind, "id", m.ID, "attempts", o.attempt, "reason", o.reason)
	w.c.observe(operate.ObservedDeadLetter{Consumer: h.Consumer, Resource: h.Resource, Kind: m.Kind, ID: m.ID, Reason: o.reason, Attempts: o.attempt})
	return backend.Dead{ID: m.ID, Attempt: o.attempt, Reason: o.reason}
}

// settle hands over the progress made on p.ms[from:to].
func (w *work) settle(h *held, p *pass, from, to int) {
	if from == to {
		return
	}
	g, n := w.progress(h, p, from, to)
	w.noteLanes(h, p, from, to)
	if p.parked != nil && n == (counts{}) && !h.careful() {
		return // all of it stays as it is
	}
	w.handOver(h, g, n)
}

func (w *work) handOver(h *held, p backend.Progress, n counts) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.submit(h, p, n)
}

// storeState is progress that waits to be stored, merged by lease. It is guarded by work.mu.
type storeState struct {
	wake     chan struct{}
	order    []*held // whose progress may be stored now
	alone    []*held // the same, by themselves
	byHeld   map[*held]*entry
	calls    slots
	failures int // of commits of several, in a row
}

// resourceStores is the same of one resource.
type resourceStores struct {
	queued, busy bool
	strain       strain
}

type entry struct {
	p     backend.Progress
	n     counts
	parts int
}

// submit queues progress. The caller holds w.mu.
func (w *work) submit(h *held, p backend.Progress, n counts) {
	if h.gone {
		return
	}
	h.uncommitted++
	w.merge(h, &entry{p: p, n: n, parts: 1})
	w.queueStore(h)
}

// merge adds progress to what waits to be stored of h.
func (w *work) merge(h *held, add *entry) {
	e := w.stores.byHeld[h]
	if e == nil {
		w.stores.byHeld[h] = add
		return
	}
	e.parts += add.parts
	e.p.Seq = 0 // what was sent before, should it still arrive, is a part of this one
	e.p.Ref, e.p.Mark = add.p.Ref, add.p.Mark
	if add.p.Cursor != nil {
		e.p.Cursor = add.p.Cursor
	}
	e.p.Trust = e.p.Trust || add.p.Trust
	e.p.Park = append(e.p.Park, add.p.Park...)
	e.p.Done = append(e.p.Done, add.p.Done...)
	e.p.Dead = append(e.p.Dead, add.p.Dead...)
	e.p.Once = append(e.p.Once, add.p.Once...)
	e.n = counts{e.n.handled + add.n.handled, e.n.parked + add.n.parked, e.n.dead + add.n.dead, e.n.skipped + add.n.skipped}
}

// queueStore queues h if it has progress and none of its is under way.
func (w *work) queueStore(h *held) {
	s := &w.stores
	if h.stores.queued || h.stores.busy || h.stores.strain.resting || s.byHeld[h] == nil {
		return
	}
	h.stores.queued = true
	if h.stores.strain.alone() {
		s.alone = append(s.alone, h)
	} else {
		s.order = append(s.order, h)
	}
	hint(s.wake)
}

const storeItems = 1000 // leases in one Commit

// store commits what is queued until the session ends. While one commit is under way the
// next one gathers, so the number of round trips does not grow with the resources.
func (w *work) store() {
	defer func() {
		w.mu.Lock()
		w.stored.Broadcast()
		w.mu.Unlock()
	}()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-w.stores.wake:
		case <-timer.C:
		case <-w.s.ctx.Done():
			return
		}
		timer.Reset(w.stepStore())
	}
}

// stepStore starts the commits that may be started, and returns when to look again.
func (w *work) stepStore() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &w.stores
	for len(s.alone) > 0 && s.calls.freeAlone() {
		w.startStore(w.storable(nil, pop(&s.alone)))
	}
	for len(s.order) > 0 {
		if wait := s.calls.free(time.Now()); wait > 0 {
			return wait
		} else if wait < 0 {
			break
		}
		var hs []*held
		among := storeItems
		for len(s.order) > 0 && len(hs) < among {
			if n := s.order[0].stores.strain.among; n > 0 {
				if len(hs) >= n {
					break
				}
				among = min(among, n)
			}
			hs = w.storable(hs, pop(&s.order))
		}
		w.startStore(hs)
	}
	return time.Hour
}

// storable appends h, which was queued, if it is still held.
func (w *work) storable(hs []*held, h *held) []*held {
	h.stores.queued = false
	if h.gone { // a lease of the same name may be held again
		h.uncommitted -= w.stores.byHeld[h].parts
		delete(w.stores.byHeld, h)
		return hs
	}
	return append(hs, h)
}

// startStore commits the progress of several leases in one call.
func (w *work) startStore(hs []*held) {
	if len(hs) == 0 {
		return
	}
	alone := len(hs) == 1 && hs[0].stores.strain.alone()
	within := strainTime
	es := make([]*entry, len(hs))
	ps := make([]backend.Progress, len(hs))
	for i, h := range hs {
		h.stores.busy = true
		es[i] = w.stores.byHeld[h]
		delete(w.stores.byHeld, h)
		if es[i].p.Seq == 0 {
			es[i].p.Seq = h.nextSeq()
		}
		ps[i] = es[i].p
		within = max(within, h.stores.strain.timeout())
	}
	w.stores.calls.begin(alone)
	w.calls.Go(func() {
		began := time.Now()
		var fenced []string
		err := w.s.ctx.Err()
		if err == nil && w.s.alive() {
			ctx := of(w.s.ctx, "commit")
			if alone {
				ctx = of(ctx, "commit", hs[0].Resource)
			}
			fenced, err = callFor(ctx, within, func(ctx context.Context) ([]string, error) {
				return w.be.Commit(ctx, w.s.id, w.info.Name, ps)
			})
		}
		if isLost(err) {
			w.s.lose("the backend declared the session dead")
		}
		switch {
		case w.s.ctx.Err() != nil:
		case err == nil:
			w.storedAll(hs, es, fenced, time.Since(began))
		default:
			w.storeFailed(hs, es, time.Since(began) >= within, err)
		}
		w.mu.Lock()
		for _, h := range hs {
			h.stores.busy = false
			w.queueStore(h)
		}
		w.stores.calls.end(alone)
		w.stored.Broadcast()
		w.mu.Unlock()
		hint(w.stores.wake)
		w.kick()
	})
}

// storedAll notes that a commit succeeded, but for the leases that it names as fenced.
func (w *work) storedAll(hs []*held, es []*entry, fenced []string, took time.Duration) {
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
	defer w.mu.Unlock()
	w.stores.failures = 0
	for i, h := range hs {
		h.stores.strain.passed(took)
		h.uncommitted -= es[i].parts
		for _, p := range es[i].p.Park {
			if p.Attempt > 0 || p.After > 0 {
				w.dueIn(p.After) // it waits from now on; who looked before it was stored did not see it
			}
		}
		w.settled(h)
	}
}

// storeFailed puts progress back whose commit failed or is of unknown outcome. What was queued
// meanwhile is added to it.
func (w *work) storeFailed(hs []*held, es []*entry, late bool, err error) {
	w.course.failed("commit failed", err)
	w.mu.Lock()
	for i, h := range hs {
		if later := w.stores.byHeld[h]; later != nil {
			delete(w.stores.byHeld, h)
			w.stores.byHeld[h] = es[i]
			w.merge(h, later)
		} else {
			w.stores.byHeld[h] = es[i]
		}
		if wait := h.stores.strain.failed(len(hs), late); wait > 0 {
			w.restStore(h, wait, err)
		}
	}
	failures := w.stores.failures
	if len(hs) > 1 {
		w.stores.failures++
	}
	w.mu.Unlock()
	if len(hs) > 1 {
		w.endure("commit failed, trying again with fewer leases at once", failures, err)
	}
}

// restStore keeps the progress of a lease from being stored for a while that fails by itself.
// The caller holds w.mu.
func (w *work) restStore(h *held, wait time.Duration, err error) {
	s := &h.stores.strain
	if s.failures%10 == 1 && w.s.ctx.Err() == nil {
		w.log.Warn("commit failed for a lease, trying it again by itself", "resource", h.Resource, "failures", s.failures, "after", wait, "error", err)
	}
	s.resting = true
	w.calls.Go(func() {
		pause(w.s.ctx, wait)
		w.mu.Lock()
		s.resting = false
		w.queueStore(h)
		w.mu.Unlock()
	})
}

// nextSeq numbers what is stored of h. The caller holds w.mu.
func (h *held) nextSeq() int64 {
	h.seq++
	return h.seq
}

func (w *work) nextSeq(h *held) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return h.nextSeq()
}

func (w *work) committed(h *held, n counts) {
	w.refusals.forget(h.Resource)
	w.course.step(storing)
	if n != (counts{}) {
		w.c.observe(operate.ObservedCommit{Consumer: h.Consumer, Resource: h.Resource, Epoch: h.Epoch,
			Handled: n.handled, Parked: n.parked, Dead: n.dead, Skipped: n.skipped})
	}
}

// fenced is called when a write was refused because the lease has a newer epoch.
func (w *work) fenced(h *held) {
	w.c.observe(operate.ObservedFenced{Consumer: h.Consumer, Resource: h.Resource, Session: h.Session, Epoch: h.Epoch})
	w.lose(h, "a write was refused: the lease has a newer epoch")
	w.refusals.add(h.Resource)
	w.hintSurvey() // it may be free
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

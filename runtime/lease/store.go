package lease

import (
	"context"
	"sync"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// storer stores the progress of one consumer under one session: that of many leases in one
// commit, each fenced by its epoch. Progress that is handed over while a commit is under way is merged, by lease, into the
// next one, so the number of round trips does not grow with the resources.
type storer struct {
	*scope
	on storeEvents

	mu       sync.Mutex
	changed  *sync.Cond // on mu: progress was stored, or never will be
	wake     chan struct{}
	order    []*holding // whose progress may be stored now
	alone    []*holding // the same, by themselves
	waiting  map[*holding]*entry
	slots    slots
	failures int // of commits of several, in a row
}

// storeEvents learns what becomes of progress. Its methods are called without locks.
type storeEvents interface {
	// stored follows a commit. It calls account.
	stored(hs []*holding, es []*entry, fenced []string, took time.Duration)
	// kick follows every commit, stored or not.
	kick()
}

// resourceStores is what the storer knows of one lease. It is guarded by storer.mu.
type resourceStores struct {
	uncommitted  int                 // parts of progress handed over and not yet stored
	told         map[string]struct{} // items whose results may be among these
	seq          int64
	over         bool // the lease was released or lost
	queued, busy bool
	strain       strain
}

// entry is progress of a lease that waits to be stored.
type entry struct {
	p     backend.Progress
	n     counts
	parts int
}

func newStorer(x *scope, on storeEvents) *storer {
	st := &storer{scope: x, on: on, wake: make(chan struct{}, 1), waiting: map[*holding]*entry{}}
	st.changed = sync.NewCond(&st.mu)
	return st
}

// submit hands progress of h over. It has no effect after end.
func (st *storer) submit(h *holding, p backend.Progress, n counts) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.add(h, p, n)
}

func (st *storer) add(h *holding, p backend.Progress, n counts) {
	if h.stores.over {
		return
	}
	h.stores.uncommitted++
	st.merge(h, &entry{p: p, n: n, parts: 1})
	st.queue(h)
}

// uncommitted counts what was handed over of h and is not yet stored.
func (st *storer) uncommitted(h *holding) int {
	st.mu.Lock()
	defer st.mu.Unlock()
	return h.stores.uncommitted
}

// nextSeq numbers what is stored of h.
func (st *storer) nextSeq(h *holding) int64 {
	st.mu.Lock()
	defer st.mu.Unlock()
	return h.nextSeq()
}

func (h *holding) nextSeq() int64 {
	h.stores.seq++
	return h.stores.seq
}

// flush waits until all progress of h is stored, and reports whether it was.
func (st *storer) flush(h *holding) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	for h.stores.uncommitted > 0 && !h.stores.over && st.s.ctx.Err() == nil {
		st.changed.Wait()
	}
	return !h.stores.over && st.s.ctx.Err() == nil
}

// end forgets h, which was released or lost.
func (st *storer) end(h *holding) {
	st.mu.Lock()
	defer st.mu.Unlock()
	h.stores.over = true
	st.changed.Broadcast()
}

// toldLimit bounds what a lease remembers of results on their way to the backend.
const toldLimit = 1000

// tell hands over how the execution of an item ended, at once: until it is stored, a crash leaves the item unknown.
func (st *storer) tell(h *holding, r backend.OnceResult) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if h.stores.told == nil || h.stores.uncommitted == 0 {
		h.stores.told = map[string]struct{}{}
	}
	h.stores.told[r.Key] = struct{}{}
	st.add(h, backend.Progress{Ref: h.ref, Once: []backend.OnceResult{r}}, counts{})
}

// untold reports whether a result of the item may be on its way.
func (st *storer) untold(h *holding, key string) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	_, told := h.stores.told[key]
	return h.stores.uncommitted > 0 && (told || len(h.stores.told) > toldLimit)
}

// merge adds progress to what waits to be stored of h.
func (st *storer) merge(h *holding, add *entry) {
	e := st.waiting[h]
	if e == nil {
		st.waiting[h] = add
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
	e.n.merge(add.n)
}

// queue queues h if it has progress and none of its is under way.
func (st *storer) queue(h *holding) {
	r := &h.stores
	if r.queued || r.busy || r.strain.resting || st.waiting[h] == nil {
		return
	}
	r.queued = true
	if r.strain.alone() {
		st.alone = append(st.alone, h)
	} else {
		st.order = append(st.order, h)
	}
	hint(st.wake)
}

const storeItems = 1000 // leases in one Commit

// run commits what is queued until the session ends.
func (st *storer) run() {
	defer func() {
		st.mu.Lock()
		st.changed.Broadcast()
		st.mu.Unlock()
	}()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-st.wake:
		case <-timer.C:
		case <-st.s.ctx.Done():
			return
		}
		timer.Reset(st.step())
	}
}

// step starts the commits that may be started, and returns when to look again.
func (st *storer) step() time.Duration {
	st.mu.Lock()
	defer st.mu.Unlock()
	for len(st.alone) > 0 && st.slots.freeAlone() {
		st.start(st.storable(nil, pop(&st.alone)))
	}
	for len(st.order) > 0 {
		if wait := st.slots.free(time.Now()); wait > 0 {
			return wait
		} else if wait < 0 {
			break
		}
		st.start(together(&st.order, storeItems, func(h *holding) int { return h.stores.strain.among }, st.storable))
	}
	return time.Hour
}

// storable appends h, which was queued, if it is still held.
func (st *storer) storable(hs []*holding, h *holding) []*holding {
	h.stores.queued = false
	if h.stores.over { // a lease of the same name may be held again
		h.stores.uncommitted -= st.waiting[h].parts
		delete(st.waiting, h)
		return hs
	}
	return append(hs, h)
}

// start commits the progress of several leases in one call.
func (st *storer) start(hs []*holding) {
	if len(hs) == 0 {
		return
	}
	alone := len(hs) == 1 && hs[0].stores.strain.alone()
	within := strainTime
	es := make([]*entry, len(hs))
	ps := make([]backend.Progress, len(hs))
	for i, h := range hs {
		h.stores.busy = true
		es[i] = st.waiting[h]
		delete(st.waiting, h)
		if es[i].p.Seq == 0 {
			es[i].p.Seq = h.nextSeq()
		}
		ps[i] = es[i].p
		within = max(within, h.stores.strain.timeout())
	}
	st.slots.begin(alone)
	st.calls.Go(func() {
		began := time.Now()
		var fenced []string
		err := st.s.ctx.Err()
		if err == nil && st.s.alive() {
			ctx := of(st.s.ctx, "commit")
			if alone {
				ctx = of(ctx, "commit", hs[0].Resource)
			}
			fenced, err = callFor(ctx, within, func(ctx context.Context) ([]string, error) {
				return st.be.Commit(ctx, st.s.id, st.info.Name, ps)
			})
		}
		if isLost(err) {
			st.s.lose("the backend declared the session dead")
		}
		switch {
		case st.s.ctx.Err() != nil:
		case err == nil:
			took := time.Since(began)
			st.passed(hs, took)
			st.on.stored(hs, es, fenced, took)
		default:
			st.failed(hs, es, time.Since(began) >= within, err)
		}
		st.mu.Lock()
		for _, h := range hs {
			h.stores.busy = false
			st.queue(h)
		}
		st.slots.end(alone)
		st.changed.Broadcast()
		st.mu.Unlock()
		hint(st.wake)
		st.on.kick()
	})
}

func (st *storer) passed(hs []*holding, took time.Duration) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.failures = 0
	for _, h := range hs {
		h.stores.strain.passed(took)
	}
}

// account notes that progress is stored.
func (st *storer) account(hs []*holding, es []*entry) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for i, h := range hs {
		h.stores.uncommitted -= es[i].parts
	}
}

// failed puts progress back whose commit failed or is of unknown outcome, before what was queued
// since.
func (st *storer) failed(hs []*holding, es []*entry, late bool, err error) {
	st.course.failed("commit failed", err)
	st.mu.Lock()
	for i, h := range hs {
		later := st.waiting[h]
		st.waiting[h] = es[i]
		if later != nil {
			st.merge(h, later)
		}
		if wait := h.stores.strain.failed(len(hs), late); wait > 0 {
			st.rest(h, wait, err)
		}
	}
	failures := st.failures
	if len(hs) > 1 {
		st.failures++
	}
	st.mu.Unlock()
	if len(hs) > 1 {
		endure(st.s.ctx, st.log, "commit failed, trying again with fewer leases at once", failures, err)
	}
}

// rest keeps the progress of a lease from being stored for a while that fails by itself.
func (st *storer) rest(h *holding, wait time.Duration, err error) {
	s := &h.stores.strain
	if s.failures%10 == 1 && st.s.ctx.Err() == nil {
		st.log.Warn("commit failed for a lease, trying it again by itself", "resource", h.Resource, "failures", s.failures, "after", wait, "error", err)
	}
	s.resting = true
	st.calls.Go(func() {
		pause(st.s.ctx, wait)
		st.mu.Lock()
		s.resting = false
		st.queue(h)
		st.mu.Unlock()
	})
}

package lease

import (
	"context"
	"sync"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// runner works on the leases of one consumer under one session.
type runner struct {
	*scope
	own   *owner
	store *storer
	stuck *stuckWatch
	wake  chan struct{} // schedule has something to look at

	mu      sync.Mutex
	at      map[string]*holding // held, by resource
	ready   []*holding          // have a batch ready
	rested  []*holding          // are leaving or over, and idle: for the owner
	running int                 // goroutines at work
	ticks   uint64              // orders the beginnings and ends of work on resources
	reads   readState
	parked  *parkedReader
}

func newRunner(x *scope) *runner {
	r := &runner{scope: x, wake: make(chan struct{}, 1), at: map[string]*holding{}}
	r.stuck = &stuckWatch{x, r}
	r.parked = &parkedReader{r: r, due: time.Now().Add(parkedAtLeast), laned: map[*holding]struct{}{}, yielding: map[*holding]struct{}{}, strains: map[*holding]*strain{}}
	return r
}

func (r *runner) kick() { hint(r.wake) }

// add begins to work on a lease.
func (r *runner) add(h *holding) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at[h.Resource] = h
	if len(h.lanes) > 0 {
		r.parked.laned[h] = struct{}{}
		r.parked.yieldTo(h)
	}
	r.ticks++
	h.idleAt = r.ticks // parked messages read before, under an older epoch, are not its own
	r.queueRead(h)
}

// drop forgets a lease that is over. Calls that run on it go on until their context ends.
func (r *runner) drop(h *holding) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.at[h.Resource] == h {
		delete(r.at, h.Resource)
	}
	delete(r.parked.laned, h)
	delete(r.parked.yielding, h)
	delete(r.parked.strains, h)
}

// cancel ends the context of what runs on a lease.
func (r *runner) cancel(h *holding, cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h.cancel != nil {
		h.cancel(cause)
	}
}

func (r *runner) cancelAll(cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.at {
		if h.cancel != nil {
			h.cancel(cause)
		}
	}
}

// hear notes which of the resources held have news, and returns the ones that are not held, or not for long.
func (r *runner) hear(resources []string) (absent []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range resources {
		h := r.at[name]
		if h != nil {
			r.markDirty(h)
		}
		if h == nil || h.leaving() {
			absent = append(absent, name)
		}
	}
	r.kick()
	return absent
}

// hearAll is hear for all resources, after news may have been missed.
func (r *runner) hearAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.at {
		r.markDirty(h)
	}
	r.kick()
}

func (r *runner) markDirty(h *holding) {
	h.dirty = true
	r.queueRead(h)
}

// queueRead and queueReady queue h if its state allows it. They are called after
// every change of state that might, with r.mu held.
func (r *runner) queueRead(h *holding) {
	if h.reads.queued || h.reads.busy || h.reads.strain.resting || len(h.next) >= readAhead || !h.dirty ||
		h.leaving() || r.blocked(h) || r.runs() {
		return
	}
	h.reads.queued = true
	if h.reads.strain.alone() {
		r.reads.alone = append(r.reads.alone, h)
	} else {
		r.reads.queue = append(r.reads.queue, h)
	}
}

func (r *runner) queueReady(h *holding) {
	if h.inReady || h.running || h.leaving() ||
		len(h.waited) == 0 && (len(h.next) == 0 || r.store.uncommitted(h) > 1 || h.yield || r.blocked(h)) {
		return
	}
	h.inReady = true
	r.ready = append(r.ready, h)
}

// idle reports that no call runs on h and none of its progress is to be stored. The caller holds r.mu.
func (r *runner) idle(h *holding) bool { return !h.running && r.store.uncommitted(h) == 0 }

func (r *runner) isIdle(h *holding) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.idle(h)
}

// unoccupied reports that h is idle, and has no batch ready.
func (r *runner) unoccupied(h *holding) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.idle(h) && len(h.next) == 0
}

func (r *runner) isRunning(h *holding) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return h.running
}

// probe commits no progress for h, which shows whether it is still held. Calls on h, and progress to be stored, show that anyway.
func (r *runner) probe(h *holding) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.store.uncommitted(h) == 0 && (r.runs() || !h.running) {
		r.store.submit(h, backend.Progress{Ref: h.ref}, counts{})
	}
}

// quietSince reports that no work is left for h as far as is known, and since when.
func (r *runner) quietSince(h *holding) (since time.Time, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return h.activeAt, r.restsOn(h)
}

// stopQuiet makes h leave if it is quiet: news that comes later finds it leaving.
func (r *runner) stopQuiet(h *holding) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.restsOn(h) {
		return false
	}
	h.advance(leaseGiving)
	return true
}

func (r *runner) restsOn(h *holding) bool {
	return r.idle(h) && !h.dirty && !h.reads.busy && !h.reads.queued && len(h.next) == 0 && len(h.waited) == 0 &&
		len(h.lanes) == 0 && !h.leaving()
}

// blocked reports that a parked message holds back the whole resource. The lanes of a
// running resource belong to its goroutine, which asks again when it is done.
func (r *runner) blocked(h *holding) bool {
	return r.c.spec.Retry.Order == OrderBlock && (h.running || len(h.lanes) > 0)
}

// schedule starts reads and handlers until the session ends.
func (r *runner) schedule() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for r.s.ctx.Err() == nil {
		timer.Reset(r.step())
		select {
		case <-r.wake:
		case <-timer.C:
		case <-r.s.ctx.Done():
		}
	}
}

// step starts what can be started and returns when to look again.
func (r *runner) step() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.runs() {
		return r.startRuns()
	}
	for len(r.ready) > 0 && r.running < r.c.concurrency {
		h := pop(&r.ready)
		h.inReady = false
		if h.running || h.leaving() {
			continue
		}
		if ms := h.waited; len(ms) > 0 {
			h.waited = nil
			r.start(h, func(ctx context.Context) {
				(&turn{r, h, parkedPass(ms)}).process(ctx)
				r.endTurn(h)
			})
			continue
		}
		if len(h.next) == 0 || h.yield {
			continue
		}
		f := r.nextBatch(h)
		h.batchNext = false
		r.start(h, func(ctx context.Context) { (&turn{r, h, freshPass(f)}).process(ctx) })
		r.queueRead(h) // the next batch is read while this one is handled
	}
	read := r.stepRead()
	return min(r.parked.step(), read)
}

func pop(q *[]*holding) *holding {
	h := (*q)[0]
	(*q)[0] = nil
	*q = (*q)[1:]
	return h
}

// start runs f for h in a goroutine, with a context that ends with the lease.
func (r *runner) start(h *holding, f func(ctx context.Context)) {
	ctx, cancel := context.WithCancelCause(context.WithValue(r.s.ctx, leaseKey{}, h.Lease))
	h.running, h.cancel = true, cancel
	r.ticks++
	h.busyAt = r.ticks
	r.running++
	r.c.enter(h.Resource)
	go func() {
		defer func() {
			cancel(nil)
			r.c.leave(h.Resource, r.own)
			r.mu.Lock()
			r.running--
			h.running, h.cancel = false, nil
			r.settled(h)
			r.mu.Unlock()
			r.kick()
		}()
		if r.own.alive(h) {
			f(ctx)
		}
	}()
}

// endTurn follows a pass of the parked messages of h, in the goroutine that runs it. A batch that is
// ready goes next: passes and batches alternate, so that neither starves the other.
func (r *runner) endTurn(h *holding) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h.batchNext = len(h.next) > 0 && !(r.c.spec.Retry.Order == OrderBlock && len(h.lanes) > 0)
}

// settled is called when work on h, or the storing of its progress, has ended. The caller holds r.mu.
func (r *runner) settled(h *holding) {
	if h.leaving() && (r.idle(h) || h.is(leaseOver) && !h.running) {
		r.rested = append(r.rested, h)
		hint(r.own.wake)
	}
	if h.is(leaseOver) {
		return
	}
	if r.idle(h) {
		h.activeAt = time.Now()
		r.ticks++
		h.idleAt = r.ticks
		if len(h.lanes) > 0 {
			r.parked.laned[h] = struct{}{}
		} else {
			delete(r.parked.laned, h)
		}
		if h.missed && !h.batchNext && r.parked.strains[h] == nil {
			h.missed = false
			r.parked.yieldTo(h)
		}
		if h.yield {
			r.parked.due = time.Time{}
		}
	}
	r.queueReady(h)
	r.queueRead(h)
}

// takeRested returns the leases that became idle while they leave, or after they were lost.
func (r *runner) takeRested() []*holding {
	r.mu.Lock()
	defer r.mu.Unlock()
	hs := r.rested
	r.rested = nil
	return hs
}

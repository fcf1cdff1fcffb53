package lease

import (
	"context"
	"slices"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// parkedAtLeast is how often parked messages are looked for without a reason, in case
// a hint was lost.
const parkedAtLeast = 5 * time.Second

const (
	parkedLimit    = 500  // messages in one FetchParked
	parkedExcluded = 1000 // resources that it is told to leave out
	// parkedGap is the least time between two reads; after one that took long it is longer.
	parkedGap = 10 * time.Millisecond
)

// parkedState is guarded by runner.mu.
type parkedState struct {
	due      time.Time // when to look next,
	since    time.Time // but not before
	fetching bool
	laned    map[*holding]struct{} // have parked lanes
	yielding map[*holding]struct{} // hold back fresh messages until parked ones were looked at
	failures int                   // of reads, in a row
	hollow   int                   // answers in a row that brought nothing and called for the next read soon

	// After a failed read the resources with known lanes are read apart, see strain.
	strains map[*holding]*strain
	apart   []*holding // to be read next
	alone   []*holding // the same, by themselves
	reading slots      // of these reads
}

// notYet is when to look again after next: ever later while a backend says that something is
// about to be due, and then there is nothing.
func (p *parkedState) notYet(next time.Duration, lined int) time.Duration {
	if p.hollow++; lined > 0 || next > 20*time.Millisecond {
		p.hollow = 0
	}
	return max(next, time.Millisecond<<min(p.hollow, 10))
}

// parkedDue makes the scheduler look for parked messages after d at the latest.
func (r *runner) parkedDue(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dueIn(d)
	r.kick()
}

// expectParked is called before leases are acquired. Grants tell of what is parked; a hint from now on may be about
// later.
func (r *runner) expectParked() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.at) == 0 {
		r.parked.due = time.Now().Add(parkedAtLeast)
	}
}

func (r *runner) dueIn(d time.Duration) {
	if t := time.Now().Add(d); t.Before(r.parked.due) {
		r.parked.due = t
	}
}

// yieldTo lets the parked messages of h go before its fresh ones.
func (r *runner) yieldTo(h *holding) {
	h.yield = true
	r.parked.yielding[h] = struct{}{}
	r.parked.due = time.Time{}
}

// endTurn is called by whoever runs h after a pass of its parked messages. A batch that is
// ready goes next: passes and batches alternate, so that neither starves the other.
func (r *runner) endTurn(h *holding) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h.turn = len(h.next) > 0 && !(r.c.spec.Retry.Order == OrderBlock && len(h.lanes) > 0)
}

// stepParked looks for due messages when it is time, and returns when to look again.
func (r *runner) stepParked() time.Duration {
	p := &r.parked
	r.stepApart()
	if p.fetching || len(r.at) == 0 {
		return parkedAtLeast
	}
	if wait := max(time.Until(p.due), time.Until(p.since)); wait > 0 {
		return wait
	}
	p.fetching = true
	sent := time.Now()
	p.due = time.Now().Add(parkedAtLeast)
	var exclude []string
	for h := range p.laned {
		if (p.strains[h] != nil || !r.mayPass(h)) && len(exclude) < parkedExcluded {
			exclude = append(exclude, h.Resource)
		}
	}
	r.readParked(backend.ParkedRequest{Exclude: exclude, PerResource: r.c.spec.Batch}, strainTime, func(found backend.Parked, began uint64, _ bool, err error) {
		p.fetching = false
		p.since = time.Now().Add(min(max(parkedGap, 4*time.Since(sent)), time.Second))
		if err == nil {
			p.failures = 0
			r.deliverParked(found, began, func(h *holding) bool { return p.strains[h] == nil })
			return
		}
		r.dueIn(r.parkedFailed("", err))
		for h := range p.laned {
			if p.strains[h] == nil {
				p.strains[h] = &strain{among: max(len(p.laned)/8, 2)}
				p.apart = append(p.apart, h)
			}
		}
	})
	return parkedAtLeast
}

// stepApart starts reads of resources whose reads failed before.
func (r *runner) stepApart() {
	p := &r.parked
	var later []*holding
	for len(p.alone) > 0 && p.reading.freeAlone() {
		later = append(later, r.readApart(&p.alone)...)
	}
	for len(p.apart) > 0 && p.reading.busy-p.reading.strained < callsAtOnce-strainedAtOnce {
		later = append(later, r.readApart(&p.apart)...)
	}
	r.readAgain(later, 100*time.Millisecond)
}

// readApart reads the parked messages of the next resources of a queue, and returns those that
// are at work.
func (r *runner) readApart(queue *[]*holding) (later []*holding) {
	p := &r.parked
	var asked []*holding
	req := backend.ParkedRequest{PerResource: r.c.spec.Batch}
	within := strainTime
	for n := parkedExcluded; len(*queue) > 0 && len(asked) < n; {
		h := pop(queue)
		s := p.strains[h]
		switch {
		case s == nil:
		case h.is(leaseOver):
			delete(p.strains, h)
		case !r.mayPass(h):
			later = append(later, h)
		default:
			n = min(n, s.among)
			asked = append(asked, h)
			req.Resources = append(req.Resources, h.Resource)
			req.PerResource, within = min(req.PerResource, s.limit(req.PerResource)), max(within, s.timeout())
		}
	}
	if len(asked) == 0 {
		return later
	}
	alone := queue == &p.alone
	p.reading.begin(alone)
	r.readParked(req, within, func(found backend.Parked, began uint64, late bool, err error) {
		p.reading.end(alone)
		if err == nil {
			p.failures = 0
			for _, h := range asked {
				delete(p.strains, h)
			}
			r.deliverParked(found, began, func(h *holding) bool { return slices.Contains(asked, h) })
			return
		}
		resource := ""
		if len(asked) == 1 {
			resource = asked[0].Resource
		}
		wait := r.parkedFailed(resource, err)
		for _, h := range asked {
			if s := p.strains[h]; s != nil {
				wait = max(wait, s.failed(len(asked), late))
			}
		}
		r.readAgain(asked, wait)
	})
	return later
}

// readAgain makes resources be read apart after d.
func (r *runner) readAgain(hs []*holding, d time.Duration) {
	if len(hs) == 0 {
		return
	}
	r.calls.Go(func() {
		pause(r.s.ctx, d)
		r.mu.Lock()
		for _, h := range hs {
			if s := r.parked.strains[h]; s != nil && s.alone() {
				r.parked.alone = append(r.parked.alone, h)
			} else {
				r.parked.apart = append(r.parked.apart, h)
			}
		}
		r.mu.Unlock()
		r.kick()
	})
}

// yieldTime is how long batches are held back by a read of parked messages that is under way.
const yieldTime = 500 * time.Millisecond

// readParked makes one read, and calls then with r.mu held when it has ended.
func (r *runner) readParked(req backend.ParkedRequest, within time.Duration, then func(found backend.Parked, began uint64, late bool, err error)) {
	req.Session, req.Consumer, req.Limit, req.MaxPayload = r.s.id, r.info, parkedLimit, r.c.maxPayload
	began := r.ticks
	release := time.AfterFunc(yieldTime, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.stopYielding()
		r.kick()
	})
	r.calls.Go(func() {
		sent := time.Now()
		single := ""
		if len(req.Resources) == 1 {
			single = req.Resources[0]
		}
		found, err := callFor(of(r.s.ctx, "parked", single), within, func(ctx context.Context) (backend.Parked, error) { return r.be.FetchParked(ctx, req) })
		release.Stop()
		if isLost(err) {
			r.s.lose("the backend declared the session dead")
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if err != nil {
			r.stopYielding()
			r.course.failed("reading parked messages failed", err)
		} else {
			r.course.step(readParked)
		}
		then(found, began, time.Since(sent) >= within, err)
		r.kick()
	})
}

// stopYielding lets batches go on: the lanes that they must not overtake are known.
func (r *runner) stopYielding() {
	for h := range r.parked.yielding {
		delete(r.parked.yielding, h)
		h.yield = false
		r.queueReady(h)
		r.queueRead(h)
	}
}

// parkedFailed tells of a failed read and returns when to make the next one. The caller holds
// r.mu.
func (r *runner) parkedFailed(resource string, err error) time.Duration {
	p := &r.parked
	if p.failures%10 == 0 && r.s.ctx.Err() == nil {
		r.log.Warn("reading parked messages failed, trying again", "resource", resource, "error", err, "failures", p.failures+1)
	}
	p.failures++
	return min(250*time.Millisecond<<min(p.failures, 8), time.Second)
}

// mayPass reports that parked messages of h can be handled once they are read, and holds back
// its batches until then. A resource that is at work, or whose turn a batch is, is looked at
// when that is done.
func (r *runner) mayPass(h *holding) bool {
	if !r.idle(h) || h.turn || len(h.waited) > 0 {
		h.missed = true
		return false
	}
	h.yield = true
	r.parked.yielding[h] = struct{}{}
	return true
}

// deliverParked lines up those of the resources covered that have been held and idle since
// before the parked messages were read; what was read of the others may be out of date, and is
// read again when they are idle.
func (r *runner) deliverParked(found backend.Parked, began uint64, covered func(*holding) bool) {
	due := map[*holding][]backend.ParkedMessage{}
	type name struct{ resource, id string }
	seen := make(map[name]bool, len(found.Messages))
	strange := 0
	for _, m := range found.Messages {
		h := r.at[m.Resource]
		if h == nil || !covered(h) || seen[name{m.Resource, m.ID}] {
			strange++ // it was given back meanwhile, or the backend answered what was not asked, or twice
			continue
		}
		seen[name{m.Resource, m.ID}] = true
		if !h.leaving() && !h.turn {
			due[h] = append(due[h], m)
			h.yield = true
			r.parked.yielding[h] = struct{}{}
		} else {
			h.missed = true
		}
	}
	lined := 0
	for h := range r.parked.yielding {
		if !covered(h) {
			continue
		}
		if !r.idle(h) || h.idleAt > began || h.busyAt > began || len(h.waited) > 0 {
			if r.idle(h) && len(h.waited) == 0 {
				r.parked.due = time.Time{} // it became idle meanwhile
			}
			continue // settled asks again for the others
		}
		delete(r.parked.yielding, h)
		h.yield = false
		if h.waited = due[h]; len(h.waited) > 0 {
			lined++
		}
		r.queueReady(h)
		r.queueRead(h)
	}
	if found.Next >= 0 {
		r.dueIn(r.parked.notYet(found.Next, lined))
	}
	switch {
	case !found.More:
	case lined > 0:
		r.dueIn(5 * time.Millisecond)
	default:
		r.dueIn(100 * time.Millisecond) // what there is more of cannot be handled now
	}
	if strange > 0 {
		r.log.Debug("parked messages came twice, or of resources that were not asked for or are given back", "messages", strange)
	}
}

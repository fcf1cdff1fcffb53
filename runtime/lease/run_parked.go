package lease

import (
	"context"
	"slices"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// parkedAtLeast is how often parked messages are looked for without a reason, in case
// a hint was lost.
const parkedAtLeast = 10 * time.Second

const (
	parkedLimit    = 500  // messages in one FetchParked
	parkedExcluded = 1000 // resources that it leaves out
	// parkedGap is the least time between two reads; after one that took long it is longer.
	parkedGap = 10 * time.Millisecond
)

// parkedReader reads parked messages that are due, and lines them up. It is a part of the runner, whose lock guards it.
type parkedReader struct {
	r *runner

	due      time.Time // when to look next,
	since    time.Time // but not before
	fetching bool
	laned    map[*holding]struct{} // have parked lanes
	yielding map[*holding]struct{} // hold back fresh messages until parked ones were looked at
	failures int                   // of reads, in a row
	hollow   int                   // answers in a row that brought no message and called for the next read soon

	// After a failed read the resources with known lanes are read apart, see strain.
	strains map[*holding]*strain
	apart   []*holding // to be read next
	alone   []*holding // the same, by themselves
	reading slots      // of these reads
}

// notYet is when to look again after next: ever later while a backend says that something is
// about to be due, and then there is none.
func (p *parkedReader) notYet(next time.Duration, lined int) time.Duration {
	if p.hollow++; lined > 0 || next > 20*time.Millisecond {
		p.hollow = 0
	}
	return max(next, time.Millisecond<<min(p.hollow, 10))
}

// lookWithin makes the scheduler look for parked messages after d at the latest.
func (p *parkedReader) lookWithin(d time.Duration) {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	p.dueIn(d)
	p.r.kick()
}

// expect is called before leases are acquired. Grants report parked messages; a hint from now on may be about
// later.
func (p *parkedReader) expect() {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	if len(p.r.at) == 0 {
		p.due = time.Now().Add(parkedAtLeast)
	}
}

func (p *parkedReader) dueIn(d time.Duration) {
	if t := time.Now().Add(d); t.Before(p.due) {
		p.due = t
	}
}

// yieldTo lets the parked messages of h go before its fresh ones.
func (p *parkedReader) yieldTo(h *holding) {
	h.yield = true
	p.yielding[h] = struct{}{}
	p.due = time.Time{}
}

// step looks for due messages when it is time, and returns when to look again.
func (p *parkedReader) step() time.Duration {
	p.stepApart()
	if p.fetching || len(p.r.at) == 0 {
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
		if (p.strains[h] != nil || !p.mayPass(h)) && len(exclude) < parkedExcluded {
			exclude = append(exclude, h.Resource)
		}
	}
	p.read(backend.ParkedRequest{Exclude: exclude, PerResource: p.r.c.spec.Batch}, strainTime, func(found backend.Parked, began uint64, _ bool, err error) {
		p.fetching = false
		p.since = time.Now().Add(min(max(parkedGap, 4*time.Since(sent)), time.Second))
		if err == nil {
			p.failures = 0
			p.deliver(found, began, func(h *holding) bool { return p.strains[h] == nil })
			return
		}
		p.dueIn(p.failed("", err))
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
func (p *parkedReader) stepApart() {
	var later []*holding
	for len(p.alone) > 0 && p.reading.freeAlone() {
		later = append(later, p.readApart(&p.alone)...)
	}
	for len(p.apart) > 0 && p.reading.busy-p.reading.strained < callsAtOnce-strainedAtOnce {
		later = append(later, p.readApart(&p.apart)...)
	}
	p.readAgain(later, 100*time.Millisecond)
}

// readApart reads the parked messages of the next resources of a queue, and returns the ones
// at work.
func (p *parkedReader) readApart(queue *[]*holding) (later []*holding) {
	var asked []*holding
	req := backend.ParkedRequest{PerResource: p.r.c.spec.Batch}
	within := strainTime
	for n := parkedExcluded; len(*queue) > 0 && len(asked) < n; {
		h := pop(queue)
		s := p.strains[h]
		switch {
		case s == nil:
		case h.is(leaseOver):
			delete(p.strains, h)
		case !p.mayPass(h):
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
	p.read(req, within, func(found backend.Parked, began uint64, late bool, err error) {
		p.reading.end(alone)
		if err == nil {
			p.failures = 0
			for _, h := range asked {
				delete(p.strains, h)
			}
			p.deliver(found, began, func(h *holding) bool { return slices.Contains(asked, h) })
			return
		}
		resource := ""
		if len(asked) == 1 {
			resource = asked[0].Resource
		}
		wait := p.failed(resource, err)
		for _, h := range asked {
			if s := p.strains[h]; s != nil {
				wait = max(wait, s.failed(len(asked), late))
			}
		}
		p.readAgain(asked, wait)
	})
	return later
}

// readAgain makes resources be read apart after d.
func (p *parkedReader) readAgain(hs []*holding, d time.Duration) {
	if len(hs) == 0 {
		return
	}
	p.r.calls.Go(func() {
		pause(p.r.s.ctx, d)
		p.r.mu.Lock()
		for _, h := range hs {
			if s := p.strains[h]; s != nil && s.alone() {
				p.alone = append(p.alone, h)
			} else {
				p.apart = append(p.apart, h)
			}
		}
		p.r.mu.Unlock()
		p.r.kick()
	})
}

// yieldTime is how long batches are held back by a read of parked messages that is under way.
const yieldTime = 500 * time.Millisecond

// read makes one read, and calls then with p.r.mu held when it has ended.
func (p *parkedReader) read(req backend.ParkedRequest, within time.Duration, then func(found backend.Parked, began uint64, late bool, err error)) {
	req.Session, req.Consumer, req.Limit, req.MaxPayload = p.r.s.id, p.r.info, parkedLimit, p.r.c.maxPayload
	began := p.r.ticks
	release := time.AfterFunc(yieldTime, func() {
		p.r.mu.Lock()
		defer p.r.mu.Unlock()
		p.stopYielding()
		p.r.kick()
	})
	p.r.calls.Go(func() {
		sent := time.Now()
		single := ""
		if len(req.Resources) == 1 {
			single = req.Resources[0]
		}
		found, err := callFor(of(p.r.s.ctx, "parked", single), within, func(ctx context.Context) (backend.Parked, error) { return p.r.be.FetchParked(ctx, req) })
		release.Stop()
		if isLost(err) {
			p.r.s.lose("the backend declared the session dead")
		}
		p.r.mu.Lock()
		defer p.r.mu.Unlock()
		if err != nil {
			p.stopYielding()
			p.r.course.failed("reading parked messages failed", err)
		} else {
			p.r.course.step(readParked)
		}
		then(found, began, time.Since(sent) >= within, err)
		p.r.kick()
	})
}

// stopYielding lets batches go on: the lanes that they must not overtake are known.
func (p *parkedReader) stopYielding() {
	for h := range p.yielding {
		delete(p.yielding, h)
		h.yield = false
		p.r.queueReady(h)
		p.r.queueRead(h)
	}
}

// failed reports a failed read and returns when to make the next one. The caller holds
// p.r.mu.
func (p *parkedReader) failed(resource string, err error) time.Duration {
	if p.failures%10 == 0 && p.r.s.ctx.Err() == nil {
		p.r.log.Warn("reading parked messages failed, trying again", "resource", resource, "error", err, "failures", p.failures+1)
	}
	p.failures++
	return min(250*time.Millisecond<<min(p.failures, 8), time.Second)
}

// mayPass reports that parked messages of h can be handled once they are read, and holds back
// its batches until then. A resource that is at work, or whose turn a batch is, is looked at
// when that is done.
func (p *parkedReader) mayPass(h *holding) bool {
	if !p.r.idle(h) || h.batchNext || len(h.waited) > 0 {
		h.missed = true
		return false
	}
	h.yield = true
	p.yielding[h] = struct{}{}
	return true
}

// deliver lines up messages of the resources covered that have been held and idle since
// before the parked messages were read; what was read of the others may be out of date, and is
// read again when they are idle.
func (p *parkedReader) deliver(found backend.Parked, began uint64, covered func(*holding) bool) {
	due := map[*holding][]backend.ParkedMessage{}
	type name struct{ resource, id string }
	seen := make(map[name]bool, len(found.Messages))
	strange := 0
	for _, m := range found.Messages {
		h := p.r.at[m.Resource]
		if h == nil || !covered(h) || seen[name{m.Resource, m.ID}] {
			strange++ // it was given back since, or the backend answered what was not asked, or twice
			continue
		}
		seen[name{m.Resource, m.ID}] = true
		if !h.leaving() && !h.batchNext {
			due[h] = append(due[h], m)
			h.yield = true
			p.yielding[h] = struct{}{}
		} else {
			h.missed = true
		}
	}
	lined := 0
	for h := range p.yielding {
		if !covered(h) {
			continue
		}
		if !p.r.idle(h) || h.idleAt > began || h.busyAt > began || len(h.waited) > 0 {
			if p.r.idle(h) && len(h.waited) == 0 {
				p.due = time.Time{} // it became idle since
			}
			continue // settled asks again for the others
		}
		delete(p.yielding, h)
		h.yield = false
		if h.waited = due[h]; len(h.waited) > 0 {
			lined++
		}
		p.r.queueReady(h)
		p.r.queueRead(h)
	}
	if found.Next >= 0 {
		p.dueIn(p.notYet(found.Next, lined))
	}
	switch {
	case !found.More:
	case lined > 0:
		p.dueIn(5 * time.Millisecond)
	default:
		p.dueIn(100 * time.Millisecond) // what there is more of cannot be handled now
	}
	if strange > 0 {
		p.r.log.Debug("parked messages came twice, or of resources that were not asked for or are given back", "messages", strange)
	}
}

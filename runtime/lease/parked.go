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

// parkedState is guarded by work.mu.
type parkedState struct {
	due      time.Time // when to look next,
	since    time.Time // but not before
	fetching bool
	laned    map[*held]struct{} // have parked lanes
	yielding map[*held]struct{} // hold back fresh messages until parked ones were looked at
	failures int                // of reads, in a row
	hollow   int                // answers in a row that brought nothing and called for the next read soon

	// After a failed read the resources with known lanes are read apart, see strain.
	strains map[*held]*strain
	apart   []*held // to be read next
	alone   []*held // the same, by themselves
	reading slots   // of these reads
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

// endTurn is called by whoever runs h after a pass of its parked messages. A batch that is
// ready goes next: passes and batches alternate, so that neither starves the other.
func (w *work) endTurn(h *held) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h.turn = len(h.next) > 0 && !(w.c.spec.Retry.Order == OrderBlock && len(h.lanes) > 0)
}

// stepParked looks for due messages when it is time, and returns when to look again.
func (w *work) stepParked() time.Duration {
	p := &w.parked
	w.stepApart()
	if p.fetching || len(w.held) == 0 {
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
		if (p.strains[h] != nil || !w.mayPass(h)) && len(exclude) < parkedExcluded {
			exclude = append(exclude, h.Resource)
		}
	}
	w.readParked(backend.ParkedRequest{Exclude: exclude, PerResource: w.c.spec.Batch}, strainTime, func(found backend.Parked, began uint64, _ bool, err error) {
		p.fetching = false
		p.since = time.Now().Add(min(max(parkedGap, 4*time.Since(sent)), time.Second))
		if err == nil {
			p.failures = 0
			w.deliverParked(found, began, func(h *held) bool { return p.strains[h] == nil })
			return
		}
		w.dueIn(w.parkedFailed("", err))
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
func (w *work) stepApart() {
	p := &w.parked
	var later []*held
	for len(p.alone) > 0 && p.reading.freeAlone() {
		later = append(later, w.readApart(&p.alone)...)
	}
	for len(p.apart) > 0 && p.reading.busy-p.reading.strained < callsAtOnce-strainedAtOnce {
		later = append(later, w.readApart(&p.apart)...)
	}
	w.readAgain(later, 100*time.Millisecond)
}

// readApart reads the parked messages of the next resources of a queue, and returns those that
// are at work.
func (w *work) readApart(queue *[]*held) (later []*held) {
	p := &w.parked
	var asked []*held
	req := backend.ParkedRequest{PerResource: w.c.spec.Batch}
	within := strainTime
	for n := parkedExcluded; len(*queue) > 0 && len(asked) < n; {
		h := pop(queue)
		s := p.strains[h]
		switch {
		case s == nil:
		case h.gone:
			delete(p.strains, h)
		case !w.mayPass(h):
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
	w.readParked(req, within, func(found backend.Parked, began uint64, late bool, err error) {
		p.reading.end(alone)
		if err == nil {
			p.failures = 0
			for _, h := range asked {
				delete(p.strains, h)
			}
			w.deliverParked(found, began, func(h *held) bool { return slices.Contains(asked, h) })
			return
		}
		resource := ""
		if len(asked) == 1 {
			resource = asked[0].Resource
		}
		wait := w.parkedFailed(resource, err)
		for _, h := range asked {
			if s := p.strains[h]; s != nil {
				wait = max(wait, s.failed(len(asked), late))
			}
		}
		w.readAgain(asked, wait)
	})
	return later
}

// readAgain makes resources be read apart after d.
func (w *work) readAgain(hs []*held, d time.Duration) {
	if len(hs) == 0 {
		return
	}
	w.calls.Go(func() {
		pause(w.s.ctx, d)
		w.mu.Lock()
		for _, h := range hs {
			if s := w.parked.strains[h]; s != nil && s.alone() {
				w.parked.alone = append(w.parked.alone, h)
			} else {
				w.parked.apart = append(w.parked.apart, h)
			}
		}
		w.mu.Unlock()
		w.kick()
	})
}

// yieldTime is how long batches are held back by a read of parked messages that is under way.
const yieldTime = 500 * time.Millisecond

// readParked makes one read, and calls then with work.mu held when it has ended.
func (w *work) readParked(req backend.ParkedRequest, within time.Duration, then func(found backend.Parked, began uint64, late bool, err error)) {
	req.Session, req.Consumer, req.Limit, req.MaxPayload = w.s.id, w.info, parkedLimit, w.c.maxPayload
	began := w.ticks
	release := time.AfterFunc(yieldTime, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.stopYielding()
		w.kick()
	})
	w.calls.Go(func() {
		sent := time.Now()
		single := ""
		if len(req.Resources) == 1 {
			single = req.Resources[0]
		}
		found, err := callFor(of(w.s.ctx, "parked", single), within, func(ctx context.Context) (backend.Parked, error) { return w.be.FetchParked(ctx, req) })
		release.Stop()
		if isLost(err) {
			w.s.lose("the backend declared the session dead")
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if err != nil {
			w.stopYielding()
			w.course.failed("reading parked messages failed", err)
		} else {
			w.course.step(readParked)
		}
		then(found, began, time.Since(sent) >= within, err)
		w.kick()
	})
}

// stopYielding lets batches go on: the lanes that they must not overtake are known.
func (w *work) stopYielding() {
	for h := range w.parked.yielding {
		delete(w.parked.yielding, h)
		h.yield = false
		w.queueReady(h)
		w.queueFetch(h)
	}
}

// parkedFailed tells of a failed read and returns when to make the next one. The caller holds
// w.mu.
func (w *work) parkedFailed(resource string, err error) time.Duration {
	p := &w.parked
	if p.failures%10 == 0 && w.s.ctx.Err() == nil {
		w.log.Warn("reading parked messages failed, trying again", "resource", resource, "error", err, "failures", p.failures+1)
	}
	p.failures++
	return min(250*time.Millisecond<<min(p.failures, 8), time.Second)
}

// mayPass reports that parked messages of h can be handled once they are read, and holds back
// its batches until then. A resource that is at work, or whose turn a batch is, is looked at
// when that is done.
func (w *work) mayPass(h *held) bool {
	if !w.idle(h) || h.turn || len(h.waited) > 0 {
		h.missed = true
		return false
	}
	h.yield = true
	w.parked.yielding[h] = struct{}{}
	return true
}

// deliverParked lines up those of the resources covered that have been held and idle since
// before the parked messages were read; what was read of the others may be out of date, and is
// read again when they are idle.
func (w *work) deliverParked(found backend.Parked, began uint64, covered func(*held) bool) {
	due := map[*held][]backend.ParkedMessage{}
	type name struct{ resource, id string }
	seen := make(map[name]bool, len(found.Messages))
	strange := 0
	for _, m := range found.Messages {
		h := w.held[m.Resource]
		if h == nil || !covered(h) || seen[name{m.Resource, m.ID}] {
			strange++ // it was given back meanwhile, or the backend answered what was not asked, or twice
			continue
		}
		seen[name{m.Resource, m.ID}] = true
		if !h.giving.Load() && !h.turn {
			due[h] = append(due[h], m)
			h.yield = true
			w.parked.yielding[h] = struct{}{}
		} else {
			h.missed = true
		}
	}
	lined := 0
	for h := range w.parked.yielding {
		if !covered(h) {
			continue
		}
		if !w.idle(h) || h.idleAt > began || h.busyAt > began || len(h.waited) > 0 {
			if w.idle(h) && len(h.waited) == 0 {
				w.parked.due = time.Time{} // it became idle meanwhile
			}
			continue // settled asks again for the others
		}
		delete(w.parked.yielding, h)
		h.yield = false
		if h.waited = due[h]; len(h.waited) > 0 {
			lined++
		}
		w.queueReady(h)
		w.queueFetch(h)
	}
	if found.Next >= 0 {
		w.dueIn(w.parked.notYet(found.Next, lined))
	}
	switch {
	case !found.More:
	case lined > 0:
		w.dueIn(5 * time.Millisecond)
	default:
		w.dueIn(100 * time.Millisecond) // what there is more of cannot be handled now
	}
	if strange > 0 {
		w.log.Debug("parked messages came twice, or of resources that were not asked for or are given back", "messages", strange)
	}
}

package lease

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/leasegen/leasegen/runtime/operate"
)

// giveBack begins to give n leases away, idle ones first. The ones that are being given away count.
func (o *owner) giveBack(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, h := range o.held {
		if h.leaving() {
			n--
		}
	}
	for _, onlyIdle := range []bool{true, false} {
		for _, h := range o.held {
			if n <= 0 {
				return
			}
			if h.leaving() || onlyIdle && !o.run.unoccupied(h) {
				continue
			}
			o.give(h)
			o.run.stopRun(h)
			n--
		}
	}
}

// giveAll gives all leases away and takes no more.
func (o *owner) giveAll() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stopped = true
	for _, h := range o.held {
		o.give(h)
		o.run.stopRun(h)
	}
	hint(o.wake)
}

// give gives a lease away as soon as it is idle; the runner tells when. The caller holds o.mu.
func (o *owner) give(h *holding) {
	h.advance(leaseGiving)
	if !h.is(leaseGiving) || !o.run.isIdle(h) {
		return
	}
	h.advance(leaseReleasing)
	o.gives = append(o.gives, h)
	hint(o.wake)
	if o.stopped {
		hint(o.s.settled)
	}
}

// retire gives a stream back that has no more work. The caller holds o.mu.
func (o *owner) retire(h *holding) {
	h.retire = true
	o.give(h)
	o.announced.retired(h.Resource)
}

// retireRun retires a stream whose Run has ended.
func (o *owner) retireRun(h *holding) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.retire(h)
}

// release gives away what is idle, until the session ends.
func (o *owner) release() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for o.s.ctx.Err() == nil {
		timer.Reset(o.stepRelease())
		select {
		case <-o.wake:
		case <-timer.C:
		case <-o.s.ctx.Done():
		}
	}
}

// stepRelease starts the releases that may be started, and returns when to look again.
func (o *owner) stepRelease() time.Duration {
	rested := o.run.takeRested()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, h := range rested {
		if h.is(leaseOver) {
			o.unlock(h)
		} else {
			o.give(h)
		}
	}
	wait := time.Hour
	if o.info.Per == PerStream && !o.runs() {
		wait = o.streams.stepIdle()
	}
	if len(o.gives) == 0 || o.finished() && !o.early {
		return wait // see process.drain
	}
	give := o.gives
	o.gives = nil
	o.calls.Go(func() { o.releaseNow(give) })
	return wait
}

// finished reports that all that is left can end with the session, in one step: no work runs,
// none is to be stored or retired, and no grant is on its way. The caller holds o.mu.
func (o *owner) finished() bool {
	if !o.stopped || o.asking {
		return false
	}
	for _, h := range o.held {
		if !h.is(leaseReleasing) || h.retire {
			return false
		}
	}
	return true
}

func (o *owner) resting() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.finished()
}

// releaseEarly releases what rests before the session ends.
func (o *owner) releaseEarly() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.early = true
	hint(o.wake)
}

// releaseNow frees leases on which no work runs and whose progress is stored. One for which that
// fails does not keep the others: after a failure they are released apart.
func (o *owner) releaseNow(give []*holding) {
	var parts [][]*holding
	for _, retire := range []bool{false, true} {
		part := slices.DeleteFunc(slices.Clone(give), func(h *holding) bool { return h.retire != retire })
		if len(part) > 0 {
			parts = append(parts, part)
		}
	}
	var failed backoff
	within := strainTime
	for len(parts) > 0 && o.s.alive() {
		part := parts[0]
		parts = parts[1:]
		began, retires := time.Now(), part[0].retire
		err := o.releaseAll(part, within)
		switch {
		case err == nil:
			o.course.step(releasing)
			o.released(part)
			switch {
			case !retires:
				o.hintSurvey() // there may be more to give
			case o.streams.crowded():
				hint(o.streams.wanted) // there is room
			}
			continue
		case isLost(err):
			o.s.lose("the backend declared the session dead")
			return
		case len(part) > 1:
			parts = slices.AppendSeq(parts, slices.Chunk(part, max(len(part)/8, 1)))
		default:
			parts = append(parts, part)
			if time.Since(began) >= within {
				within = min(2*within, strainMost)
			}
		}
		failed.pause(o.s.ctx, o.log, "release failed", err)
	}
}

// releaseAll makes one call for leases of which all or none are streams without more work.
func (o *owner) releaseAll(hs []*holding, within time.Duration) error {
	ctx, refs := ofAll(o.s.ctx, "release", hs)
	_, err := callFor(ctx, within, func(ctx context.Context) (struct{}, error) {
		if hs[0].retire {
			return struct{}{}, o.caps.Streams.Retire(ctx, o.s.id, o.info.Name, refs)
		}
		return struct{}{}, o.be.Release(ctx, o.s.id, o.info.Name, refs)
	})
	return err
}

// released reports leases that were given away.
func (o *owner) released(give []*holding) {
	o.mu.Lock()
	give = slices.DeleteFunc(give, func(h *holding) bool { return h.is(leaseOver) })
	for _, h := range give {
		o.forget(h)
	}
	o.mu.Unlock()
	if len(give) == 0 {
		return
	}
	for _, h := range give {
		o.c.observe(operate.ObservedRelease{Consumer: h.Consumer, Resource: h.Resource, Session: h.Session, Epoch: h.Epoch, Retired: h.retire})
	}
	o.log.Debug("released leases", "leases", len(give))
}

// ended tells that the end of the session gave away what was left.
func (o *owner) ended() {
	o.mu.Lock()
	left := slices.Collect(maps.Values(o.held))
	o.mu.Unlock()
	o.released(left)
}

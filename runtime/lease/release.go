package lease

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// giveBack begins to give n leases away, idle ones first. Those that are being
// given away already count.
func (w *work) giveBack(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.held {
		if h.giving.Load() {
			n--
		}
	}
	for _, onlyIdle := range []bool{true, false} {
		for _, h := range w.held {
			if n <= 0 {
				break
			}
			if h.giving.Load() || onlyIdle && !(w.idle(h) && len(h.next) == 0) {
				continue
			}
			w.queueGive(h)
			w.stopRun(h)
			n--
		}
	}
	w.kick()
}

// giveAll gives everything away and takes nothing any more.
func (w *work) giveAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	for _, h := range w.held {
		w.queueGive(h)
		w.stopRun(h)
	}
	w.kick()
}

// rests reports that all that is left can end with the session, in one step: nothing runs,
// nothing is to be stored or retired, and no grant is on its way. The caller holds w.mu.
func (w *work) rests() bool {
	if !w.stopped || w.asking {
		return false
	}
	for _, h := range w.held {
		if !h.inGive || h.retire {
			return false
		}
	}
	return true
}

// release frees leases on which nothing runs and whose progress is stored. One for which that
// fails does not keep the others: after a failure they are released apart.
func (w *work) release(give []*held) {
	var parts [][]*held
	for _, retire := range []bool{false, true} {
		part := slices.DeleteFunc(slices.Clone(give), func(h *held) bool { return h.retire != retire })
		if len(part) > 0 {
			parts = append(parts, part)
		}
	}
	var failed backoff
	within := strainTime
	for len(parts) > 0 && w.s.alive() {
		part := parts[0]
		parts = parts[1:]
		began, retires := time.Now(), part[0].retire
		err := w.releaseAll(part, within)
		switch {
		case err == nil:
			w.course.step(releasing)
			w.released(part)
			switch {
			case !retires:
				w.hintSurvey() // there may be more to give
			case w.crowded():
				hint(w.streams.wanted) // there is room
			}
			continue
		case isLost(err):
			w.s.lose("the backend declared the session dead")
			return
		case len(part) > 1:
			parts = slices.AppendSeq(parts, slices.Chunk(part, max(len(part)/8, 1)))
		default:
			parts = append(parts, part)
			if time.Since(began) >= within {
				within = min(2*within, strainMost)
			}
		}
		failed.pause(w.s.ctx, w.log, "release failed", err)
	}
}

// releaseAll makes one call for leases of which all or none are streams without more work.
func (w *work) releaseAll(hs []*held, within time.Duration) error {
	refs := make([]backend.Ref, len(hs))
	for i, h := range hs {
		refs[i] = h.ref
	}
	ctx := of(w.s.ctx, "release")
	if len(hs) == 1 {
		ctx = of(ctx, "release", hs[0].Resource)
	}
	_, err := callFor(ctx, within, func(ctx context.Context) (struct{}, error) {
		if hs[0].retire {
			return struct{}{}, w.caps.Streams.Retire(ctx, w.s.id, w.info.Name, refs)
		}
		return struct{}{}, w.be.Release(ctx, w.s.id, w.info.Name, refs)
	})
	return err
}

// released tells of leases that were given away.
func (w *work) released(give []*held) {
	w.mu.Lock()
	give = slices.DeleteFunc(give, func(h *held) bool { return h.gone })
	for _, h := range give {
		w.forget(h)
	}
	w.mu.Unlock()
	if len(give) == 0 {
		return
	}
	for _, h := range give {
		w.c.observe(operate.ObservedRelease{Consumer: h.Consumer, Resource: h.Resource, Session: h.Session, Epoch: h.Epoch, Retired: h.retire})
	}
	w.log.Debug("released leases", "leases", len(give))
}

// ended tells that the end of the session gave away what was left.
func (w *work) ended() {
	w.mu.Lock()
	left := slices.Collect(maps.Values(w.held))
	w.mu.Unlock()
	w.released(left)
}

// lose ends a lease against its holder's will. It is told once.
func (w *work) lose(h *held, reason string) {
	w.mu.Lock()
	if h.gone {
		w.mu.Unlock()
		return
	}
	w.forget(h)
	if grace := w.info.Grace; grace > 0 {
		w.awaited[h.Resource] = time.Now().Add(w.c.spec.TTL + grace)
	}
	if h.cancel != nil {
		h.cancel(fmt.Errorf("%w: %s", ErrLost, reason))
	}
	w.mu.Unlock()
	w.log.Warn("lease lost", "resource", h.Resource, "epoch", h.Epoch, "reason", reason)
	w.c.observe(operate.ObservedLoss{Consumer: h.Consumer, Resource: h.Resource, Session: h.Session, Epoch: h.Epoch, Reason: reason})
}

func (w *work) forget(h *held) {
	h.gone = true
	if w.held[h.Resource] == h {
		delete(w.held, h.Resource)
	}
	delete(w.parked.laned, h)
	delete(w.parked.yielding, h)
	delete(w.parked.strains, h)
	w.store.end(h)
}

// loseAll tells of every lease that is left when the session ends.
func (w *work) loseAll(cause error) {
	w.mu.Lock()
	left := make([]*held, 0, len(w.held))
	for _, h := range w.held {
		h.gone = true
		w.store.end(h)
		left = append(left, h)
	}
	clear(w.held)
	w.mu.Unlock()
	if len(left) > 0 && errors.Is(cause, ErrLost) {
		w.log.Error("leases lost with the session", "leases", len(left), "reason", cause)
	}
	for _, h := range left {
		w.c.observe(operate.ObservedLoss{Consumer: h.Consumer, Resource: h.Resource, Session: h.Session, Epoch: h.Epoch, Reason: cause.Error()})
	}
}

func (w *work) cancelAll(cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.held {
		if h.cancel != nil {
			h.cancel(cause)
		}
	}
}

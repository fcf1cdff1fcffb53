package lease

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// Leases that expire one by one (LockRow) are believed in one by one: each from before the
// request that granted or last renewed it, as the session is by its heartbeats.

// believedFor is how much longer h may be believed in, apart from the session. The caller
// holds w.mu.
func (w *work) believedFor(h *held) time.Duration {
	return w.c.spec.TTL - w.c.spec.Margin - h.anchored.since()
}

// alive reports belief in the lease h and in the session, and ends it when its time is over.
func (w *work) alive(h *held) bool {
	if !w.s.alive() {
		return false
	}
	if w.info.Lock != LockRow {
		return true
	}
	w.mu.Lock()
	over := w.believedFor(h) <= 0
	w.mu.Unlock()
	if over {
		w.expire(h)
	}
	return !over
}

func (w *work) expire(h *held) {
	w.lose(h, fmt.Sprintf("it was not renewed for %v", w.c.spec.TTL-w.c.spec.Margin))
}

// watchRows ends belief in leases in time, whatever becomes of the calls that renew them.
func (w *work) watchRows() {
	wait := w.c.spec.Margin/2 + time.Millisecond
	for next := wait; pause(w.s.ctx, next); {
		var over []*held
		next = wait
		w.mu.Lock()
		for _, h := range w.held {
			if left := w.believedFor(h); left <= 0 {
				over = append(over, h)
			} else {
				next = min(next, max(left, time.Millisecond))
			}
		}
		w.mu.Unlock()
		for _, h := range over {
			w.expire(h)
		}
	}
}

// renewRows renews all leases of the consumer in one call at a third of the TTL. After a failure
// it tries again soon, so that several tries fit before belief ends, and apart: one lease that
// cannot be renewed does not cost the others.
func (w *work) renewRows() {
	interval := w.c.spec.TTL / 3
	for wait := jitter(interval); pause(w.s.ctx, wait); {
		var failed atomic.Int64
		var calls sync.WaitGroup
		parts := w.renewable()
		for _, hs := range parts {
			calls.Go(func() {
				if !w.renew(hs, max(interval/2, 100*time.Millisecond)) {
					failed.Add(1)
				}
			})
		}
		calls.Wait()
		if wait = jitter(interval); failed.Load() > 0 {
			wait = jitter(interval / 6)
		}
		if len(parts) > 1 && int(failed.Load()) == len(parts) {
			w.renewTogether() // it is not one lease that is at fault
		}
	}
}

// renew renews leases in one call, and reports whether it succeeded.
func (w *work) renew(hs []*held, within time.Duration) bool {
	refs := make([]backend.Ref, len(hs))
	for i, h := range hs {
		refs[i] = h.ref
	}
	ctx := of(w.s.ctx, "renew")
	if len(hs) == 1 {
		ctx = of(ctx, "renew", hs[0].Resource)
	}
	sent := now()
	lost, err := callFor(ctx, within, func(ctx context.Context) ([]string, error) {
		return w.caps.Rows.Renew(ctx, w.s.id, w.info, refs)
	})
	w.c.observe(operate.ObservedRenew{Consumer: w.info.Name, Session: w.s.id, Leases: len(refs), Lost: len(lost), Duration: time.Since(sent.t), Err: err})
	w.mu.Lock()
	for _, h := range hs {
		if err == nil {
			h.renewAmong = 0
		} else {
			h.renewAmong = max(len(hs)/8, 1)
		}
	}
	w.mu.Unlock()
	switch {
	case err == nil:
		w.renewed(hs, lost, sent)
	case isLost(err):
		w.s.lose("the backend declared the session dead")
	case w.s.ctx.Err() == nil:
		w.log.Warn("renewing leases failed, trying again with fewer at once", "leases", len(refs), "error", err)
	}
	return err == nil
}

func (w *work) renewTogether() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.held {
		h.renewAmong = 0
	}
}

// renewable returns the leases to renew, all but those whose release is under way, in the parts
// in which they are to be renewed.
func (w *work) renewable() (parts [][]*held) {
	w.mu.Lock()
	defer w.mu.Unlock()
	byAmong := map[int][]*held{} // leases that may be asked for with so many; 0: with any number
	for _, h := range w.held {
		if !h.inGive {
			byAmong[h.renewAmong] = append(byAmong[h.renewAmong], h)
		}
	}
	for among, hs := range byAmong {
		if among == 0 {
			among = len(hs)
		}
		parts = slices.AppendSeq(parts, slices.Chunk(hs, among))
	}
	return parts
}

func (w *work) renewed(hs []*held, lost []string, sent instant) {
	gone := make(map[string]bool, len(lost))
	for _, r := range lost {
		gone[r] = true
	}
	for _, h := range hs {
		w.mu.Lock()
		over := gone[h.Resource] && !h.inGive
		if !gone[h.Resource] {
			h.anchored = sent
		}
		w.mu.Unlock()
		if over {
			w.lose(h, "it expired, or another owner has it")
		}
	}
}

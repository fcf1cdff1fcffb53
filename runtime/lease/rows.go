package lease

import (
	"context"
	"fmt"
	"time"
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

// renewRows renews all leases of the consumer in one call at a third of the TTL. A failed
// call is repeated soon, so that several tries fit before belief ends.
func (w *work) renewRows() {
	interval := w.c.spec.TTL / 3
	for wait := jitter(interval); pause(w.s.ctx, wait); {
		hs, refs := w.renewable()
		wait = jitter(interval)
		if len(hs) == 0 {
			continue
		}
		sent := now()
		lost, err := callFor(w.s.ctx, max(interval/2, 100*time.Millisecond), func(ctx context.Context) ([]string, error) {
			return w.be.(RowLocker).Renew(ctx, w.s.id, w.info, refs)
		})
		w.c.observe(ObservedRenew{Consumer: w.info.Name, Session: w.s.id, Leases: len(refs), Lost: len(lost), Duration: time.Since(sent.t), Err: err})
		switch {
		case err == nil:
			w.renewed(hs, lost, sent)
		case isLost(err):
			w.s.lose("the backend declared the session dead")
			return
		case w.s.ctx.Err() == nil:
			w.log.Warn("renewing leases failed, trying again", "leases", len(refs), "error", err)
			wait = jitter(interval / 6)
		}
	}
}

// renewable returns the leases to renew: all but those whose release is under way.
func (w *work) renewable() (hs []*held, refs []Ref) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.held {
		if !h.inGive {
			hs, refs = append(hs, h), append(refs, h.ref)
		}
	}
	return hs, refs
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

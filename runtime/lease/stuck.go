package lease

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// watched is the handler call that a sequence is in. Progress is watched apart from
// liveness: a process that heartbeats may still hang in a handler. The calls only
// count; telling the time is left to the watcher.
type watched struct {
	message atomic.Pointer[backend.Raw] // nil between calls
	calls   atomic.Uint64
	cancel  atomic.Pointer[context.CancelCauseFunc]

	// These belong to watchStuck.
	seen     uint64 // the call seen last
	since    time.Time
	reported bool
}

func (w *work) watching(q *sequence, on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if on {
		w.watched[q] = struct{}{}
	} else {
		delete(w.watched, q)
	}
}

// watchStuck reports calls that take too long, once each, until the session ends.
func (w *work) watchStuck() {
	for pause(w.s.ctx, max(w.c.stuckAfter/8, time.Millisecond)) {
		var stuck []*sequence
		w.mu.Lock()
		for q := range w.watched {
			if q.watch.stuckFor(w.c.stuckAfter) {
				stuck = append(stuck, q)
			}
		}
		w.mu.Unlock()
		for _, q := range stuck {
			w.reportStuck(q)
		}
	}
}

// stuckFor reports, once, that the same call has been seen for d.
func (c *watched) stuckFor(d time.Duration) bool {
	if call := c.calls.Load(); call != c.seen {
		c.seen, c.since, c.reported = call, time.Now(), false
	}
	if c.reported || c.message.Load() == nil || time.Since(c.since) < d {
		return false
	}
	c.reported = true
	return true
}

func (w *work) reportStuck(q *sequence) {
	m, cancel := q.watch.message.Load(), q.watch.cancel.Load()
	if m == nil || q.watch.calls.Load() != q.watch.seen {
		return // it has just returned; what was loaded may belong to the next call
	}
	w.log.Error("handler is stuck", "resource", q.h.Resource, "kind", m.Kind, "id", m.ID, "after", w.c.stuckAfter, "cancelled", w.c.cancelStuck)
	w.c.observe(operate.ObservedStuck{Consumer: q.h.Consumer, Resource: q.h.Resource, Kind: m.Kind, ID: m.ID, Running: w.c.stuckAfter})
	if cancel != nil {
		(*cancel)(fmt.Errorf("%w: it was given %v", ErrStuck, w.c.stuckAfter))
	}
}

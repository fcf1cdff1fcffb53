package lease

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// watched is the handler call that a sequence is in. Progress is watched apart from
// liveness: a process that heartbeats may still hang in a handler.
type watched struct {
	began    atomic.Int64 // Unix nanoseconds, 0 between calls
	message  atomic.Pointer[Raw]
	cancel   atomic.Pointer[context.CancelCauseFunc]
	reported int64 // the call reported last, by its beginning; used by watchStuck only
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
		w.mu.Lock()
		var stuck []*sequence
		for q := range w.watched {
			began := q.watch.began.Load()
			if began != 0 && began != q.watch.reported && time.Since(time.Unix(0, began)) > w.c.stuckAfter {
				q.watch.reported = began
				stuck = append(stuck, q)
			}
		}
		w.mu.Unlock()
		for _, q := range stuck {
			w.reportStuck(q)
		}
	}
}

func (w *work) reportStuck(q *sequence) {
	m := q.watch.message.Load()
	w.log.Error("handler is stuck", "resource", q.h.Resource, "kind", m.Kind, "id", m.ID, "after", w.c.stuckAfter, "cancelled", w.c.cancelStuck)
	w.c.observe(ObservedStuck{Consumer: q.h.Consumer, Resource: q.h.Resource, Kind: m.Kind, ID: m.ID, Running: w.c.stuckAfter})
	if cancel := q.watch.cancel.Load(); cancel != nil {
		(*cancel)(fmt.Errorf("%w: it was given %v", ErrStuck, w.c.stuckAfter))
	}
}

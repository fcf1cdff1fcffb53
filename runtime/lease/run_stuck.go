package lease

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// stuckWatch watches the handler calls of one consumer.
type stuckWatch struct {
	*scope

	mu      sync.Mutex
	watched map[*sequence]struct{}
}

// watched is the handler call that a sequence is in. Progress is watched apart from
// liveness: a process that heartbeats may still hang in a handler. The calls only
// count; telling the time is left to the watcher.
type watched struct {
	message atomic.Pointer[backend.Raw] // nil between calls
	calls   atomic.Uint64
	cancel  atomic.Pointer[context.CancelCauseFunc]

	// These are guarded by stuckWatch.mu.
	seen     uint64 // the call seen last
	since    time.Time
	reported bool
}

// watching notes that a sequence has begun or ended.
func (k *stuckWatch) watching(q *sequence, on bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if on {
		k.watched[q] = struct{}{}
	} else {
		delete(k.watched, q)
	}
}

// on returns the leases on which handler calls are under way.
func (k *stuckWatch) on() map[*holding]bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	on := map[*holding]bool{}
	for q := range k.watched {
		on[q.h] = true
	}
	return on
}

// watch reports calls that take too long, once each, until the session ends.
func (k *stuckWatch) watch() {
	for pause(k.s.ctx, max(k.c.stuckAfter/8, time.Millisecond)) {
		var stuck []*sequence
		k.mu.Lock()
		for q := range k.watched {
			if q.watch.stuckFor(k.c.stuckAfter) {
				stuck = append(stuck, q)
			}
		}
		k.mu.Unlock()
		for _, q := range stuck {
			k.reportStuck(q)
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

// calls returns the calls that have taken too long so far.
func (k *stuckWatch) calls() (all []StuckCall) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for q := range k.watched {
		w := &q.watch
		m := w.message.Load()
		if m == nil || !w.reported || w.calls.Load() != w.seen {
			continue
		}
		all = append(all, StuckCall{Resource: q.h.Resource, Kind: m.Kind, ID: m.ID, Running: time.Since(w.since)})
	}
	slices.SortFunc(all, func(a, b StuckCall) int { return cmp.Compare(b.Running, a.Running) })
	return all
}

func (k *stuckWatch) reportStuck(q *sequence) {
	m, cancel := q.watch.message.Load(), q.watch.cancel.Load()
	if m == nil || q.watch.calls.Load() != q.watch.seen {
		return // it has just returned; what was loaded may belong to the next call
	}
	k.log.Error("handler is stuck", "resource", q.h.Resource, "kind", m.Kind, "id", m.ID, "after", k.c.stuckAfter, "cancelled", k.c.cancelStuck)
	k.c.observe(operate.ObservedStuck{Consumer: q.h.Consumer, Resource: q.h.Resource, Kind: m.Kind, ID: m.ID, Running: k.c.stuckAfter})
	if cancel != nil {
		(*cancel)(fmt.Errorf("%w: it was given %v", ErrStuck, k.c.stuckAfter))
	}
}

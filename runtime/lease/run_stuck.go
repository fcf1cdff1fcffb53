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

// underWay are the sequences of one consumer in which handlers may be called, also those of an earlier session that have
// not returned. Its zero value is ready to use.
type underWay struct {
	mu  sync.Mutex
	all map[*sequence]struct{}
}

// watching notes that a sequence has begun or ended.
func (u *underWay) watching(q *sequence, on bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.all == nil {
		u.all = map[*sequence]struct{}{}
	}
	if on {
		u.all[q] = struct{}{}
	} else {
		delete(u.all, q)
	}
}

// stuck returns the calls that have taken so long so far, the longest first.
func (u *underWay) stuck(d time.Duration) (all []StuckCall) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for q := range u.all {
		w := &q.watch
		if running := w.running(); running >= d {
			if m := w.message.Load(); m != nil && w.calls.Load() == w.seen { // else it has just returned
				all = append(all, StuckCall{Resource: q.h.Resource, Kind: m.Kind, ID: m.ID, Running: running})
			}
		}
	}
	slices.SortFunc(all, func(a, b StuckCall) int { return cmp.Compare(b.Running, a.Running) })
	return all
}

// stuckWatch watches the handler calls of one consumer under one session.
type stuckWatch struct {
	*scope
	by *runner
}

// watched is the handler call that a sequence is in. Progress is watched apart from
// liveness: a process that heartbeats may still hang in a handler. The calls only
// count; telling the time is left to the watcher.
type watched struct {
	message atomic.Pointer[backend.Raw] // nil between calls
	calls   atomic.Uint64
	cancel  atomic.Pointer[context.CancelCauseFunc]

	// These are guarded by underWay.mu.
	seen     uint64 // the call seen last
	since    time.Time
	reported bool
}

// on returns the leases on which handler calls are under way.
func (k *stuckWatch) on() map[*holding]bool {
	k.c.calls.mu.Lock()
	defer k.c.calls.mu.Unlock()
	on := map[*holding]bool{}
	for q := range k.c.calls.all {
		if q.r == k.by {
			on[q.h] = true
		}
	}
	return on
}

// watch reports calls that take too long, once each, until the session ends.
func (k *stuckWatch) watch() {
	for pause(k.s.ctx, max(k.c.stuckAfter/8, time.Millisecond)) {
		for q, call := range k.look() {
			k.reportStuck(q, call)
		}
	}
	k.look() // so that it is known since when the calls run that outlive the session
}

// look returns the calls that have been found to take too long, by their sequences.
func (k *stuckWatch) look() map[*sequence]uint64 {
	k.c.calls.mu.Lock()
	defer k.c.calls.mu.Unlock()
	stuck := map[*sequence]uint64{}
	for q := range k.c.calls.all {
		if q.r == k.by && q.watch.stuckFor(k.c.stuckAfter) {
			stuck[q] = q.watch.seen
		}
	}
	return stuck
}

// running is how long the same call has been seen for; 0 between calls.
func (c *watched) running() time.Duration {
	if call := c.calls.Load(); call != c.seen {
		c.seen, c.since, c.reported = call, time.Now(), false
	}
	if c.message.Load() == nil {
		return 0
	}
	return time.Since(c.since)
}

// stuckFor reports, once, that the same call has been seen for d.
func (c *watched) stuckFor(d time.Duration) bool {
	if c.running() < d || c.reported {
		return false
	}
	c.reported = true
	return true
}

func (k *stuckWatch) reportStuck(q *sequence, call uint64) {
	m, cancel := q.watch.message.Load(), q.watch.cancel.Load()
	if m == nil || q.watch.calls.Load() != call {
		return // it has just returned; what was loaded may belong to the next call
	}
	k.log.Error("handler is stuck", "resource", q.h.Resource, "kind", m.Kind, "id", m.ID, "after", k.c.stuckAfter, "cancelled", k.c.cancelStuck)
	k.c.observe(operate.ObservedStuck{Consumer: q.h.Consumer, Resource: q.h.Resource, Kind: m.Kind, ID: m.ID, Running: k.c.stuckAfter})
	if cancel != nil {
		(*cancel)(fmt.Errorf("%w: it was given %v", ErrStuck, k.c.stuckAfter))
	}
}

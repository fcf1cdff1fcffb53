package lease

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// audit compares the leases that the backend knows of with what the owner holds.
type audit struct {
	*scope
	own       *owner
	doubt     atomic.Bool // the backend may have lost writes
	resources int         // that the backend knew of at the last survey; it belongs to the goroutine of keepShare
}

// doubtHeld makes the next survey compare all leases, not only their numbers.
func (a *audit) doubtHeld() { a.doubt.Store(true) }

// recount looks for all resources once more when the backend knows of fewer than before: a failover lost writes. The leases that it
// lost with them show it too late: one may be given away before a write is refused, and its owner may end. Streams come and go; sweep
// looks for these.
func (a *audit) recount(s backend.Survey) {
	if s.Resources < a.resources && a.info.Per != PerStream {
		a.log.Warn("the backend knows of fewer resources than before; all are registered again", "resources", s.Resources, "before", a.resources)
		a.own.names.registerAnew()
	}
	a.resources = s.Resources
}

// reconcile compares what the backend counts as this process's with what it holds, and known,
// what it held and worked on before the backend counted. They differ when somebody else has
// fenced a lease (an operator who moved its cursor), when a failover lost writes, or when a
// request of this process came late.
func (a *audit) reconcile(s backend.Survey, known int) {
	i := slices.IndexFunc(s.Members, func(m backend.Member) bool { return m.Session == a.s.id })
	if i < 0 {
		return
	}
	owned := s.Members[i].Owned
	if doubt := a.doubt.Swap(false); !doubt && owned <= known && a.own.holdsAtMost(owned) {
		return
	}
	names := a.own.mayOwn()
	refs, err := call(of(a.s.ctx, "owned"), func(ctx context.Context) ([]backend.Ref, error) {
		return a.be.Owned(ctx, a.s.id, a.info.Name)
	})
	if err != nil {
		if a.s.ctx.Err() == nil {
			a.log.Warn("listing the leases that the backend knows of failed, trying again", "error", err)
		}
		a.doubtHeld()
		return
	}
	a.own.checkHeld(refs)
	if strays := slices.DeleteFunc(refs, func(r backend.Ref) bool { return names[r.Resource] }); len(strays) > 0 {
		a.giveStrays(strays)
	}
}

// giveStrays gives back leases that only the backend knows of. They would rest:
// the backend counts them as owned while the session lives.
func (a *audit) giveStrays(strays []backend.Ref) {
	a.calls.Go(func() {
		err := do(of(a.s.ctx, "release strays"), func(ctx context.Context) error { return a.be.Release(ctx, a.s.id, a.info.Name, strays) })
		switch {
		case isLost(err):
			a.s.lose("the backend declared the session dead")
		case err == nil:
			a.log.Warn("gave back leases that only the backend knew of: it lost writes, or a request came late", "leases", len(strays))
			a.own.hintSurvey()
		case a.s.ctx.Err() == nil: // the next survey finds them again
			a.log.Warn("giving back leases that only the backend knows of failed, trying again", "error", err)
		}
	})
}

// holdsAtMost reports that no more than n leases are held and not being given away.
func (o *owner) holdsAtMost(n int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	firm := len(o.held)
	if firm <= n {
		return true
	}
	for _, h := range o.held {
		if h.is(leaseReleasing) {
			firm--
		}
	}
	return firm <= n
}

// mayOwn names the resources of which the backend may say that this process owns them: the ones
// that it holds, that it lost while a handler still runs on them, and, with a grace, that it lost
// lately and that others are to wait for.
func (o *owner) mayOwn() map[string]bool {
	o.mu.Lock()
	names := make(map[string]bool, len(o.held))
	for r := range o.held {
		names[r] = true
	}
	for r, until := range o.awaited {
		if time.Now().Before(until) {
			names[r] = true
		} else {
			delete(o.awaited, r)
		}
	}
	o.mu.Unlock()
	for _, r := range o.c.busyResources() {
		names[r] = true
	}
	return names
}

// mayOwnCount is at least the length of mayOwn.
func (o *owner) mayOwnCount() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.held) + len(o.awaited) + len(o.c.busyWithout(o.held))
}

// checkHeld asks for each idle lease that is not among owned whether it is still held: its owner
// would else not know until its next write.
func (o *owner) checkHeld(owned []backend.Ref) {
	is := make(map[backend.Ref]bool, len(owned))
	for _, r := range owned {
		is[r] = true
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, h := range o.held {
		if !is[h.ref] && !h.is(leaseReleasing) {
			o.run.probe(h)
		}
	}
}

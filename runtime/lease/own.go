package lease

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// owner owns the leases of one consumer under one session.
type owner struct {
	*scope
	run   *runner
	store *storer

	names     *registrar
	rows      *renewer // with LockRow
	streams   *streams
	announced *announcer // of streams that the application names
	surveys   surveys
	audit     *audit
	beyond    beyondShare // of keepShare
	refusals  refusals
	wake      chan struct{} // release has something to look at

	mu      sync.Mutex
	held    map[string]*holding
	gives   []*holding           // are to be released
	stopped bool                 // the process is draining
	early   bool                 // and has other work: what rests does not wait for the end of the session
	asking  bool                 // an Acquire is under way
	awaited map[string]time.Time // with a grace: resources lost lately, and when their owners have waited long enough
}

func newOwner(x *scope) *owner {
	o := &owner{scope: x, surveys: surveys{latest: make(chan surveyed, 1)},
		wake: make(chan struct{}, 1), held: map[string]*holding{}, awaited: map[string]time.Time{}}
	o.names = &registrar{scope: x, own: o, wake: make(chan struct{}, 1), fresh: map[string]struct{}{}, known: map[string]struct{}{}, limit: registerItems}
	o.rows = &renewer{scope: x, own: o}
	o.audit = &audit{scope: x, own: o}
	o.streams = &streams{scope: x, own: o, wanted: make(chan struct{}, 1), searches: make(chan struct{}, 1)}
	o.announced = &announcer{scope: x, own: o}
	return o
}

func (o *owner) owned() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.held)
}

// empty reports that this process holds no lease, and that none is on its way to it.
func (o *owner) empty() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.held) == 0 && !o.asking
}

func (o *owner) stopping() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.stopped
}

// has reports that a resource is held.
func (o *owner) has(resource string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.held[resource] != nil
}

// accept starts to work on leases just acquired. They are believed in from asked on.
func (o *owner) accept(grants []backend.Grant, asked instant) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range grants {
		g := &grants[i]
		if old := o.held[g.Resource]; old != nil {
			if old.Epoch >= g.Epoch {
				continue
			}
			o.forget(old) // it was released; the reply to that is still under way
			o.c.observe(operate.ObservedRelease{Consumer: old.Consumer, Resource: old.Resource, Session: old.Session, Epoch: old.Epoch})
		}
		h := o.newHolding(g, asked)
		o.held[g.Resource] = h
		o.names.know(g.Resource)
		o.c.observe(operate.ObservedAcquire{Consumer: o.info.Name, Resource: g.Resource, Session: o.s.id, Epoch: g.Epoch, Crashed: g.Suspicion > 0})
		if o.stopped {
			h.advance(leaseGiving) // before the runner sees it
		}
		o.run.add(h)
		if o.stopped {
			o.give(h)
		}
	}
	o.run.kick()
}

// each calls f for each lease held. f takes no lock but the renewer's.
func (o *owner) each(f func(h *holding)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, h := range o.held {
		f(h)
	}
}

// alive reports belief in a lease and in the session, and ends it when its time is over.
func (o *owner) alive(h *holding) bool {
	if !o.s.alive() {
		return false
	}
	if o.info.Lock != LockRow || o.rows.believedFor(h) > 0 {
		return true
	}
	o.expire(h)
	return false
}

func (o *owner) expire(h *holding) {
	o.lose(h, fmt.Sprintf("it was not renewed for %v", o.c.spec.TTL-o.c.spec.Margin))
}

// lose ends a lease against its holder's will. Observer and log get it once.
func (o *owner) lose(h *holding, reason string) {
	o.mu.Lock()
	if h.is(leaseOver) {
		o.mu.Unlock()
		return
	}
	o.forget(h)
	if grace := o.info.Grace; grace > 0 {
		o.awaited[h.Resource] = time.Now().Add(o.c.spec.TTL + grace)
	}
	o.mu.Unlock()
	o.run.cancel(h, fmt.Errorf("%w: %s", ErrLost, reason))
	o.names.registerLost(h.Resource)
	o.log.Warn("lease lost", "resource", h.Resource, "epoch", h.Epoch, "reason", reason)
	o.c.observe(operate.ObservedLoss{Consumer: h.Consumer, Resource: h.Resource, Session: h.Session, Epoch: h.Epoch, Reason: reason})
}

// fenced is called when a write was refused because the lease is not held under its epoch any more.
func (o *owner) fenced(h *holding) {
	o.course.refused.Store(time.Now().UnixNano())
	o.c.observe(operate.ObservedFenced{Consumer: h.Consumer, Resource: h.Resource, Session: h.Session, Epoch: h.Epoch})
	o.lose(h, "a write was refused: the lease is not held under this epoch any more")
	o.refusals.add(h.Resource)
	o.hintSurvey() // it may be free
	if o.info.Lock != LockAdvisory {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	h.locked = true
	o.unlock(h)
}

// unlock gives back the lock of a lease that was lost while the session lives, and no work
// runs on it any more: it would block the next owner. The caller holds o.mu.
func (o *owner) unlock(h *holding) {
	if h.locked && !o.run.isRunning(h) {
		h.locked = false
		o.calls.Go(func() { o.releaseNow([]*holding{h}) })
	}
}

// forget ends a holding in all parts. The caller holds o.mu.
func (o *owner) forget(h *holding) {
	h.advance(leaseOver)
	if o.held[h.Resource] == h {
		delete(o.held, h.Resource)
	}
	o.run.drop(h)
	o.store.end(h)
}

// loseAll reports every lease that is left when the session ends.
func (o *owner) loseAll(cause error) {
	o.mu.Lock()
	left := slices.Collect(maps.Values(o.held))
	for _, h := range left {
		h.advance(leaseOver)
		o.store.end(h)
	}
	clear(o.held)
	o.mu.Unlock()
	if len(left) > 0 && errors.Is(cause, ErrLost) {
		o.log.Error("leases lost with the session", "leases", len(left), "reason", cause)
	}
	for _, h := range left {
		o.c.observe(operate.ObservedLoss{Consumer: h.Consumer, Resource: h.Resource, Session: h.Session, Epoch: h.Epoch, Reason: cause.Error()})
	}
}

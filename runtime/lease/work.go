package lease

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// work is what one consumer does under one session. The life of a message is spread
// over these steps:
//
//	schedule (here)      picks what can be done next
//	fetch    (fetch.go)  reads resources with news: one Fetch for many
//	process  (handle.go) calls the handlers and decides what becomes of each message
//	settle   (settle.go) turns decisions into Progress and hands it over
//	storer   (store.go)  commits the progress of many resources at once, fenced
//
// With a transaction, tx.go takes the place of the last two. Messages that failed come
// back through parked.go; careful.go finds those that kill the process; release.go is how
// leases end.
type work struct {
	c    *Consumer
	s    *session
	be   Backend
	caps backend.Capabilities
	info backend.ConsumerInfo
	log  *slog.Logger
	wake chan struct{} // schedule has something to look at

	store *storer

	mu      sync.Mutex
	held    map[string]*held
	known   map[string]struct{} // topics registered with the backend
	ready   []*held             // have a batch ready
	give    []*held             // are to be released
	running int                 // goroutines in process
	stopped bool                // the process is draining
	early   bool                // and has other work: what rests does not wait for the end of the session
	asking  bool                // an Acquire is under way
	ticks   uint64              // orders the beginnings and ends of work on resources

	reads   readState
	beyond  beyondShare
	doubt   bool                 // the backend may have lost writes; see reconcile
	awaited map[string]time.Time // with a grace: resources lost lately, and when their owners have waited long enough
	streams streamState
	surveys surveys
	enroll  registration
	parked  parkedState
	watched map[*sequence]struct{}

	calls sync.WaitGroup // reads and releases under way

	course *progress

	refusals refusals
}

// held is one lease this process holds. Its fields are guarded by work.mu, except
// those that are said to belong to whoever runs it.
type held struct {
	Lease
	ref backend.Ref

	cursor backend.Cursor          // after the last message read
	next   []backend.Fetched       // read and not yet handled, in order
	more   chan struct{}           // a hint that next has grown
	waited []backend.ParkedMessage // due and not yet handled; they go before next
	dirty  bool                    // there may be messages after cursor
	reads  resourceReads
	stores resourceStores

	running    bool // a goroutine works on it
	busyAt     uint64
	idleAt     uint64
	yield      bool      // let parked messages go first
	turn       bool      // let a batch go before the next parked messages
	missed     bool      // parked messages were read without those of h
	gone       bool      // released or lost
	retire     bool      // a stream without more work: it is not only released
	renewAmong int       // LockRow: to be renewed among so many at most; 0: no bound
	locked     bool      // LockAdvisory: lost, and its lock is still to be given back
	anchored   instant   // LockRow: before the request that granted or last renewed it was sent
	activeAt   time.Time // when work on it last ended

	inReady, inGive bool // queued there

	giving atomic.Bool // stop between two calls; the lease is given away
	cancel context.CancelCauseFunc

	// These belong to whoever runs the resource.
	lanes         map[string]struct{} // parked lanes
	late          map[string]struct{} // those of which nobody took the last message in time
	suspicion     int                 // crashed owners since the last progress
	interruptions int                 // transactions in a row whose connection was lost under a handler
	doubt         int                 // fresh messages to get past before the resource is trusted again
	marked        string              // what the crashed owner was handling
	markCount     int
	only          bool // nothing else runs in the process: see gate

	runAt       time.Time // Run handlers: not before
	runFailures int
}

func newWork(c *Consumer, s *session, p *process) *work {
	course := newProgress()
	w := &work{
		c: c, s: s.as(caller{left: &c.left, progress: course}), course: course, be: p.be, caps: p.be.Capabilities(), info: c.Info(), log: c.logger.With("consumer", c.Name()),
		wake: make(chan struct{}, 1), held: map[string]*held{}, known: map[string]struct{}{},
		parked:  parkedState{due: time.Now().Add(parkedAtLeast), laned: map[*held]struct{}{}, yielding: map[*held]struct{}{}, strains: map[*held]*strain{}},
		awaited: map[string]time.Time{}, watched: map[*sequence]struct{}{}, streams: streamState{wanted: make(chan struct{}, 1), sweep: make(chan struct{}, 1)},
		surveys: surveys{latest: make(chan surveyed, 1)},
		enroll:  registration{wake: make(chan struct{}, 1), fresh: map[string]struct{}{}, limit: registerItems},
	}
	w.store = newStorer(w.be, w.s, w.info.Name, w.log, w.course, &w.calls, w)
	return w
}

// runs reports that the consumer has one Run handler and no messages.
func (w *work) runs() bool { return w.info.Per == PerCluster || w.info.Announced }

func (w *work) kick() { hint(w.wake) }

func (w *work) owned() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.held)
}

// gone reports that this process holds nothing, and that nothing is on its way to it.
func (w *work) gone() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.held) == 0 && !w.asking
}

func (w *work) stopping() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stopped
}

// take starts to work on leases just acquired. They are believed in from asked on.
func (w *work) take(grants []backend.Grant, asked instant) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range grants {
		g := &grants[i]
		if old := w.held[g.Resource]; old != nil {
			if old.Epoch >= g.Epoch {
				continue
			}
			w.forget(old) // it was released; the reply to that is still under way
			w.c.observe(operate.ObservedRelease{Consumer: old.Consumer, Resource: old.Resource, Session: old.Session, Epoch: old.Epoch})
		}
		h := &held{
			Lease: Lease{Consumer: w.info.Name, Resource: g.Resource, Epoch: g.Epoch, Session: w.s.id},
			ref:   g.Ref, more: make(chan struct{}, 1),
			cursor: g.Cursor, dirty: true, anchored: asked, activeAt: time.Now(),
			suspicion: g.Suspicion, marked: g.Mark, markCount: g.MarkCount,
		}
		if g.Suspicion > 0 {
			h.doubt = w.c.doubtful()
		}
		for _, lane := range g.Lanes {
			h.addLane(lane)
		}
		if len(g.Lanes) > 0 {
			w.parked.laned[h] = struct{}{}
			w.yieldTo(h)
		}
		w.ticks++
		h.idleAt = w.ticks // parked messages read before, under an older epoch, are not its own
		w.held[g.Resource] = h
		if w.info.Per == PerTopic {
			w.known[g.Resource] = struct{}{}
		}
		if w.stopped {
			w.queueGive(h)
		} else {
			w.queueFetch(h)
		}
		w.c.observe(operate.ObservedAcquire{Consumer: w.info.Name, Resource: g.Resource, Session: w.s.id, Epoch: g.Epoch, Crashed: g.Suspicion > 0})
	}
	w.kick()
}

func (h *held) addLane(lane string) {
	if h.lanes == nil {
		h.lanes = map[string]struct{}{}
	}
	h.lanes[lane] = struct{}{}
}

// hear notes which of the resources held have news, and returns those that the backend
// may have to be told of.
func (w *work) hear(n *backend.News) (fresh []string) {
	resources := w.resourcesIn(n)
	if len(resources) == 0 {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range resources {
		h := w.held[r]
		if h != nil {
			w.markDirty(h)
		}
		switch w.info.Per {
		case PerTopic:
			if _, ok := w.known[r]; !ok {
				fresh = append(fresh, r)
			}
		case PerStream:
			if h == nil || h.giving.Load() { // nobody's, or about to be
				fresh = append(fresh, r)
			}
		}
	}
	w.kick()
	return fresh
}

// resourcesIn returns the resources of the consumer that have news.
func (w *work) resourcesIn(n *backend.News) []string {
	if w.runs() {
		return nil
	}
	named := n.Resources[w.info.Name]
	if w.info.Source == nil && (w.info.Per == PerTopic || w.info.Per == PerGroup) {
		named = slices.DeleteFunc(slices.Clone(n.Topics), func(t string) bool { return !backend.MatchTopic(w.info.Topics, t) })
	}
	if w.info.Per == PerGroup && len(named) > 0 {
		return []string{backend.Whole}
	}
	return named
}

// know notes that topics are registered.
func (w *work) know(topics []string) {
	if w.info.Per != PerTopic {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range topics {
		w.known[t] = struct{}{}
	}
}

func (w *work) dirtyAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.held {
		w.markDirty(h)
	}
	w.kick()
}

func (w *work) markDirty(h *held) {
	h.dirty = true
	w.queueFetch(h)
}

// queueFetch and queueReady queue h if its state allows it. They are called after
// every change of state that might.
func (w *work) queueFetch(h *held) {
	if h.reads.queued || h.reads.busy || h.reads.strain.resting || len(h.next) >= readAhead || !h.dirty || h.gone ||
		h.giving.Load() || w.blocked(h) || w.runs() {
		return
	}
	h.reads.queued = true
	if h.reads.strain.alone() {
		w.reads.alone = append(w.reads.alone, h)
	} else {
		w.reads.queue = append(w.reads.queue, h)
	}
}

func (w *work) queueReady(h *held) {
	if h.inReady || h.running || h.gone || h.giving.Load() ||
		len(h.waited) == 0 && (len(h.next) == 0 || w.store.uncommitted(h) > 1 || h.yield || w.blocked(h)) {
		return
	}
	h.inReady = true
	w.ready = append(w.ready, h)
}

func (w *work) queueGive(h *held) {
	h.giving.Store(true)
	if h.inGive || h.gone || !w.idle(h) {
		return
	}
	h.inGive = true
	w.give = append(w.give, h)
}

func (w *work) idle(h *held) bool { return !h.running && w.store.uncommitted(h) == 0 }

// blocked reports that a parked message holds back the whole resource. The lanes of a
// running resource belong to its goroutine, which asks again when it is done.
func (w *work) blocked(h *held) bool {
	return w.c.spec.Retry.Order == OrderBlock && (h.running || len(h.lanes) > 0)
}

// schedule starts reads, handlers and releases until the session ends.
func (w *work) schedule() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for w.s.ctx.Err() == nil {
		timer.Reset(w.step())
		select {
		case <-w.wake:
		case <-timer.C:
		case <-w.s.ctx.Done():
		}
	}
}

// step starts what can be started and returns when to look again.
func (w *work) step() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.runs() {
		w.stepGive()
		return w.startRuns()
	}
	for len(w.ready) > 0 && w.running < w.c.concurrency {
		h := pop(&w.ready)
		h.inReady = false
		if h.running || h.gone || h.giving.Load() {
			continue
		}
		if ms := h.waited; len(ms) > 0 {
			h.waited = nil
			w.start(h, func(ctx context.Context) {
				(&turn{w, h, parkedPass(ms)}).process(ctx)
				w.endTurn(h)
			})
			continue
		}
		if len(h.next) == 0 || h.yield {
			continue
		}
		f := w.nextBatch(h)
		h.turn = false
		w.start(h, func(ctx context.Context) { (&turn{w, h, freshPass(f)}).process(ctx) })
		w.queueFetch(h) // the next batch is read while this one is handled
	}
	read := w.stepFetch()
	idle := time.Duration(math.MaxInt64)
	if w.info.Per == PerStream {
		idle = w.stepIdle()
	}
	w.stepGive()
	return min(w.stepParked(), read, idle)
}

func (w *work) stepGive() {
	if len(w.give) == 0 || w.rests() && !w.early {
		return // see process.drain
	}
	give := w.give
	w.give = nil
	w.calls.Go(func() { w.release(give) })
}

func pop(q *[]*held) *held {
	h := (*q)[0]
	(*q)[0] = nil
	*q = (*q)[1:]
	return h
}

// start runs f for h in a goroutine, with a context that ends with the lease.
func (w *work) start(h *held, f func(ctx context.Context)) {
	ctx, cancel := context.WithCancelCause(context.WithValue(w.s.ctx, leaseKey{}, h.Lease))
	h.running, h.cancel = true, cancel
	w.ticks++
	h.busyAt = w.ticks
	w.running++
	w.c.enter(h.Resource)
	go func() {
		defer func() {
			cancel(nil)
			w.c.leave(h.Resource, w)
			w.mu.Lock()
			w.running--
			h.running, h.cancel = false, nil
			w.settled(h)
			w.unlock(h)
			w.mu.Unlock()
			w.kick()
		}()
		if w.alive(h) {
			f(ctx)
		}
	}()
}

// settled is called when work on h, or the storing of its progress, has ended.
func (w *work) settled(h *held) {
	if h.gone {
		return
	}
	if w.idle(h) {
		h.activeAt = time.Now()
		w.ticks++
		h.idleAt = w.ticks
		if h.giving.Load() {
			w.queueGive(h)
		}
		if w.stopped {
			hint(w.s.settled)
		}
		if len(h.lanes) > 0 {
			w.parked.laned[h] = struct{}{}
		} else {
			delete(w.parked.laned, h)
		}
		if h.missed && !h.turn && w.parked.strains[h] == nil {
			h.missed = false
			w.yieldTo(h)
		}
		if h.yield {
			w.parked.due = time.Time{}
		}
	}
	w.queueReady(h)
	w.queueFetch(h)
}

func isLost(err error) bool { return errors.Is(err, backend.ErrSessionLost) }

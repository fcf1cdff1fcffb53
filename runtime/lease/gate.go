package lease

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// gate lets handler calls of a process run side by side, or one of them alone: a message that
// may have killed the process is tried alone, so that no other message
// is blamed for its crash, and it for none of theirs. Run handlers, which may run for ever, count
// while they are young: what kills its process does so soon.
type gate struct {
	running atomic.Int64
	closed  atomic.Bool // entering takes the slow way

	mu    sync.Mutex
	open  chan struct{} // closed when the gate opens again; nil while no call is alone or waits to be
	left  chan struct{} // a hint that the last call left while the gate is closed, or that a Run handler is no longer young
	young int           // Run handlers
}

func newGate() *gate { return &gate{left: make(chan struct{}, 1)} }

// enter begins a call. It waits while another runs alone, and reports false when ctx ends
// first.
func (g *gate) enter(ctx context.Context) bool {
	for {
		g.running.Add(1)
		if !g.closed.Load() {
			return true
		}
		g.leave()
		g.mu.Lock()
		open := g.open
		g.mu.Unlock()
		if open == nil {
			continue
		}
		select {
		case <-open:
		case <-ctx.Done():
			return false
		}
	}
}

// leave ends a call.
func (g *gate) leave() {
	if g.running.Add(-1) == 0 && g.closed.Load() {
		hint(g.left)
	}
}

// enterRun begins a Run handler, which is young for d, or until leave is called. It waits while a
// call runs alone or waits to, and returns nil when ctx ends first.
func (g *gate) enterRun(ctx context.Context, d time.Duration) (leave func()) {
	for {
		g.mu.Lock()
		open := g.open
		if open == nil {
			g.young++
			g.mu.Unlock()
			break
		}
		g.mu.Unlock()
		select {
		case <-open:
		case <-ctx.Done():
			return nil
		}
	}
	grown := sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.young--
		hint(g.left)
	})
	timer := time.AfterFunc(d, grown)
	return func() {
		timer.Stop()
		grown()
	}
}

// alone waits until no Run handler is young, closes the gate and waits up to d for the calls under
// way to end. It returns a function that opens the gate, to be called once or more; nil when
// another stays alone for d, when a call has not ended in time, or when ctx has ended.
func (g *gate) alone(ctx context.Context, d time.Duration) (open func()) {
	turn, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	for !g.claim() {
		g.mu.Lock()
		opened := g.open
		g.mu.Unlock()
		if opened == nil {
			continue
		}
		select {
		case <-opened:
		case <-turn.Done():
			return nil
		}
	}
	open = sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.closed.Store(false)
		close(g.open)
		g.open = nil
	})
	for g.youngRuns() > 0 { // no more of them begin
		select {
		case <-g.left:
		case <-ctx.Done():
			open()
			return nil
		}
	}
	g.closed.Store(true)
	ended, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	for g.running.Load() > 0 {
		select {
		case <-g.left:
		case <-ended.Done():
			open()
			return nil
		}
	}
	return open
}

// claim makes the caller the one who is going to be alone.
func (g *gate) claim() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open != nil {
		return false
	}
	g.open = make(chan struct{})
	return true
}

func (g *gate) youngRuns() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.young
}

package leasetest

import (
	"context"
	"errors"
	"sync"

	"github.com/leasegen/leasegen/runtime/backend"
)

// link is the connection of one simulated process to a backend. Cut, it swallows
// requests and replies as a broken network does: callers wait until their context
// ends or the link is fixed.
type link struct {
	mu     sync.Mutex
	mended chan struct{}  // nil while the link is whole
	gone   bool           // cut for good
	lose   map[string]int // replies still to be lost, by operation
	fail   map[string]bool
	served map[string]int // calls that were answered, by operation
}

var errLink = errors.New("connection reset")

// connect returns a link to be, and the backend to give to the process.
func connect(be backend.Backend) (*link, backend.Backend) {
	l := &link{lose: map[string]int{}, fail: map[string]bool{}, served: map[string]int{}}
	return l, &proxy{be, l.via, newTally()}
}

func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mended == nil {
		l.mended = make(chan struct{})
	}
}

// sever cuts for good.
func (l *link) sever() {
	l.cut()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone = true
}

func (l *link) mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mended != nil && !l.gone {
		close(l.mended)
		l.mended = nil
	}
}

// loseReplies makes the next n calls of an operation take effect and then fail.
func (l *link) loseReplies(op string, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lose[op] = n
}

// left is how many replies are still to be lost.
func (l *link) left(op string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lose[op]
}

// refuse makes an operation fail without effect, or ends that.
func (l *link) refuse(op string, on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fail[op] = on
}

func (l *link) before(ctx context.Context, op string) error {
	for {
		l.mu.Lock()
		mended, refused := l.mended, l.fail[op]
		l.mu.Unlock()
		if refused {
			return errLink
		}
		if mended == nil {
			return ctx.Err()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-mended:
		}
	}
}

func (l *link) after(ctx context.Context, op string) error {
	l.mu.Lock()
	mended := l.mended
	lost := l.lose[op] > 0
	if lost {
		l.lose[op]--
	}
	l.mu.Unlock()
	if mended != nil { // cut while the reply was under way
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-mended:
			return errLink
		}
	}
	if lost {
		return errLink
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.served[op]++
	return nil
}

// answered is how many calls of an operation got their answer.
func (l *link) answered(op string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.served[op]
}

func (l *link) via(ctx context.Context, r request, call func(context.Context) (any, error)) (any, error) {
	if r.op == "Tx.Rollback" { // a server rolls back when the connection is gone
		return call(ctx)
	}
	if err := l.before(ctx, r.op); err != nil {
		return nil, err
	}
	v, err := call(ctx)
	if lost := l.after(ctx, r.op); lost != nil {
		undo(ctx, v)
		return nil, lost
	}
	return v, err
}

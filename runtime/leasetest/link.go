package leasetest

import (
	"context"
	"errors"
	"sync"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// link is the connection of one simulated process to a backend. Cut, it swallows
// requests and replies as a broken network does: callers wait until their context
// ends or the link is mended.
type link struct {
	be backend.Backend

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
	l := &link{be: be, lose: map[string]int{}, fail: map[string]bool{}, served: map[string]int{}}
	return l, l
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

func over[T any](ctx context.Context, l *link, op string, f func() (T, error)) (T, error) {
	var zero T
	if err := l.before(ctx, op); err != nil {
		return zero, err
	}
	v, err := f()
	if lerr := l.after(ctx, op); lerr != nil {
		return zero, lerr
	}
	return v, err
}

func (l *link) run(ctx context.Context, op string, f func() error) error {
	_, err := over(ctx, l, op, func() (struct{}, error) { return struct{}{}, f() })
	return err
}

func (l *link) Publish(ctx context.Context, es []backend.Event) error {
	return l.run(ctx, "Publish", func() error { return l.be.Publish(ctx, es) })
}

func (l *link) Check(ctx context.Context, consumers []backend.ConsumerInfo) error {
	return l.run(ctx, "Check", func() error { return l.be.Check(ctx, consumers) })
}

func (l *link) OpenSession(ctx context.Context, spec backend.SessionSpec) (backend.Session, error) {
	return over(ctx, l, "OpenSession", func() (backend.Session, error) {
		s, err := l.be.OpenSession(ctx, spec)
		return &linkSession{l, s}, err
	})
}

func (l *link) Register(ctx context.Context, c backend.ConsumerInfo, topics []string) error {
	return l.run(ctx, "Register", func() error { return l.be.Register(ctx, c, topics) })
}

func (l *link) Survey(ctx context.Context, consumers []string) ([]backend.Survey, error) {
	return over(ctx, l, "Survey", func() ([]backend.Survey, error) { return l.be.Survey(ctx, consumers) })
}

func (l *link) Acquire(ctx context.Context, req backend.AcquireRequest) ([]backend.Grant, error) {
	return over(ctx, l, "Acquire", func() ([]backend.Grant, error) { return l.be.Acquire(ctx, req) })
}

func (l *link) Release(ctx context.Context, session, consumer string, refs []backend.Ref) error {
	return l.run(ctx, "Release", func() error { return l.be.Release(ctx, session, consumer, refs) })
}

func (l *link) Owned(ctx context.Context, session, consumer string) ([]backend.Ref, error) {
	return over(ctx, l, "Owned", func() ([]backend.Ref, error) { return l.be.Owned(ctx, session, consumer) })
}

func (l *link) OpenFeed(ctx context.Context, infos []backend.ConsumerInfo) (backend.Feed, error) {
	var opened backend.Feed
	f, err := over(ctx, l, "OpenFeed", func() (_ backend.Feed, err error) {
		opened, err = l.be.OpenFeed(ctx, infos)
		return &linkFeed{l, opened}, err
	})
	if err != nil && opened != nil {
		opened.Close() // its connection broke
	}
	return f, err
}

func (l *link) Fetch(ctx context.Context, req backend.FetchRequest) ([]backend.Fetched, error) {
	return over(ctx, l, "Fetch", func() ([]backend.Fetched, error) { return l.be.Fetch(ctx, req) })
}

func (l *link) FetchParked(ctx context.Context, req backend.ParkedRequest) (backend.Parked, error) {
	return over(ctx, l, "FetchParked", func() (backend.Parked, error) { return l.be.FetchParked(ctx, req) })
}

func (l *link) Commit(ctx context.Context, session, consumer string, p []backend.Progress) ([]string, error) {
	return over(ctx, l, "Commit", func() ([]string, error) { return l.be.Commit(ctx, session, consumer, p) })
}

// Capabilities are those of the backend, over the link.
func (l *link) Capabilities() backend.Capabilities { return standIn(l, l.be.Capabilities()) }

func (l *link) Retire(ctx context.Context, session, consumer string, refs []backend.Ref) error {
	return l.run(ctx, "Retire", func() error { return l.be.Capabilities().Streams.Retire(ctx, session, consumer, refs) })
}

func (l *link) Renew(ctx context.Context, session string, c backend.ConsumerInfo, refs []backend.Ref) ([]string, error) {
	return over(ctx, l, "Renew", func() ([]string, error) { return l.be.Capabilities().Rows.Renew(ctx, session, c, refs) })
}

func (l *link) Maintain(ctx context.Context, infos []backend.ConsumerInfo) (operate.MaintainReport, error) {
	return over(ctx, l, "Maintain", func() (operate.MaintainReport, error) { return l.be.Maintain(ctx, infos) })
}

// roles are what a backend may have beside its main ones.
type roles interface {
	backend.RowLocker
	backend.Streamer
	backend.Ledger
	backend.Transactor
}

// standIn returns capabilities like those given, of a backend that stands in for theirs.
func standIn(be roles, like backend.Capabilities) backend.Capabilities {
	if like.Rows != nil {
		like.Rows = be
	}
	if like.Streams != nil {
		like.Streams = be
	}
	if like.Ledger != nil {
		like.Ledger = be
	}
	if like.Tx != nil {
		like.Tx = be
	}
	return like
}

type linkSession struct {
	l *link
	s backend.Session
}

func (s *linkSession) Heartbeat(ctx context.Context) error {
	return s.l.run(ctx, "Heartbeat", func() error { return s.s.Heartbeat(ctx) })
}

func (s *linkSession) Alarm() <-chan struct{} { return nil }

func (s *linkSession) Close(ctx context.Context) error {
	return s.l.run(ctx, "Close", func() error { return s.s.Close(ctx) })
}

type linkFeed struct {
	l *link
	f backend.Feed
}

// Next keeps to the feed's own rule: news whose reply was lost is lost with the feed.
func (f *linkFeed) Next(ctx context.Context) (backend.News, error) {
	return over(ctx, f.l, "Next", func() (backend.News, error) { return f.f.Next(ctx) })
}

func (f *linkFeed) Close() { f.f.Close() }

func (l *link) Begin(ctx context.Context) (backend.Tx, error) {
	var begun backend.Tx
	tx, err := over(ctx, l, "Begin", func() (_ backend.Tx, err error) {
		begun, err = l.be.Capabilities().Tx.Begin(ctx)
		return &linkTx{l, begun}, err
	})
	if err != nil && begun != nil {
		begun.Rollback(context.WithoutCancel(ctx)) // the server does it when the connection breaks
	}
	return tx, err
}

type linkTx struct {
	l  *link
	tx backend.Tx
}

func (t *linkTx) Handle() any { return t.tx.Handle() }

func (t *linkTx) Commit(ctx context.Context, session, consumer string, p backend.Progress) error {
	sent := false
	err := t.l.run(ctx, "TxCommit", func() error {
		sent = true
		return t.tx.Commit(ctx, session, consumer, p)
	})
	if !sent {
		t.Rollback(context.WithoutCancel(ctx))
	}
	return err
}

// Rollback reaches the backend even over a cut link: a server rolls back when the
// connection is gone.
func (t *linkTx) Rollback(ctx context.Context) error { return t.tx.Rollback(ctx) }

func (t *linkTx) Intact() error { return t.tx.Intact() }

func (t *linkTx) Lost() bool { return t.tx.Lost() }

package leasepg

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/leasegen/leasegen/runtime/backend"
)

const (
	bellAgain = time.Second      // before the bell connects again
	bellTest  = 20 * time.Second // between tests of a connection that is silent
)

// bell listens on one connection for all feeds of tables, so that a table costs none of its
// own. It is connected while there is such a feed. Its notifications are hints.
type bell struct {
	*server
	mu   sync.Mutex
	ears map[*ear]struct{}
	stop context.CancelFunc
	on   bool // it listens
}

// ear is what one feed has heard.
type ear struct {
	wake chan struct{} // has room for one

	mu   sync.Mutex
	news backend.News // Ownership and Parked
}

// drain returns what was heard since the last call.
func (e *ear) drain() backend.News {
	e.mu.Lock()
	defer e.mu.Unlock()
	news := e.news
	e.news = backend.News{}
	return news
}

func (e *ear) tell(ownership, parked bool) {
	e.mu.Lock()
	e.news.Ownership, e.news.Parked = e.news.Ownership || ownership, e.news.Parked || parked
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// hear begins to listen; end with deafen.
func (l *bell) hear() *ear {
	e := &ear{wake: make(chan struct{}, 1)}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ears == nil {
		l.ears = map[*ear]struct{}{}
	}
	l.ears[e] = struct{}{}
	if len(l.ears) == 1 {
		ctx, stop := context.WithCancel(context.Background())
		l.stop = stop
		go l.listen(ctx)
	}
	return e
}

func (l *bell) deafen(e *ear) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.ears, e)
	if len(l.ears) == 0 {
		l.stop()
		l.on = false
	}
}

// ring tells all ears.
func (l *bell) ring(ownership, parked bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for e := range l.ears {
		e.tell(ownership, parked)
	}
}

func (l *bell) listens() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.on
}

// set notes whether the bell listens. ctx is that of who says so: it may have been followed
// by another already.
func (l *bell) set(ctx context.Context, on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ctx.Err() == nil {
		l.on = on
	}
}

// listen keeps a connection that listens until ctx ends. While there is none, feeds poll.
func (l *bell) listen(ctx context.Context) {
	for ctx.Err() == nil && !l.pooled.Load() {
		err := l.listenOnce(ctx)
		l.set(ctx, false)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			l.log.Warn("leasepg: listening for news failed, trying again; tables are polled until then", "error", l.fail("listen", err))
		}
		select {
		case <-time.After(bellAgain + rand.N(bellAgain/4)):
		case <-ctx.Done():
		}
	}
}

func (l *bell) listenOnce(ctx context.Context) error {
	opening, cancel := context.WithTimeout(ctx, linkMost)
	defer cancel()
	c, err := l.connect(opening)
	if err != nil {
		return err
	}
	defer closeConn(c)
	if err := l.detectPooler(opening, c); err != nil || l.pooled.Load() {
		return err
	}
	if _, err := c.Exec(opening, "listen "+l.schema.ident()); err != nil {
		return err
	}
	l.set(ctx, true)
	l.ring(true, true) // what was notified before is lost
	for {
		if err := l.waitForNews(ctx, c); err != nil {
			return err
		}
	}
}

// waitForNews passes one notification on. A connection that is silent may have been cut off
// unnoticed, so it is tested now and then.
func (l *bell) waitForNews(ctx context.Context, c *pgx.Conn) error {
	wait, cancel := context.WithTimeout(ctx, bellTest)
	defer cancel()
	n, err := c.WaitForNotification(wait)
	switch {
	case err == nil && (n.Payload == wakeMessages || strings.HasPrefix(n.Payload, wakeWanted)):
		return nil // of the log, or of streams, which a table does not have; triggers of tables say what they like
	case err == nil:
		l.ring(n.Payload == wakeOwnership, n.Payload == wakeParked)
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case !pgconn.Timeout(err):
		return err
	}
	test, cancel := context.WithTimeout(ctx, feedTimeout)
	defer cancel()
	return c.Ping(test)
}

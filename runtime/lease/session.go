package lease

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math"
	mrand "math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// session is this process's belief in one incarnation. ctx ends when belief ends,
// with ErrLost or ErrHandover as its cause; every lease hangs on it.
type session struct {
	id      string
	ttl     time.Duration
	margin  time.Duration
	backend backend.Session
	alarm   <-chan struct{} // see backend.Session
	log     *slog.Logger
	observe func(operate.Observation)

	ctx context.Context
	end context.CancelCauseFunc

	gate *gate

	ownership *changes      // hints that ownership changed
	settled   chan struct{} // a hint that work on a lease ended while the process drains

	belief *belief // shared by all copies of the session, see as
}

// belief is when the session was last confirmed.
type belief struct {
	mu       sync.Mutex
	anchored instant // before the last confirmed request was sent
}

func (b *belief) since() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.anchored.since()
}

func (b *belief) anchor(at instant) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.anchored = at
}

// openSession opens a session, which was asked for at asked at the earliest, and starts to believe
// in it. The context's values reach the handlers, its cancellation does not.
func openSession(ctx context.Context, be Backend, spec backend.SessionSpec, asked instant, margin time.Duration, log *slog.Logger, observe func(operate.Observation)) (*session, error) {
	s := &session{id: spec.ID, ttl: spec.TTL, margin: margin, log: log.With("session", spec.ID), observe: observe,
		ownership: &changes{wake: make(chan struct{}, 1)}, settled: make(chan struct{}, 1), belief: &belief{anchored: asked}}
	var err error
	s.backend, err = callFor(of(ctx, "open"), max(s.left(), time.Millisecond), func(ctx context.Context) (backend.Session, error) { return be.OpenSession(ctx, spec) })
	if err != nil {
		return nil, err
	}
	s.alarm = s.backend.Alarm()
	s.ctx, s.end = context.WithCancelCause(context.WithoutCancel(ctx))
	observe(operate.ObservedSession{Session: s.id, Open: true})
	return s, nil
}

// as returns the session as c uses it: calls under its context are made on behalf of c.
func (s *session) as(c caller) *session {
	own := *s
	c.session = s
	own.ctx = context.WithValue(s.ctx, callerKey{}, &c)
	return &own
}

// left is how much longer the session may be believed in.
func (s *session) left() time.Duration { return s.ttl - s.margin - s.belief.since() }

// alive reports belief and ends it when its time is over, whatever the timers do.
func (s *session) alive() bool {
	if s.ctx.Err() != nil {
		return false
	}
	if s.left() <= 0 {
		s.end(fmt.Errorf("%w for %v", errUnconfirmed, s.ttl-s.margin))
		return false
	}
	return true
}

// errUnconfirmed is the cause of a session's end when its time was over.
var errUnconfirmed = fmt.Errorf("%w: no heartbeat was confirmed", ErrLost)

// lose ends belief. Only the first call counts.
func (s *session) lose(reason string) {
	s.end(fmt.Errorf("%w: %s", ErrLost, reason))
}

// changes are hints that ownership changed: that of all consumers, or of those that ask for a survey of their own.
type changes struct {
	wake chan struct{}
	all  atomic.Bool
}

// hintOwnership asks for a survey of all consumers.
func (s *session) hintOwnership() {
	s.ownership.all.Store(true)
	hint(s.ownership.wake)
}

// hint makes the goroutine that waits on c, which has room for one, look again.
func hint(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// watch ends belief in time even when the backend is unreachable or the machine slept.
func (s *session) watch() {
	for s.alive() {
		pause(s.ctx, min(max(s.left(), time.Millisecond), s.margin/2+time.Millisecond))
	}
}

// alarmGap is the least time between heartbeats that alarms ask for.
const alarmGap = 50 * time.Millisecond

// beat sends heartbeats at a third of the TTL. A failed one is tried again soon, so
// that several tries fit before belief ends.
func (s *session) beat() {
	interval := s.ttl / 3
	wait := max(jitter(interval)-s.belief.since(), 0) // it may be some time since the session was asked for
	var sent instant
	for {
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-s.alarm:
			pause(s.ctx, alarmGap-time.Since(sent.t))
		case <-s.ctx.Done():
		}
		t.Stop()
		if !s.alive() {
			return
		}
		sent = now()
		err := doFor(of(s.ctx, "heartbeat"), max(interval/2, 100*time.Millisecond), s.backend.Heartbeat)
		if err == nil {
			s.belief.anchor(sent) // before anything else, which may take its time
		}
		s.observe(operate.ObservedHeartbeat{Session: s.id, Duration: time.Since(sent.t), Err: err})
		switch {
		case err == nil:
			wait = jitter(interval)
		case errors.Is(err, backend.ErrSessionLost):
			s.lose("the backend declared the session dead")
			return
		default:
			if s.ctx.Err() == nil {
				s.log.Warn("heartbeat failed, trying again", "error", err, "belief_left", s.left())
			}
			wait = jitter(interval / 6)
		}
	}
}

// awaitSettled waits a little, or until work on a lease has ended.
func (s *session) awaitSettled() {
	t := time.NewTimer(time.Millisecond)
	defer t.Stop()
	select {
	case <-s.settled:
	case <-t.C:
	case <-s.ctx.Done():
	}
}

// close ends the session at the backend, in several tries if need be: leases hang on it.
func (s *session) close() error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), s.ttl/3)
	defer cancel()
	var failed backoff
	for {
		err := do(of(ctx, "close"), s.backend.Close)
		if err == nil || isLost(err) || ctx.Err() != nil {
			return err
		}
		failed.wait(ctx)
	}
}

// longest is more time than anybody waits. Sums of two such times do not overflow.
const longest = time.Duration(math.MaxInt64 / 2)

// jitter spreads d, which is at most longest, over 0.9 d to 1.1 d.
func jitter(d time.Duration) time.Duration {
	return d - d/10 + time.Duration(mrand.Int64N(int64(d/5)+1))
}

// pause sleeps for d or until ctx ends, and reports whether it slept its time.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// newID returns 128 random bits in hex.
func newID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails, see crypto/rand
	return hex.EncodeToString(b[:])
}

func hostname() string {
	h, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return h
}

package lease_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
)

// mute is a backend that is silent for a while, and then answers all that it was asked.
type mute struct {
	lease.Backend
	until time.Time
}

func (b *mute) wait(ctx context.Context) error {
	select {
	case <-time.After(time.Until(b.until)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *mute) OpenSession(ctx context.Context, spec backend.SessionSpec) (backend.Session, error) {
	if err := b.wait(ctx); err != nil {
		return nil, err
	}
	return b.Backend.OpenSession(ctx, spec)
}

func (b *mute) Survey(ctx context.Context, consumers []string) ([]backend.Survey, error) {
	if err := b.wait(ctx); err != nil {
		return nil, err
	}
	return b.Backend.Survey(ctx, consumers)
}

// When a server answers again, however long it did not, sessions are opened soon.
func TestSessionsAreOpenedAfterAnOutage(t *testing.T) {
	for outage := 2 * time.Second; outage < 80*time.Second; outage += 700 * time.Millisecond {
		t.Run(outage.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) { opensAfter(t, outage) })
		})
	}
}

func opensAfter(t *testing.T, outage time.Duration) {
	ctx, cancel := context.WithCancel(t.Context())
	be := &mute{Backend: leasemem.New(), until: time.Now().Add(outage)}
	c := newConsumer(t, be, lease.Spec{Handlers: handleAll(&seen{}), TTL: 15 * time.Second})
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	pass(outage + 3*time.Second)
	if err := c.Ready(); err != nil {
		t.Errorf("3 s after the outage: %v", err)
	}
	cancel()
	<-ended
}

// shut is a backend that answers, and opens no session.
type shut struct {
	lease.Backend
	opens atomic.Int64
}

func (b *shut) OpenSession(context.Context, backend.SessionSpec) (backend.Session, error) {
	b.opens.Add(1)
	return nil, errors.New("no")
}

// Attempts to open a session, each of which may have added a member, become rare where none succeeds though the backend answers.
func TestSessionsThatCannotBeOpened(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		be := &shut{Backend: leasemem.New()}
		ended := make(chan error, 1)
		go func() {
			ended <- newConsumer(t, be, lease.Spec{Handlers: handleAll(&seen{}), TTL: 15 * time.Second}).Run(ctx)
		}()
		pass(10 * time.Minute)
		if n := be.opens.Load(); n > 200 { // 5 s of attempts, and a wait of 30 s
			t.Errorf("%d attempts in ten minutes", n)
		}
		cancel()
		<-ended
	})
}

// unconfirmed is a backend that opens sessions. It confirms their heartbeats once confirm is set.
type unconfirmed struct {
	lease.Backend
	opens   atomic.Int64
	confirm atomic.Bool
	breaks  bool // each other session ends at its first heartbeat
}

type unconfirmedSession struct {
	backend.Session
	of *unconfirmed
	n  int64
}

func (b *unconfirmed) OpenSession(ctx context.Context, spec backend.SessionSpec) (backend.Session, error) {
	n := b.opens.Add(1)
	s, err := b.Backend.OpenSession(ctx, spec)
	return unconfirmedSession{s, b, n}, err
}

func (s unconfirmedSession) Heartbeat(ctx context.Context) error {
	if s.of.confirm.Load() {
		return s.Session.Heartbeat(ctx)
	}
	if s.of.breaks && s.n%2 == 0 {
		return backend.ErrSessionLost
	}
	<-ctx.Done()
	return ctx.Err()
}

// Sessions of an overloaded server are opened ever more rarely, since opening them is a part of the load. When the overload is over,
// the next one comes within a minute and stays.
func TestSessionsThatAreNotConfirmed(t *testing.T) {
	for i, ttl := range []time.Duration{2 * time.Second, 15 * time.Second, 15 * time.Second} {
		bubble(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			be := &unconfirmed{Backend: leasemem.New(), breaks: i == 2}
			c := newConsumer(t, be, lease.Spec{Handlers: handleAll(&seen{}), TTL: ttl})
			ended := make(chan error, 1)
			go func() { ended <- c.Run(ctx) }()
			pass(40 * ttl)
			// 46 without a pause between them
			if n := be.opens.Load(); n < 5 || n > 15 && !be.breaks || n > 30 {
				t.Errorf("TTL %v: %d sessions in 40 TTLs", ttl, n)
			}
			be.confirm.Store(true)
			pass(min(8*ttl, time.Minute) + 2*ttl)
			n := be.opens.Load()
			pass(20 * ttl)
			if err := c.Ready(); err != nil || be.opens.Load() != n {
				t.Errorf("TTL %v: after the overload: %v, %d more sessions", ttl, err, be.opens.Load()-n)
			}
			cancel()
			<-ended
		})
	}
}

// A single session that is lost is followed by the next one at once, however soon.
func TestSessionAfterALostOne(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		be := &unconfirmed{Backend: leasemem.New()}
		c := newConsumer(t, be, lease.Spec{Handlers: handleAll(&seen{}), TTL: 15 * time.Second})
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		pass(16 * time.Second)
		if n := be.opens.Load(); n != 2 {
			t.Errorf("%d sessions a second after the first was lost", n)
		}
		cancel()
		<-ended
	})
}

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

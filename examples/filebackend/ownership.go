package filebackend

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/backend/rows"
)

// OpenSession starts a session.
func (b *Backend) OpenSession(ctx context.Context, spec backend.SessionSpec) (backend.Session, error) {
	return session{b, spec.ID}, do(ctx, b, "open session", func(s *store) error { return s.Open(spec) })
}

// session is a backend.Session.
type session struct {
	b  *Backend
	id string
}

func (h session) Alarm() <-chan struct{} { return nil }

func (h session) Heartbeat(ctx context.Context) error {
	return do(ctx, h.b, "heartbeat", func(s *store) error { return s.Heartbeat(h.id) })
}

func (h session) Close(ctx context.Context) error {
	return do(ctx, h.b, "close session", func(s *store) error { s.Close(h.id); return nil })
}

// supported refuses consumers that need more than a log, and names that no backend takes.
func supported(c backend.ConsumerInfo) error {
	switch {
	case c.Source != nil:
		return errors.New("filebackend: this backend has no source but its log; leave the source out")
	case c.Per < backend.PerTopic || c.Per > backend.PerPartition:
		return fmt.Errorf("filebackend: this backend has no leases per %s; use topic, group, cluster or partition", c.Per)
	}
	return backend.CheckNames(c.Name)
}

// Register makes resources known.
func (b *Backend) Register(ctx context.Context, info backend.ConsumerInfo, resources []string) error {
	if err := supported(info); err != nil {
		return err
	}
	return do(ctx, b, "register "+info.Name, func(s *store) error {
		topics := map[string]bool{}
		for _, m := range s.log {
			topics[m.Topic] = true
		}
		return s.Register(info, resources, maps.Keys(topics), slots, rows.Position(len(s.log)))
	})
}

// Survey counts members and leases.
func (b *Backend) Survey(ctx context.Context, consumers []string) ([]backend.Survey, error) {
	return call(ctx, b, "survey", func(s *store) ([]backend.Survey, error) { return s.Survey(consumers), nil })
}

// Owned lists what a session holds.
func (b *Backend) Owned(ctx context.Context, session, consumer string) ([]backend.Ref, error) {
	return call(ctx, b, "owned", func(s *store) ([]backend.Ref, error) { return s.Owned(session, consumer), nil })
}

// Acquire grants free resources.
func (b *Backend) Acquire(ctx context.Context, req backend.AcquireRequest) ([]backend.Grant, error) {
	return call(ctx, b, "acquire", func(s *store) ([]backend.Grant, error) { return s.Acquire(req) })
}

// Release gives leases back.
func (b *Backend) Release(ctx context.Context, session, consumer string, leases []backend.Ref) error {
	return do(ctx, b, "release", func(s *store) error { return s.Release(session, consumer, leases) })
}

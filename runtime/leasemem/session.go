package leasemem

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// OpenSession starts a new incarnation. Repeating it with the id of a live session
// returns that session.
func (b *Backend) OpenSession(ctx context.Context, spec backend.SessionSpec) (backend.Session, error) {
	return call(ctx, b, "OpenSession", func(s *store, _ time.Time) (backend.Session, error) {
		if spec.ID == "" || spec.TTL <= 0 {
			return nil, fmt.Errorf("leasemem: open session %q: it needs an id and a TTL above 0, not %v", spec.ID, spec.TTL)
		}
		if spec.Replaces == spec.ID {
			spec.Replaces = ""
		}
		spec.Consumers = slices.Clone(spec.Consumers)
		s.ownershipChanged()
		if err := s.Open(spec); err != nil {
			return nil, err
		}
		return &sessionHandle{b, spec.ID}, nil
	})
}

// sessionHandle is a backend.Session.
type sessionHandle struct {
	backend *Backend
	id      string
}

// Alarm is nil: a session of this process has no connection to lose.
func (h *sessionHandle) Alarm() <-chan struct{} { return nil }

func (h *sessionHandle) Heartbeat(ctx context.Context) error {
	return do(ctx, h.backend, "SessionHeartbeat", func(s *store, _ time.Time) error {
		return s.Rows.Heartbeat(h.id)
	})
}

func (h *sessionHandle) Close(ctx context.Context) error {
	return do(ctx, h.backend, "SessionClose", func(s *store, _ time.Time) error {
		s.Rows.Close(h.id)
		s.ownershipChanged()
		return nil
	})
}

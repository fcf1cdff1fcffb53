package leasemem

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// session is one process incarnation. Once ended it stays ended.
type session struct {
	spec    backend.SessionSpec
	opened  time.Time
	beat    time.Time
	expires time.Time
	ended   bool // closed, or declared dead
}

func (s *session) alive(now time.Time) bool { return !s.ended && now.Before(s.expires) }

// live returns the session of that id, or ErrSessionLost. An expired one is declared dead.
func (s *store) live(id string, now time.Time) (*session, error) {
	se := s.sessions[id]
	if se == nil {
		return nil, backend.ErrSessionLost
	}
	if !se.alive(now) {
		se.ended = true
		return nil, backend.ErrSessionLost
	}
	return se, nil
}

// OpenSession starts a new incarnation. Repeating it with the id of a live session
// returns that session.
func (b *Backend) OpenSession(ctx context.Context, spec backend.SessionSpec) (backend.Session, error) {
	return call(ctx, b, "OpenSession", func(s *store, now time.Time) (backend.Session, error) {
		if spec.ID == "" || spec.TTL <= 0 {
			return nil, fmt.Errorf("leasemem: open session %q: it needs an id and a TTL above 0, not %v", spec.ID, spec.TTL)
		}
		if spec.Replaces != "" && spec.Replaces != spec.ID {
			s.replace(spec, now)
		}
		if s.sessions[spec.ID] == nil {
			spec.Consumers = slices.Clone(spec.Consumers)
			s.sessions[spec.ID] = &session{spec: spec, opened: now, beat: now, expires: now.Add(spec.TTL)}
			s.ownershipChanged()
		}
		if _, err := s.live(spec.ID, now); err != nil {
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
	return do(ctx, h.backend, "SessionHeartbeat", func(s *store, now time.Time) error {
		se, err := s.live(h.id, now)
		if err != nil {
			return err
		}
		se.beat, se.expires = now, now.Add(se.spec.TTL)
		return nil
	})
}

func (h *sessionHandle) Close(ctx context.Context) error {
	return do(ctx, h.backend, "SessionClose", func(s *store, now time.Time) error {
		se, err := s.live(h.id, now)
		if errors.Is(err, backend.ErrSessionLost) {
			return nil // its leases are taken over as those of a crashed session
		}
		s.end(se, now)
		return nil
	})
}

// end ends a session and frees its leases.
func (s *store) end(se *session, now time.Time) {
	se.ended = true
	for _, c := range s.consumers {
		for _, l := range c.leases {
			if l.owner == se.spec.ID {
				l.vacate(now)
			}
		}
	}
	s.ownershipChanged()
}

// replace ends the session that spec names as its predecessor. One that was never opened is
// noted as ended, too: the request for it may still come.
func (s *store) replace(spec backend.SessionSpec, now time.Time) {
	before := s.sessions[spec.Replaces]
	if before == nil {
		before = &session{spec: backend.SessionSpec{ID: spec.Replaces}, opened: now, beat: now, expires: now}
		s.sessions[spec.Replaces] = before
	}
	s.end(before, now)
}

package filebackend

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

type session struct {
	backend.SessionSpec
	Opened, Beat, Expires time.Time
}

type consumer struct {
	backend.ConsumerInfo
	Start position // where new resources begin
}

// lease is a resource of a consumer, and what the next grant of it will say.
type lease struct {
	backend.Grant
	Cursor           position // in place of that of the grant, which does not say its type
	Session, Attempt string   // Session is empty when it was given back, and may be dead; Attempt is that of its Acquire
	Since            time.Time
	Seq              int64 // of the last progress in this epoch
	Marked           int64 // the last epoch that set the mark
	Parked           []*parked
}

func (s *store) live(id string) bool {
	m := s.Sessions[id]
	return m != nil && s.At.Before(m.Expires)
}

// held returns the lease that a live session holds under this epoch, or nil.
func (s *store) held(session, consumer string, ref backend.Ref) *lease {
	l := s.Leases[consumer][ref.Resource]
	if l == nil || l.Session != session || l.Epoch != ref.Epoch || !s.live(session) {
		return nil
	}
	return l
}

// free tells whether a lease may be granted: it was given back, or its session has been dead for the grace period.
func (s *store) free(l *lease, grace time.Duration) bool {
	m := s.Sessions[l.Session]
	return m == nil || !s.At.Before(m.Expires.Add(grace))
}

// save has a lease written at the end of the call.
func (s *store) save(consumer string, l *lease) {
	if s.line.Leases[consumer] == nil {
		s.line.Leases[consumer] = map[string]*lease{}
	}
	s.line.Leases[consumer][l.Resource] = l
}

// drop takes a lease from its session.
func (s *store) drop(consumer string, l *lease) {
	l.Session, l.Attempt = "", ""
	s.save(consumer, l)
	s.ownership++
}

// end ends a session in order and frees its leases, also those of one that has expired already. One that is not known
// cannot be opened later.
func (s *store) end(id string) {
	m := s.Sessions[id]
	if m == nil {
		m = &session{SessionSpec: backend.SessionSpec{ID: id}, Expires: s.At}
	}
	if s.At.Before(m.Expires) {
		m.Expires = s.At
	}
	s.line.Sessions[id] = m
	for consumer, leases := range s.Leases {
		for _, l := range leases {
			if l.Session == id {
				s.drop(consumer, l)
			}
		}
	}
}

// OpenSession starts a session.
func (b *Backend) OpenSession(ctx context.Context, spec backend.SessionSpec) (backend.Session, error) {
	return call(ctx, b, "open session", func(s *store) (backend.Session, error) {
		if s.Sessions[spec.ID] == nil {
			if spec.Replaces != "" {
				s.end(spec.Replaces)
			}
			s.line.Sessions[spec.ID] = &session{spec, s.At, s.At, s.At.Add(spec.TTL)}
			s.ownership++
		} else if !s.live(spec.ID) {
			return nil, backend.ErrSessionLost
		}
		return handle{b, spec.ID}, nil
	})
}

// handle is a backend.Session.
type handle struct {
	b  *Backend
	id string
}

func (h handle) Alarm() <-chan struct{} { return nil }

func (h handle) Heartbeat(ctx context.Context) error {
	return do(ctx, h.b, "heartbeat", func(s *store) error {
		if !s.live(h.id) {
			return backend.ErrSessionLost
		}
		m := s.Sessions[h.id]
		m.Beat, m.Expires = s.At, s.At.Add(m.TTL)
		s.line.Sessions[h.id] = m
		return nil
	})
}

func (h handle) Close(ctx context.Context) error {
	return do(ctx, h.b, "close session", func(s *store) error {
		if s.live(h.id) {
			s.end(h.id)
		}
		return nil
	})
}

// supported refuses consumers that need more than a log.
func supported(c backend.ConsumerInfo) error {
	switch {
	case c.Source != nil:
		return errors.New("this backend has no source but its log; leave the source out")
	case c.Per < backend.PerTopic || c.Per > backend.PerPartition:
		return fmt.Errorf("this backend has no leases per %s; use topic, group, cluster or partition", c.Per)
	}
	return nil
}

// Register makes resources known.
func (b *Backend) Register(ctx context.Context, info backend.ConsumerInfo, resources []string) error {
	return do(ctx, b, "register "+info.Name, func(s *store) error {
		c := s.Consumers[info.Name]
		if err := supported(info); err != nil {
			return err
		} else if c == nil {
			c = &consumer{}
			if info.From == backend.FromNow {
				c.Start = position(len(s.log))
			}
		} else if err := backend.SamePer(c.Per, info.Per); err != nil {
			return err
		}
		if !reflect.DeepEqual(c.ConsumerInfo, info) {
			c.ConsumerInfo = info
			s.line.Consumers[info.Name] = c
		}
		topics := map[string]bool{}
		for _, m := range s.log {
			topics[m.Topic] = true
		}
		for _, name := range info.Resources(resources, maps.Keys(topics), slots) {
			if s.Leases[info.Name][name] == nil {
				s.save(info.Name, &lease{Grant: backend.Grant{Ref: backend.Ref{Resource: name}}, Cursor: c.Start})
			}
		}
		return nil
	})
}

// members returns the live sessions of a consumer, ordered by id, and how many leases each session has.
func (s *store) members(consumer string) (members []*session, owned map[string]int) {
	for _, m := range s.Sessions {
		if s.live(m.ID) && slices.Contains(m.Consumers, consumer) {
			members = append(members, m)
		}
	}
	slices.SortFunc(members, func(a, b *session) int { return strings.Compare(a.ID, b.ID) })
	owned = map[string]int{}
	for _, l := range s.Leases[consumer] {
		owned[l.Session]++
	}
	return members, owned
}

// Survey counts members and leases.
func (b *Backend) Survey(ctx context.Context, consumers []string) ([]backend.Survey, error) {
	return call(ctx, b, "survey", func(s *store) (surveys []backend.Survey, err error) {
		for _, name := range consumers {
			survey := backend.Survey{Consumer: name, Resources: len(s.Leases[name])}
			for _, l := range s.Leases[name] {
				if s.free(l, s.Consumers[name].Grace) {
					survey.Free++
				}
			}
			members, owned := s.members(name)
			for _, m := range members {
				survey.Members = append(survey.Members, backend.Member{Session: m.ID, Owned: owned[m.ID]})
			}
			surveys = append(surveys, survey)
		}
		return surveys, nil
	})
}

// Owned lists what a session holds.
func (b *Backend) Owned(ctx context.Context, session, consumer string) ([]backend.Ref, error) {
	return call(ctx, b, "owned", func(s *store) (refs []backend.Ref, err error) {
		for _, l := range s.Leases[consumer] {
			if s.held(session, consumer, l.Ref) != nil {
				refs = append(refs, l.Ref)
			}
		}
		return refs, nil
	})
}

// Acquire grants free resources, in no particular order.
func (b *Backend) Acquire(ctx context.Context, req backend.AcquireRequest) ([]backend.Grant, error) {
	return call(ctx, b, "acquire", func(s *store) (grants []backend.Grant, err error) {
		if !s.live(req.Session) {
			return nil, backend.ErrSessionLost
		}
		leases := s.Leases[req.Consumer.Name]
		for _, l := range leases {
			if l.Session == req.Session && l.Attempt == req.Attempt {
				grants = append(grants, l.grant())
			}
		}
		if len(grants) > 0 { // granted before: that answer was lost
			return grants, nil
		}
		for _, l := range leases {
			if len(grants) >= req.Max || slices.Contains(req.Exclude, l.Resource) || !s.free(l, req.Consumer.Grace) {
				continue
			}
			if l.Session != "" {
				l.Suspicion++ // its owner died without giving it back
			}
			// With the clock in it an epoch does not come twice, even when an old copy of the file is used.
			l.Epoch = max(l.Epoch+1, s.At.UnixMicro())
			l.Session, l.Attempt, l.Since, l.Seq = req.Session, req.Attempt, s.At, 0
			s.save(req.Consumer.Name, l)
			grants = append(grants, l.grant())
		}
		return grants, nil
	})
}

func (l *lease) grant() backend.Grant {
	g := l.Grant
	g.Cursor = l.Cursor
	for _, lane := range l.lanes() {
		g.Lanes = append(g.Lanes, lane[0].Lane)
	}
	return g
}

// Release gives leases back.
func (b *Backend) Release(ctx context.Context, session, consumer string, leases []backend.Ref) error {
	return do(ctx, b, "release", func(s *store) error {
		if !s.live(session) {
			return backend.ErrSessionLost
		}
		for _, ref := range leases {
			if l := s.held(session, consumer, ref); l != nil {
				s.drop(consumer, l)
			}
		}
		return nil
	})
}

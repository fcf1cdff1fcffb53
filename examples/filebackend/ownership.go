package filebackend

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// state is the whole store.
type state struct {
	now     time.Time
	changed bool // by the present command

	log     []*message
	topics  map[string][]*message
	slots   [slots][]*message
	delayed []delayed             // in the order in which they will join the log
	ids     map[eventID]time.Time // until when they keep out a second event

	sessions  map[string]*session // the dead too, until they are forgotten
	consumers map[string]*consumer
	dead      []*deadLetter // the oldest first
	deaths    int           // dead letters there have ever been

	ownership, replays int // these rise with each change that feeds tell of
}

type session struct {
	spec                  backend.SessionSpec
	opened, beat, expires time.Time
}

func (m *session) live(now time.Time) bool { return now.Before(m.expires) }

type consumer struct {
	info   backend.ConsumerInfo
	start  position // where new resources begin
	leases map[string]*lease
	order  []*lease // in the order in which they became known
}

type lease struct {
	resource, session, attempt string // session is empty when it was given back, and may be dead; attempt is the Acquire's
	epoch, seq                 int64  // seq is that of the last progress in this epoch
	since                      time.Time
	cursor                     position
	parked                     []*parked
	suspicion                  int
	mark                       string
	marks                      int
	marked                     int64 // the last epoch that set the mark
}

func newState() *state {
	return &state{topics: map[string][]*message{}, ids: map[eventID]time.Time{}, sessions: map[string]*session{}, consumers: map[string]*consumer{}}
}

func (s *state) live(id string) bool {
	m := s.sessions[id]
	return m != nil && m.live(s.now)
}

// held returns the lease that a live session holds under this epoch, or nil.
func (s *state) held(session, consumer string, ref backend.Ref) *lease {
	if c := s.consumers[consumer]; c != nil && s.live(session) {
		if l := c.leases[ref.Resource]; l != nil && l.session == session && l.epoch == ref.Epoch {
			return l
		}
	}
	return nil
}

// free tells whether a lease may be granted: it was given back, or its session has been dead for the grace period.
func (s *state) free(l *lease, grace time.Duration) bool {
	m := s.sessions[l.session]
	return m == nil || !m.live(s.now) && !s.now.Before(m.expires.Add(grace))
}

// drop takes a lease from its session.
func (s *state) drop(l *lease) {
	l.session, l.attempt = "", ""
	s.changed = true
	s.ownership++
}

// end ends a session in order and frees its leases, also those of one that has expired already.
func (s *state) end(m *session) {
	if m.live(s.now) {
		m.expires = s.now
	}
	s.changed = true
	s.ownership++
	for _, c := range s.consumers {
		for _, l := range c.order {
			if l.session == m.spec.ID {
				s.drop(l)
			}
		}
	}
}

// OpenSession starts a session.
func (b *Backend) OpenSession(ctx context.Context, spec backend.SessionSpec) (backend.Session, error) {
	_, err := change[any](ctx, b, "open", spec)
	if err != nil {
		return nil, err
	}
	return handle{b, spec.ID}, nil
}

func (s *state) open(spec backend.SessionSpec) (any, error) {
	if s.sessions[spec.ID] != nil {
		return s.alive(spec.ID)
	}
	if id := spec.Replaces; id != "" {
		if s.sessions[id] == nil { // a request to open it may be on its way, and must find it dead
			s.sessions[id] = &session{spec: backend.SessionSpec{ID: id}, expires: s.now}
		}
		s.end(s.sessions[id])
	}
	s.sessions[spec.ID] = &session{spec: spec, opened: s.now, beat: s.now, expires: s.now.Add(spec.TTL)}
	s.changed = true
	s.ownership++
	return nil, nil
}

func (s *state) alive(id string) (any, error) {
	if !s.live(id) {
		return nil, backend.ErrSessionLost
	}
	return nil, nil
}

// handle is a backend.Session.
type handle struct {
	b  *Backend
	id string
}

func (h handle) Alarm() <-chan struct{} { return nil }

func (h handle) Heartbeat(ctx context.Context) error {
	_, err := change[any](ctx, h.b, "heartbeat", h.id)
	return err
}

func (h handle) Close(ctx context.Context) error {
	_, err := change[any](ctx, h.b, "close", h.id)
	return err
}

func (s *state) heartbeat(id string) (any, error) {
	if s.live(id) {
		m := s.sessions[id]
		m.beat, m.expires = s.now, s.now.Add(m.spec.TTL)
		s.changed = true
	}
	return s.alive(id)
}

func (s *state) close(id string) (any, error) {
	if s.live(id) {
		s.end(s.sessions[id])
	}
	return nil, nil
}

// supported refuses consumers that need more than a log.
func supported(info backend.ConsumerInfo) error {
	switch {
	case info.Source != nil:
		return fmt.Errorf("register %s: this backend has no source but its log; leave the source out", info.Name)
	case info.Per < backend.PerTopic || info.Per > backend.PerPartition:
		return fmt.Errorf("register %s: this backend has no leases per %s; use topic, group, cluster or partition", info.Name, info.Per)
	}
	return nil
}

// Register makes resources known.
func (b *Backend) Register(ctx context.Context, info backend.ConsumerInfo, resources []string) error {
	if err := supported(info); err != nil {
		return err
	}
	_, err := change[any](ctx, b, "register", registration{info, resources})
	return err
}

type registration struct {
	Consumer  backend.ConsumerInfo
	Resources []string
}

func (s *state) register(r registration) (any, error) {
	info, names := r.Consumer, r.Resources
	c := s.consumers[info.Name]
	one := func(p backend.Per) bool { return p == backend.PerGroup || p == backend.PerCluster }
	switch {
	case c == nil:
		c = &consumer{leases: map[string]*lease{}}
		if info.From == backend.FromNow {
			c.start = position(len(s.log))
		}
		s.consumers[info.Name] = c
	case c.info.Per != info.Per && !(one(c.info.Per) && one(info.Per)):
		return nil, fmt.Errorf("register %s: it is known per %s and asked for per %s; rename one of the two", info.Name, c.info.Per, info.Per)
	}
	if !reflect.DeepEqual(c.info, info) {
		c.info = info
		s.changed = true
	}
	if one(info.Per) {
		names = []string{backend.Whole}
	} else if info.Per == backend.PerPartition {
		names = slotNames
	} else if names == nil {
		names = slices.Sorted(maps.Keys(s.topics))
		names = slices.DeleteFunc(names, func(topic string) bool { return !backend.MatchTopic(info.Topics, topic) })
	}
	for _, name := range names {
		if c.leases[name] == nil {
			c.leases[name] = &lease{resource: name, cursor: c.start}
			c.order = append(c.order, c.leases[name])
			s.changed = true
		}
	}
	return nil, nil
}

var slotNames = func() (names []string) {
	for i := range slots {
		names = append(names, strconv.Itoa(i))
	}
	return names
}()

// members returns the live sessions of a consumer, ordered by id.
func (s *state) members(consumer string) (members []*session) {
	for _, m := range s.sessions {
		if m.live(s.now) && slices.Contains(m.spec.Consumers, consumer) {
			members = append(members, m)
		}
	}
	slices.SortFunc(members, func(a, b *session) int { return strings.Compare(a.spec.ID, b.spec.ID) })
	return members
}

// owned returns the leases of a session, as long as it lives.
func (s *state) owned(session, consumer string) (owned []*lease) {
	if c := s.consumers[consumer]; c != nil && s.live(session) {
		for _, l := range c.order {
			if l.session == session {
				owned = append(owned, l)
			}
		}
	}
	return owned
}

// Survey counts members and leases.
func (b *Backend) Survey(ctx context.Context, consumers []string) ([]backend.Survey, error) {
	return read(ctx, b, "survey", func(s *state) (surveys []backend.Survey, err error) {
		for _, name := range consumers {
			survey := backend.Survey{Consumer: name}
			if c := s.consumers[name]; c != nil {
				survey.Resources = len(c.order)
				for _, l := range c.order {
					if s.free(l, c.info.Grace) {
						survey.Free++
					}
				}
			}
			for _, m := range s.members(name) {
				survey.Members = append(survey.Members, backend.Member{Session: m.spec.ID, Owned: len(s.owned(m.spec.ID, name))})
			}
			surveys = append(surveys, survey)
		}
		return surveys, nil
	})
}

// Owned lists what a session holds.
func (b *Backend) Owned(ctx context.Context, session, consumer string) ([]backend.Ref, error) {
	return read(ctx, b, "owned", func(s *state) (refs []backend.Ref, err error) {
		for _, l := range s.owned(session, consumer) {
			refs = append(refs, backend.Ref{Resource: l.resource, Epoch: l.epoch})
		}
		return refs, nil
	})
}

// Acquire grants free resources.
func (b *Backend) Acquire(ctx context.Context, req backend.AcquireRequest) ([]backend.Grant, error) {
	return change[[]backend.Grant](ctx, b, "acquire", req)
}

func (s *state) acquire(req backend.AcquireRequest) (grants []backend.Grant, err error) {
	if !s.live(req.Session) {
		return nil, backend.ErrSessionLost
	}
	for _, l := range s.owned(req.Session, req.Consumer.Name) {
		if req.Attempt != "" && l.attempt == req.Attempt {
			grants = append(grants, l.grant())
		}
	}
	c := s.consumers[req.Consumer.Name]
	if c == nil || len(grants) > 0 { // granted before: that answer was lost
		return grants, nil
	}
	exclude := map[string]bool{}
	for _, resource := range req.Exclude {
		exclude[resource] = true
	}
	for _, l := range c.order {
		if len(grants) >= req.Max || exclude[l.resource] || !s.free(l, req.Consumer.Grace) {
			continue
		}
		if l.session != "" {
			l.suspicion++ // its owner died without giving it back
		}
		// With the clock in it an epoch does not come twice, even when an old copy of the file is used.
		l.epoch = max(l.epoch+1, s.now.UnixMicro())
		l.session, l.attempt, l.since, l.seq = req.Session, req.Attempt, s.now, 0
		grants = append(grants, l.grant())
		s.changed = true
	}
	return grants, nil
}

func (l *lease) grant() backend.Grant {
	g := backend.Grant{Ref: backend.Ref{Resource: l.resource, Epoch: l.epoch}, Cursor: l.cursor,
		Suspicion: l.suspicion, Mark: l.mark, MarkCount: l.marks}
	for _, lane := range l.lanes() {
		g.Lanes = append(g.Lanes, lane[0].Lane)
	}
	return g
}

// Release gives leases back.
func (b *Backend) Release(ctx context.Context, session, consumer string, leases []backend.Ref) error {
	_, err := change[any](ctx, b, "release", handover{session, consumer, leases})
	return err
}

type handover struct {
	Session, Consumer string
	Leases            []backend.Ref
}

func (s *state) release(h handover) (any, error) {
	for _, ref := range h.Leases {
		if l := s.held(h.Session, h.Consumer, ref); l != nil {
			s.drop(l)
		}
	}
	return s.alive(h.Session)
}

package filebackend

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
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
	delayed []delayed // in the order in which they will join the log
	ids     map[eventID]time.Time
	idQueue []eventID // the oldest first

	sessions  map[string]*session // the dead too, until they are forgotten
	consumers map[string]*consumer
	dead      []*deadLetter // the oldest first
	deaths    int           // dead letters there have ever been

	ownership, replays int // these rise with each change that feeds tell of
}

type delayed struct {
	event backend.Event
	due   time.Time
}

type eventID struct{ topic, id string }

type session struct {
	spec                  backend.SessionSpec
	opened, beat, expires time.Time
	closed                bool // it ended in order, and holds nothing
}

func (m *session) live(now time.Time) bool { return !m.closed && now.Before(m.expires) }

type consumer struct {
	info   backend.ConsumerInfo
	start  position // where new resources begin
	leases map[string]*lease
	order  []*lease // in the order in which they became known
}

type lease struct {
	resource  string
	epoch     int64
	session   string // empty when it was given back; it may be dead
	attempt   string // the Acquire that granted it
	since     time.Time
	seq       int64 // of the last progress in this epoch
	cursor    position
	parked    []*parked
	suspicion int
	mark      string
	marks     int
	marked    int64 // the last epoch that set the mark
}

func newState() *state {
	return &state{topics: map[string][]*message{}, ids: map[eventID]time.Time{}, sessions: map[string]*session{}, consumers: map[string]*consumer{}}
}

// advance sets the present and lets delayed events that are due join the log. It depends on the time alone, so that the
// log is the same whether a read or a later command finds them due.
func (s *state) advance(now time.Time) {
	if now.After(s.now) {
		s.now = now
	}
	for len(s.delayed) > 0 && !s.delayed[0].due.After(s.now) {
		s.append(s.delayed[0].event, s.delayed[0].due)
		s.delayed = s.delayed[1:]
	}
}

func (s *state) live(id string) bool {
	m := s.sessions[id]
	return m != nil && m.live(s.now)
}

// held returns the lease if the session is live and holds it under this epoch, and nil otherwise.
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

// end ends a session in order.
func (s *state) end(id string) {
	m := s.sessions[id]
	m.closed, m.expires = true, s.now
	s.changed = true
	s.ownership++
	for _, c := range s.consumers {
		for _, l := range c.order {
			if l.session == id {
				s.drop(l)
			}
		}
	}
}

// OpenSession starts a session.
func (b *Backend) OpenSession(ctx context.Context, spec backend.SessionSpec) (backend.Session, error) {
	if _, err := change[any](ctx, b, "open", openSession{spec}); err != nil {
		return nil, err
	}
	return handle{b, spec.ID}, nil
}

type openSession struct{ Spec backend.SessionSpec }

func (c openSession) apply(s *state) (any, error) {
	if m := s.sessions[c.Spec.ID]; m != nil {
		if !m.live(s.now) {
			return nil, backend.ErrSessionLost
		}
		return nil, nil
	}
	if id := c.Spec.Replaces; id != "" {
		if s.sessions[id] == nil {
			s.sessions[id] = &session{} // a request to open it may be on its way, and must find it dead
		}
		s.end(id)
	}
	s.sessions[c.Spec.ID] = &session{spec: c.Spec, opened: s.now, beat: s.now, expires: s.now.Add(c.Spec.TTL)}
	s.changed = true
	s.ownership++
	return nil, nil
}

// handle is a backend.Session.
type handle struct {
	b  *Backend
	id string
}

func (h handle) Alarm() <-chan struct{} { return nil }

func (h handle) Heartbeat(ctx context.Context) error {
	_, err := change[any](ctx, h.b, "heartbeat", heartbeat{h.id})
	return err
}

func (h handle) Close(ctx context.Context) error {
	_, err := change[any](ctx, h.b, "close", closeSession{h.id})
	return err
}

type heartbeat struct{ Session string }

func (c heartbeat) apply(s *state) (any, error) {
	if !s.live(c.Session) {
		return nil, backend.ErrSessionLost
	}
	m := s.sessions[c.Session]
	m.beat, m.expires = s.now, s.now.Add(m.spec.TTL)
	s.changed = true
	return nil, nil
}

type closeSession struct{ Session string }

func (c closeSession) apply(s *state) (any, error) {
	if s.live(c.Session) {
		s.end(c.Session)
	}
	return nil, nil
}

// Register makes resources known.
func (b *Backend) Register(ctx context.Context, info backend.ConsumerInfo, resources []string) error {
	if err := supported(info); err != nil {
		return err
	}
	_, err := change[any](ctx, b, "register", register{info, resources})
	return err
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

type register struct {
	Consumer  backend.ConsumerInfo
	Resources []string
}

func (r register) apply(s *state) (any, error) {
	info, names := r.Consumer, r.Resources
	c := s.consumers[info.Name]
	one := func(p backend.Per) bool { return p == backend.PerGroup || p == backend.PerCluster }
	if c != nil && c.info.Per != info.Per && !(one(c.info.Per) && one(info.Per)) {
		return nil, fmt.Errorf("register %s: it is known per %s and asked for per %s; give one of the two another name", info.Name, c.info.Per, info.Per)
	}
	if c == nil {
		c = &consumer{info: info, leases: map[string]*lease{}}
		if info.From == backend.FromNow {
			c.start = position(len(s.log))
		}
		s.consumers[info.Name] = c
		s.changed = true
	}
	if !reflect.DeepEqual(c.info, info) {
		c.info = info
		s.changed = true
	}
	switch {
	case one(info.Per):
		names = []string{backend.Whole}
	case info.Per == backend.PerPartition:
		names = nil
		for i := range slots {
			names = append(names, strconv.Itoa(i))
		}
	case names == nil:
		for _, topic := range slices.Sorted(maps.Keys(s.topics)) {
			if backend.MatchTopic(info.Topics, topic) {
				names = append(names, topic)
			}
		}
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

// Survey counts members and leases.
func (b *Backend) Survey(ctx context.Context, consumers []string) (surveys []backend.Survey, err error) {
	err = b.read(ctx, "survey", func(s *state) error {
		for _, name := range consumers {
			survey := backend.Survey{Consumer: name}
			owned := map[string]int{}
			if c := s.consumers[name]; c != nil {
				survey.Resources = len(c.order)
				for _, l := range c.order {
					owned[l.session]++
					if s.free(l, c.info.Grace) {
						survey.Free++
					}
				}
			}
			for _, m := range s.members(name) {
				survey.Members = append(survey.Members, backend.Member{Session: m.spec.ID, Owned: owned[m.spec.ID]})
			}
			surveys = append(surveys, survey)
		}
		return nil
	})
	return surveys, err
}

// members returns the live sessions of a consumer, ordered by id.
func (s *state) members(consumer string) (members []*session) {
	for _, m := range s.sessions {
		if m.live(s.now) && slices.Contains(m.spec.Consumers, consumer) {
			members = append(members, m)
		}
	}
	slices.SortFunc(members, func(a, b *session) int { return cmp.Compare(a.spec.ID, b.spec.ID) })
	return members
}

// Acquire grants free resources.
func (b *Backend) Acquire(ctx context.Context, req backend.AcquireRequest) ([]backend.Grant, error) {
	return change[[]backend.Grant](ctx, b, "acquire", acquire{req})
}

type acquire struct{ Request backend.AcquireRequest }

func (a acquire) apply(s *state) (any, error) {
	req, grants := a.Request, []backend.Grant(nil)
	if !s.live(req.Session) {
		return nil, backend.ErrSessionLost
	}
	c := s.consumers[req.Consumer.Name]
	if c == nil {
		return nil, nil
	}
	for _, l := range c.order {
		if req.Attempt != "" && l.session == req.Session && l.attempt == req.Attempt {
			grants = append(grants, l.grant())
		}
	}
	if len(grants) > 0 {
		return grants, nil // the answer was lost, and the same call comes again
	}
	exclude := map[string]bool{}
	for _, resource := range req.Exclude {
		exclude[resource] = true
	}
	for _, l := range c.order {
		if len(grants) >= req.Max {
			break
		}
		if exclude[l.resource] || !s.free(l, req.Consumer.Grace) {
			continue
		}
		if l.session != "" {
			l.suspicion++ // its owner died without giving it back
		}
		// With the clock in it an epoch does not come twice even when an old copy of the file is used.
		l.epoch = max(l.epoch+1, s.now.UnixMicro())
		l.session, l.attempt, l.since, l.seq = req.Session, req.Attempt, s.now, -1
		grants = append(grants, l.grant())
		s.changed = true
	}
	return grants, nil
}

func (l *lease) grant() backend.Grant {
	g := backend.Grant{Ref: backend.Ref{Resource: l.resource, Epoch: l.epoch}, Cursor: l.cursor,
		Suspicion: l.suspicion, Mark: l.mark, MarkCount: l.marks}
	for _, lane := range l.lanes() {
		g.Lanes = append(g.Lanes, lane[0].lane)
	}
	return g
}

// Release gives leases back.
func (b *Backend) Release(ctx context.Context, session, consumer string, leases []backend.Ref) error {
	_, err := change[any](ctx, b, "release", release{session, consumer, leases})
	return err
}

type release struct {
	Session, Consumer string
	Leases            []backend.Ref
}

func (r release) apply(s *state) (any, error) {
	if !s.live(r.Session) {
		return nil, backend.ErrSessionLost
	}
	for _, ref := range r.Leases {
		if l := s.held(r.Session, r.Consumer, ref); l != nil {
			s.drop(l)
		}
	}
	return nil, nil
}

// Owned lists what a session holds.
func (b *Backend) Owned(ctx context.Context, session, consumer string) (refs []backend.Ref, err error) {
	err = b.read(ctx, "owned", func(s *state) error {
		if c := s.consumers[consumer]; c != nil && s.live(session) {
			for _, l := range c.order {
				if l.session == session {
					refs = append(refs, backend.Ref{Resource: l.resource, Epoch: l.epoch})
				}
			}
		}
		return nil
	})
	return refs, err
}

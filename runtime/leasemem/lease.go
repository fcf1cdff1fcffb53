package leasemem

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// consumer is what is known of a registered consumer.
type consumer struct {
	info   backend.ConsumerInfo   // as it was registered last, with the patterns of all members
	wanted map[string]time.Time   // patterns, and when a session was last seen to have them
	leases map[string]*leaseState // by resource
	dead   []*deadLetter          // the oldest first
	start  cursor                 // where resources begin
}

// leaseState is one resource of one consumer. It is never deleted: the epoch lives in it.
type leaseState struct {
	resource string
	owner    string // session id; empty when released or never owned
	epoch    int64
	seq      int64     // of the last progress under epoch
	since    time.Time // when it was made, or freed last
	expires  time.Time // of a lease that expires by itself (LockRow)
	wanted   bool      // a stream has, or may have, work
	attempt  string    // of the acquire that granted it
	acquired time.Time

	cursor     cursor
	parked     map[string][]*parked // by lane, in order
	parkedByID map[string]*parked
	suspicion  int
	mark       string
	markEpoch  int64 // the epoch that set mark last
	markCount  int
}

// free reports whether l may be taken at now, and whether its owner crashed.
func (s *store) free(l *leaseState, grace time.Duration, now time.Time) (free, crashed bool) {
	if l.owner == "" {
		return true, false
	}
	se := s.sessions[l.owner]
	if !se.alive(now) && !now.Before(se.expires.Add(grace)) {
		return true, true
	}
	// One that expired under a session that lives was not left by a crash.
	return !l.expires.IsZero() && !now.Before(l.expires.Add(grace)), !se.alive(now)
}

// owned reports that l has an owner who may still believe in it.
func (s *store) owned(c *consumer, l *leaseState, now time.Time) bool {
	free, _ := s.free(l, c.info.Grace, now)
	se := s.sessions[l.owner]
	return !free && se != nil && se.alive(now)
}

// vacate leaves l without an owner.
func (l *leaseState) vacate(now time.Time) { l.owner, l.since = "", now }

// counts reports that l counts as a resource: a stream does while it is wanted.
func (c *consumer) counts(l *leaseState) bool { return c.info.Per != backend.PerStream || l.wanted }

// sortedLeases returns the leases of c by resource, so that runs repeat.
func (c *consumer) sortedLeases() []*leaseState {
	return slices.SortedFunc(maps.Values(c.leases), func(a, b *leaseState) int { return cmp.Compare(a.resource, b.resource) })
}

// Register makes resources known. Topics that the consumer's patterns do not match are passed over.
func (b *Backend) Register(ctx context.Context, info backend.ConsumerInfo, resources []string) error {
	return do(ctx, b, "Register", func(s *store, now time.Time) error {
		if info.Source != nil {
			return fmt.Errorf("leasemem: consumer %q has a source of its own, a %T, which is read by another backend", info.Name, info.Source)
		}
		c := s.consumers[info.Name]
		if c == nil {
			c = &consumer{leases: map[string]*leaseState{}, wanted: map[string]time.Time{}}
			s.consumers[info.Name] = c
			if info.From == backend.FromNow {
				c.start = cursor(s.log.lastID)
			}
		} else if one := func(p backend.Per) bool { return p == backend.PerGroup || p == backend.PerCluster }; c.info.Per != info.Per && !(one(c.info.Per) && one(info.Per)) {
			return fmt.Errorf("leasemem: register consumer %s: it was per=%s before and is per=%s now, whose resources are others; give the consumer another name", info.Name, c.info.Per, info.Per)
		}
		patterns := c.info.Topics
		c.info = info
		c.info.Topics = patterns
		c.want(info.Topics, now)
		before, changed := len(c.leases), false
		switch info.Per {
		case backend.PerTopic:
			if resources == nil {
				resources = slices.Collect(maps.Keys(s.log.topics))
			}
			for _, t := range resources {
				if backend.MatchTopic(c.info.Topics, t) {
					c.register(t)
				}
			}
		case backend.PerPartition:
			for i := range s.log.slotCount {
				c.register(strconv.Itoa(i))
			}
		case backend.PerStream:
			changed = s.registerStreams(c, resources)
		default:
			c.register(backend.Whole)
		}
		switch {
		case !changed && len(c.leases) == before:
		case info.Per == backend.PerStream:
			s.streamsWanted(info.Name)
		default:
			s.ownershipChanged()
		}
		return nil
	})
}

func (c *consumer) register(resource string) *leaseState {
	l := c.leases[resource]
	if l == nil {
		l = &leaseState{resource: resource, cursor: c.start, parked: map[string][]*parked{}, parkedByID: map[string]*parked{}}
		c.leases[resource] = l
	}
	return l
}

// Survey counts members and leases.
func (b *Backend) Survey(ctx context.Context, consumers []string) ([]backend.Survey, error) {
	return call(ctx, b, "Survey", func(s *store, now time.Time) ([]backend.Survey, error) {
		out := make([]backend.Survey, len(consumers))
		for i, name := range consumers {
			out[i].Consumer = name
			owned := map[string]int{}
			if c := s.consumers[name]; c != nil {
				for _, l := range c.leases {
					if !c.counts(l) {
						continue
					}
					out[i].Resources++
					if free, _ := s.free(l, c.info.Grace, now); free {
						out[i].Free++
					}
					owned[l.owner]++
				}
			}
			for _, se := range s.members(name, now) {
				out[i].Members = append(out[i].Members, backend.Member{Session: se.spec.ID, Owned: owned[se.spec.ID]})
			}
		}
		return out, nil
	})
}

// members returns the live sessions of a consumer by id.
func (s *store) members(consumer string, now time.Time) []*session {
	var out []*session
	for _, se := range s.sessions {
		if se.alive(now) && slices.Contains(se.spec.Consumers, consumer) {
			out = append(out, se)
		}
	}
	slices.SortFunc(out, func(a, b *session) int { return cmp.Compare(a.spec.ID, b.spec.ID) })
	return out
}

// Acquire takes free resources: those that were freed first, else in the order of their names.
func (b *Backend) Acquire(ctx context.Context, req backend.AcquireRequest) ([]backend.Grant, error) {
	return call(ctx, b, "Acquire", func(s *store, now time.Time) ([]backend.Grant, error) {
		if _, err := s.live(req.Session, now); err != nil {
			return nil, err
		}
		c := s.consumers[req.Consumer.Name]
		if c == nil {
			return nil, nil
		}
		leases := c.sortedLeases()
		slices.SortStableFunc(leases, func(a, b *leaseState) int { return a.since.Compare(b.since) })
		var grants []backend.Grant
		for _, l := range leases {
			if l.owner == req.Session && l.attempt == req.Attempt {
				grants = append(grants, l.grant())
			}
		}
		if grants != nil {
			return grants, nil // the reply of this attempt was lost
		}
		for _, l := range leases {
			free, crashed := s.free(l, req.Consumer.Grace, now)
			if !free || !c.counts(l) || slices.Contains(req.Exclude, l.resource) {
				continue
			}
			if len(grants) >= req.Max {
				break
			}
			if crashed {
				s.sessions[l.owner].ended = true
				l.suspicion++
			}
			l.owner, l.attempt, l.acquired, l.seq, l.expires = req.Session, req.Attempt, now, 0, time.Time{}
			if req.Consumer.Lock == backend.LockRow {
				l.expires = now.Add(req.Consumer.TTL)
			}
			l.epoch = max(l.epoch+1, now.UnixMicro())
			grants = append(grants, l.grant())
		}
		return grants, nil
	})
}

func (l *leaseState) grant() backend.Grant {
	return backend.Grant{
		Ref:       backend.Ref{Resource: l.resource, Epoch: l.epoch},
		Cursor:    l.cursor,
		Lanes:     slices.Sorted(maps.Keys(l.parked)),
		Suspicion: l.suspicion,
		Mark:      l.mark,
		MarkCount: l.markCount,
	}
}

// Owned lists the leases of a session.
func (b *Backend) Owned(ctx context.Context, session, consumer string) (refs []backend.Ref, err error) {
	err = do(ctx, b, "Owned", func(s *store, _ time.Time) error {
		if c := s.consumers[consumer]; c != nil {
			for name, l := range c.leases {
				if l.owner == session {
					refs = append(refs, backend.Ref{Resource: name, Epoch: l.epoch})
				}
			}
		}
		return nil
	})
	return refs, err
}

// Release gives leases back.
func (b *Backend) Release(ctx context.Context, session, consumer string, leases []backend.Ref) error {
	return do(ctx, b, "Release", func(s *store, now time.Time) error {
		if _, err := s.live(session, now); err != nil {
			return err
		}
		for _, ref := range leases {
			if l := s.held(session, consumer, ref); l != nil {
				l.vacate(now)
			}
		}
		s.ownershipChanged()
		return nil
	})
}

// held returns the lease if session owns it with that epoch, else nil.
func (s *store) held(session, consumer string, ref backend.Ref) *leaseState {
	c := s.consumers[consumer]
	if c == nil || session == "" {
		return nil
	}
	l := c.leases[ref.Resource]
	if l == nil || l.owner != session || l.epoch != ref.Epoch {
		return nil
	}
	return l
}

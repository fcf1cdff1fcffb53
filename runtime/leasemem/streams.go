package leasemem

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// registerStreams makes streams wanted: those named, or all with work.
func (s *store) registerStreams(c *consumer, names []string) (changed bool) {
	if names == nil && !c.info.Announced {
		names = slices.Collect(maps.Keys(s.log.keys))
		for name, l := range c.leases {
			if len(l.parked) > 0 {
				names = append(names, name)
			}
		}
		names = slices.DeleteFunc(names, func(n string) bool { return !s.hasWork(c, n) })
	}
	for _, n := range names {
		if l := c.register(n); !l.wanted {
			l.wanted = true
			changed = true
		}
	}
	return changed
}

// unleased returns what the leases of streams would be that were not registered yet.
func (s *store) unleased(c *consumer) (out []*leaseState) {
	if c.info.Per != backend.PerStream || c.info.Announced {
		return nil
	}
	for key := range s.log.keys {
		if c.leases[key] == nil {
			out = append(out, &leaseState{resource: key, cursor: c.start})
		}
	}
	return out
}

// hasWork reports that a stream has messages that its owners have not passed, or parked ones.
func (s *store) hasWork(c *consumer, stream string) bool {
	at := c.start
	if l := c.leases[stream]; l != nil {
		if len(l.parked) > 0 {
			return true
		}
		at = l.cursor
	}
	return slices.ContainsFunc(s.log.pending(c.info, stream, at), func(m *message) bool { return matches(c.info, m) })
}

// Retire gives streams back; those without work are not granted until they are registered again.
func (b *Backend) Retire(ctx context.Context, session, consumer string, leases []backend.Ref) error {
	return do(ctx, b, "Retire", func(s *store, now time.Time) error {
		if _, err := s.live(session, now); err != nil {
			return err
		}
		for _, ref := range leases {
			if l := s.held(session, consumer, ref); l != nil {
				c := s.consumers[consumer]
				l.wanted = !c.info.Announced && s.hasWork(c, l.resource)
				l.vacate(now)
				if l.wanted {
					s.streamsWanted(consumer)
				}
			}
		}
		return nil
	})
}

// forgottenAfter is how long a stream must have been without work to be forgotten.
const forgottenAfter = 24 * time.Hour

// forgetStreams drops streams without work of which nothing is left, and returns how many.
// The epoch of one that comes again is higher: it is at least the time.
func (s *store) forgetStreams(c *consumer, now time.Time) (n int) {
	if c.info.Per != backend.PerStream {
		return 0
	}
	buried := map[string]bool{}
	for _, d := range c.dead {
		buried[d.resource] = true
	}
	for name, l := range c.leases {
		if !l.wanted && now.Sub(l.since) > forgottenAfter && len(l.parked) == 0 && !buried[name] && (c.info.Announced || len(s.log.keys[name]) == 0) {
			delete(c.leases, name)
			n++
		}
	}
	return n
}

// Renew extends leases that expire one by one.
func (b *Backend) Renew(ctx context.Context, session string, info backend.ConsumerInfo, leases []backend.Ref) ([]string, error) {
	return call(ctx, b, "Renew", func(s *store, now time.Time) ([]string, error) {
		_, dead := s.live(session, now)
		var lost []string
		for _, ref := range leases {
			l := s.held(session, info.Name, ref)
			if dead != nil || l == nil || !now.Before(l.expires) {
				lost = append(lost, ref.Resource)
				continue
			}
			l.expires = now.Add(info.TTL)
		}
		return lost, nil
	})
}

package leasemem

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/backend/rows"
)

// registerStreams makes streams wanted: those named, or all with work.
func (s *store) registerStreams(c *rows.Consumer, names []string) (changed bool) {
	if names == nil && !c.Announced {
		names = slices.Collect(maps.Keys(s.log.keys))
		for name, l := range s.Leases[c.Name] {
			if len(l.Parked) > 0 {
				names = append(names, name)
			}
		}
		names = slices.DeleteFunc(names, func(n string) bool { return !s.hasWork(c, n) })
	}
	for _, n := range names {
		known := s.Leases[c.Name][n] != nil
		l := s.Lease(c, n)
		changed = changed || l.Idle || !known
		l.Idle = false
	}
	return changed
}

// unleased returns what the leases of streams would be that were not registered yet.
func (s *store) unleased(c *rows.Consumer) (out []*rows.Lease) {
	if c.Per != backend.PerStream || c.Announced {
		return nil
	}
	for key := range s.log.keys {
		if s.Leases[c.Name][key] == nil {
			out = append(out, &rows.Lease{Ref: backend.Ref{Resource: key}, Cursor: c.Start})
		}
	}
	return out
}

// hasWork reports that a stream has messages that its owners have not passed, or parked ones.
func (s *store) hasWork(c *rows.Consumer, stream string) bool {
	at := c.Start
	if l := s.Leases[c.Name][stream]; l != nil {
		if len(l.Parked) > 0 {
			return true
		}
		at = l.Cursor
	}
	return slices.ContainsFunc(s.log.pending(c.ConsumerInfo, stream, at), func(m *message) bool { return matches(c.ConsumerInfo, m) })
}

// Retire gives streams back; those without work are not granted until they are registered again.
func (b *Backend) Retire(ctx context.Context, session, consumer string, leases []backend.Ref) error {
	return do(ctx, b, "Retire", func(s *store, now time.Time) error {
		if !s.Sessions[session].Live(now) {
			return backend.ErrSessionLost
		}
		for _, ref := range leases {
			if l := s.Held(session, consumer, ref); l != nil {
				c := s.Consumers[consumer]
				l.Idle = c.Announced || !s.hasWork(c, l.Resource)
				s.Drop(consumer, l)
				if !l.Idle {
					s.streamsWanted(consumer)
				}
			}
		}
		return nil
	})
}

// forgottenAfter is how long a stream must have been without work to be forgotten.
const forgottenAfter = 24 * time.Hour

// forgetStreams drops streams without work of which no message is left, and returns how many.
// The epoch of one that comes again is higher: it is at least the time.
func (s *store) forgetStreams(c *rows.Consumer, now time.Time) (n int) {
	if c.Per != backend.PerStream {
		return 0
	}
	buried := map[string]bool{}
	for _, d := range s.Dead {
		buried[d.Resource] = buried[d.Resource] || d.Consumer == c.Name
	}
	for name, l := range s.Leases[c.Name] {
		if l.Idle && now.Sub(l.Since) > forgottenAfter && len(l.Parked) == 0 && !buried[name] && (c.Announced || len(s.log.keys[name]) == 0) {
			delete(s.Leases[c.Name], name)
			n++
		}
	}
	return n
}

// Renew extends leases that expire one by one.
func (b *Backend) Renew(ctx context.Context, session string, info backend.ConsumerInfo, leases []backend.Ref) ([]string, error) {
	return call(ctx, b, "Renew", func(s *store, now time.Time) ([]string, error) {
		var lost []string
		for _, ref := range leases {
			l := s.Held(session, info.Name, ref)
			if l == nil || !now.Before(l.Expires) {
				lost = append(lost, ref.Resource)
				continue
			}
			l.Expires = now.Add(info.TTL)
		}
		return lost, nil
	})
}

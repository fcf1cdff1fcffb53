package leasemem

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// consumer is what is known of a registered consumer.
type consumer struct {
	info   backend.ConsumerInfo // as it was registered last, with the patterns of all members
	wanted map[string]time.Time // patterns, and when a session was last seen to have them
	dead   []*deadLetter        // the oldest first
	start  cursor               // where resources begin
}

// Register makes resources known. Topics that the consumer's patterns do not match are passed over.
func (b *Backend) Register(ctx context.Context, info backend.ConsumerInfo, resources []string) error {
	return do(ctx, b, "Register", func(s *store, now time.Time) error {
		if info.Source != nil {
			return fmt.Errorf("leasemem: consumer %q has a source of its own, a %T, which is read by another backend", info.Name, info.Source)
		}
		c := s.consumers[info.Name]
		if c == nil {
			c = &consumer{wanted: map[string]time.Time{}}
			s.consumers[info.Name] = c
			if info.From == backend.FromNow {
				c.start = cursor(s.log.lastID)
			}
		} else if err := backend.SamePer(c.info.Per, info.Per); err != nil {
			return fmt.Errorf("leasemem: register consumer %s: %w", info.Name, err)
		}
		patterns := c.info.Topics
		c.info = info
		c.info.Topics = patterns
		c.want(info.Topics, now)
		before, changed := len(s.Leases[c.info.Name]), false
		if info.Per == backend.PerStream {
			changed = s.registerStreams(c, resources)
		} else {
			for _, name := range c.info.Resources(resources, maps.Keys(s.log.topics), s.log.slotCount) {
				s.register(c, name)
			}
		}
		switch {
		case !changed && len(s.Leases[c.info.Name]) == before:
		case info.Per == backend.PerStream:
			s.streamsWanted(info.Name)
		default:
			s.ownershipChanged()
		}
		return nil
	})
}

func (s *store) register(c *consumer, resource string) *backend.LeaseRow {
	l := s.Leases[c.info.Name][resource]
	if l == nil {
		l = &backend.LeaseRow{Ref: backend.Ref{Resource: resource}, Cursor: c.start}
		s.Save(c.info.Name, l)
	}
	return l
}

// Survey counts members and leases.
func (b *Backend) Survey(ctx context.Context, consumers []string) ([]backend.Survey, error) {
	return call(ctx, b, "Survey", func(s *store, now time.Time) ([]backend.Survey, error) {
		out := make([]backend.Survey, len(consumers))
		for i, name := range consumers {
			grace := time.Duration(0)
			if c := s.consumers[name]; c != nil {
				grace = c.info.Grace
			}
			out[i] = s.Rows.Survey(name, grace)
		}
		return out, nil
	})
}

// Acquire takes free resources: those that were freed first, else in the order of their names.
func (b *Backend) Acquire(ctx context.Context, req backend.AcquireRequest) ([]backend.Grant, error) {
	return call(ctx, b, "Acquire", func(s *store, now time.Time) ([]backend.Grant, error) {
		return s.Rows.Acquire(req)
	})
}

// Owned lists the leases of a session.
func (b *Backend) Owned(ctx context.Context, session, consumer string) ([]backend.Ref, error) {
	return call(ctx, b, "Owned", func(s *store, _ time.Time) ([]backend.Ref, error) { return s.Rows.Owned(session, consumer), nil })
}

// Release gives leases back.
func (b *Backend) Release(ctx context.Context, session, consumer string, leases []backend.Ref) error {
	return do(ctx, b, "Release", func(s *store, _ time.Time) error {
		s.ownershipChanged()
		return s.Rows.Release(session, consumer, leases)
	})
}

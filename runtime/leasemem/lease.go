package leasemem

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// Register makes resources known. Topics that the consumer's patterns do not match are passed over.
func (b *Backend) Register(ctx context.Context, info backend.ConsumerInfo, resources []string) error {
	if err := backend.CheckNames(info.Name); err != nil {
		return err
	}
	return do(ctx, b, "Register", func(s *store, now time.Time) error {
		if info.Source != nil {
			return fmt.Errorf("leasemem: consumer %q has a source of its own, a %T, which is read by another backend", info.Name, info.Source)
		}
		before, changed := len(s.Leases[info.Name]), false
		if err := s.Rows.Register(info, resources, maps.Keys(s.log.topics), s.log.slotCount, cursor(s.log.lastID)); err != nil {
			return fmt.Errorf("leasemem: register consumer %s: %w", info.Name, err)
		}
		if info.Per == backend.PerStream {
			changed = s.registerStreams(s.Consumers[info.Name], resources)
		}
		switch {
		case !changed && len(s.Leases[info.Name]) == before:
		case info.Per == backend.PerStream:
			s.streamsWanted(info.Name)
		default:
			s.ownershipChanged()
		}
		return nil
	})
}

// Survey counts members and leases.
func (b *Backend) Survey(ctx context.Context, consumers []string) ([]backend.Survey, error) {
	return call(ctx, b, "Survey", func(s *store, now time.Time) ([]backend.Survey, error) {
		return s.Rows.Survey(consumers), nil
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

package leasemem

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// Status describes every consumer that was registered.
func (b *Backend) Status(ctx context.Context) ([]operate.ConsumerStatus, error) {
	return call(ctx, b, "Status", func(s *store, now time.Time) ([]operate.ConsumerStatus, error) {
		s.releaseDelayed(now) // what is due is in the log, whether or not a feed has looked
		all := s.Operator().Status()
		for i := range all {
			c := s.Consumers[all[i].Consumer]
			for _, l := range s.unleased(c) { // no process has asked for them yet
				all[i].AddLag(s.Lag(c.ConsumerInfo, l))
			}
			for _, d := range s.outbox.delayed {
				if backend.MatchTopic(c.Topics, d.event.Topic) {
					all[i].Delayed++
				}
			}
		}
		return all, nil
	})
}

// Members lists the live sessions of a consumer.
func (b *Backend) Members(ctx context.Context, name string) ([]operate.MemberStatus, error) {
	return call(ctx, b, "Members", func(s *store, now time.Time) ([]operate.MemberStatus, error) {
		return s.Operator().Members(name), nil
	})
}

// Leases lists leases of a consumer. A limit of 0 means all.
func (b *Backend) Leases(ctx context.Context, name string, limit int) ([]operate.LeaseStatus, error) {
	return call(ctx, b, "Leases", func(s *store, now time.Time) ([]operate.LeaseStatus, error) {
		return s.Operator().Leases(name, limit), nil
	})
}

// Pause stops the work on a consumer until Resume.
func (b *Backend) Pause(ctx context.Context, name string) error {
	return b.pause(ctx, "Pause", name, true)
}

// Resume ends a pause.
func (b *Backend) Resume(ctx context.Context, name string) error {
	return b.pause(ctx, "Resume", name, false)
}

func (b *Backend) pause(ctx context.Context, op, name string, paused bool) error {
	return do(ctx, b, op, func(s *store, _ time.Time) error {
		if err := s.Operator().Pause(name, paused); err != nil {
			return fmt.Errorf("leasemem: %s consumer %s: %w", strings.ToLower(op), name, err)
		}
		s.ownershipChanged()
		return nil
	})
}

// Forget deletes a consumer that no live handle is a member of, with its leases, cursors, parked messages and executed items, so
// that the log need not be kept for it any longer. It refuses while there are dead letters. One that runs later begins again.
func (b *Backend) Forget(ctx context.Context, consumer string) error {
	return do(ctx, b, "Forget", func(s *store, _ time.Time) error {
		if err := s.Operator().Forget(consumer); err != nil {
			return fmt.Errorf("leasemem: forget consumer %q: %w", consumer, err)
		}
		maps.DeleteFunc(s.ledger.items, func(name itemName, _ *item) bool { return name.consumer == consumer })
		s.ownershipChanged()
		return nil
	})
}

// DeadLetters lists dead letters.
func (b *Backend) DeadLetters(ctx context.Context, f operate.DeadLetterFilter) ([]operate.DeadLetterInfo, error) {
	return call(ctx, b, "DeadLetters", func(s *store, now time.Time) ([]operate.DeadLetterInfo, error) {
		return s.Operator().DeadLetters(f)
	})
}

// DeadLetterGroups counts dead letters by reason.
func (b *Backend) DeadLetterGroups(ctx context.Context, f operate.DeadLetterFilter) (operate.DeadLetterGroups, error) {
	return call(ctx, b, "DeadLetterGroups", func(s *store, now time.Time) (operate.DeadLetterGroups, error) {
		return s.Operator().DeadLetterGroups(f)
	})
}

// Parked lists parked messages.
func (b *Backend) Parked(ctx context.Context, f operate.ParkedFilter) ([]operate.ParkedInfo, error) {
	return call(ctx, b, "Parked", func(s *store, _ time.Time) ([]operate.ParkedInfo, error) { return s.Operator().Parked(f) })
}

// RetryParked makes parked messages due now.
func (b *Backend) RetryParked(ctx context.Context, f operate.ParkedFilter) (int, error) {
	return call(ctx, b, "RetryParked", func(s *store, _ time.Time) (int, error) {
		n, err := s.Operator().RetryParked(f)
		if n > 0 {
			s.replayed(f.Consumer)
		}
		return n, err
	})
}

// Replay parks dead letters again, in the lane of their key, due at once.
func (b *Backend) Replay(ctx context.Context, f operate.DeadLetterFilter) (int, error) {
	return call(ctx, b, "Replay", func(s *store, now time.Time) (int, error) {
		replayed, err := s.Operator().Replay(f)
		for _, d := range replayed {
			s.ownershipChanged() // a stream may be wanted again
			s.replayed(d.Consumer)
		}
		return len(replayed), err
	})
}

// Purge deletes dead letters.
func (b *Backend) Purge(ctx context.Context, f operate.DeadLetterFilter) (int, error) {
	return call(ctx, b, "Purge", func(s *store, now time.Time) (int, error) { return s.Operator().Purge(f) })
}

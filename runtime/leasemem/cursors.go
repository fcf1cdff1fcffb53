package leasemem

import (
	"context"
	"fmt"
	"time"

	"github.com/leasegen/leasegen/runtime/operate"
)

// Cursors shows how far a consumer has got. A limit of 0 means all.
func (b *Backend) Cursors(ctx context.Context, name, resource string, limit int) ([]operate.CursorStatus, error) {
	return call(ctx, b, "Cursors", func(s *store, now time.Time) ([]operate.CursorStatus, error) {
		all, err := s.Operator().Cursors(name, resource, limit)
		if err != nil {
			err = fmt.Errorf("leasemem: cursors of %s: %w", name, err)
		}
		for i := range all {
			if !s.keeps(name, all[i].Resource) {
				all[i].Gone = all[i].Position
			}
		}
		return all, err
	})
}

// SetCursor moves cursors and fences their owners.
func (b *Backend) SetCursor(ctx context.Context, name, resource string, to operate.CursorTarget) (int, error) {
	return call(ctx, b, "SetCursor", func(s *store, now time.Time) (int, error) {
		moved, err := s.Operator().SetCursor(name, resource, to, cursor(s.log.lastID))
		if err != nil {
			return 0, fmt.Errorf("leasemem: set the cursor of %s: %w", name, err)
		}
		for _, l := range moved {
			l.Idle = l.Idle && !s.hasWork(s.Consumers[name], l.Resource)
		}
		if len(moved) > 0 {
			s.ownershipChanged()
		}
		return len(moved), nil
	})
}

// keeps reports whether the log has a message that a consumer has passed on a resource.
func (s *store) keeps(name, resource string) bool {
	for at := range s.Unread(s.Consumers[name].ConsumerInfo, resource, 0) {
		return at <= s.Leases[name][resource].Cursor
	}
	return false
}

package leasemem

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// Cursors shows how far a consumer has got. A limit of 0 means all.
func (b *Backend) Cursors(ctx context.Context, name, resource string, limit int) ([]operate.CursorStatus, error) {
	return call(ctx, b, "Cursors", func(s *store, now time.Time) ([]operate.CursorStatus, error) {
		c := s.consumers[name]
		if c == nil {
			return nil, nil
		}
		if c.info.ReadsNothing() {
			return nil, fmt.Errorf("leasemem: cursors of %s: %w", name, operate.ErrNoCursor)
		}
		return backend.CursorStatuses(s.views(c, resource, now), limit), nil
	})
}

// SetCursor moves cursors and fences their owners.
func (b *Backend) SetCursor(ctx context.Context, name, resource string, to operate.CursorTarget) (int, error) {
	return call(ctx, b, "SetCursor", func(s *store, now time.Time) (int, error) {
		at, err := s.target(to)
		if err != nil {
			return 0, fmt.Errorf("leasemem: set the cursor of %s: %w", name, err)
		}
		c := s.consumers[name]
		if c == nil {
			return 0, fmt.Errorf("leasemem: set the cursor of %s: no such consumer has run", name)
		}
		if c.info.ReadsNothing() {
			return 0, fmt.Errorf("leasemem: set the cursor of %s: %w", name, operate.ErrNoCursor)
		}
		moved := s.MoveCursors(name, resource, at, to.Beginning)
		for _, l := range moved {
			if to.Beginning {
				c.dead = slices.DeleteFunc(c.dead, func(d *deadLetter) bool { return d.Resource == l.Resource })
			}
			l.Idle = l.Idle && !s.hasWork(c, l.Resource)
		}
		if len(moved) > 0 {
			s.ownershipChanged()
		}
		return len(moved), nil
	})
}

func (s *store) target(to operate.CursorTarget) (cursor, error) {
	if err := to.Check(); err != nil || to.Beginning {
		return 0, err
	}
	if to.Now {
		return cursor(s.log.lastID), nil
	}
	id, err := strconv.ParseInt(to.After, 10, 64)
	if err != nil || id < 1 {
		return 0, fmt.Errorf("%q is not the id of a message", to.After)
	}
	return cursor(id), nil
}

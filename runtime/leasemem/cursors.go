package leasemem

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

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
		var out []operate.CursorStatus
		for _, l := range c.sortedLeases() {
			if resource != "" && l.resource != resource {
				continue
			}
			st := operate.CursorStatus{Resource: l.resource, Epoch: l.epoch}
			if s.owned(c, l, now) {
				st.Session = l.owner
			}
			if l.cursor > 0 {
				st.Position = strconv.FormatInt(int64(l.cursor), 10)
			}
			st.Lag, st.OldestUnread = s.behind(c, l, now)
			out = append(out, st)
		}
		slices.SortStableFunc(out, func(a, b operate.CursorStatus) int { return cmp.Compare(b.Lag, a.Lag) })
		if limit > 0 && len(out) > limit {
			out = out[:limit]
		}
		return out, nil
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
		n := 0
		for _, l := range c.leases {
			if resource != "" && l.resource != resource {
				continue
			}
			n++
			l.cursor = at
			l.epoch = max(l.epoch+1, now.UnixMicro())
			l.attempt, l.mark, l.markEpoch, l.markCount = "", "", 0, 0
			if to.Beginning {
				clear(l.parked)
				clear(l.parkedByID)
				c.dead = slices.DeleteFunc(c.dead, func(d *deadLetter) bool { return d.resource == l.resource })
			}
			l.wanted = l.wanted || s.hasWork(c, l.resource)
			l.vacate(now)
		}
		if n > 0 {
			s.ownershipChanged()
		}
		return n, nil
	})
}

func (s *store) target(to operate.CursorTarget) (cursor, error) {
	switch {
	case to.Beginning && !to.Now && to.After == "":
		return 0, nil
	case to.Now && !to.Beginning && to.After == "":
		return cursor(s.log.lastID), nil
	case to.After != "" && !to.Beginning && !to.Now:
		id, err := strconv.ParseInt(to.After, 10, 64)
		if err != nil || id < 1 {
			return 0, fmt.Errorf("%q is not the id of a message", to.After)
		}
		return cursor(id), nil
	}
	return 0, errors.New("say exactly one of the beginning, now, and after which message")
}

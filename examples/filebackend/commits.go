package filebackend

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// sessionKept is how long a dead session is remembered at least. One that leases still name is kept for their grace.
const sessionKept = time.Hour

// FetchParked reads the messages that are due.
func (b *Backend) FetchParked(ctx context.Context, req backend.ParkedRequest) (backend.Parked, error) {
	return call(ctx, b, "fetch parked", func(s *store) (backend.Parked, error) {
		return s.FetchParked(req, func(p *backend.ParkedRow) backend.Raw { return s.message(p.ID).raw(req.MaxPayload) }), nil
	})
}

// Commit stores progress.
func (b *Backend) Commit(ctx context.Context, session, consumer string, entries []backend.Progress) ([]string, error) {
	return call(ctx, b, "commit", func(s *store) (fenced []string, err error) {
		for _, p := range entries { // before anything changes
			if err := s.valid(p); err != nil {
				return nil, fmt.Errorf("%s: %w", p.Resource, err)
			}
		}
		for _, p := range entries {
			if l := s.Held(session, consumer, p.Ref); l == nil {
				fenced = append(fenced, p.Resource)
			} else if l.Apply(p, s.At) {
				for _, dead := range p.Dead {
					s.bury(consumer, l, dead)
				}
				s.Save(consumer, l)
			}
		}
		return fenced, nil
	})
}

// valid refuses what cannot be stored.
func (s *store) valid(p backend.Progress) error {
	if _, ok := p.Cursor.(backend.Position); !ok && p.Cursor != nil {
		return fmt.Errorf("the cursor is a %T; use one of this backend", p.Cursor)
	}
	unknown := func(id string) bool { return s.message(id) == nil }
	if slices.ContainsFunc(p.Park, func(p backend.Park) bool { return unknown(p.ID) }) ||
		slices.ContainsFunc(p.Dead, func(d backend.Dead) bool { return unknown(d.ID) }) {
		return fmt.Errorf("there is no such message among %+v, %+v; use ids that Fetch returned", p.Park, p.Dead)
	}
	return nil
}

// bury makes a dead letter of a message. A repeated progress finds it there already and leaves it.
func (s *store) bury(consumer string, l *backend.LeaseRow, dead backend.Dead) {
	d := l.Bury(consumer, dead, s.message(dead.ID).raw(0), s.At)
	if d.ID = dead.ID + "-" + consumer; s.Dead[d.ID] == nil {
		s.line.Dead[d.ID] = &d
	}
}

// Maintain forgets in one call all that is due: in memory that is quick.
func (b *Backend) Maintain(ctx context.Context, consumers []backend.ConsumerInfo) (operate.MaintainReport, error) {
	return call(ctx, b, "maintain", func(s *store) (report operate.MaintainReport, err error) {
		for _, c := range consumers {
			letters := s.letters(operate.DeadLetterFilter{Consumer: c.Name})
			for i, d := range letters { // the oldest first
				switch {
				case c.Keep > 0 && s.At.Sub(d.DeadAt) > c.Keep:
					report.DeadLettersExpired++
				case c.Max > 0 && len(letters)-i > c.Max:
					report.DeadLettersDropped++
				default:
					continue
				}
				s.line.Dead[d.ID] = nil
			}
		}
		report.SessionsForgotten = s.Forget(sessionKept)
		return report, nil
	})
}

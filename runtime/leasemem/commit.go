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

// Commit stores progress.
func (b *Backend) Commit(ctx context.Context, session, consumer string, progress []backend.Progress) ([]string, error) {
	return call(ctx, b, "Commit", func(s *store, now time.Time) ([]string, error) {
		return s.commit(session, consumer, progress, now)
	})
}

// commit applies the entries whose epoch is current and names the others. With an
// error nothing has changed.
func (s *store) commit(session, consumer string, progress []backend.Progress, now time.Time) (fenced []string, err error) {
	for _, p := range progress {
		if l := s.Held(session, consumer, p.Ref); l == nil {
			fenced = append(fenced, p.Resource)
		} else if err := s.validate(consumer, l, p); err != nil {
			return nil, err
		}
	}
	for _, p := range progress {
		if l := s.Held(session, consumer, p.Ref); l != nil {
			s.apply(consumer, l, p, now)
		}
	}
	return fenced, nil
}

// validate finds what apply could not carry out.
func (s *store) validate(consumer string, l *backend.LeaseRow, p backend.Progress) error {
	c := s.consumers[consumer]
	if _, ok := p.Cursor.(cursor); !ok && p.Cursor != nil {
		return fmt.Errorf("leasemem: commit %s/%s: the cursor is a %T of another backend", consumer, l.Resource, p.Cursor)
	}
	known := func(id string) bool {
		return s.log.find(id) != nil || l.IsParked(id) || c.deadLetterOf(l.Resource, id) != nil
	}
	for _, k := range p.Park {
		if !known(k.ID) {
			return fmt.Errorf("leasemem: commit %s/%s: there is no message %q to park", consumer, l.Resource, k.ID)
		}
	}
	for _, d := range p.Dead {
		if !known(d.ID) {
			return fmt.Errorf("leasemem: commit %s/%s: there is no message %q to give up on", consumer, l.Resource, d.ID)
		}
	}
	return nil
}

func (s *store) apply(consumer string, l *backend.LeaseRow, p backend.Progress, now time.Time) {
	if !l.Apply(p, now) {
		return // held up on its way, and overtaken
	}
	l.Parked = slices.DeleteFunc(l.Parked, func(m *backend.ParkedRow) bool {
		if m.Message == nil {
			if found := s.log.find(m.ID); found != nil {
				m.Message = found
			}
		}
		return m.Message == nil // a repeated call: it is a dead letter by now
	})
	for _, d := range p.Dead {
		s.bury(s.consumers[consumer], l, d, now)
	}
	s.endItems(consumer, l, p.Once, now)
}

// bury makes a dead letter of a message. It does nothing when there is one already.
func (s *store) bury(c *consumer, l *backend.LeaseRow, d backend.Dead, now time.Time) {
	m := s.log.find(d.ID)
	if i := slices.IndexFunc(l.Parked, func(p *backend.ParkedRow) bool { return p.ID == d.ID }); i >= 0 {
		m = l.Parked[i].Message.(*message)
	}
	if m == nil {
		return
	}
	info := l.Bury(c.info.Name, d, m.raw(0), now)
	if c.deadLetterOf(l.Resource, d.ID) != nil {
		return
	}
	s.lastDeadID++
	info.ID = strconv.FormatInt(s.lastDeadID, 10)
	c.dead = append(c.dead, &deadLetter{info, s.lastDeadID, m})
}

// FetchParked reads due parked messages.
func (b *Backend) FetchParked(ctx context.Context, req backend.ParkedRequest) (backend.Parked, error) {
	return call(ctx, b, "FetchParked", func(s *store, _ time.Time) (backend.Parked, error) {
		return s.Rows.FetchParked(req, func(m *backend.ParkedRow) backend.Raw { return m.Message.(*message).raw(req.MaxPayload) }), nil
	})
}

// deadLetter is a message given up on.
type deadLetter struct {
	operate.DeadLetterInfo
	id      int64
	message *message
}

func (c *consumer) deadLetterOf(resource, id string) *deadLetter {
	for _, d := range c.dead {
		if d.Resource == resource && d.MessageID == id {
			return d
		}
	}
	return nil
}

// Maintain drops expired and surplus dead letters, passed messages and sessions
// that ended and own nothing. A segment of this log is one message.
func (b *Backend) Maintain(ctx context.Context, consumers []backend.ConsumerInfo) (operate.MaintainReport, error) {
	return call(ctx, b, "Maintain", func(s *store, now time.Time) (operate.MaintainReport, error) {
		var r operate.MaintainReport
		s.releaseDelayed(now)
		r.IDsForgotten = s.forgetIDs(now)
		for _, info := range consumers {
			r.OnceForgotten += s.forgetItems(info, now)
			c := s.consumers[info.Name]
			if c == nil {
				continue
			}
			s.forgetPatterns(c, now)
			before := len(c.dead)
			if info.Keep > 0 {
				c.dead = slices.DeleteFunc(c.dead, func(d *deadLetter) bool { return now.Sub(d.DeadAt) > info.Keep })
			}
			r.DeadLettersExpired += before - len(c.dead)
			r.StreamsForgotten += s.forgetStreams(c, now)
			if over := len(c.dead) - info.Max; info.Max > 0 && over > 0 {
				c.dead = slices.Delete(c.dead, 0, over)
				r.DeadLettersDropped += over
			}
		}
		if r.SessionsForgotten = s.Forget(0); r.SessionsForgotten > 0 {
			s.ownershipChanged()
		}
		r.SegmentsDropped = s.trim()
		return r, nil
	})
}

// behind counts the messages that follow a lease's cursor, and tells the age of the oldest.
func (s *store) behind(c *consumer, l *backend.LeaseRow, now time.Time) (lag int64, oldest time.Duration) {
	for _, m := range s.log.pending(c.info, l.Resource, l.Cursor) {
		if !matches(c.info, m) {
			continue
		}
		if lag++; lag == 1 {
			oldest = now.Sub(m.publishedAt)
		}
	}
	return lag, oldest
}

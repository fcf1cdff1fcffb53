package filebackend

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// sessionKept is how long a dead session is remembered at least. One that leases still name is kept for their grace.
const sessionKept = time.Hour

type parked struct {
	backend.Park
	Due, FirstFailed time.Time
	Since            time.Time // when it was set aside, or its attempt or error last changed
}

// lanes returns the parked messages by lane, the lane first that has waited the longest.
func (l *lease) lanes() [][]*parked {
	lanes := map[string][]*parked{}
	for _, p := range l.Parked {
		lanes[p.Lane] = append(lanes[p.Lane], p)
	}
	return slices.SortedFunc(maps.Values(lanes), func(a, b []*parked) int {
		return cmp.Or(a[0].Due.Compare(b[0].Due), cmp.Compare(a[0].Lane, b[0].Lane))
	})
}

// FetchParked reads the lanes whose head is due.
func (b *Backend) FetchParked(ctx context.Context, req backend.ParkedRequest) (backend.Parked, error) {
	return call(ctx, b, "fetch parked", func(s *store) (backend.Parked, error) {
		answer := backend.Parked{Next: -1}
		for _, l := range s.Leases[req.Consumer.Name] {
			if s.held(req.Session, req.Consumer.Name, l.Ref) == nil || slices.Contains(req.Exclude, l.Resource) ||
				len(req.Resources) > 0 && !slices.Contains(req.Resources, l.Resource) {
				continue
			}
			room := req.Limit - len(answer.Messages)
			if req.PerResource > 0 {
				room = min(room, req.PerResource)
			}
			for _, lane := range l.lanes() {
				for i, p := range lane {
					if wait := p.Due.Sub(s.At); wait > 0 {
						if answer.Next < 0 || wait < answer.Next {
							answer.Next = wait
						}
						break
					}
					if room--; room < 0 {
						answer.More = true
						break
					}
					m := s.message(p.ID)
					raw := m.Raw(p.ID, m.Due, req.MaxPayload)
					raw.Attempt = p.Attempt
					answer.Messages = append(answer.Messages, backend.ParkedMessage{Resource: l.Resource, Lane: p.Lane, Raw: raw,
						Last: i == len(lane)-1, Error: p.Error, Waited: s.At.Sub(p.Since)})
				}
			}
		}
		return answer, nil
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
			if l := s.held(session, consumer, p.Ref); l == nil {
				fenced = append(fenced, p.Resource)
			} else if p.Seq == 0 || p.Seq > l.Seq {
				s.progress(consumer, l, p)
				s.save(consumer, l)
			}
		}
		return fenced, nil
	})
}

// valid refuses what cannot be stored.
func (s *store) valid(p backend.Progress) error {
	if _, ok := p.Cursor.(position); !ok && p.Cursor != nil {
		return fmt.Errorf("the cursor is a %T; use one of this backend", p.Cursor)
	}
	unknown := func(id string) bool { return s.message(id) == nil }
	if slices.ContainsFunc(p.Park, func(p backend.Park) bool { return unknown(p.ID) }) ||
		slices.ContainsFunc(p.Dead, func(d backend.Dead) bool { return unknown(d.ID) }) {
		return fmt.Errorf("there is no such message among %+v, %+v; use ids that Fetch returned", p.Park, p.Dead)
	}
	return nil
}

func (s *store) progress(consumer string, l *lease, p backend.Progress) {
	l.Seq = max(l.Seq, p.Seq)
	if cursor, ok := p.Cursor.(position); ok {
		l.Cursor = cursor
	}
	for _, park := range p.Park {
		i := l.find(park.ID)
		if i < 0 {
			i = len(l.Parked)
			l.Parked = append(l.Parked, &parked{Since: s.At})
		}
		m := l.Parked[i]
		if park.Attempt > m.Attempt || park.Error != m.Error {
			m.Since = s.At
		}
		if park.Attempt > 0 && m.FirstFailed.IsZero() {
			m.FirstFailed = s.At
		}
		m.Park, m.Due = park, s.At.Add(park.After)
	}
	for _, id := range p.Done {
		l.unpark(id)
	}
	for _, dead := range p.Dead {
		s.bury(consumer, l, dead)
	}
	// An owner that marks the same message again has not got past it, but it is still one owner.
	if p.Mark != l.Mark {
		l.Mark, l.MarkCount, l.Marked = p.Mark, 0, 0
	}
	if p.Mark != "" && l.Marked != l.Epoch {
		l.MarkCount, l.Marked = l.MarkCount+1, l.Epoch
	}
	if p.Trust {
		l.Suspicion = 0
	}
}

// find returns where a message is parked, or -1.
func (l *lease) find(id string) int {
	return slices.IndexFunc(l.Parked, func(p *parked) bool { return p.ID == id })
}

// unpark removes a parked message and returns it, or nil.
func (l *lease) unpark(id string) *parked {
	i := l.find(id)
	if i < 0 {
		return nil
	}
	p := l.Parked[i]
	l.Parked = slices.Delete(l.Parked, i, i+1)
	return p
}

// bury makes a dead letter of a message. A repeated progress finds it there already and leaves it.
func (s *store) bury(consumer string, l *lease, dead backend.Dead) {
	m, first, id := s.message(dead.ID), s.At, dead.ID+"-"+consumer
	if p := l.unpark(dead.ID); p != nil && !p.FirstFailed.IsZero() {
		first = p.FirstFailed
	}
	if s.Dead[id] == nil {
		s.line.Dead[id] = &operate.DeadLetterInfo{ID: id, Consumer: consumer, Resource: l.Resource, MessageID: dead.ID,
			Topic: m.Topic, Key: m.Key, Kind: m.Kind, Size: len(m.Payload), Headers: m.Headers, PublishedAt: m.Due,
			FirstFailed: first, DeadAt: s.At, Attempts: dead.Attempt, Reason: dead.Reason}
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
		holds := map[string]bool{}
		for _, leases := range s.Leases {
			for _, l := range leases {
				holds[l.Session] = true
			}
		}
		for id, m := range s.Sessions {
			if !holds[id] && s.At.Sub(m.Expires) > sessionKept {
				s.line.Sessions[id] = nil
				report.SessionsForgotten++
			}
		}
		return report, nil
	})
}

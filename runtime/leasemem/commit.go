package leasemem

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

// parked is a message set aside.
type parked struct {
	message     *message
	lane        string
	attempt     int
	due         time.Time
	err         string
	firstFailed time.Time // zero until it failed
	since       time.Time // when it was set aside, its attempt last rose or its err last changed
}

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
		if l := s.held(session, consumer, p.Ref); l == nil {
			fenced = append(fenced, p.Resource)
		} else if err := s.validate(consumer, l, p); err != nil {
			return nil, err
		}
	}
	for _, p := range progress {
		if l := s.held(session, consumer, p.Ref); l != nil {
			s.apply(consumer, l, p, now)
		}
	}
	return fenced, nil
}

// validate finds what apply could not carry out.
func (s *store) validate(consumer string, l *leaseState, p backend.Progress) error {
	c := s.consumers[consumer]
	if _, ok := p.Cursor.(cursor); !ok && p.Cursor != nil {
		return fmt.Errorf("leasemem: commit %s/%s: the cursor is a %T of another backend", consumer, l.resource, p.Cursor)
	}
	known := func(id string) bool {
		return l.parkedByID[id] != nil || s.log.find(id) != nil || c.deadLetterOf(l.resource, id) != nil
	}
	for _, k := range p.Park {
		if !known(k.ID) {
			return fmt.Errorf("leasemem: commit %s/%s: there is no message %q to park", consumer, l.resource, k.ID)
		}
	}
	for _, d := range p.Dead {
		if !known(d.ID) {
			return fmt.Errorf("leasemem: commit %s/%s: there is no message %q to give up on", consumer, l.resource, d.ID)
		}
	}
	return nil
}

func (s *store) apply(consumer string, l *leaseState, p backend.Progress, now time.Time) {
	if p.Seq < l.seq {
		return // held up on its way, and overtaken
	}
	l.seq = p.Seq
	c := s.consumers[consumer]
	if at, ok := p.Cursor.(cursor); ok {
		l.cursor = at
	}
	for _, k := range p.Park {
		s.park(l, k, now)
	}
	for _, id := range p.Done {
		l.unpark(id)
	}
	for _, d := range p.Dead {
		s.bury(c, l, d, now)
	}
	s.endItems(consumer, l, p.Once, now)
	switch {
	case p.Mark == "":
		l.mark, l.markEpoch, l.markCount = "", 0, 0
	case p.Mark != l.mark:
		l.mark, l.markEpoch, l.markCount = p.Mark, l.epoch, 1
	case l.markEpoch != l.epoch: // a repeated call counts once
		l.markEpoch = l.epoch
		l.markCount++
	}
	if p.Trust {
		l.suspicion = 0
	}
}

func (s *store) park(l *leaseState, k backend.Park, now time.Time) {
	m := l.parkedByID[k.ID]
	if m == nil {
		found := s.log.find(k.ID)
		if found == nil {
			return // a repeated call: it is a dead letter by now
		}
		m = l.setAside(&parked{message: found, lane: k.Lane, since: now})
	}
	if k.Attempt > m.attempt || k.Error != m.err {
		m.since = now
	}
	m.attempt, m.due, m.err = k.Attempt, now.Add(k.After), k.Error
	if k.Attempt > 0 && m.firstFailed.IsZero() {
		m.firstFailed = now
	}
}

// bury makes a dead letter of a message. It does nothing when there is one already.
func (s *store) bury(c *consumer, l *leaseState, d backend.Dead, now time.Time) {
	dl := &deadLetter{consumer: c.info.Name, resource: l.resource, attempts: d.Attempt, reason: d.Reason, firstFailed: now, deadAt: now}
	if m := l.unpark(d.ID); m != nil {
		dl.message = m.message
		if !m.firstFailed.IsZero() {
			dl.firstFailed = m.firstFailed
		}
	} else {
		dl.message = s.log.find(d.ID)
	}
	if c.deadLetterOf(l.resource, d.ID) != nil || dl.message == nil {
		return
	}
	s.lastDeadID++
	dl.id = s.lastDeadID
	c.dead = append(c.dead, dl)
}

// unpark removes a parked message and returns it, or nil.
func (l *leaseState) unpark(id string) *parked {
	m := l.parkedByID[id]
	if m == nil {
		return nil
	}
	delete(l.parkedByID, id)
	lane := l.parked[m.lane]
	i := slices.Index(lane, m)
	if l.parked[m.lane] = slices.Delete(lane, i, i+1); len(lane) == 1 {
		delete(l.parked, m.lane)
	}
	return m
}

// setAside appends a message to its lane.
func (l *leaseState) setAside(m *parked) *parked {
	l.parked[m.lane] = append(l.parked[m.lane], m)
	l.parkedByID[m.message.name()] = m
	return m
}

// FetchParked reads due parked messages, the lane that is due longest first. A lane
// is read up to its first message that still waits.
func (b *Backend) FetchParked(ctx context.Context, req backend.ParkedRequest) (backend.Parked, error) {
	return call(ctx, b, "FetchParked", func(s *store, now time.Time) (backend.Parked, error) {
		out := backend.Parked{Next: -1}
		c := s.consumers[req.Consumer.Name]
		if c == nil {
			return out, nil
		}
		type dueLane struct {
			resource string
			messages []*parked
		}
		var due []dueLane
		for _, l := range c.sortedLeases() {
			if l.owner != req.Session || len(req.Resources) > 0 && !slices.Contains(req.Resources, l.resource) ||
				slices.Contains(req.Exclude, l.resource) {
				continue
			}
			for _, lane := range slices.Sorted(maps.Keys(l.parked)) {
				ms := l.parked[lane]
				waits := slices.IndexFunc(ms, func(m *parked) bool { return m.due.After(now) })
				if waits != 0 {
					due = append(due, dueLane{l.resource, ms})
				}
				if waits >= 0 {
					if d := ms[waits].due.Sub(now); out.Next < 0 || d < out.Next {
						out.Next = d
					}
				}
			}
		}
		slices.SortStableFunc(due, func(a, b dueLane) int { return a.messages[0].due.Compare(b.messages[0].due) })
		read := map[string]int{} // by resource
		for _, d := range due {
			for i, m := range d.messages {
				if m.due.After(now) {
					break
				}
				if len(out.Messages) >= req.Limit {
					out.More = true
					return out, nil
				}
				if req.PerResource > 0 && read[d.resource] >= req.PerResource {
					out.More = true
					break
				}
				read[d.resource]++
				r := m.message.raw(req.MaxPayload)
				r.Attempt = m.attempt
				out.Messages = append(out.Messages, backend.ParkedMessage{
					Resource: d.resource, Lane: m.lane, Raw: r, Last: i == len(d.messages)-1, Error: m.err, Waited: now.Sub(m.since),
				})
			}
		}
		return out, nil
	})
}

// deadLetter is a message given up on.
type deadLetter struct {
	consumer    string
	id          int64
	resource    string
	message     *message
	attempts    int
	reason      string
	firstFailed time.Time
	deadAt      time.Time
}

func (c *consumer) deadLetterOf(resource, id string) *deadLetter {
	for _, d := range c.dead {
		if d.resource == resource && d.message.name() == id {
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
				c.dead = slices.DeleteFunc(c.dead, func(d *deadLetter) bool { return now.Sub(d.deadAt) > info.Keep })
			}
			r.DeadLettersExpired += before - len(c.dead)
			r.StreamsForgotten += s.forgetStreams(c, now)
			if over := len(c.dead) - info.Max; info.Max > 0 && over > 0 {
				c.dead = slices.Delete(c.dead, 0, over)
				r.DeadLettersDropped += over
			}
		}
		owners := map[string]bool{}
		for _, c := range s.consumers {
			for _, l := range c.leases {
				owners[l.owner] = true
			}
		}
		for id, se := range s.sessions {
			if !se.alive(now) && !owners[id] {
				delete(s.sessions, id)
				r.SessionsForgotten++
			}
		}
		if r.SessionsForgotten > 0 {
			s.ownershipChanged()
		}
		r.SegmentsDropped = s.trim()
		return r, nil
	})
}

// behind counts the messages that follow a lease's cursor, and tells the age of the oldest.
func (s *store) behind(c *consumer, l *leaseState, now time.Time) (lag int64, oldest time.Duration) {
	for _, m := range s.log.pending(c.info, l.resource, l.cursor) {
		if !matches(c.info, m) {
			continue
		}
		if lag++; lag == 1 {
			oldest = now.Sub(m.publishedAt)
		}
	}
	return lag, oldest
}

// byLag orders lease states, the furthest behind first.
func byLag(a, b operate.LeaseStatus) int {
	return cmp.Or(cmp.Compare(b.Lag, a.Lag), cmp.Compare(a.Resource, b.Resource))
}

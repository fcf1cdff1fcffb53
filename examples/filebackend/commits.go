package filebackend

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

const (
	maintainAtOnce = 1000      // of each kind, in one call
	sessionKept    = time.Hour // how long a dead session is remembered, and longer while leases wait for its grace
)

type parked struct {
	*message
	lane        string
	attempt     int
	err         string
	due         time.Time
	since       time.Time // when it was set aside, or its attempt or error last changed
	firstFailed time.Time
}

type deadLetter struct {
	*message
	id, consumer, resource, lane, reason string
	attempts                             int
	firstFailed, at                      time.Time
}

// find returns where a message is parked, or -1.
func (l *lease) find(id string) int {
	return slices.IndexFunc(l.parked, func(p *parked) bool { return p.id() == id })
}

// lanes returns the parked messages by lane, in the order in which the lanes came to be.
func (l *lease) lanes() (lanes [][]*parked) {
	index := map[string]int{}
	for _, p := range l.parked {
		i, there := index[p.lane]
		if !there {
			i = len(lanes)
			index[p.lane] = i
			lanes = append(lanes, nil)
		}
		lanes[i] = append(lanes[i], p)
	}
	return lanes
}

// FetchParked reads the lanes whose head is due.
func (b *Backend) FetchParked(ctx context.Context, req backend.ParkedRequest) (backend.Parked, error) {
	answer := backend.Parked{Next: -1}
	err := b.read(ctx, "fetch parked", func(s *state) error {
		c := s.consumers[req.Consumer.Name]
		if c == nil || !s.live(req.Session) {
			return nil
		}
		asked := func(l *lease) bool {
			if len(req.Resources) > 0 {
				return slices.Contains(req.Resources, l.resource)
			}
			return !slices.Contains(req.Exclude, l.resource)
		}
		for _, l := range c.order {
			if l.session != req.Session || !asked(l) {
				continue
			}
			lanes, taken := l.lanes(), 0
			slices.SortStableFunc(lanes, func(a, b []*parked) int { return a[0].due.Compare(b[0].due) })
			for _, lane := range lanes {
				if wait := lane[0].due.Sub(s.now); wait > 0 {
					if answer.Next < 0 || wait < answer.Next {
						answer.Next = wait
					}
					break // the lanes behind are due later
				}
				for i, p := range lane {
					if p.due.After(s.now) {
						break
					}
					if len(answer.Messages) >= req.Limit || req.PerResource > 0 && taken >= req.PerResource {
						answer.More = true
						break
					}
					m := backend.ParkedMessage{Resource: l.resource, Lane: p.lane, Raw: p.raw(req.MaxPayload),
						Last: i == len(lane)-1, Error: p.err, Waited: s.now.Sub(p.since)}
					m.Attempt = p.attempt
					answer.Messages = append(answer.Messages, m)
					taken++
				}
			}
		}
		return nil
	})
	return answer, err
}

// Commit stores progress.
func (b *Backend) Commit(ctx context.Context, session, consumer string, entries []backend.Progress) ([]string, error) {
	c := commit{Session: session, Consumer: consumer}
	for _, e := range entries {
		p := progress{Progress: e}
		if e.Cursor != nil {
			cursor, ok := e.Cursor.(position)
			if !ok {
				return nil, fmt.Errorf("commit %s %s: the cursor is a %T of another backend; use one that Fetch returned", consumer, e.Resource, e.Cursor)
			}
			p.Cursor = &cursor
		}
		c.Progress = append(c.Progress, p)
	}
	return change[[]string](ctx, b, "commit", c)
}

type commit struct {
	Session, Consumer string
	Progress          []progress
}

// progress is backend.Progress with a cursor that can be read back.
type progress struct {
	backend.Progress
	Cursor *position
}

func (c commit) apply(s *state) (any, error) {
	var fenced []string
	for _, p := range c.Progress { // before anything changes
		for _, park := range p.Park {
			if s.message(park.ID) == nil {
				return nil, fmt.Errorf("commit %s %s: there is no message %q to park; use ids that Fetch returned", c.Consumer, p.Resource, park.ID)
			}
		}
		for _, dead := range p.Dead {
			if s.message(dead.ID) == nil {
				return nil, fmt.Errorf("commit %s %s: there is no message %q to give up; use ids that Fetch returned", c.Consumer, p.Resource, dead.ID)
			}
		}
	}
	for _, p := range c.Progress {
		l := s.held(c.Session, c.Consumer, p.Ref)
		switch {
		case l == nil:
			fenced = append(fenced, p.Resource)
		case p.Seq > l.seq || p.Seq == 0 && l.seq <= 0: // 0 is not numbered, and harmless to repeat
			s.progress(c.Consumer, l, p)
			s.changed = true
		}
	}
	return fenced, nil
}

func (s *state) progress(consumer string, l *lease, p progress) {
	l.seq = p.Seq
	if p.Cursor != nil {
		l.cursor = *p.Cursor
	}
	for _, park := range p.Park {
		i := l.find(park.ID)
		if i < 0 {
			i = len(l.parked)
			l.parked = append(l.parked, &parked{message: s.message(park.ID), lane: park.Lane, since: s.now})
		}
		m := l.parked[i]
		if park.Attempt > m.attempt || park.Error != m.err {
			m.since = s.now
		}
		if park.Attempt > 0 && m.firstFailed.IsZero() {
			m.firstFailed = s.now
		}
		m.attempt, m.err, m.due = park.Attempt, park.Error, s.now.Add(park.After)
	}
	for _, id := range p.Done {
		if i := l.find(id); i >= 0 {
			l.parked = slices.Delete(l.parked, i, i+1)
		}
	}
	for _, dead := range p.Dead {
		if slices.ContainsFunc(s.dead, func(d *deadLetter) bool {
			return d.consumer == consumer && d.resource == l.resource && d.message.id() == dead.ID
		}) {
			continue // it is repeated
		}
		s.deaths++
		d := &deadLetter{message: s.message(dead.ID), id: strconv.Itoa(s.deaths), consumer: consumer, resource: l.resource,
			reason: dead.Reason, attempts: dead.Attempt, firstFailed: s.now, at: s.now}
		d.lane = d.Key
		if i := l.find(dead.ID); i >= 0 {
			d.lane, d.firstFailed = l.parked[i].lane, cmp.Or(l.parked[i].firstFailed, s.now)
			l.parked = slices.Delete(l.parked, i, i+1)
		}
		s.dead = append(s.dead, d)
	}
	// An owner that marks the same message again has not got past it, but it is still one owner.
	if p.Mark != l.mark {
		l.mark, l.marks, l.marked = p.Mark, 0, 0
	}
	if p.Mark != "" && l.marked != l.epoch {
		l.marks, l.marked = l.marks+1, l.epoch
	}
	if p.Trust {
		l.suspicion = 0
	}
}

type maintained = operate.MaintainReport

type maintain struct{ Consumers []backend.ConsumerInfo }

func (c maintain) apply(s *state) (any, error) {
	var report maintained
	for _, info := range c.Consumers {
		count := 0
		for _, d := range s.dead {
			if d.consumer == info.Name {
				count++
			}
		}
		s.dead = slices.DeleteFunc(s.dead, func(d *deadLetter) bool {
			switch {
			case d.consumer != info.Name || report.DeadLettersExpired+report.DeadLettersDropped >= maintainAtOnce:
				return false
			case info.Keep > 0 && s.now.Sub(d.at) > info.Keep:
				report.DeadLettersExpired++
			case info.Max > 0 && count > info.Max:
				report.DeadLettersDropped++
			default:
				return false
			}
			count--
			return true
		})
	}
	holds := map[string]bool{}
	for _, c := range s.consumers {
		for _, l := range c.order {
			holds[l.session] = true
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.sessions)) {
		if !holds[id] && s.now.Sub(s.sessions[id].expires) > sessionKept && report.SessionsForgotten < maintainAtOnce {
			delete(s.sessions, id)
			report.SessionsForgotten++
		}
	}
	for len(s.idQueue) > 0 && !s.now.Before(s.ids[s.idQueue[0]]) && report.IDsForgotten < maintainAtOnce {
		delete(s.ids, s.idQueue[0])
		s.idQueue = s.idQueue[1:]
		report.IDsForgotten++
	}
	s.changed = report != maintained{}
	return report, nil
}

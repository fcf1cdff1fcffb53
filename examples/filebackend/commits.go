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

// sessionKept is how long a dead session is remembered at least. One that leases still name is kept for their grace.
const sessionKept = time.Hour

type parked struct {
	*message
	backend.Park
	due, firstFailed time.Time
	since            time.Time // when it was set aside, or its attempt or error last changed
}

type deadLetter struct {
	operate.DeadLetterInfo
	*message
	lane string
}

// find returns where a message is parked, or -1.
func (l *lease) find(id string) int {
	return slices.IndexFunc(l.parked, func(p *parked) bool { return p.ID == id })
}

// lanes returns the parked messages by lane, in the order in which the lanes came to be.
func (l *lease) lanes() (lanes [][]*parked) {
	index := map[string]int{}
	for _, p := range l.parked {
		i, there := index[p.Lane]
		if !there {
			i = len(lanes)
			index[p.Lane] = i
			lanes = append(lanes, nil)
		}
		lanes[i] = append(lanes[i], p)
	}
	return lanes
}

// FetchParked reads the lanes whose head is due, the longest wait first.
func (b *Backend) FetchParked(ctx context.Context, req backend.ParkedRequest) (backend.Parked, error) {
	return read(ctx, b, "fetch parked", func(s *state) (backend.Parked, error) {
		answer := backend.Parked{Next: -1}
		for _, l := range s.owned(req.Session, req.Consumer.Name) {
			if len(req.Resources) > 0 && !slices.Contains(req.Resources, l.resource) ||
				len(req.Resources) == 0 && slices.Contains(req.Exclude, l.resource) {
				continue
			}
			room := req.Limit - len(answer.Messages)
			if req.PerResource > 0 {
				room = min(room, req.PerResource)
			}
			lanes := l.lanes()
			slices.SortStableFunc(lanes, func(a, b []*parked) int { return a[0].due.Compare(b[0].due) })
			for _, lane := range lanes {
				if wait := lane[0].due.Sub(s.now); wait > 0 && (answer.Next < 0 || wait < answer.Next) {
					answer.Next = wait
				}
				for i, p := range lane {
					if p.due.After(s.now) {
						break
					}
					if room--; room < 0 {
						answer.More = true
						break
					}
					m := backend.ParkedMessage{Resource: l.resource, Lane: p.Lane, Raw: p.raw(req.MaxPayload),
						Last: i == len(lane)-1, Error: p.Error, Waited: s.now.Sub(p.since)}
					m.Attempt = p.Attempt
					answer.Messages = append(answer.Messages, m)
				}
			}
		}
		return answer, nil
	})
}

type progresses struct {
	Session, Consumer string
	Entries           []progress
}

// progress is backend.Progress with a cursor that can be read back.
type progress struct {
	backend.Progress
	Cursor *position
}

// Commit stores progress.
func (b *Backend) Commit(ctx context.Context, session, consumer string, entries []backend.Progress) ([]string, error) {
	all := progresses{Session: session, Consumer: consumer}
	for _, e := range entries {
		p := progress{Progress: e}
		if cursor, ok := e.Cursor.(position); ok {
			p.Cursor = &cursor
		} else if e.Cursor != nil {
			return nil, fmt.Errorf("commit %s: the cursor is a %T; use one of this backend", e.Resource, e.Cursor)
		}
		all.Entries = append(all.Entries, p)
	}
	return change[[]string](ctx, b, "commit", all)
}

func (s *state) commit(all progresses) (fenced []string, err error) {
	for _, p := range all.Entries { // before anything changes
		ids := []string(nil)
		for _, park := range p.Park {
			ids = append(ids, park.ID)
		}
		for _, dead := range p.Dead {
			ids = append(ids, dead.ID)
		}
		for _, id := range ids {
			if s.message(id) == nil {
				return nil, fmt.Errorf("commit %s: there is no message %q; use ids that Fetch returned", p.Resource, id)
			}
		}
	}
	for _, p := range all.Entries {
		if l := s.held(all.Session, all.Consumer, p.Ref); l == nil {
			fenced = append(fenced, p.Resource)
		} else if p.Seq > l.seq || p.Seq == 0 && l.seq == 0 { // 0 is not numbered, and harmless to repeat
			s.progress(all.Consumer, l, p)
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
			l.parked = append(l.parked, &parked{message: s.message(park.ID), since: s.now})
		}
		m := l.parked[i]
		if park.Attempt > m.Attempt || park.Error != m.Error {
			m.since = s.now
		}
		if park.Attempt > 0 {
			m.firstFailed = cmp.Or(m.firstFailed, s.now)
		}
		m.Park, m.due = park, s.now.Add(park.After)
	}
	for _, id := range p.Done {
		l.unpark(id)
	}
	for _, dead := range p.Dead {
		s.bury(consumer, l, dead)
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

// unpark removes a parked message and returns it, or nil.
func (l *lease) unpark(id string) *parked {
	i := l.find(id)
	if i < 0 {
		return nil
	}
	p := l.parked[i]
	l.parked = slices.Delete(l.parked, i, i+1)
	return p
}

// bury makes a dead letter of a message. A repeated progress finds it there already and leaves it.
func (s *state) bury(consumer string, l *lease, dead backend.Dead) {
	m, first := s.message(dead.ID), s.now
	lane := m.Key
	if p := l.unpark(dead.ID); p != nil {
		lane, first = p.Lane, cmp.Or(p.firstFailed, s.now)
	}
	if slices.ContainsFunc(s.dead, func(d *deadLetter) bool {
		return d.Consumer == consumer && d.Resource == l.resource && d.MessageID == dead.ID
	}) {
		return
	}
	s.deaths++
	info := operate.DeadLetterInfo{ID: strconv.Itoa(s.deaths), Consumer: consumer, Resource: l.resource, MessageID: dead.ID,
		Topic: m.Topic, Key: m.Key, Kind: m.Kind, Size: len(m.Payload), Headers: m.Headers, PublishedAt: m.published,
		FirstFailed: first, DeadAt: s.now, Attempts: dead.Attempt, Reason: dead.Reason}
	s.dead = append(s.dead, &deadLetter{info, m, lane})
}

type maintained = operate.MaintainReport

// Maintain forgets in one call all that is due: in memory that is quick.
func (b *Backend) Maintain(ctx context.Context, consumers []backend.ConsumerInfo) (maintained, error) {
	return change[maintained](ctx, b, "maintain", consumers)
}

func (s *state) maintain(consumers []backend.ConsumerInfo) (report maintained, err error) {
	for _, info := range consumers {
		count := 0
		for _, d := range s.dead {
			if d.Consumer == info.Name {
				count++
			}
		}
		s.dead = slices.DeleteFunc(s.dead, func(d *deadLetter) bool {
			switch {
			case d.Consumer == info.Name && info.Keep > 0 && s.now.Sub(d.DeadAt) > info.Keep:
				report.DeadLettersExpired++
			case d.Consumer == info.Name && info.Max > 0 && count > info.Max:
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
	sessions, ids := len(s.sessions), len(s.ids)
	maps.DeleteFunc(s.sessions, func(id string, m *session) bool { return !holds[id] && s.now.Sub(m.expires) > sessionKept })
	maps.DeleteFunc(s.ids, func(_ eventID, until time.Time) bool { return !s.now.Before(until) })
	report.SessionsForgotten, report.IDsForgotten = sessions-len(s.sessions), ids-len(s.ids)
	s.changed = report != maintained{}
	return report, nil
}

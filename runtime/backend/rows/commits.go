package rows

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// Fetch is Log.Fetch.
func (r *Rows) Fetch(req backend.FetchRequest) (all []backend.Fetched, err error) {
	c := req.Consumer
	if row := r.Consumers[c.Name]; row != nil {
		c.Topics = row.Topics
	}
	for _, item := range req.Items {
		from, ok := item.From.(Position) // nil is the beginning
		if !ok && item.From != nil {
			return nil, fmt.Errorf("fetch %s/%s: the cursor is a %T; use one of this backend", c.Name, item.Resource, item.From)
		}
		f := backend.Fetched{Resource: item.Resource}
		cuts := []Position{from}
		for at, m := range r.Log.Unread(c, item.Resource, from) {
			if f.More = len(f.Messages) >= item.Limit; f.More {
				break
			}
			f.Messages = append(f.Messages, m.Raw(req.MaxPayload))
			cuts = append(cuts, at)
		}
		f.Cut = func(n int) backend.Cursor {
			if n == 0 {
				return item.From
			}
			return cuts[n]
		}
		f.Next = f.Cut(len(f.Messages))
		all = append(all, f)
	}
	return all, nil
}

// Lag counts what is unread of a lease, and tells the age of the oldest message.
func (r *Rows) Lag(c backend.ConsumerInfo, l *Lease) (lag int64, oldest time.Duration) {
	for _, m := range r.Log.Unread(c, l.Resource, l.Cursor) {
		if lag++; lag == 1 {
			oldest = r.At.Sub(m.Raw(0).PublishedAt)
		}
	}
	return lag, oldest
}

// Commit is Commits.Commit, but for Progress.Once: it calls applied, which may be nil, with the entries that are not old.
func (r *Rows) Commit(session, consumer string, entries []backend.Progress, applied func(*Lease, backend.Progress)) (fenced []string, err error) {
	for _, p := range entries { // before anything changes
		if l := r.Held(session, consumer, p.Ref); l == nil {
			fenced = append(fenced, p.Resource)
		} else if err := r.valid(consumer, l, p); err != nil {
			return nil, err
		}
	}
	for _, p := range entries {
		l := r.Held(session, consumer, p.Ref)
		if l == nil || p.Seq != 0 && p.Seq <= l.Seq {
			continue
		}
		r.apply(l, p)
		for _, d := range p.Dead {
			r.bury(consumer, l, d)
		}
		if r.Save(consumer, l); applied != nil {
			applied(l, p)
		}
	}
	return fenced, nil
}

// valid refuses what cannot be stored.
func (r *Rows) valid(consumer string, l *Lease, p backend.Progress) error {
	if _, ok := p.Cursor.(Position); !ok && p.Cursor != nil {
		return fmt.Errorf("commit %s/%s: the cursor is a %T; use one of this backend", consumer, p.Resource, p.Cursor)
	}
	var ids []string
	for _, park := range p.Park {
		ids = append(ids, park.ID)
	}
	for _, d := range p.Dead {
		ids = append(ids, d.ID)
	}
	for _, id := range ids {
		if l.find(id) < 0 && r.Dead[deadName(consumer, id)] == nil && r.Log.Message(id) == nil {
			return fmt.Errorf("commit %s/%s: there is no message %q; use ids that Fetch returned", consumer, p.Resource, id)
		}
	}
	return nil
}

// apply stores all of a progress but Dead and Once.
func (r *Rows) apply(l *Lease, p backend.Progress) {
	l.Seq = max(l.Seq, p.Seq)
	if at, ok := p.Cursor.(Position); ok {
		l.Cursor = at
	}
	for _, park := range p.Park {
		i := l.find(park.ID)
		if i < 0 {
			m := r.Log.Message(park.ID)
			if m == nil {
				continue // a repeated call: it is a dead letter by now
			}
			i = len(l.Parked)
			l.park(&Parked{Since: r.At, Message: m})
		}
		m := l.Parked[i]
		if park.Attempt > m.Attempt || park.Error != m.Error {
			m.Since = r.At
		}
		if park.Attempt > 0 && m.FirstFailed.IsZero() {
			m.FirstFailed = r.At
		}
		m.Park, m.Due = park, r.At.Add(park.After)
	}
	for _, id := range p.Done {
		l.unpark(id)
	}
	// An owner that marks the same message again has not got past it, but it is still one owner.
	if p.Mark != l.Mark {
		l.Mark, l.MarkCount, l.MarkEpoch = p.Mark, 0, 0
	}
	if p.Mark != "" && l.MarkEpoch != l.Epoch {
		l.MarkCount, l.MarkEpoch = l.MarkCount+1, l.Epoch
	}
	if p.Trust {
		l.Suspicion = 0
	}
}

// bury makes a dead letter of a message. A repeated progress finds it there already and leaves it.
func (r *Rows) bury(consumer string, l *Lease, dead backend.Dead) {
	first, message := r.At, Message(nil)
	if p := l.unpark(dead.ID); p != nil {
		first, message = cmp.Or(p.FirstFailed, r.At), p.Message
	}
	name := deadName(consumer, dead.ID)
	if r.Dead[name] != nil {
		return
	}
	if message = r.message(message, dead.ID); message == nil {
		return // the same progress says that it was handled
	}
	m := message.Raw(0)
	id := deadPlace{r.At.UnixNano(), dead.ID, consumer}.id()
	r.saveDead(name, &Dead{Message: message, DeadLetterInfo: operate.DeadLetterInfo{ID: id, Consumer: consumer, Resource: l.Resource,
		MessageID: dead.ID, Topic: m.Topic, Key: m.Key, Kind: m.Kind, Size: m.Size, PublishedAt: m.PublishedAt,
		FirstFailed: first, DeadAt: r.At, Attempts: dead.Attempt, Reason: dead.Reason}})
}

// deadName names the dead letter of a message: each consumer has one at most.
func deadName(consumer, message string) string { return message + "-" + consumer }

// message is the one that was kept with a row, or else that of the log.
func (r *Rows) message(kept Message, id string) Message {
	if kept == nil {
		kept = r.Log.Message(id)
	}
	return kept
}

// park appends a message that is not parked yet.
func (l *Lease) park(m *Parked) {
	l.LastParked++
	m.Number = l.LastParked
	l.Parked = append(l.Parked, m)
}

func (l *Lease) find(id string) int {
	return slices.IndexFunc(l.Parked, func(m *Parked) bool { return m.ID == id })
}

// unpark removes a parked message and returns it, or nil when it is not parked.
func (l *Lease) unpark(id string) *Parked {
	i := l.find(id)
	if i < 0 {
		return nil
	}
	m := l.Parked[i]
	l.Parked = slices.Delete(l.Parked, i, i+1)
	return m
}

// Lanes returns the parked messages by lane, in the order of the lanes' names.
func (l *Lease) Lanes() [][]*Parked {
	lanes := map[string][]*Parked{}
	for _, m := range l.Parked {
		lanes[m.Lane] = append(lanes[m.Lane], m)
	}
	return slices.SortedFunc(maps.Values(lanes), func(a, b []*Parked) int { return cmp.Compare(a[0].Lane, b[0].Lane) })
}

// FetchParked is Commits.FetchParked: the lane that is due longest comes first, and a lane is read up to its first message
// that still waits.
func (r *Rows) FetchParked(req backend.ParkedRequest) backend.Parked {
	type lane struct {
		resource string
		messages []*Parked
	}
	var lanes []lane
	for _, l := range r.owned(req.Session, req.Consumer.Name) {
		if len(req.Resources) == 0 && slices.Contains(req.Exclude, l.Resource) ||
			len(req.Resources) > 0 && !slices.Contains(req.Resources, l.Resource) {
			continue
		}
		for _, messages := range l.Lanes() {
			lanes = append(lanes, lane{l.Resource, messages})
		}
	}
	slices.SortStableFunc(lanes, func(a, b lane) int { return a.messages[0].Due.Compare(b.messages[0].Due) })
	out, read := backend.Parked{Next: -1}, map[string]int{}
	for _, lane := range lanes {
		for i, m := range lane.messages {
			if wait := m.Due.Sub(r.At); wait > 0 {
				if out.Next < 0 || wait < out.Next {
					out.Next = wait
				}
				break
			}
			if len(out.Messages) >= req.Limit || req.PerResource > 0 && read[lane.resource] >= req.PerResource {
				out.More = true
				break
			}
			read[lane.resource]++
			content := r.message(m.Message, m.ID).Raw(req.MaxPayload)
			content.Attempt = m.Attempt
			out.Messages = append(out.Messages, backend.ParkedMessage{Resource: lane.resource, Lane: m.Lane, Raw: content,
				Last: i == len(lane.messages)-1, Error: m.Error, Waited: r.At.Sub(m.Since)})
		}
	}
	return out
}

// Maintain forgets what is due: dead letters, patterns, and dead sessions that hold no lease.
func (r *Rows) Maintain(consumers []backend.ConsumerInfo) (report operate.MaintainReport) {
	for _, c := range consumers {
		r.Operator().retain(c, &report)
		if row := r.Consumers[c.Name]; row != nil {
			r.forgetPatterns(row)
		}
	}
	report.SessionsForgotten = r.forget()
	return report
}

// forget drops dead sessions without leases, and returns how many.
func (r *Rows) forget() (n int) {
	holds := map[string]bool{}
	for _, leases := range r.Leases {
		for _, l := range leases {
			holds[l.Session] = true
		}
	}
	for id, s := range r.Sessions {
		if !holds[id] && !s.Live(r.At) {
			n++
			r.saveSession(id, nil)
		}
	}
	return n
}

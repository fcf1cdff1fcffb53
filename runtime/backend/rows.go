package backend

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/leasegen/leasegen/runtime/operate"
)

// Rows are the sessions and leases of a backend that keeps them whole: in memory, in a file, as documents. They have the
// rules of Ownership and Commits. The backend has the clock, the log, and the step in which rows change together. Rows
// are plain data, which survives JSON, and not for concurrent use.
type Rows struct {
	At       time.Time                       // the present, which the backend sets
	Sessions map[string]*SessionRow          `json:",omitempty"` // by id; the dead too, until they are forgotten
	Leases   map[string]map[string]*LeaseRow `json:",omitempty"` // by consumer and resource
	Changed  *Rows                           `json:"-"`          // if not nil, it gets the rows that methods change
	News     int                             `json:"-"`          // rises when a feed is to report Ownership
}

// SessionRow is a session.
type SessionRow struct {
	SessionSpec
	Opened, Beat, Expires time.Time
	Ended                 bool // closed, replaced, or found to have expired
}

// LeaseRow is a resource of a consumer.
type LeaseRow struct {
	Ref
	Cursor           Position
	Idle             bool         // a stream that is not wanted: see Streamer
	Session, Attempt string       // of the Acquire that took it; empty when it was given back. The session may be dead.
	Since            time.Time    // when it was taken or given back last
	Expires          time.Time    // of a lease with LockRow; else zero
	Seq              int64        // of the last progress in this epoch
	Parked           []*ParkedRow // in the order in which they were parked first
	Suspicion        int
	Mark             string
	MarkCount        int
	MarkEpoch        int64 // the last one that set the mark
}

// Position is a Cursor of a log whose messages are numbered from 1: the number of the last one passed.
type Position int64

// ParkedRow is a parked message.
type ParkedRow struct {
	Park
	Due         time.Time
	FirstFailed time.Time // zero until it failed
	Since       time.Time // when it was set aside, or its Attempt or Error last changed
	Message     any       `json:"-"` // of the backend's choice
}

// NewRows returns the rows of an empty store.
func NewRows() *Rows {
	return &Rows{Sessions: map[string]*SessionRow{}, Leases: map[string]map[string]*LeaseRow{}}
}

// Merge puts the rows of one that was Changed in their place. Nil is a row that is gone.
func (r *Rows) Merge(changed *Rows) {
	Merge(r.Sessions, changed.Sessions)
	for consumer, leases := range changed.Leases {
		if r.Leases[consumer] == nil {
			r.Leases[consumer] = map[string]*LeaseRow{}
		}
		Merge(r.Leases[consumer], leases)
	}
}

// Merge puts rows in their place in a table. Nil is a row that is gone.
func Merge[Row any](table, rows map[string]*Row) {
	for key, row := range rows {
		if table[key] = row; row == nil {
			delete(table, key)
		}
	}
}

// Save stores a lease, which may be new.
func (r *Rows) Save(consumer string, l *LeaseRow) {
	one := &Rows{Leases: map[string]map[string]*LeaseRow{consumer: {l.Resource: l}}}
	if r.Merge(one); r.Changed != nil {
		r.Changed.Merge(one)
	}
}

func (r *Rows) saveSession(id string, s *SessionRow) {
	if r.Sessions[id] = s; r.Changed != nil {
		r.Changed.Sessions[id] = s
	}
}

// Live reports that the session has neither ended nor expired. Nil is a session that is not known.
func (s *SessionRow) Live(now time.Time) bool { return s != nil && !s.Ended && now.Before(s.Expires) }

// Open is OpenSession.
func (r *Rows) Open(spec SessionSpec) error {
	if r.Sessions[spec.ID] != nil {
		return r.lost(spec.ID)
	}
	if spec.Replaces != "" {
		r.end(spec.Replaces)
	}
	r.saveSession(spec.ID, &SessionRow{SessionSpec: spec, Opened: r.At, Beat: r.At, Expires: r.At.Add(spec.TTL)})
	r.News++
	return nil
}

// lost is ErrSessionLost for a session that is not live. One that was found to have expired stays dead, whatever clocks do.
func (r *Rows) lost(id string) error {
	s := r.Sessions[id]
	if s.Live(r.At) {
		return nil
	}
	if s != nil && !s.Ended {
		s.Ended = true
		r.saveSession(id, s)
	}
	return ErrSessionLost
}

// Heartbeat is Session.Heartbeat.
func (r *Rows) Heartbeat(id string) error {
	if err := r.lost(id); err != nil {
		return err
	}
	s := r.Sessions[id]
	s.Beat, s.Expires = r.At, r.At.Add(s.TTL)
	r.saveSession(id, s)
	return nil
}

// Close is Session.Close. The leases of a session that is dead already are taken over as after a crash.
func (r *Rows) Close(id string) {
	if r.Sessions[id].Live(r.At) {
		r.end(id)
	}
}

// end ends a session in order and frees its leases. One that is not known cannot be opened later.
func (r *Rows) end(id string) {
	s := r.Sessions[id]
	if s == nil {
		s = &SessionRow{SessionSpec: SessionSpec{ID: id}, Opened: r.At, Beat: r.At, Expires: r.At}
	}
	s.Ended = true
	r.saveSession(id, s)
	r.News++
	for consumer, leases := range r.Leases {
		for _, l := range leases {
			if l.Session == id {
				r.Drop(consumer, l)
			}
		}
	}
}

// Forget drops dead sessions without leases that expired so long ago, and returns how many.
func (r *Rows) Forget(age time.Duration) (n int) {
	holds := map[string]bool{}
	for _, leases := range r.Leases {
		for _, l := range leases {
			holds[l.Session] = true
		}
	}
	for id, s := range r.Sessions {
		if !holds[id] && !s.Live(r.At) && r.At.Sub(s.Expires) >= age {
			n++
			r.saveSession(id, nil)
			delete(r.Sessions, id)
		}
	}
	return n
}

// Of returns the leases of a consumer, in the order of their resources.
func (r *Rows) Of(consumer string) []*LeaseRow {
	return slices.SortedFunc(maps.Values(r.Leases[consumer]), func(a, b *LeaseRow) int { return cmp.Compare(a.Resource, b.Resource) })
}

// wanted is Of without streams that are not wanted.
func (r *Rows) wanted(consumer string) []*LeaseRow {
	return slices.DeleteFunc(r.Of(consumer), func(l *LeaseRow) bool { return l.Idle })
}

// Held returns the lease that a live session holds under this epoch, or nil.
func (r *Rows) Held(session, consumer string, ref Ref) *LeaseRow {
	l := r.Leases[consumer][ref.Resource]
	if l == nil || l.Session != session || l.Epoch != ref.Epoch || !r.Sessions[session].Live(r.At) {
		return nil
	}
	return l
}

// owned returns all leases that a live session holds.
func (r *Rows) owned(session, consumer string) []*LeaseRow {
	return slices.DeleteFunc(r.Of(consumer), func(l *LeaseRow) bool { return r.Held(session, consumer, l.Ref) == nil })
}

// Free reports whether a lease may be taken, and whether its owner left it by a crash.
func (r *Rows) Free(l *LeaseRow, grace time.Duration) (free, crashed bool) {
	owner := r.Sessions[l.Session]
	switch {
	case owner == nil:
		return true, false
	case !owner.Live(r.At) && !r.At.Before(owner.Expires.Add(grace)):
		return true, true
	}
	// One that expired under a session that lives was not left by a crash.
	return !l.Expires.IsZero() && !r.At.Before(l.Expires.Add(grace)), !owner.Live(r.At)
}

// Drop leaves a lease without an owner.
func (r *Rows) Drop(consumer string, l *LeaseRow) {
	l.Session, l.Attempt, l.Since = "", "", r.At
	r.Save(consumer, l)
	r.News++
}

// Acquire is Ownership.Acquire. It takes those leases first that were given back first, else in the order of their names.
func (r *Rows) Acquire(req AcquireRequest) (grants []Grant, err error) {
	if err := r.lost(req.Session); err != nil {
		return nil, err
	}
	leases := r.wanted(req.Consumer.Name)
	for _, l := range leases {
		if l.Session == req.Session && l.Attempt == req.Attempt {
			grants = append(grants, l.grant())
		}
	}
	if len(grants) > 0 {
		return grants, nil // the reply was lost
	}
	slices.SortStableFunc(leases, func(a, b *LeaseRow) int { return a.Since.Compare(b.Since) })
	for _, l := range leases {
		free, crashed := r.Free(l, req.Consumer.Grace)
		if !free || len(grants) >= req.Max || slices.Contains(req.Exclude, l.Resource) {
			continue
		}
		if crashed {
			r.lost(l.Session) // for good
			l.Suspicion++
		}
		l.Session, l.Attempt, l.Since, l.Seq, l.Expires = req.Session, req.Attempt, r.At, 0, time.Time{}
		if req.Consumer.Lock == LockRow {
			l.Expires = r.At.Add(req.Consumer.TTL)
		}
		// With the clock in it an epoch does not come twice, even in a store that has lost its last writes.
		l.Epoch = max(l.Epoch+1, r.At.UnixMicro())
		r.Save(req.Consumer.Name, l)
		grants = append(grants, l.grant())
	}
	return grants, nil
}

func (l *LeaseRow) grant() Grant {
	g := Grant{Ref: l.Ref, Cursor: l.Cursor, Suspicion: l.Suspicion, Mark: l.Mark, MarkCount: l.MarkCount}
	for _, lane := range l.Lanes() {
		g.Lanes = append(g.Lanes, lane[0].Lane)
	}
	return g
}

// Release is Ownership.Release.
func (r *Rows) Release(session, consumer string, leases []Ref) error {
	if err := r.lost(session); err != nil {
		return err
	}
	for _, ref := range leases {
		if l := r.Held(session, consumer, ref); l != nil {
			r.Drop(consumer, l)
		}
	}
	return nil
}

// Owned is Ownership.Owned.
func (r *Rows) Owned(session, consumer string) (refs []Ref) {
	for _, l := range r.owned(session, consumer) {
		refs = append(refs, l.Ref)
	}
	return refs
}

// Survey is Ownership.Survey for one consumer.
func (r *Rows) Survey(consumer string, grace time.Duration) Survey {
	survey, owned := Survey{Consumer: consumer}, map[string]int{}
	for _, l := range r.wanted(consumer) {
		survey.Resources++
		if free, _ := r.Free(l, grace); free {
			survey.Free++
		}
		owned[l.Session]++
	}
	for _, s := range r.Sessions {
		if s.Live(r.At) && slices.Contains(s.Consumers, consumer) {
			survey.Members = append(survey.Members, Member{Session: s.ID, Owned: owned[s.ID]})
		}
	}
	slices.SortFunc(survey.Members, func(a, b Member) int { return cmp.Compare(a.Session, b.Session) })
	return survey
}

// Members answers Operator.Members.
func (r *Rows) Members(consumer string) []operate.MemberStatus {
	survey := r.Survey(consumer, 0)
	all := make([]operate.MemberStatus, len(survey.Members))
	for i, m := range survey.Members {
		s := r.Sessions[m.Session]
		all[i] = operate.MemberStatus{Session: s.ID, Host: s.Host, PID: s.PID, Since: r.At.Sub(s.Opened), SinceBeat: r.At.Sub(s.Beat),
			TTLRemaining: s.Expires.Sub(r.At), Owned: m.Owned, FairShare: (survey.Resources + len(all) - 1) / len(all)}
	}
	slices.SortStableFunc(all, func(a, b operate.MemberStatus) int { return cmp.Compare(b.Since, a.Since) })
	return all
}

// View describes a lease of a consumer with that grace, but for its lag.
func (r *Rows) View(l *LeaseRow, grace time.Duration) LeaseView {
	v := LeaseView{Lanes: len(l.Lanes()), LeaseStatus: operate.LeaseStatus{Resource: l.Resource, Epoch: l.Epoch,
		Parked: len(l.Parked), Suspicion: l.Suspicion}}
	if free, _ := r.Free(l, grace); !free && r.Sessions[l.Session].Live(r.At) {
		v.Session, v.Since = l.Session, r.At.Sub(l.Since)
	}
	if l.Cursor > 0 {
		v.Position = strconv.FormatInt(int64(l.Cursor), 10)
	}
	return v
}

// MoveCursors is Operator.SetCursor on the resource given, or on all when it is empty, and returns those leases. With
// drop their parked messages go.
func (r *Rows) MoveCursors(consumer, resource string, to Position, drop bool) (moved []*LeaseRow) {
	for _, l := range r.Of(consumer) {
		if resource != "" && l.Resource != resource {
			continue
		}
		l.Cursor, l.Mark, l.MarkCount, l.MarkEpoch = to, "", 0, 0
		l.Epoch = max(l.Epoch+1, r.At.UnixMicro())
		if drop {
			l.Parked = nil
		}
		r.Drop(consumer, l)
		moved = append(moved, l)
	}
	return moved
}

// Apply stores progress under the lease's present epoch, but for what becomes of Dead and Once, and reports false when
// it is old and changes nothing. The cursor, if there is one, is a Position.
func (l *LeaseRow) Apply(p Progress, now time.Time) bool {
	if p.Seq != 0 && p.Seq <= l.Seq {
		return false
	}
	l.Seq = max(l.Seq, p.Seq)
	if at, ok := p.Cursor.(Position); ok {
		l.Cursor = at
	}
	for _, park := range p.Park {
		i := l.find(park.ID)
		if i < 0 {
			i = len(l.Parked)
			l.Parked = append(l.Parked, &ParkedRow{Since: now})
		}
		m := l.Parked[i]
		if park.Attempt > m.Attempt || park.Error != m.Error {
			m.Since = now
		}
		if park.Attempt > 0 && m.FirstFailed.IsZero() {
			m.FirstFailed = now
		}
		m.Park, m.Due = park, now.Add(park.After)
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
	return true
}

// IsParked reports that a message is parked.
func (l *LeaseRow) IsParked(id string) bool { return l.find(id) >= 0 }

func (l *LeaseRow) find(id string) int {
	return slices.IndexFunc(l.Parked, func(m *ParkedRow) bool { return m.ID == id })
}

// unpark removes a parked message and returns it, or nil when it is not parked.
func (l *LeaseRow) unpark(id string) *ParkedRow {
	i := l.find(id)
	if i < 0 {
		return nil
	}
	m := l.Parked[i]
	l.Parked = slices.Delete(l.Parked, i, i+1)
	return m
}

// Lanes returns the parked messages by lane, in the order of the lanes' names.
func (l *LeaseRow) Lanes() [][]*ParkedRow {
	lanes := map[string][]*ParkedRow{}
	for _, m := range l.Parked {
		lanes[m.Lane] = append(lanes[m.Lane], m)
	}
	return slices.SortedFunc(maps.Values(lanes), func(a, b []*ParkedRow) int { return cmp.Compare(a[0].Lane, b[0].Lane) })
}

// FetchParked is Commits.FetchParked: the lane that is due longest comes first, and a lane is read up to its first message
// that still waits. The content of messages comes from raw.
func (r *Rows) FetchParked(req ParkedRequest, raw func(*ParkedRow) Raw) Parked {
	type lane struct {
		resource string
		messages []*ParkedRow
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
	out, read := Parked{Next: -1}, map[string]int{}
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
			content := raw(m)
			content.Attempt = m.Attempt
			out.Messages = append(out.Messages, ParkedMessage{Resource: lane.resource, Lane: m.Lane, Raw: content,
				Last: i == len(lane.messages)-1, Error: m.Error, Waited: r.At.Sub(m.Since)})
		}
	}
	return out
}

// Parked answers Operator.Parked. The content of messages comes from raw.
func (r *Rows) Parked(f operate.ParkedFilter, raw func(*ParkedRow) Raw) (all []operate.ParkedInfo) {
	for _, l := range r.Of(f.Consumer) {
		for _, lane := range l.Lanes() {
			for i, p := range lane {
				m := raw(p)
				if (f.Resource == "" || f.Resource == l.Resource) && (f.Key == "" || f.Key == m.Key) {
					all = append(all, operate.ParkedInfo{Resource: l.Resource, MessageID: p.ID, Topic: m.Topic, Key: m.Key, Kind: m.Kind,
						Size: m.Size, Attempts: p.Attempt, Due: p.Due, FirstFailed: p.FirstFailed, Behind: i > 0, Error: p.Error})
				}
			}
		}
	}
	return First(all, f.Limit)
}

// Bury removes a message from those parked, and describes the dead letter that it becomes. The caller gives that its ID.
func (l *LeaseRow) Bury(consumer string, d Dead, m Raw, now time.Time) operate.DeadLetterInfo {
	first := now
	if p := l.unpark(d.ID); p != nil && !p.FirstFailed.IsZero() {
		first = p.FirstFailed
	}
	return operate.DeadLetterInfo{Consumer: consumer, Resource: l.Resource, MessageID: d.ID, Topic: m.Topic, Key: m.Key, Kind: m.Kind,
		Size: m.Size, Headers: m.Headers, PublishedAt: m.PublishedAt, FirstFailed: first, DeadAt: now, Attempts: d.Attempt, Reason: d.Reason}
}

// Replay parks the message of a dead letter again.
func (l *LeaseRow) Replay(d *operate.DeadLetterInfo, now time.Time) {
	l.unpark(d.MessageID)
	l.Parked = append(l.Parked, &ParkedRow{Park: Park{ID: d.MessageID, Lane: d.Key}, Due: now, Since: now})
}

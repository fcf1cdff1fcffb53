package backend

import (
	"cmp"
	"iter"
	"maps"
	"reflect"
	"slices"
	"time"
)

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
	for consumer, patterns := range spec.Topics {
		if c := r.Consumers[consumer]; c != nil && r.want(c, patterns) {
			r.saveConsumer(c)
		}
	}
	r.saveSession(spec.ID, &SessionRow{SessionSpec: spec, Opened: r.At, Beat: r.At, Expires: r.At.Add(spec.TTL)})
	r.Handovers++
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
	r.Handovers++
	for consumer, leases := range r.Leases {
		for _, l := range leases {
			if l.Session == id {
				r.Drop(consumer, l)
			}
		}
	}
}

// info is what is known of a consumer.
func (r *Rows) info(consumer string) ConsumerInfo {
	if c := r.Consumers[consumer]; c != nil {
		return c.ConsumerInfo
	}
	return ConsumerInfo{Name: consumer}
}

// Register is Ownership.Register, but for streams, which the backend saves itself. The log holds the topics given, has so
// many slots, and last is its last message.
func (r *Rows) Register(c ConsumerInfo, resources []string, topics iter.Seq[string], slots int, last Position) error {
	row := r.Consumers[c.Name]
	if row == nil {
		row = &ConsumerRow{Wanted: map[string]time.Time{}}
		if c.From == FromNow {
			row.Start = last
		}
	} else if err := samePer(row.Per, c.Per); err != nil {
		return err
	}
	changed := r.want(row, c.Topics)
	c.Topics = row.Topics
	if changed || !reflect.DeepEqual(row.ConsumerInfo, c) {
		row.ConsumerInfo = c
		r.saveConsumer(row)
	}
	for _, name := range c.resources(resources, topics, slots) {
		r.Lease(row, name)
	}
	return nil
}

// Lease returns the lease of a resource. One that is not known yet begins where the consumer's new resources do.
func (r *Rows) Lease(c *ConsumerRow, resource string) *LeaseRow {
	l := r.Leases[c.Name][resource]
	if l == nil {
		l = &LeaseRow{Ref: Ref{Resource: resource}, Cursor: c.Start}
		r.Save(c.Name, l)
	}
	return l
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
	r.Handovers++
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

// Survey is Ownership.Survey.
func (r *Rows) Survey(consumers []string) []Survey {
	all := make([]Survey, len(consumers))
	for i, name := range consumers {
		all[i] = r.survey(name)
	}
	return all
}

func (r *Rows) survey(consumer string) Survey {
	survey, owned := Survey{Consumer: consumer}, map[string]int{}
	for _, l := range r.wanted(consumer) {
		survey.Resources++
		if free, _ := r.Free(l, r.info(consumer).Grace); free {
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

package rows

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// Live reports that the session has neither ended nor expired. Nil is a session that is not known.
func (s *Session) Live(now time.Time) bool { return s != nil && !s.Ended && now.Before(s.Expires) }

// Open is OpenSession.
func (r *Rows) Open(spec backend.SessionSpec) error {
	if err := backend.CheckNames(spec.Consumers...); err != nil {
		return err
	}
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
	r.saveSession(spec.ID, &Session{SessionSpec: spec, Opened: r.At, Beat: r.At, Expires: r.At.Add(spec.TTL)})
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
	return backend.ErrSessionLost
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
		s = &Session{SessionSpec: backend.SessionSpec{ID: id}, Opened: r.At, Beat: r.At, Expires: r.At}
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
func (r *Rows) info(consumer string) backend.ConsumerInfo {
	if c := r.Consumers[consumer]; c != nil {
		return c.ConsumerInfo
	}
	return backend.ConsumerInfo{Name: consumer}
}

// Register is Ownership.Register, but for streams, which the backend saves itself. The log holds the topics given, has so
// many slots, and last is its last message.
func (r *Rows) Register(c backend.ConsumerInfo, given []string, topics iter.Seq[string], slots int, last Position) error {
	row := r.Consumers[c.Name]
	if row == nil {
		row = &Consumer{Wanted: map[string]time.Time{}}
		if c.From == backend.FromNow {
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
	for _, name := range resources(c, given, topics, slots) {
		r.Lease(row, name)
	}
	return nil
}

// samePer refuses a consumer that was registered with another Per before, whose resources were others. Group and cluster
// may pass for one.
func samePer(before, now backend.Per) error {
	if before == now || before.Whole() && now.Whole() {
		return nil
	}
	return fmt.Errorf("it has been per=%s before and now is per=%s: existing leases and cursors would be ignored; give the consumer another name", before, now)
}

// resources names what Register makes known to a consumer that has no streams, in a log of so many slots: of topics those
// given, or, when given is nil, those that the log holds, as far as the consumer's patterns match them.
func resources(c backend.ConsumerInfo, given []string, held iter.Seq[string], slots int) (names []string) {
	switch c.Per {
	case backend.PerTopic:
		if given != nil {
			held = slices.Values(given)
		}
		for topic := range held {
			if backend.MatchTopic(c.Topics, topic) {
				names = append(names, topic)
			}
		}
	case backend.PerPartition:
		for slot := range slots {
			names = append(names, strconv.Itoa(slot))
		}
	case backend.PerStream:
	default:
		names = []string{backend.Whole}
	}
	return names
}

// Lease returns the lease of a resource. One that is not known yet begins where the consumer's new resources do.
func (r *Rows) Lease(c *Consumer, resource string) *Lease {
	l := r.Leases[c.Name][resource]
	if l == nil {
		l = &Lease{Ref: backend.Ref{Resource: resource}, Cursor: c.Start}
		r.Save(c.Name, l)
	}
	return l
}

// Of returns the leases of a consumer, in the order of their resources.
func (r *Rows) Of(consumer string) []*Lease {
	return slices.SortedFunc(maps.Values(r.Leases[consumer]), func(a, b *Lease) int { return cmp.Compare(a.Resource, b.Resource) })
}

// wanted is Of without streams that are not wanted.
func (r *Rows) wanted(consumer string) []*Lease {
	return slices.DeleteFunc(r.Of(consumer), func(l *Lease) bool { return l.Idle })
}

// Held returns the lease that a live session holds under this epoch, or nil.
func (r *Rows) Held(session, consumer string, ref backend.Ref) *Lease {
	l := r.Leases[consumer][ref.Resource]
	if l == nil || l.Session != session || l.Epoch != ref.Epoch || !r.Sessions[session].Live(r.At) {
		return nil
	}
	return l
}

// owned returns all leases that a live session holds.
func (r *Rows) owned(session, consumer string) []*Lease {
	return slices.DeleteFunc(r.Of(consumer), func(l *Lease) bool { return r.Held(session, consumer, l.Ref) == nil })
}

// Free reports whether a lease may be taken, and whether its owner left it by a crash.
func (r *Rows) Free(l *Lease, grace time.Duration) (free, crashed bool) {
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
func (r *Rows) Drop(consumer string, l *Lease) {
	l.Session, l.Attempt, l.Since = "", "", r.At
	r.Save(consumer, l)
	r.Handovers++
}

// Acquire is Ownership.Acquire. It takes those leases first that were given back first, else in the order of their names.
func (r *Rows) Acquire(req backend.AcquireRequest) (grants []backend.Grant, err error) {
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
	if r.paused(req.Consumer.Name) {
		return nil, nil
	}
	slices.SortStableFunc(leases, func(a, b *Lease) int { return a.Since.Compare(b.Since) })
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
		if req.Consumer.Lock == backend.LockRow {
			l.Expires = r.At.Add(req.Consumer.TTL)
		}
		// With the clock in it an epoch does not come twice, even in a store that has lost its last writes.
		l.Epoch = max(l.Epoch+1, r.At.UnixMicro())
		r.Save(req.Consumer.Name, l)
		grants = append(grants, l.grant())
	}
	return grants, nil
}

func (l *Lease) grant() backend.Grant {
	g := backend.Grant{Ref: l.Ref, Cursor: l.Cursor, Suspicion: l.Suspicion, Mark: l.Mark, MarkCount: l.MarkCount}
	for _, lane := range l.Lanes() {
		g.Lanes = append(g.Lanes, lane[0].Lane)
	}
	return g
}

// Release is Ownership.Release.
func (r *Rows) Release(session, consumer string, leases []backend.Ref) error {
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
func (r *Rows) Owned(session, consumer string) (refs []backend.Ref) {
	for _, l := range r.owned(session, consumer) {
		refs = append(refs, l.Ref)
	}
	return refs
}

// Survey is Ownership.Survey.
func (r *Rows) Survey(consumers []string) []backend.Survey {
	all := make([]backend.Survey, len(consumers))
	for i, name := range consumers {
		all[i] = r.survey(name)
	}
	return all
}

func (r *Rows) survey(consumer string) backend.Survey {
	survey, owned := backend.Survey{Consumer: consumer, Paused: r.paused(consumer)}, map[string]int{}
	for _, l := range r.wanted(consumer) {
		survey.Resources++
		if free, _ := r.Free(l, r.info(consumer).Grace); free && !survey.Paused {
			survey.Free++
		}
		owned[l.Session]++
	}
	for _, s := range r.Sessions {
		if s.Live(r.At) && slices.Contains(s.Consumers, consumer) {
			survey.Members = append(survey.Members, backend.Member{Session: s.ID, Owned: owned[s.ID]})
		}
	}
	slices.SortFunc(survey.Members, func(a, b backend.Member) int { return cmp.Compare(a.Session, b.Session) })
	return survey
}

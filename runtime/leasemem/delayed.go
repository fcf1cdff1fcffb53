package leasemem

import (
	"bytes"
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// idsKept is how long an event's id dedupes.
const idsKept = 7 * 24 * time.Hour

// outbox is what publishing keeps beside the log.
type outbox struct {
	ids     map[eventID]time.Time // when published
	delayed []delayedEvent        // by due time, then in the order of publishing
}

type eventID struct{ topic, id string }

type delayedEvent struct {
	due   time.Time
	event backend.Event
}

// publish appends events to the log, or sets them aside until they are due.
func (s *store) publish(events []backend.Event, now time.Time) {
	for _, e := range events {
		if !s.outbox.admit(&e, now) {
			continue
		}
		due := e.Due(now)
		e.Payload, e.Headers = bytes.Clone(e.Payload), maps.Clone(e.Headers)
		if !due.After(now) {
			s.append(e, now)
			continue
		}
		d := &s.outbox.delayed
		i, _ := slices.BinarySearchFunc(*d, due, func(x delayedEvent, due time.Time) int {
			return cmp.Or(x.due.Compare(due), -1) // behind those that are due with it
		})
		*d = slices.Insert(*d, i, delayedEvent{due, e})
		for f := range s.feeds {
			f.signal() // it may be due before the feed would look again
		}
	}
}

// admit reports whether no event with that id was published before on the topic.
func (o *outbox) admit(e *backend.Event, now time.Time) bool {
	if e.ID == "" {
		return true
	}
	name := eventID{e.Topic, e.ID}
	if at, ok := o.ids[name]; ok && now.Sub(at) <= idsKept {
		return false
	}
	if o.ids == nil {
		o.ids = map[eventID]time.Time{}
	}
	o.ids[name] = now
	return true
}

// releaseDelayed moves what is due into the log, and returns when to look again.
func (s *store) releaseDelayed(now time.Time) time.Duration {
	d := &s.outbox.delayed
	n := 0
	for n < len(*d) && !(*d)[n].due.After(now) {
		s.append((*d)[n].event, now)
		n++
	}
	*d = slices.Delete(*d, 0, n)
	if len(*d) == 0 {
		return math.MaxInt64
	}
	return (*d)[0].due.Sub(now)
}

// forgetIDs drops ids that no longer keep anything out, and returns how many.
func (s *store) forgetIDs(now time.Time) int {
	before := len(s.outbox.ids)
	maps.DeleteFunc(s.outbox.ids, func(_ eventID, at time.Time) bool { return now.Sub(at) > idsKept })
	return before - len(s.outbox.ids)
}

package lease

import (
	"fmt"
	"slices"
	"time"
)

// drain ends an incarnation well: handlers finish the call they are in, progress is
// committed, leases are released, the session is closed. A lease that rests when all others do is
// given away by the end of the session, in one step: the next owner need not wait for two.
// A call that has not returned when its consumer's drain time is over is cancelled; if it still does
// not return its lease is left to expire, because a lease is never released while a handler
// runs.
func (p *process) drain(s *session, works []*work) {
	for _, w := range works {
		w.own.giveAll()
	}
	left, rest := works, false
	for began, late := now(), false; !late && s.alive(); s.awaitSettled() {
		took := began.since()
		left = slices.DeleteFunc(slices.Clone(left), func(w *work) bool { return w.own.empty() })
		if rest = allRest(left); rest {
			break
		}
		late = true
		for _, w := range left {
			limit := w.c.spec.Drain
			if took > limit {
				w.run.cancelAll(fmt.Errorf("%w: the process stops and its drain time of %v is over", ErrHandover, limit))
			}
			late = late && took-limit > min(s.ttl/4, 2*time.Second)
		}
	}
	if !s.alive() {
		return
	}
	s.end(fmt.Errorf("%w: the process stopped", ErrHandover)) // first: what is under way must not find a closed session
	if !rest {
		for _, w := range left {
			w.log.Error("handlers or the backend did not return in time; their leases are left to expire", "leases", w.own.owned(), "session", s.id)
		}
		return
	}
	if err := s.close(); err != nil {
		p.log.Warn("closing the session failed; it will expire", "session", s.id, "error", err)
		return
	}
	for _, w := range left {
		w.own.ended()
	}
}

// allRest reports that all works rest. Those that do while others do not get the order to release
// what they hold.
func allRest(works []*work) bool {
	var resting []*work
	for _, w := range works {
		if w.own.resting() {
			resting = append(resting, w)
		}
	}
	if len(resting) == len(works) {
		return true
	}
	for _, w := range resting {
		w.own.releaseEarly()
	}
	return false
}

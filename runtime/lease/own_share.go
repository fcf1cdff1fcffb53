package lease

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// giveLeast is how many leases a process gives away at once, at least: the others stay at
// work until it is their turn, so that none rests while all are moved.
const giveLeast = 64

// share is how many resources the member me should own. The members who own most
// keep one more than the others when the resources cannot be divided evenly, so
// joins and leaves move the fewest. The shares of all members add up to all resources.
func share(s backend.Survey, me string) int {
	members := slices.Clone(s.Members)
	slices.SortFunc(members, func(a, b backend.Member) int {
		if a.Owned != b.Owned {
			return b.Owned - a.Owned
		}
		return strings.Compare(a.Session, b.Session)
	})
	rank := slices.IndexFunc(members, func(m backend.Member) bool { return m.Session == me })
	if rank < 0 {
		return 0
	}
	floor, extra := s.Resources/len(members), s.Resources%len(members)
	if rank < extra {
		return floor + 1
	}
	return floor
}

// beyondShare lets a process own more than its share of what the others do not take,
// because they are capped or ail. It belongs to the goroutine of keepShare.
type beyondShare struct {
	members []string
	changed time.Time // when the members last changed
	n       int       // leases beyond the share
	since   time.Time // resources are free though every share that can be filled is; zero if not
}

// share is how many leases beyond its share the process may own, which owns over more
// than it. Resources that stay free for a whole TTL may be taken by anyone, until members
// join or leave.
func (b *beyondShare) share(s backend.Survey, over int, ttl time.Duration) int {
	members := make([]string, len(s.Members))
	for i, m := range s.Members {
		members[i] = m.Session
	}
	switch {
	case !slices.Equal(members, b.members):
		*b = beyondShare{members: members, changed: time.Now()}
	case s.Free == 0:
		b.n, b.since = max(min(b.n, over), 0), time.Time{}
	case over < b.n:
		b.since = time.Time{}
	case b.since.IsZero():
		b.since = time.Now()
	case time.Since(b.since) > ttl:
		b.n, b.since = b.n+s.Free, time.Time{}
	}
	return b.n
}

// keepShare keeps the consumer's leases at its fair share until the session ends.
func (o *owner) keepShare() {
	wish, late := time.Now().Add(surveyAny), 0
	var came time.Time // the last survey
	sooner := func(at time.Time) {
		if at.Before(wish) {
			wish = at
		}
	}
	for o.s.ctx.Err() == nil {
		t := time.NewTimer(time.Until(wish))
		select {
		case x := <-o.surveys.latest:
			o.course.step(surveying)
			came = time.Now()
			// A pause holds whatever was acquired since; a consumer of streams that acquires all the time would hear of it late.
			if o.surveys.outdated(x) && !x.Paused {
				sooner(time.Now().Add(againIn(late)))
				late++
				break
			}
			late = 0
			o.audit.recount(x.Survey)
			o.audit.reconcile(x.Survey, x.known)
			wish = time.Now().Add(o.balance(x.Survey))
		case <-o.streams.wanted:
			if o.streams.takeWanted() {
				sooner(came.Add(crowdedGap))
			}
		case <-t.C:
			wish = time.Now().Add(surveyAny)
			o.hintSurvey()
		case <-o.s.ctx.Done():
		}
		t.Stop()
	}
}

// againIn is how long to wait for another survey after so many that were out of date when they came. A consumer that acquires
// all the time, as one of streams does, would else survey all the time.
func againIn(late int) time.Duration {
	if late == 0 {
		return 0
	}
	return min(surveySoon<<min(late, 10), surveyLate)
}

// settleTime is how long the members must have been the same before leases are given away:
// several that join together then cost one move of a lease, not one each.
const settleTime = 200 * time.Millisecond

// balance moves the consumer towards its fair share: it takes what is free, or
// begins to give away what is too much. It returns when it wants to see a survey again.
func (o *owner) balance(s backend.Survey) time.Duration {
	if o.pauses(s) {
		return surveyAny
	}
	if o.info.Per == PerStream {
		o.streams.takeFree(s)
		return surveyAny
	}
	target := share(s, o.s.id)
	target += o.beyond.share(s, o.owned()-target, o.s.ttl)
	if limit := o.c.spec.Capacity; limit > 0 {
		target = min(target, limit)
	}
	owned := o.owned()
	o.surveys.want(min(target-owned, s.Free-o.withheld()))
	switch {
	case owned < target && s.Free > 0 && !o.stopping():
		if n := o.acquire(min(target-owned, s.Free)); n > 0 && n < s.Free {
			return surveySoon
		}
	case owned > target:
		if wait := settleTime - time.Since(o.beyond.changed); wait > 0 {
			return wait
		}
		o.giveBack(min(owned-target, max(giveLeast, owned/16)))
	}
	return surveyAny
}

// withheld counts the resources that this process must not be granted now though they may be free.
func (o *owner) withheld() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.announced.avoids()) + len(o.c.busyWithout(o.held))
}

// acquire takes up to n free resources, and returns how many it got. A lost reply is
// resolved by asking again with the same attempt id.
func (o *owner) acquire(n int) (granted int) {
	req := backend.AcquireRequest{Session: o.s.id, Consumer: o.info, Max: n, Attempt: newID()}
	o.mu.Lock()
	stopped := o.stopped
	o.asking = !stopped
	o.mu.Unlock()
	if stopped {
		return
	}
	o.run.parked.expect()
	o.surveys.outdate()
	defer func() { o.mu.Lock(); o.asking = false; o.mu.Unlock(); o.surveys.outdate() }()
	var failed backoff
	asked := now() // the first try may be the one that is granted
	for o.s.alive() {
		ask := req
		ask.Exclude = o.excluded()
		sent := time.Now()
		grants, err := call(of(o.s.ctx, "acquire"), func(ctx context.Context) ([]backend.Grant, error) { return o.be.Acquire(ctx, ask) })
		if err == nil {
			o.course.step(acquiring)
			o.accept(grants, asked)
			if len(grants) > 0 {
				o.log.Info("acquired leases", "leases", len(grants), "took", time.Since(sent).Round(time.Microsecond))
			}
			return len(grants)
		}
		if isLost(err) {
			o.s.lose("the backend declared the session dead")
			return 0
		}
		if o.stopping() { // the end of the session frees what may have been granted
			return 0
		}
		failed.pause(o.s.ctx, o.log, "acquire failed", err)
	}
	return 0
}

// excluded returns the resources that this process must not be granted now.
func (o *owner) excluded() []string {
	return slices.Concat(o.c.busyResources(), o.refusals.shunned(), o.announced.avoids())
}

// room is how many more streams this process can take.
func (o *owner) room() int { return max(o.c.spec.Capacity-o.owned(), 0) }

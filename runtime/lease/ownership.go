package lease

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

const (
	surveyAny = time.Hour // no wish when to survey next
	// surveySoon is when to look again after leases were acquired and others were left free:
	// members that look at different moments may leave the same one to each other.
	surveySoon = 20 * time.Millisecond
)

// surveyLate is the longest time between surveys that come too late to be of use.
const surveyLate = 2 * time.Second

const (
	// surveyGap is the least time between surveys that hints ask for.
	surveyGap = 5 * time.Millisecond
	// surveyRest is the most: a process rests four times as long as its last survey took, so that a server that is late
	// gets no later by being asked.
	surveyRest = 250 * time.Millisecond
)

// giveLeast is how many leases a process gives away at once, at least: the others stay at
// work until it is their turn, so that none rests while all are moved.
const giveLeast = 64

// surveyEvery is how often an uneventful process looks for expired sessions. It is less often
// where the end of a session is told, unless leases become free at a time of their own.
func surveyEvery(s *session, works []*work) time.Duration {
	switch {
	case s.ttl < 8*time.Second:
		return 500 * time.Millisecond
	case s.alarm == nil || slices.ContainsFunc(works, func(w *work) bool { return w.info.Grace > 0 || w.info.Lock == LockRow }):
		return time.Second
	}
	return 3 * time.Second
}

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
// because they are capped or ail. It belongs to the goroutine of own.
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

// surveyed is a survey of one consumer, with what its process held before.
type surveyed struct {
	backend.Survey
	known int
	asked uint64 // see surveys.acquired
}

// surveys is how surveys reach their consumer. It is guarded by work.mu, but for the channel and hinted.
type surveys struct {
	latest   chan surveyed
	hinted   atomic.Bool // the consumer asks for one
	acquired uint64      // raised before and after each Acquire: a survey from before is out of date
	alone    bool        // the consumer is surveyed by itself, until that succeeds
	wanted   int         // free resources that this process would take, at the last survey
}

// survey looks at ownership until the session ends: at all consumers at once, now and then and
// soon after a hint says that something changed, which may be about some consumers only. When that fails each is asked for alone, so that
// one that cannot be surveyed keeps no other from its leases.
func (p *process) survey(s *session, works []*work) {
	var failed backoff
	var due time.Time // of all consumers
	for all := true; s.ctx.Err() == nil; {
		if all {
			due = time.Now().Add(jitter(surveyEvery(s, works)))
		}
		together := slices.DeleteFunc(slices.Clone(works), func(w *work) bool {
			hinted := w.surveys.hinted.Swap(false)
			return w.surveyedAlone() || !all && !hinted
		})
		began := time.Now()
		if len(together) > 0 {
			err := p.surveyOf(s, together)
			switch {
			case err == nil:
				failed.reset()
			case len(works) == 1:
				failed.pause(works[0].s.ctx, works[0].log, "survey failed", err)
				all = true
				continue
			default:
				for _, w := range together {
					w.surveyAlone(p)
				}
			}
		}
		pause(s.ctx, max(surveyGap, min(4*time.Since(began), surveyRest)))
		t := time.NewTimer(time.Until(due))
		select {
		case <-s.ownership.wake:
			all = s.ownership.all.Swap(false) || !time.Now().Before(due)
		case <-t.C:
			all = true
		case <-s.ctx.Done():
		}
		t.Stop()
	}
}

// hintSurvey asks for a survey of this consumer.
func (w *work) hintSurvey() {
	w.surveys.hinted.Store(true)
	hint(w.s.ownership.wake)
}

// surveyOf surveys consumers in one call and hands each its survey.
func (p *process) surveyOf(s *session, works []*work) error {
	names := make([]string, len(works))
	before := make([]surveyed, len(works))
	for i, w := range works {
		names[i] = w.info.Name
		before[i] = w.beforeSurvey()
	}
	found, err := call(of(s.ctx, "survey"), func(ctx context.Context) ([]backend.Survey, error) { return p.be.Survey(ctx, names) })
	if err != nil {
		return err
	}
	for n, w := range works {
		if i := slices.IndexFunc(found, func(x backend.Survey) bool { return x.Consumer == w.info.Name }); i >= 0 {
			before[n].Survey = found[i]
			w.deliverSurvey(before[n])
		}
	}
	return nil
}

// surveyAlone surveys one consumer by itself until that succeeds.
func (w *work) surveyAlone(p *process) {
	w.mu.Lock()
	w.surveys.alone = true
	w.mu.Unlock()
	w.calls.Go(func() {
		var failed backoff
		for w.s.ctx.Err() == nil {
			if err := p.surveyOf(w.s, []*work{w}); err != nil {
				failed.pause(w.s.ctx, w.log, "survey failed", err)
				continue
			}
			w.mu.Lock()
			w.surveys.alone = false
			w.mu.Unlock()
			w.hintSurvey()
			return
		}
	})
}

func (w *work) surveyedAlone() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.surveys.alone
}

func (w *work) beforeSurvey() surveyed {
	known := w.mayOwnCount()
	w.mu.Lock()
	defer w.mu.Unlock()
	return surveyed{known: known, asked: w.surveys.acquired}
}

// deliverSurvey hands the consumer a survey, in place of one that it has not yet looked at.
func (w *work) deliverSurvey(x surveyed) {
	select {
	case <-w.surveys.latest:
	default:
	}
	w.surveys.latest <- x // has room for one, and nobody else fills it
}

// own keeps the consumer's leases at its fair share until the session ends.
func (w *work) own() {
	wish, late := time.Now().Add(surveyAny), 0
	var came time.Time // the last survey
	sooner := func(at time.Time) {
		if at.Before(wish) {
			wish = at
		}
	}
	for w.s.ctx.Err() == nil {
		t := time.NewTimer(time.Until(wish))
		select {
		case x := <-w.surveys.latest:
			w.course.step(surveying)
			came = time.Now()
			w.mu.Lock()
			outdated := x.asked != w.surveys.acquired
			w.mu.Unlock()
			if outdated {
				sooner(time.Now().Add(againIn(late)))
				late++
				break
			}
			late = 0
			w.reconcile(x.Survey, x.known)
			wish = time.Now().Add(w.balance(x.Survey))
		case <-w.streams.wanted:
			if w.takeWanted() {
				sooner(came.Add(crowdedGap))
			}
		case <-t.C:
			wish = time.Now().Add(surveyAny)
			w.hintSurvey()
		case <-w.s.ctx.Done():
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
func (w *work) balance(s backend.Survey) time.Duration {
	if w.info.Per == PerStream {
		w.takeStreams(s)
		return surveyAny
	}
	target := share(s, w.s.id)
	target += w.beyond.share(s, w.owned()-target, w.s.ttl)
	if limit := w.c.spec.Capacity; limit > 0 {
		target = min(target, limit)
	}
	owned := w.owned()
	w.want(min(target-owned, s.Free-w.withheld()))
	switch {
	case owned < target && s.Free > 0 && !w.stopping():
		if n := w.acquire(min(target-owned, s.Free)); n > 0 && n < s.Free {
			return surveySoon
		}
	case owned > target:
		if wait := settleTime - time.Since(w.beyond.changed); wait > 0 {
			return wait
		}
		w.giveBack(min(owned-target, max(giveLeast, owned/16)))
	}
	return surveyAny
}

// want notes how many free resources this process would take.
func (w *work) want(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.surveys.wanted = max(n, 0)
}

// withheld counts the resources that this process must not be granted now though they may be free.
func (w *work) withheld() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.streams.avoided) + w.c.busyBeside(w.held)
}

// reconcile compares what the backend counts as this process's with what it holds, and known,
// what it held and worked on before the backend counted. They differ when somebody else has
// fenced a lease (an operator who moved its cursor), when a failover lost writes, or when a
// request of this process came late.
func (w *work) reconcile(s backend.Survey, known int) {
	i := slices.IndexFunc(s.Members, func(m backend.Member) bool { return m.Session == w.s.id })
	if i < 0 {
		return
	}
	owned := s.Members[i].Owned
	w.mu.Lock()
	agreed := !w.doubt && owned <= known && (owned >= len(w.held) || owned >= w.firm())
	w.doubt = false
	w.mu.Unlock()
	if agreed {
		return
	}
	names := w.mayOwn()
	refs, err := call(of(w.s.ctx, "owned"), func(ctx context.Context) ([]backend.Ref, error) { return w.be.Owned(ctx, w.s.id, w.info.Name) })
	if err != nil {
		if w.s.ctx.Err() == nil {
			w.log.Warn("listing the leases that the backend knows of failed, trying again", "error", err)
		}
		w.doubtHeld()
		return
	}
	w.checkHeld(refs)
	if strays := slices.DeleteFunc(refs, func(r backend.Ref) bool { return names[r.Resource] }); len(strays) > 0 {
		w.giveStrays(strays)
	}
}

// firm counts the leases that are not being given away. The caller holds w.mu.
func (w *work) firm() (n int) {
	for _, h := range w.held {
		if !h.inGive {
			n++
		}
	}
	return n
}

// mayOwn names the resources of which the backend may say that this process owns them: those that
// it holds, those that it lost and a handler still runs on, and, with a grace, those that it lost
// lately and that others are to wait for.
func (w *work) mayOwn() map[string]bool {
	w.mu.Lock()
	names := make(map[string]bool, len(w.held))
	for r := range w.held {
		names[r] = true
	}
	for r, until := range w.awaited {
		if time.Now().Before(until) {
			names[r] = true
		} else {
			delete(w.awaited, r)
		}
	}
	w.mu.Unlock()
	for _, r := range w.c.busyResources() {
		names[r] = true
	}
	return names
}

// mayOwnCount is at least the length of mayOwn.
func (w *work) mayOwnCount() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.held) + len(w.awaited) + w.c.busyBeside(w.held)
}

// doubtHeld makes the next survey compare all leases, not only their numbers.
func (w *work) doubtHeld() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.doubt = true
}

// checkHeld asks for each idle lease that is not among owned whether it is still held: its owner
// would else not know until its next write.
func (w *work) checkHeld(owned []backend.Ref) {
	is := make(map[backend.Ref]bool, len(owned))
	for _, r := range owned {
		is[r] = true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.held {
		if !is[h.ref] && w.store.uncommitted(h) == 0 && !h.inGive && (!h.running || w.runs()) {
			w.store.submit(h, backend.Progress{Ref: h.ref}, counts{})
		}
	}
}

// giveStrays gives back leases that only the backend knows of. Nobody would ever work on them:
// they are not free while the session lives.
func (w *work) giveStrays(strays []backend.Ref) {
	w.calls.Go(func() {
		err := do(of(w.s.ctx, "release strays"), func(ctx context.Context) error { return w.be.Release(ctx, w.s.id, w.info.Name, strays) })
		switch {
		case isLost(err):
			w.s.lose("the backend declared the session dead")
		case err == nil:
			w.log.Warn("gave back leases that only the backend knew of: it lost writes, or a request came late", "leases", len(strays))
			w.hintSurvey()
		case w.s.ctx.Err() == nil: // the next survey finds them again
			w.log.Warn("giving back leases that only the backend knows of failed, trying again", "error", err)
		}
	})
}

// acquire takes up to n free resources, and returns how many it got. A lost reply is
// resolved by asking again with the same attempt id.
func (w *work) acquire(n int) (granted int) {
	req := backend.AcquireRequest{Session: w.s.id, Consumer: w.info, Max: n, Attempt: newID()}
	w.mu.Lock()
	stopped := w.stopped
	w.asking = !stopped
	if len(w.held) == 0 {
		// Grants tell of what is parked; a hint from now on may be about later.
		w.parked.due = time.Now().Add(parkedAtLeast)
	}
	w.mu.Unlock()
	if stopped {
		return
	}
	w.mu.Lock()
	w.surveys.acquired++
	w.mu.Unlock()
	defer func() { w.mu.Lock(); w.asking = false; w.surveys.acquired++; w.mu.Unlock() }()
	var failed backoff
	asked := now() // the first try may be the one that is granted
	for w.s.alive() {
		ask := req
		ask.Exclude = w.excluded()
		sent := time.Now()
		grants, err := call(of(w.s.ctx, "acquire"), func(ctx context.Context) ([]backend.Grant, error) { return w.be.Acquire(ctx, ask) })
		if err == nil {
			w.course.step(acquiring)
			w.take(grants, asked)
			if len(grants) > 0 {
				w.log.Info("acquired leases", "leases", len(grants), "took", time.Since(sent).Round(time.Microsecond))
			}
			return len(grants)
		}
		if isLost(err) {
			w.s.lose("the backend declared the session dead")
			return 0
		}
		if w.stopping() { // the end of the session frees what may have been granted
			return 0
		}
		failed.pause(w.s.ctx, w.log, "acquire failed", err)
	}
	return 0
}

// backoff spaces out the tries of a loop whose backend fails, and logs the first
// failure and then every tenth, not each.
type backoff struct{ failures int }

func (b *backoff) reset() { b.failures = 0 }

func (b *backoff) pause(ctx context.Context, log logger, what string, err error) {
	if ctx.Err() != nil {
		return
	}
	if c := callerOf(ctx); c != nil && c.progress != nil {
		c.progress.failed(what, err)
	}
	if b.failures%10 == 0 {
		log.Warn(what+", trying again", "error", err, "failures", b.failures+1)
	}
	b.wait(ctx)
}

// wait is pause for failures that are logged elsewhere.
func (b *backoff) wait(ctx context.Context) {
	b.failures++
	d := min(20*time.Millisecond<<min(b.failures, 6), time.Second)
	pause(ctx, d/2+rand.N(d/2))
}

type logger interface{ Warn(msg string, args ...any) }

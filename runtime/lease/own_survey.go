package lease

import (
	"context"
	"slices"
	"sync"
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
	// surveyRest is the most: a process rests four times as long as the shorter of its last two surveys took, so that a server that
	// is late gets no later by being asked. One survey alone may be late for another reason, such as a new connection.
	surveyRest = 250 * time.Millisecond
)

// surveyEvery is how often an uneventful process looks for expired sessions. It is less often
// where the end of a session is reported, unless leases become free at a time of their own.
func surveyEvery(s *session, works []*work) time.Duration {
	switch {
	case s.ttl < 8*time.Second:
		return 500 * time.Millisecond
	case s.alarm == nil || slices.ContainsFunc(works, func(w *work) bool { return w.info.Grace > 0 || w.info.Lock == LockRow }):
		return time.Second
	}
	return 6 * time.Second
}

// surveyed is a survey of one consumer, with what its process held before.
type surveyed struct {
	backend.Survey
	known int
	asked uint64 // see surveys.acquired
}

// surveys is how surveys reach their consumer.
type surveys struct {
	latest chan surveyed
	hinted atomic.Bool // the consumer asks for one
	alone  atomic.Bool // the consumer is surveyed by itself, until that succeeds

	mu       sync.Mutex
	acquired uint64 // raised before and after each Acquire
	free     int    // free resources that this process would take, at the last survey
}

// deliver hands the consumer a survey, in place of one that it has not yet looked at.
func (x *surveys) deliver(s surveyed) {
	select {
	case <-x.latest:
	default:
	}
	x.latest <- s // has room for one, and is filled here alone
}

// outdate makes surveys out of date that were begun before.
func (x *surveys) outdate() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.acquired++
}

func (x *surveys) outdated(s surveyed) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return s.asked != x.acquired
}

// begin is a survey that is about to be asked for, while the process may own known leases.
func (x *surveys) begin(known int) surveyed {
	x.mu.Lock()
	defer x.mu.Unlock()
	return surveyed{known: known, asked: x.acquired}
}

// want notes how many free resources this process would take.
func (x *surveys) want(n int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.free = max(n, 0)
}

func (x *surveys) wants() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.free
}

// survey looks at ownership until the session ends: at all consumers at once, now and then and
// soon after a hint says that something changed, which may be about some consumers only. When that fails each is asked for alone, so that
// one that cannot be surveyed keeps no other from its leases.
func (p *process) survey(s *session, works []*work) {
	var failed backoff
	var due time.Time        // of all consumers
	var before time.Duration // what the survey before took
	for all := true; s.ctx.Err() == nil; {
		if all {
			due = time.Now().Add(jitter(surveyEvery(s, works)))
		}
		together := slices.DeleteFunc(slices.Clone(works), func(w *work) bool {
			hinted := w.own.surveys.hinted.Swap(false)
			return w.own.surveys.alone.Load() || !all && !hinted
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
					p.surveyAlone(w)
				}
			}
		}
		took := time.Since(began)
		pause(s.ctx, max(surveyGap, min(4*took, 4*before, surveyRest)))
		before = took
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
func (o *owner) hintSurvey() {
	o.surveys.hinted.Store(true)
	hint(o.s.ownership.wake)
}

// surveyOf surveys consumers in one call and hands each its survey.
func (p *process) surveyOf(s *session, works []*work) error {
	names := make([]string, len(works))
	before := make([]surveyed, len(works))
	for i, w := range works {
		names[i] = w.info.Name
		before[i] = w.own.surveys.begin(w.own.mayOwnCount())
	}
	found, err := call(of(s.ctx, "survey"), func(ctx context.Context) ([]backend.Survey, error) { return p.be.Survey(ctx, names) })
	if err != nil {
		return err
	}
	for n, w := range works {
		if i := slices.IndexFunc(found, func(x backend.Survey) bool { return x.Consumer == w.info.Name }); i >= 0 {
			before[n].Survey = found[i]
			w.own.surveys.deliver(before[n])
		}
	}
	return nil
}

// surveyAlone surveys one consumer by itself until that succeeds.
func (p *process) surveyAlone(w *work) {
	w.own.surveys.alone.Store(true)
	w.calls.Go(func() {
		var failed backoff
		for w.s.ctx.Err() == nil {
			if err := p.surveyOf(w.s, []*work{w}); err != nil {
				failed.pause(w.s.ctx, w.log, "survey failed", err)
				continue
			}
			w.own.surveys.alone.Store(false)
			w.own.hintSurvey()
			return
		}
	})
}

package lease

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasegen/leasegen/runtime/operate"
)

// Progress is watched apart from liveness: a process whose heartbeats go on may stand still. Each
// activity of a consumer counts its steps; one that has work and makes no step for too long is
// reported, with the cause of its wait.

// activity is one kind of work.
type activity int

const (
	handling    activity = iota // a message was decided
	reading                     // a Fetch returned
	readParked                  // a FetchParked returned
	storing                     // a Commit returned
	acquiring                   // an Acquire returned
	releasing                   // a Release returned
	surveying                   // a survey came
	registering                 // a Register returned
	listening                   // the feed answered
	returning                   // a handler returned whose lease was lost before
	activities
)

// progress is how a consumer gets on under one session. Its methods may be called from many
// goroutines, with locks held or not.
type progress struct {
	steps      [activities]atomic.Uint64
	progressed atomic.Int64 // when progress was last stored, in Unix nanoseconds; 0: not yet
	refused    atomic.Int64 // when a commit was last refused, or of unknown outcome, and none has succeeded since; 0: not

	mu       sync.Mutex
	waits    map[*wait]struct{}
	failures map[string]mishap // by what failed; these are constants
	feed     bool              // the feed is open
	feedErr  error             // why it is not
	told     map[string]string // what was reported as standing still

	// These belong to watchProgress.
	seen  [activities]uint64
	since [activities]time.Time
}

// wait is something that is waited for.
type wait struct {
	what  string
	since time.Time
}

type mishap struct {
	err error
	at  time.Time
}

func newProgress() *progress {
	p := &progress{waits: map[*wait]struct{}{}, failures: map[string]mishap{}}
	for a := range p.since {
		p.since[a] = time.Now()
	}
	return p
}

// step counts one step of an activity. It is cheap.
func (p *progress) step(a activity) { p.steps[a].Add(1) }

// waiting notes that the consumer waits for what until done is called: for something that its
// activities do not show, like a transaction. Activities that last too long are reported.
func (p *progress) waiting(what string) (done func()) {
	x := &wait{what, time.Now()}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waits[x] = struct{}{}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.waits, x)
	}
}

// failed notes the last failure of a loop that tries again.
func (p *progress) failed(what string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failures[what] = mishap{err, time.Now()}
}

func (p *progress) feedOpened() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.feed, p.feedErr = true, nil
}

func (p *progress) feedClosed(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.feed, p.feedErr = false, err
}

// why is what failed since then, for those who ask why no work goes on.
func (p *progress) why(since time.Time) string {
	var out []string
	for what, f := range p.failures {
		if !f.at.Before(since) {
			out = append(out, oneLine(fmt.Sprintf("%s: %v", what, f.err)))
		}
	}
	if len(out) == 0 {
		return ""
	}
	slices.Sort(out)
	return " (" + strings.Join(out, "; ") + ")"
}

// pending is what a consumer is at, or wants, of one activity.
type pending struct {
	what  string        // empty: none
	least time.Duration // it is not told before that time
}

// pending says what the consumer has to do.
func (w *work) pending() (all [activities]pending) {
	w.own.pending(&all)
	w.run.pending(&all)
	return all
}

const often = 30 * time.Second // backends answer surveys and feeds within that, news or not

func (o *owner) pending(all *[activities]pending) {
	if _, under := o.names.registered(); under {
		all[registering] = pending{what: "its resources to be registered"}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.stopped {
		all[listening] = pending{"news: the feed does not answer", often}
		all[surveying] = pending{"a survey of its leases", often}
		if gives := some(o.held, func(h *holding) bool { return h.is(leaseReleasing) }); gives != "" {
			all[releasing] = pending{what: "leases to be released: " + gives}
		}
	}
	if lost := o.c.busyWithout(o.held); len(lost) > 0 {
		all[returning] = pending{what: "handlers to return whose leases were lost: " + strings.Join(few(lost), ", ")}
	}
	switch free := o.surveys.wants(); {
	case o.asking:
		all[acquiring] = pending{what: "leases to be acquired"}
	case free > 0 && !o.stopped:
		all[acquiring] = pending{what: fmt.Sprintf("%d free resources, of which the backend grants none", free)}
	}
}

func (r *runner) pending(all *[activities]pending) {
	on := r.stuck.on()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(on) > 0 { // calls of handlers under way
		all[handling] = pending{fmt.Sprintf("a handler on %s; %d of at most %d run", orLost(some(r.at, func(h *holding) bool { return on[h] })), len(on), r.c.concurrency), r.c.stuckAfter}
	}
	if reads := some(r.at, func(h *holding) bool { return h.reads.busy || h.reads.strain.resting }); r.reads.calls.busy > 0 || reads != "" {
		all[reading] = pending{what: "a read of " + orLost(reads)}
	}
	if r.parked.fetching || r.parked.reading.busy > 0 || r.parked.failures > 0 {
		all[readParked] = pending{what: "a read of parked messages"}
	}
	if stores := some(r.at, func(h *holding) bool { return r.store.uncommitted(h) > 0 }); stores != "" {
		all[storing] = pending{what: "progress to be stored of " + stores}
	} else if at := r.course.refused.Load(); at != 0 && time.Since(time.Unix(0, at)) < refusalKept {
		all[storing] = pending{"progress to be stored: each commit is refused, or its outcome is unknown", often}
	}
}

func orLost(names string) string { return cmp.Or(names, "leases that were lost") }

// some names a few of the leases that pass is, and how many more there are; empty for none.
func some(held map[string]*holding, is func(h *holding) bool) string {
	const most = 3
	var names []string
	n := 0
	for name, h := range held {
		if is(h) {
			if n++; len(names) < most {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	text := strings.Join(names, ", ")
	if n > most {
		text += fmt.Sprintf(" and %d more", n-most)
	}
	return text
}

// watchProgress tells, once each, of activities that stand still and of those that go on again.
func (w *work) watchProgress() {
	limit := w.c.stallAfter
	for pause(w.s.ctx, min(max(limit/8, time.Millisecond), 5*time.Second)) {
		begun, over := w.course.compare(w.pending(), limit)
		for _, what := range begun {
			w.log.Error("the consumer stands still; it waits for "+what, "session", w.s.id)
			w.c.observe(operate.ObservedStalled{Consumer: w.info.Name, Session: w.s.id, Waits: what})
		}
		for _, what := range over {
			w.log.Info("the consumer goes on; it waited for "+what, "session", w.s.id)
			w.c.observe(operate.ObservedStalled{Consumer: w.info.Name, Session: w.s.id, Waits: what, Over: true})
		}
	}
}

// compare compares what is to be done with the steps that were made, and returns what began to stand
// still and what goes on again.
func (p *progress) compare(all [activities]pending, limit time.Duration) (begun, over []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	stalled := map[string]string{} // text for the log by what is stable of it
	note := func(key, what string, since time.Time, least time.Duration) {
		if d := time.Since(since); d >= max(limit, least) {
			stalled[key] = fmt.Sprintf("%s, since %v%s", what, d.Round(time.Second/10), p.why(since))
		}
	}
	for a := range all {
		if n := p.steps[a].Load(); n != p.seen[a] || all[a].what == "" {
			p.seen[a], p.since[a] = n, time.Now()
			continue
		}
		note(fmt.Sprint(a), all[a].what, p.since[a], all[a].least)
	}
	for x := range p.waits {
		note(fmt.Sprintf("%p", x), x.what, x.since, 0)
	}
	for key, text := range stalled {
		if _, told := p.told[key]; !told {
			begun = append(begun, text)
		}
	}
	for key, text := range p.told {
		if _, still := stalled[key]; !still {
			over = append(over, text)
		}
	}
	p.told = stalled
	slices.Sort(begun)
	slices.Sort(over)
	return begun, over
}

// readiness reports why the consumer is not getting on under this session; nil when it is.
func (w *work) readiness() error {
	stopped := w.own.stopping()
	registered, _ := w.own.names.registered()
	p := w.course
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case stopped:
		return fmt.Errorf("it is stopping")
	case w.s.ctx.Err() != nil || w.s.left() <= 0:
		return fmt.Errorf("its session is lost")
	case !p.feed && p.feedErr != nil:
		return fmt.Errorf("its feed is not open: %w", p.feedErr)
	case !p.feed:
		return fmt.Errorf("its feed is not open yet")
	case !registered:
		return fmt.Errorf("its resources are not registered yet%s", p.why(time.Time{}))
	case len(p.told) > 0:
		var waits []string
		for _, text := range p.told {
			waits = append(waits, text)
		}
		slices.Sort(waits)
		return fmt.Errorf("it stands still; it waits for %s", strings.Join(waits, "; and for "))
	}
	return nil
}

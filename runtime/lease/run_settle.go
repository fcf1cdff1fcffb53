package lease

import (
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// counts says what became of messages, for the observer.
type counts struct {
	operate.Outcomes
	kinds []operate.KindOutcomes // kept only where there is an observer
}

// kindsAtMost is of how many kinds an observation tells.
const kindsAtMost = 200

// none reports that there is no news.
func (n *counts) none() bool { return n.Outcomes == operate.Outcomes{} }

// merge adds other counts.
func (n *counts) merge(more counts) {
	n.Add(more.Outcomes)
	for _, k := range more.kinds {
		if of := n.of(k.Kind); of != nil {
			of.Add(k.Outcomes)
		}
	}
}

// of returns what is counted of a kind; nil when there are too many kinds.
func (n *counts) of(kind string) *operate.Outcomes {
	for i := len(n.kinds) - 1; i >= 0; i-- { // mostly the last one
		if k := &n.kinds[i]; k.Kind == kind {
			return &k.Outcomes
		}
	}
	if len(n.kinds) == kindsAtMost {
		return nil
	}
	n.kinds = append(n.kinds, operate.KindOutcomes{Kind: kind})
	return &n.kinds[len(n.kinds)-1].Outcomes
}

// progress turns the decisions on p.ms[from:to] into what is to be stored.
func (t *turn) progress(from, to int) (backend.Progress, counts) {
	g := backend.Progress{Ref: t.h.ref}
	if t.p.parked == nil {
		g.Cursor = t.p.cursor(to)
	}
	var n counts
	for i := from; i < to; i++ {
		m, o := &t.p.ms[i], &t.p.out[i]
		var became operate.Outcomes
		switch o.verdict {
		case handled:
			became.Handled = 1
		case skipped:
			became.Skipped = 1
		case parked:
			became.Parked = 1
			g.Park = append(g.Park, backend.Park{ID: m.ID, Lane: o.lane, Attempt: o.attempt, After: o.after, Error: o.reason})
		case dead:
			became.Dead = 1
			g.Dead = append(g.Dead, backend.Dead{ID: m.ID, Attempt: o.attempt, Reason: o.reason})
			g.Once = append(g.Once, o.ask(m.ID)...)
		}
		n.Add(became)
		if t.r.c.told != nil && became != (operate.Outcomes{}) {
			if of := n.of(m.Kind); of != nil {
				of.Add(became)
			}
		}
		if t.p.parked != nil && (o.verdict == handled || o.verdict == skipped) {
			g.Done = append(g.Done, m.ID)
		}
	}
	return g, n
}

// noteLanes remembers the lanes that the decisions on p.ms[from:to] have made or emptied, and
// when they are due.
func (t *turn) noteLanes(from, to int) {
	for i := from; i < to; i++ {
		t.noteLateLane(i)
		switch o := &t.p.out[i]; {
		case o.verdict == parked:
			t.h.addLane(o.lane)
			if o.attempt > 0 || o.after > 0 {
				t.r.parked.lookWithin(o.after)
			}
			if t.p.parked != nil {
				t.p.behind[o.lane] = struct{}{}
			}
		case t.p.parked != nil && o.verdict != stays && t.p.parked[i].Last:
			delete(t.h.lanes, t.p.parked[i].Lane)
		}
	}
}

// noteLateLane keeps in mind which lanes wait for another version, and have outlived a message.
func (t *turn) noteLateLane(i int) {
	o := &t.p.out[i]
	if t.p.parked == nil || o.verdict == stays {
		return
	}
	if lane := t.p.parked[i].Lane; o.late && !t.p.parked[i].Last {
		if t.h.late == nil {
			t.h.late = map[string]struct{}{}
		}
		t.h.late[lane] = struct{}{}
	} else {
		delete(t.h.late, lane)
	}
}

// tell says which of p.ms[from:to] failed, once: a transaction that is refused is tried again, and its failures with it.
func (t *turn) tell(from, to int) {
	for i := from; i < to; i++ {
		switch m, o := &t.p.ms[i], &t.p.out[i]; {
		case o.verdict == parked && o.failed:
			t.r.log.Info("handler failed, trying the message again", "resource", t.h.Resource, "kind", m.Kind, "id", m.ID,
				"attempt", o.attempt, "after", o.after, "error", o.reason)
			t.r.c.observe(operate.ObservedRetry{Consumer: t.h.Consumer, Resource: t.h.Resource, Kind: m.Kind, ID: m.ID,
				Attempt: o.attempt, After: o.after, Reason: o.reason})
		case o.verdict == dead:
			t.r.log.Warn("dead letter", "resource", t.h.Resource, "kind", m.Kind, "id", m.ID, "attempts", o.attempt, "reason", o.reason)
			t.r.c.observe(operate.ObservedDeadLetter{Consumer: t.h.Consumer, Resource: t.h.Resource, Kind: m.Kind, ID: m.ID, Reason: o.reason, Attempts: o.attempt})
		}
	}
}

// settle hands over the progress made on p.ms[from:to].
func (t *turn) settle(from, to int) {
	if from == to {
		return
	}
	g, n := t.progress(from, to)
	t.tell(from, to)
	t.noteLanes(from, to)
	if t.p.parked != nil && n.none() && !t.h.careful() {
		return // all of it stays as it is
	}
	t.r.store.submit(t.h, g, n)
}

// stored notes that a commit succeeded, but for the leases that it names as fenced.
func (r *runner) stored(hs []*holding, es []*entry, fenced []string, took time.Duration) {
	refused := make(map[string]bool, len(fenced))
	for _, r := range fenced {
		refused[r] = true
	}
	for i, h := range hs {
		if refused[h.Resource] {
			r.own.fenced(h)
		} else {
			r.committed(h, es[i].n, took)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.store.account(hs, es) // together with what follows: a lease that is idle was settled
	for i, h := range hs {
		for _, p := range es[i].p.Park {
			if p.Attempt > 0 || p.After > 0 {
				r.parked.dueIn(p.After) // it waits from now on; who looked before it was stored did not see it
			}
		}
		r.settled(h)
	}
}

func (r *runner) committed(h *holding, n counts, took time.Duration) {
	r.own.refusals.forget(h.Resource)
	r.course.step(storing)
	r.course.refused.Store(0)
	if !n.none() {
		r.course.progressed.Store(time.Now().UnixNano())
		r.c.observe(operate.ObservedCommit{Consumer: h.Consumer, Resource: h.Resource, Epoch: h.Epoch, Outcomes: n.Outcomes, Kinds: n.kinds, Duration: took})
	}
}

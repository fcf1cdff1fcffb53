package lease

import (
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// counts says what became of messages, for the observer.
type counts struct{ handled, parked, dead, skipped int }

// progress turns the decisions on p.ms[from:to] into what is to be stored.
func (w *work) progress(h *held, p *pass, from, to int) (backend.Progress, counts) {
	g := backend.Progress{Ref: h.ref}
	if p.parked == nil {
		g.Cursor = p.cursor(to)
	}
	var n counts
	for i := from; i < to; i++ {
		m, o := &p.ms[i], &p.out[i]
		switch o.verdict {
		case handled:
			n.handled++
		case skipped:
			n.skipped++
		case parked:
			n.parked++
			g.Park = append(g.Park, backend.Park{ID: m.ID, Lane: o.lane, Attempt: o.attempt, After: o.after, Error: o.reason})
			if o.failed {
				w.log.Info("handler failed, trying the message again", "resource", h.Resource, "kind", m.Kind, "id", m.ID,
					"attempt", o.attempt, "after", o.after, "error", o.reason)
			}
		case dead:
			n.dead++
			g.Dead = append(g.Dead, w.giveUp(h, m, o))
			g.Once = append(g.Once, o.ask(m.ID)...)
		}
		if p.parked != nil && (o.verdict == handled || o.verdict == skipped) {
			g.Done = append(g.Done, m.ID)
		}
	}
	return g, n
}

// noteLanes remembers the lanes that the decisions on p.ms[from:to] have made or emptied, and
// when they are due. It is called by whoever runs h.
func (w *work) noteLanes(h *held, p *pass, from, to int) {
	for i := from; i < to; i++ {
		w.noteLate(h, p, i)
		switch o := &p.out[i]; {
		case o.verdict == parked:
			h.addLane(o.lane)
			if o.attempt > 0 || o.after > 0 {
				w.parkedDue(o.after)
			}
			if p.parked != nil {
				p.behind[o.lane] = struct{}{}
			}
		case p.parked != nil && o.verdict != stays && p.parked[i].Last:
			delete(h.lanes, p.parked[i].Lane)
		}
	}
}

// noteLate keeps in mind which lanes wait for another version, and have outlived a message.
func (w *work) noteLate(h *held, p *pass, i int) {
	o := &p.out[i]
	if p.parked == nil || o.verdict == stays {
		return
	}
	if lane := p.parked[i].Lane; o.late && !p.parked[i].Last {
		if h.late == nil {
			h.late = map[string]struct{}{}
		}
		h.late[lane] = struct{}{}
	} else {
		delete(h.late, lane)
	}
}

func (w *work) giveUp(h *held, m *backend.Raw, o *outcome) backend.Dead {
	w.log.Warn("dead letter", "resource", h.Resource, "kind", m.Kind, "id", m.ID, "attempts", o.attempt, "reason", o.reason)
	w.c.observe(operate.ObservedDeadLetter{Consumer: h.Consumer, Resource: h.Resource, Kind: m.Kind, ID: m.ID, Reason: o.reason, Attempts: o.attempt})
	return backend.Dead{ID: m.ID, Attempt: o.attempt, Reason: o.reason}
}

// settle hands over the progress made on p.ms[from:to].
func (w *work) settle(h *held, p *pass, from, to int) {
	if from == to {
		return
	}
	g, n := w.progress(h, p, from, to)
	w.noteLanes(h, p, from, to)
	if p.parked != nil && n == (counts{}) && !h.careful() {
		return // all of it stays as it is
	}
	w.store.submit(h, g, n)
}

// stored notes that a commit succeeded, but for the leases that it names as fenced.
func (w *work) stored(hs []*held, es []*entry, fenced []string) {
	refused := make(map[string]bool, len(fenced))
	for _, r := range fenced {
		refused[r] = true
	}
	for i, h := range hs {
		if refused[h.Resource] {
			w.fenced(h)
		} else {
			w.committed(h, es[i].n)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.store.account(hs, es) // together with what follows: a lease that is idle was settled
	for i, h := range hs {
		for _, p := range es[i].p.Park {
			if p.Attempt > 0 || p.After > 0 {
				w.dueIn(p.After) // it waits from now on; who looked before it was stored did not see it
			}
		}
		w.settled(h)
	}
}

func (w *work) committed(h *held, n counts) {
	w.refusals.forget(h.Resource)
	w.course.step(storing)
	if n != (counts{}) {
		w.c.observe(operate.ObservedCommit{Consumer: h.Consumer, Resource: h.Resource, Epoch: h.Epoch,
			Handled: n.handled, Parked: n.parked, Dead: n.dead, Skipped: n.skipped})
	}
}

// fenced is called when a write was refused because the lease has a newer epoch.
func (w *work) fenced(h *held) {
	w.c.observe(operate.ObservedFenced{Consumer: h.Consumer, Resource: h.Resource, Session: h.Session, Epoch: h.Epoch})
	w.lose(h, "a write was refused: the lease has a newer epoch")
	w.refusals.add(h.Resource)
	w.hintSurvey() // it may be free
	if w.info.Lock != LockAdvisory {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	h.locked = true
	w.unlock(h)
}

// unlock gives back the lock of a lease that was lost while the session lives, and nothing
// runs on it any more: it would keep out whoever's turn is next. The caller holds w.mu.
func (w *work) unlock(h *held) {
	if h.locked && !h.running {
		h.locked = false
		w.calls.Go(func() { w.release([]*held{h}) })
	}
}

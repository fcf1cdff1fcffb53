package lease

import (
	"context"
	"maps"
)

const (
	registerItems = 5000  // resources in one Register
	registerMost  = 20000 // that wait to be registered by name; when there are more, all are looked for
)

// registration is what the backend is to be told of a consumer's resources. It is guarded by
// work.mu.
type registration struct {
	wake  chan struct{}
	all   bool                // look for all that there are
	fresh map[string]struct{} // these are new
	limit int                 // names in the next Register: fewer after a failure, to get past a bad one
	under bool                // a Register is under way, or to be tried again
	done  bool                // all were registered once under this session
}

// registerAll makes all resources of the consumer known.
func (w *work) registerAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.enroll.all = true
	hint(w.enroll.wake)
}

// registerThese makes resources known of which there was news.
func (w *work) registerThese(names []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range names {
		w.enroll.fresh[n] = struct{}{}
	}
	if len(w.enroll.fresh) > registerMost {
		clear(w.enroll.fresh)
		w.enroll.all = true
	}
	hint(w.enroll.wake)
}

// register tells the backend of resources until the session ends. One that cannot be told is
// tried again, and stops nobody but its consumer.
func (w *work) register() {
	var failed backoff
	for w.s.ctx.Err() == nil {
		select {
		case <-w.enroll.wake:
		case <-w.s.ctx.Done():
			return
		}
		for {
			all, names := w.unregistered()
			if !all && len(names) == 0 {
				break
			}
			if err := w.registerOnce(all, names); err != nil {
				failed.pause(w.s.ctx, w.log, "registering resources failed", err)
				if w.s.ctx.Err() != nil {
					return
				}
				continue
			}
			failed.reset()
			w.course.step(registering)
		}
	}
}

// unregistered returns what is to be registered next: all, or some names.
func (w *work) unregistered() (all bool, names []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all = w.enroll.all
	if !all {
		for n := range w.enroll.fresh {
			if names = append(names, n); len(names) == w.enroll.limit {
				break
			}
		}
	}
	w.enroll.under = all || len(names) > 0
	w.enroll.all = false
	for _, n := range names {
		delete(w.enroll.fresh, n)
	}
	return all, names
}

// registerOnce registers all or names; what could not be registered is to be done again.
func (w *work) registerOnce(all bool, names []string) error {
	if all {
		names = nil
	}
	err := do(of(w.s.ctx, "register"), func(ctx context.Context) error { return w.be.Register(ctx, w.info, names) })
	w.mu.Lock()
	if err != nil {
		w.enroll.all = w.enroll.all || all
		w.enroll.limit = max(w.enroll.limit/2, 1)
		maps.Copy(w.enroll.fresh, setOf(names))
		w.mu.Unlock()
		return err
	}
	w.enroll.done = w.enroll.done || all
	w.enroll.limit = min(w.enroll.limit*2, registerItems)
	w.mu.Unlock()
	w.know(names)
	switch {
	case all || w.info.Per != PerStream:
		w.hintSurvey()
	case w.room() > 0:
		hint(w.streams.wanted)
	}
	return nil
}

func setOf(names []string) map[string]struct{} {
	set := make(map[string]struct{}, len(names))
	for _, n := range names {
		set[n] = struct{}{}
	}
	return set
}

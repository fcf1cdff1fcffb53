package lease

import (
	"context"
	"maps"
	"sync"
)

const (
	registerItems = 5000  // resources in one Register
	registerMost  = 20000 // streams that wait to be registered by name; when there are more, all are looked for
)

// registrar tells the backend of a consumer's resources.
type registrar struct {
	*scope
	own  *owner
	wake chan struct{}

	mu    sync.Mutex
	known map[string]struct{} // topics registered with the backend
	all   bool                // look for all that there are
	fresh map[string]struct{} // these are new
	limit int                 // names in the next Register: fewer after a failure, to get past a bad one
	under bool                // a Register is under way, or to be tried again
	done  bool                // all were registered once under this session
}

// registerAll makes all resources of the consumer known.
func (g *registrar) registerAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all = true
	hint(g.wake)
}

// registerAnew is registerAll after a loss. A topic that comes up later is registered even if it was before.
func (g *registrar) registerAnew() {
	g.mu.Lock()
	clear(g.known)
	g.mu.Unlock()
	g.registerAll()
}

// registerThese makes resources known of which there was news.
func (g *registrar) registerThese(names []string) {
	if len(names) == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, n := range names {
		g.fresh[n] = struct{}{}
	}
	// A search for all may last, and makes no topic known: topics would be looked for again and again. All of them are remembered anyway.
	if g.info.Per == PerStream && len(g.fresh) > registerMost {
		clear(g.fresh)
		g.all = true
	}
	hint(g.wake)
}

// registerLost makes a resource known again whose lease was lost: a server that lost writes may not know of it.
func (g *registrar) registerLost(resource string) {
	switch {
	case g.info.Announced: // the application names it
	case g.info.Per == PerTopic || g.info.Per == PerStream:
		g.registerThese([]string{resource})
	default:
		g.registerAll()
	}
}

// register tells the backend of resources until the session ends. One that is refused is
// tried again, and stops its own consumer alone.
func (g *registrar) register() {
	var failed backoff
	for g.s.ctx.Err() == nil {
		select {
		case <-g.wake:
		case <-g.s.ctx.Done():
			return
		}
		for {
			all, names := g.unregistered()
			if !all && len(names) == 0 {
				break
			}
			if err := g.registerOnce(all, names); err != nil {
				failed.pause(g.s.ctx, g.log, "registering resources failed", err)
				if g.s.ctx.Err() != nil {
					return
				}
				continue
			}
			failed.reset()
			g.course.step(registering)
		}
	}
}

// unregistered returns what is to be registered next: all, or some names.
func (g *registrar) unregistered() (all bool, names []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	all = g.all
	if !all {
		for n := range g.fresh {
			if names = append(names, n); len(names) == g.limit {
				break
			}
		}
	}
	g.under = all || len(names) > 0
	g.all = false
	for _, n := range names {
		delete(g.fresh, n)
	}
	return all, names
}

// registerOnce registers all or names; what could not be registered is to be done again.
func (g *registrar) registerOnce(all bool, names []string) error {
	if all {
		names = nil
	}
	err := do(of(g.s.ctx, "register"), func(ctx context.Context) error { return g.be.Register(ctx, g.info, names) })
	g.mu.Lock()
	if err != nil {
		g.all = g.all || all
		g.limit = max(g.limit/2, 1)
		maps.Copy(g.fresh, setOf(names))
		g.mu.Unlock()
		return err
	}
	g.done = g.done || all
	g.limit = min(g.limit*2, registerItems)
	g.mu.Unlock()
	g.know(names...)
	switch {
	case all || g.info.Per != PerStream:
		g.own.hintSurvey()
	case g.own.room() > 0:
		hint(g.own.streams.wanted)
	}
	return nil
}

// know notes that topics are registered.
func (g *registrar) know(topics ...string) {
	if g.info.Per != PerTopic {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, t := range topics {
		g.known[t] = struct{}{}
	}
}

// unknown returns the topics that are not registered as far as is known.
func (g *registrar) unknown(topics []string) (names []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, t := range topics {
		if _, ok := g.known[t]; !ok {
			names = append(names, t)
		}
	}
	return names
}

// registered reports that all resources were registered once under this session, and whether a Register is under way.
func (g *registrar) registered() (done, under bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.done, g.under
}

func setOf(names []string) map[string]struct{} {
	set := make(map[string]struct{}, len(names))
	for _, n := range names {
		set[n] = struct{}{}
	}
	return set
}

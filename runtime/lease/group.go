package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Group runs several consumers in one process. Those of one backend with one TTL and margin
// share a session, with one heartbeat.
type Group struct {
	processes []*process
	gate      *gate // of the handler calls of all of them
}

// NewGroup returns an empty group.
func NewGroup() *Group { return &Group{} }

// Add adds a consumer. It returns an error when the consumer is nil, or when the group
// already has one of that name on that backend. Call it before Run.
func (g *Group) Add(c *Consumer) error {
	if c == nil {
		return errors.New("lease: add a consumer to a group: the consumer is nil; look at the error of what should have made it")
	}
	if g.gate == nil {
		g.gate = newGate()
	}
	var home *process
	for _, p := range g.processes {
		if p.be != c.backend {
			continue
		}
		for _, other := range p.consumers {
			if other.Name() == c.Name() {
				return fmt.Errorf("lease: consumer %q was added to the group twice; one process works for a consumer once", c.Name())
			}
		}
		if p.ttl == c.spec.TTL && p.margin == c.spec.Margin {
			home = p
		}
	}
	if home == nil {
		home = &process{be: c.backend, log: c.logger, ttl: c.spec.TTL, margin: c.spec.Margin, left: &leftBehind{}, gate: g.gate}
		g.processes = append(g.processes, home)
	}
	home.consumers = append(home.consumers, c)
	return nil
}

// Run runs all consumers until ctx is cancelled, then drains, releases and returns nil.
// It returns an error at once when a backend cannot be used, or when one of the consumers
// runs already. Faults that come later are logged and outlived, by each consumer for itself.
func (g *Group) Run(ctx context.Context) error {
	if len(g.processes) == 0 {
		return errors.New("lease: the group has no consumers")
	}
	for _, p := range g.processes {
		for _, c := range p.consumers {
			if !c.begin() {
				return fmt.Errorf("lease: consumer %q runs already; run it once, or make another with NewConsumer", c.Name())
			}
			defer c.end()
		}
	}
	for _, p := range g.processes {
		if err := p.check(ctx); err != nil {
			if ctx.Err() != nil {
				return nil // stopped before it began
			}
			return err
		}
	}
	var wg sync.WaitGroup
	for _, p := range g.processes {
		wg.Go(func() { p.keep(ctx) })
	}
	wg.Wait()
	until := time.Now().Add(tellPatient)
	for _, p := range g.processes {
		for _, c := range p.consumers {
			c.tellRest(until)
		}
	}
	return nil
}

// Ready returns nil when every consumer is ready, see Consumer.Ready; else the error names
// those that are not, and why. It may be called at any time.
func (g *Group) Ready() error {
	var errs []error
	for _, p := range g.processes {
		for _, c := range p.consumers {
			errs = append(errs, c.Ready())
		}
	}
	if len(errs) == 0 {
		return errors.New("lease: the group has no consumers")
	}
	return errors.Join(errs...)
}

package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Consumer is one annotated handler struct, bound to a backend.
type Consumer struct {
	settings
	backend  Backend
	handlers map[string]*Handler // by kind; "" takes the rest
	hasTx    bool

	mu    sync.Mutex
	busy  map[string]int      // resources on which a handler runs, across sessions
	items map[string]struct{} // being executed by handlers made with Once

	strangers strangers // what messages wait with for another version
}

// NewConsumer binds a consumer to its backend. Generated constructors call it.
// The error lists every setting that is wrong.
func NewConsumer(be Backend, spec Spec, opts ...Option) (*Consumer, error) {
	c := &Consumer{backend: be, busy: map[string]int{}, items: map[string]struct{}{}, handlers: map[string]*Handler{}, settings: settings{
		spec:        spec,
		logger:      slog.Default(),
		concurrency: byDefault,
		maxPayload:  1 << 20,
		stuckAfter:  time.Minute,
	}}
	for _, o := range opts {
		o(&c.settings)
	}
	c.setDefaults()
	for i := range c.spec.Handlers {
		h := &c.spec.Handlers[i]
		c.handlers[h.kind] = h
		c.hasTx = c.hasTx || h.tx
	}
	errs := []error{c.spec.validate(), c.settings.validate(), c.checkOnce()}
	if be == nil {
		errs = append(errs, fmt.Errorf("lease: consumer %q: the backend is nil", spec.Name))
	} else if _, ok := be.(Transactor); c.hasTx && !ok {
		errs = append(errs, fmt.Errorf("lease: consumer %q: has transaction handlers, but the backend %T has no transactions", spec.Name, be))
	} else if _, ok := be.(RowLocker); c.spec.Lock == LockRow && !ok {
		errs = append(errs, fmt.Errorf("lease: consumer %q: the backend %T has no leases that expire one by one; use LockSession", spec.Name, be))
	} else if _, ok := be.(Streamer); c.spec.Per == PerStream && !ok {
		errs = append(errs, fmt.Errorf("lease: consumer %q: the backend %T has no streams; use PerPartition or PerTopic", spec.Name, be))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return c, nil
}

// Name is the consumer's name.
func (c *Consumer) Name() string { return c.spec.Name }

// Run works until ctx is cancelled, then drains, releases and returns nil. It
// returns an error at once when the backend cannot be used. To run several consumers
// in one process, put them in a Group: they share one session.
func (c *Consumer) Run(ctx context.Context) error {
	g := NewGroup()
	if err := g.Add(c); err != nil {
		return err
	}
	return g.Run(ctx)
}

// Info is the consumer as backends know it.
func (c *Consumer) Info() ConsumerInfo {
	return ConsumerInfo{
		Name: c.spec.Name, Per: c.spec.Per, Topics: c.spec.Topics,
		Lock: c.spec.Lock, TTL: c.spec.TTL, Grace: c.spec.Grace, From: c.spec.From,
		Source: c.spec.Source, Announced: c.spec.Streams != nil, OnceKeep: c.spec.OnceKeep,
		Keep: c.spec.DeadLetters.Keep, Max: c.spec.DeadLetters.Max,
	}
}

func (c *Consumer) handlerFor(kind string) *Handler {
	if h := c.handlers[kind]; h != nil {
		return h
	}
	return c.handlers[""]
}

func (c *Consumer) observe(o Observation) {
	if c.observer != nil {
		c.observer.Observe(o)
	}
}

// enter and leave bracket handler code on a resource. A handler that ignores its
// cancelled context keeps the resource busy, and this process from owning it again.
func (c *Consumer) enter(resource string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy[resource]++
}

func (c *Consumer) leave(resource string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy[resource]--; c.busy[resource] == 0 {
		delete(c.busy, resource)
	}
}

// busyBeside counts the resources on which a handler runs and that are not held.
func (c *Consumer) busyBeside(held map[string]*held) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for r := range c.busy {
		if held[r] == nil {
			n++
		}
	}
	return n
}

func (c *Consumer) busyResources() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []string
	for r := range c.busy {
		names = append(names, r)
	}
	return names
}

package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// Consumer is one annotated handler struct, bound to a backend.
type Consumer struct {
	settings
	backend  Backend
	handlers map[string]*Handler // by kind; "" takes the rest
	hasTx    bool
	around   CallFunc                     // nil without middleware
	told     *teller[operate.Observation] // nil without an observer
	lines    *teller[logLine]
	left     leftBehind
	asking   chan struct{} // holds a token while Streams is being asked
	calls    underWay

	mu      sync.Mutex
	busy    map[string]int      // resources on which a handler runs, across sessions
	items   map[string]struct{} // being executed by handlers made with Once
	running bool                // Run is under way
	ended   bool                // Run has returned
	work    *work               // under the present session; nil without one
	trouble error               // why the session is missing

	strangers strangers // what messages wait with for another version
	pausing   pausing
}

// NewConsumer binds a consumer to its backend. Generated constructors call it.
// The error lists every setting that is wrong.
func NewConsumer(be Backend, spec Spec, opts ...Option) (*Consumer, error) {
	c := &Consumer{backend: be, busy: map[string]int{}, items: map[string]struct{}{}, asking: make(chan struct{}, 1), handlers: map[string]*Handler{}, settings: settings{
		spec:        spec,
		logger:      slog.Default(),
		concurrency: byDefault,
		maxPayload:  1 << 20,
		stuckAfter:  time.Minute,
		stallAfter:  time.Minute,
	}}
	for i, o := range opts {
		if o == nil {
			return nil, fmt.Errorf("lease: consumer %q: option %d of %d is nil", spec.Name, i+1, len(opts))
		}
		o(&c.settings)
	}
	c.setDefaults()
	for i := range c.spec.Handlers {
		h := &c.spec.Handlers[i]
		c.handlers[h.kind] = h
		c.hasTx = c.hasTx || h.tx
	}
	var err error
	if c.around, err = around(c.middleware); err != nil {
		err = fmt.Errorf("lease: consumer %q: %w", spec.Name, err)
	}
	errs := []error{err, c.spec.validate(), c.settings.validate(), c.checkOnce()}
	if be == nil {
		errs = append(errs, fmt.Errorf("lease: consumer %q: the backend is nil", spec.Name))
	} else if caps := be.Capabilities(); c.hasTx && caps.Tx == nil {
		errs = append(errs, fmt.Errorf("lease: consumer %q: has transaction handlers, but the backend %T has no transactions", spec.Name, be))
	} else if c.spec.Lock == LockRow && caps.Rows == nil {
		errs = append(errs, fmt.Errorf("lease: consumer %q: the backend %T has no leases that expire one by one; use LockSession", spec.Name, be))
	} else if c.spec.Per == PerStream && caps.Streams == nil {
		errs = append(errs, fmt.Errorf("lease: consumer %q: the backend %T has no streams; use PerPartition or PerTopic", spec.Name, be))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	c.logger, c.lines = newLogger(c.logger)
	if c.observer != nil {
		c.told = newObserverTeller(c.Name(), c.observer, c.logger)
	}
	return c, nil
}

// Name is the consumer's name.
func (c *Consumer) Name() string { return c.spec.Name }

// Run works until ctx is cancelled, then drains, releases and returns nil. It
// returns an error at once when the backend cannot be used, or when the consumer runs
// already. To run several consumers in one process, put them in a Group: they share sessions.
func (c *Consumer) Run(ctx context.Context) error {
	g := NewGroup()
	if err := g.Add(c); err != nil {
		return err
	}
	return g.Run(ctx)
}

// Info is the consumer as backends know it.
func (c *Consumer) Info() backend.ConsumerInfo {
	return backend.ConsumerInfo{
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

func (c *Consumer) observe(o operate.Observation) {
	if c.told != nil {
		c.told.add(o)
	}
}

// tellRest waits until the observer and the logger have got the rest.
func (c *Consumer) tellRest(until time.Time) {
	if c.told != nil {
		c.told.flush(time.Until(until))
	}
	c.lines.flush(time.Until(until))
}

// Ready returns nil when the consumer has a session and a feed, knows its resources, and gets on
// with its work; else the error names the consumer and what is amiss. One that an operator has paused has no work: it is
// ready, and its Health says that it is paused. Ready is meant for readiness
// probes, and may be called at any time from any goroutine.
func (c *Consumer) Ready() error {
	c.mu.Lock()
	running, w, trouble := c.running, c.work, c.trouble
	c.mu.Unlock()
	var err error
	switch {
	case !running:
		err = errors.New("it does not run")
	case w != nil:
		err = w.readiness()
	case trouble != nil:
		err = fmt.Errorf("it has no session: %w", trouble)
	default:
		err = errors.New("it has no session yet")
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s%w", c.unready(), err)
}

// unready is how errors of Ready begin.
func (c *Consumer) unready() string {
	return fmt.Sprintf("lease: consumer %q is not ready: ", c.Name())
}

// begin reports whether the consumer may run: not twice at once. end is its counterpart.
func (c *Consumer) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running {
		return false
	}
	c.running, c.ended, c.trouble = true, false, nil
	return true
}

func (c *Consumer) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running, c.ended, c.work = false, true, nil
}

// with and without note under which session the consumer works, if any.
func (c *Consumer) with(w *work) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.work, c.trouble = w, nil
}

func (c *Consumer) without(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.work, c.trouble = nil, why
}

// enter and leave bracket handler code on a resource. A handler that ignores its
// cancelled context keeps the resource busy, and this process from owning it again.
func (c *Consumer) enter(resource string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy[resource]++
}

// leave gets the session that entered: a resource that an earlier session left busy may be taken now.
func (c *Consumer) leave(resource string, by *owner) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy[resource]--; c.busy[resource] > 0 {
		return
	}
	delete(c.busy, resource)
	if c.work != nil && c.work.own != by {
		c.work.course.step(returning)
		c.work.own.hintSurvey()
	}
}

// busyWithout returns the resources on which a handler runs and that are not held.
func (c *Consumer) busyWithout(held map[string]*holding) (names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for r := range c.busy {
		if held[r] == nil {
			names = append(names, r)
		}
	}
	return names
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

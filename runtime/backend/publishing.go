package backend

import (
	"context"
	"errors"

	"github.com/leasegen/leasegen/runtime/internal/guard"
)

// PublishMiddleware wraps the calls of Publish, of a backend and of what joins a caller's transaction: it may add to the
// context and to the events, time the call, or refuse it. It calls next once, with the Publication that it was given or a
// changed copy of it; without that no event is appended. A second call, or one after it has returned, gets an error and
// appends no event. A call in another goroutine is waited for when middleware returns before it, so that no transaction is
// used after Publish has returned; a panic there ends the process. Middleware is called by many goroutines at once.
type PublishMiddleware func(next PublishFunc) PublishFunc

// PublishFunc makes a call of Publish.
type PublishFunc func(ctx context.Context, p Publication) error

// Publication is a call of Publish as middleware sees it.
type Publication struct {
	// Events are the caller's: middleware that changes one, or its headers, hands on a copy.
	Events []Event
	// InTx says that the events join a transaction of the caller's, and are there when that has committed.
	InTx bool

	within *publication
}

// publication is a call of Publish that has middleware around it.
type publication struct {
	once    guard.Call
	publish func(context.Context, []Event) error
}

func (p *publication) make(ctx context.Context, events []Event) error {
	if !p.once.Begin() {
		return errPublishedAgain
	}
	defer p.once.End()
	return p.publish(ctx, events)
}

// Publishing is the middleware around a backend's publishing. Its zero value has none.
type Publishing struct{ around PublishFunc }

var (
	errForeignPublication = errors.New("publish: middleware called next with a Publication that it was not given; hand on that, or a changed copy of it")
	errPublishedAgain     = errors.New("publish: middleware called next twice, or after it had returned; call it once, and return an error to have the caller publish again")
)

// NewPublishing puts middleware around publishing, the first outermost. Where one is nil, or returns nil, all publishing
// fails and says so.
func NewPublishing(all ...PublishMiddleware) Publishing {
	if len(all) == 0 {
		return Publishing{}
	}
	next := func(ctx context.Context, p Publication) error {
		if p.within == nil {
			return errForeignPublication
		}
		return p.within.make(ctx, p.Events)
	}
	for i := len(all) - 1; i >= 0; i-- {
		if all[i] != nil {
			next = all[i](next)
		}
		if all[i] == nil || next == nil {
			return Publishing{func(context.Context, Publication) error {
				return errors.New("publish: a middleware is nil, or has returned nil; look at WithPublishMiddleware")
			}}
		}
	}
	return Publishing{next}
}

// Publish calls publish, within the middleware. An empty call is none.
func (p Publishing) Publish(ctx context.Context, events []Event, inTx bool, publish func(context.Context, []Event) error) error {
	if p.around == nil || len(events) == 0 {
		return publish(ctx, events)
	}
	within := &publication{publish: publish}
	defer within.once.Over()
	return p.around(ctx, Publication{Events: events, InTx: inTx, within: within})
}

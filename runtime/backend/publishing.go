package backend

import (
	"context"
	"errors"
)

// PublishMiddleware wraps the calls of Publish, of a backend and of what joins a caller's transaction: it may add to the
// context and to the events, time the call, or refuse it. It calls next once, with the Publication that it was given or a
// changed copy of it, in the same goroutine; without that no event is appended. It is called by many goroutines at once.
type PublishMiddleware func(next PublishFunc) PublishFunc

// PublishFunc makes a call of Publish.
type PublishFunc func(ctx context.Context, p Publication) error

// Publication is a call of Publish as middleware sees it.
type Publication struct {
	// Events are the caller's: middleware that changes one, or its headers, hands on a copy.
	Events []Event
	// InTx says that the events join a transaction of the caller's, and are there when that has committed.
	InTx bool

	publish func(context.Context, []Event) error
}

// Publishing is the middleware around a backend's publishing. Its zero value has none.
type Publishing struct{ around PublishFunc }

var errForeignPublication = errors.New("publish: middleware called next with a Publication that it was not given")

// NewPublishing puts middleware around publishing, the first outermost. Where one is nil, or returns nil, all publishing
// fails and says so.
func NewPublishing(all ...PublishMiddleware) Publishing {
	if len(all) == 0 {
		return Publishing{}
	}
	next := func(ctx context.Context, p Publication) error {
		if p.publish == nil {
			return errForeignPublication
		}
		return p.publish(ctx, p.Events)
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
	return p.around(ctx, Publication{Events: events, InTx: inTx, publish: publish})
}

package lease

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"
)

// EventType is what generated code knows of an event.
type EventType[T any] struct {
	Kind string
	Key  func(*T) string // the ordering key; nil: none
	ID   func(*T) string // see Event.ID; nil: none
}

// Publish encodes payloads as JSON and appends them to topic, with the trace context of
// ctx. Generated Publish functions call it. Publisher.Publish says how many are appended all or none.
func Publish[T any](ctx context.Context, to Publisher, topic string, typ EventType[T], payloads []T) error {
	if len(payloads) == 0 {
		return nil
	}
	if topic == "" {
		return fmt.Errorf("lease: publish %s: the topic is empty", typ.Kind)
	}
	events := make([]Event, len(payloads))
	for i := range payloads {
		p := &payloads[i]
		b, err := json.Marshal(p)
		if err != nil {
			return fmt.Errorf("lease: publish %s to %s: encode event %d: %w", typ.Kind, topic, i, err)
		}
		e := Event{Topic: topic, Kind: typ.Kind, Payload: b, Headers: traceHeaders(ctx)}
		if typ.Key != nil {
			if e.Key, err = read(typ.Key, p); err != nil {
				return fmt.Errorf("lease: publish %s to %s: the key of event %d: %w", typ.Kind, topic, i, err)
			}
		}
		if typ.ID != nil {
			if e.ID, err = read(typ.ID, p); err != nil {
				return fmt.Errorf("lease: publish %s to %s: the id of event %d: %w", typ.Kind, topic, i, err)
			}
			if e.ID == "" {
				return fmt.Errorf("lease: publish %s to %s: the id of event %d is empty; it cannot deduplicate", typ.Kind, topic, i)
			}
		}
		events[i] = e
	}
	return to.Publish(ctx, events)
}

// PublishOption changes how events are published, see With.
type PublishOption func(*publishing)

// At delays events until the backend's clock has reached t.
func At(t time.Time) PublishOption { return func(p *publishing) { p.at = t } }

// After delays events until d has passed since their publication, by the backend's clock.
func After(d time.Duration) PublishOption { return func(p *publishing) { p.after = d } }

// Headers adds headers to events. They win over headers of the same name that are there,
// and over the trace context of the call's ctx.
func Headers(h map[string]string) PublishOption {
	return func(p *publishing) {
		if p.headers == nil {
			p.headers = map[string]string{}
		}
		maps.Copy(p.headers, h)
	}
}

// MessageID sets Event.ID. One id cannot stand for several events: publishing more than
// one in a call is an error, and so is an empty id.
func MessageID(id string) PublishOption {
	return func(p *publishing) { p.id, p.hasID = id, true }
}

// With returns a publisher that appends to to's log with these options: a backend, or a
// publisher that joins a transaction.
//
//	PublishOrderPlaced(ctx, lease.With(backend, lease.After(time.Hour)), "orders.eu", order)
func With(to Publisher, opts ...PublishOption) Publisher {
	p := &publishing{to: to}
	for _, o := range opts {
		o(p)
	}
	return p
}

// publishing is a publisher with options.
type publishing struct {
	to      Publisher
	at      time.Time
	after   time.Duration
	headers map[string]string
	id      string
	hasID   bool
}

func (p *publishing) Publish(ctx context.Context, events []Event) error {
	switch {
	case p.hasID && p.id == "":
		return fmt.Errorf("lease: publish: MessageID was given an empty id; it cannot deduplicate")
	case p.hasID && len(events) > 1:
		return fmt.Errorf("lease: publish: MessageID was given with %d events; publish them one by one, each with an id of its own", len(events))
	}
	out := make([]Event, len(events))
	for i, e := range events {
		if p.hasID {
			e.ID = p.id
		}
		if !p.at.IsZero() {
			e.At = p.at
		}
		if p.after != 0 {
			e.After = p.after
		}
		if len(p.headers) > 0 {
			e.Headers = maps.Clone(e.Headers)
			if e.Headers == nil {
				e.Headers = map[string]string{}
			}
			if p.headers[traceParent] != "" {
				delete(e.Headers, traceState) // it belongs to the traceparent that is replaced
			}
			maps.Copy(e.Headers, p.headers)
		}
		out[i] = e
	}
	return p.to.Publish(ctx, out)
}

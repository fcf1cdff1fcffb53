package lease

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"time"
	"unicode/utf8"
)

// Event is what a publisher hands to a backend. Its texts are UTF-8 without zero bytes, see
// CheckEvents for their lengths.
type Event struct {
	Topic, Key, Kind string
	Payload          []byte
	Headers          map[string]string
	// ID, when set, keeps out a second event with the same ID on the same topic, for 7
	// days: it is left out without an error.
	ID string
	// At and After delay the event: it joins the log when the backend's clock has reached
	// At, and After has passed since its publication. Zero values do not delay.
	At    time.Time
	After time.Duration
}

// Publisher appends events to a backend's log, all or none, in the order given.
// A backend is a Publisher that commits by itself; a backend with transactions
// offers another one that joins the caller's.
type Publisher interface {
	Publish(ctx context.Context, events []Event) error
}

// maxText is how long an event's topic, key, kind and ID may be, in bytes. Backends index
// them, some two of them together.
const maxText = 1024

// CheckEvents reports what no backend publishes: an event without a topic; a topic, key, kind
// or ID of more than 1,024 bytes; one of these, or a header, that is not UTF-8 or contains a
// zero byte. The error names the event and the field, not what is in it. Backends call it
// first, so that all of them refuse the same events, and before anything is written.
func CheckEvents(events []Event) error {
	for i := range events {
		if problem := events[i].problem(); problem != "" {
			return fmt.Errorf("lease: publish: event %d of %d: %s", i+1, len(events), problem)
		}
	}
	return nil
}

// problem says why the event cannot be published; empty if it can.
func (e *Event) problem() string {
	if e.Topic == "" {
		return "it has no topic; set Event.Topic"
	}
	for _, f := range [...]struct{ name, text string }{{"topic", e.Topic}, {"key", e.Key}, {"kind", e.Kind}, {"ID", e.ID}} {
		switch {
		case len(f.text) > maxText:
			return fmt.Sprintf("the %s is %d bytes long, at most %d are allowed; use a short name or a hash, and put the whole into the payload", f.name, len(f.text), maxText)
		case !isText(f.text):
			return fmt.Sprintf("the %s is not UTF-8 text without zero bytes; encode it, as hex or base64 say", f.name)
		}
	}
	for name, value := range e.Headers {
		if !isText(name) || !isText(value) {
			return "a header is not UTF-8 text without zero bytes; encode it, as hex or base64 say"
		}
	}
	return ""
}

// isText reports whether every backend can store s as text.
func isText(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

// EventType is what generated code knows of an event.
type EventType[T any] struct {
	Kind string
	Key  func(*T) string // the ordering key; nil: none
	ID   func(*T) string // see Event.ID; nil: none
}

// Publish encodes payloads as JSON and appends them to topic, with the trace context of
// ctx. Generated Publish functions call it; either all events are published or none.
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
				return fmt.Errorf("lease: publish %s to %s: the id of event %d is empty; it would keep out no second one", typ.Kind, topic, i)
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
		return fmt.Errorf("lease: publish: MessageID was given an empty id; it would keep out no second event")
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

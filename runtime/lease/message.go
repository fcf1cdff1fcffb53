package lease

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// Message is one event as a handler sees it.
type Message[T any] struct {
	// ID names the message within its backend. It is the same at every delivery,
	// so it serves as an idempotency key.
	ID string
	// Topic, Key and Kind are the channel, the ordering key (may be empty) and the event name.
	Topic, Key, Kind string
	// Payload is the decoded event.
	Payload T
	// Headers are what the publisher attached; nil when there are none.
	Headers map[string]string
	// Attempt counts handler failures of this message plus one: 1 at the first
	// delivery. Crashes, handovers and restarts do not raise it.
	Attempt int
	// Epoch is the fencing token of the lease under which the message is handled.
	// Pass it to any outside system that can refuse an older one.
	Epoch int64
	// PublishedAt is the backend's clock when the message was published.
	PublishedAt time.Time
	// IdempotencyKey is the same for all messages that are one item to a handler made with
	// Once, at every delivery; for others it is the ID.
	IdempotencyKey string
}

// Raw is a message as a backend stores it, its payload still encoded.
type Raw struct {
	ID               string
	Topic, Key, Kind string
	Payload          []byte
	Headers          map[string]string
	PublishedAt      time.Time
	// Attempt is the number of failures so far: 0 for a message read from the log.
	Attempt int
	// Value is the payload of a source that reads it typed; Payload is nil then.
	Value any
	// Size is the payload's length in bytes. When it exceeds FetchRequest.MaxPayload
	// the backend leaves Payload nil rather than load it.
	Size int
}

// Event is what a publisher hands to a backend.
type Event struct {
	Topic, Key, Kind string
	Payload          []byte
	Headers          map[string]string
	// ID, when set, keeps out a second event with the same ID on the same topic, for as
	// long as the backend remembers it (7 days).
	ID string
	// At and After delay the event: it joins the log when the backend's clock has reached
	// At, or After has passed since its publication. Zero values do not delay.
	At    time.Time
	After time.Duration
}

// Publisher appends events to a backend's log, all or none, in the order given.
// A backend is a Publisher that commits by itself; a backend with transactions
// offers another one that joins the caller's.
type Publisher interface {
	Publish(ctx context.Context, events []Event) error
}

// EventType is what generated code knows of an event.
type EventType[T any] struct {
	Kind string
	Key  func(*T) string // the ordering key; nil: none
	ID   func(*T) string // see Event.ID; nil: none
}

// Publish encodes payloads as JSON and appends them to topic. Generated Publish
// functions call it; either all events are published or none.
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
		e := Event{Topic: topic, Kind: typ.Kind, Payload: b}
		if typ.Key != nil {
			e.Key = typ.Key(p)
		}
		if typ.ID != nil {
			if e.ID = typ.ID(p); e.ID == "" {
				return fmt.Errorf("lease: publish %s to %s: the id of event %d is empty; it would keep out no second one", typ.Kind, topic, i)
			}
		}
		events[i] = e
	}
	return to.Publish(ctx, events)
}

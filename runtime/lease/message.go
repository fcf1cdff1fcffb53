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
	// Size is the payload's length in bytes. When it exceeds FetchRequest.MaxPayload
	// the backend leaves Payload nil rather than load it.
	Size int
}

// Event is what a publisher hands to a backend.
type Event struct {
	Topic, Key, Kind string
	Payload          []byte
	Headers          map[string]string
}

// Publisher appends events to a backend's log, all or none, in the order given.
// A backend is a Publisher that commits by itself; a backend with transactions
// offers another one that joins the caller's.
type Publisher interface {
	Publish(ctx context.Context, events []Event) error
}

// Publish encodes payloads as JSON and appends them to topic. key may be nil.
// Generated Publish functions call it; either all events are published or none.
func Publish[T any](ctx context.Context, to Publisher, topic, kind string, key func(*T) string, payloads []T) error {
	if len(payloads) == 0 {
		return nil
	}
	if topic == "" {
		return fmt.Errorf("lease: publish %s: the topic is empty", kind)
	}
	events := make([]Event, len(payloads))
	for i := range payloads {
		b, err := json.Marshal(payloads[i])
		if err != nil {
			return fmt.Errorf("lease: publish %s to %s: encode event %d: %w", kind, topic, i, err)
		}
		events[i] = Event{Topic: topic, Kind: kind, Payload: b}
		if key != nil {
			events[i].Key = key(&payloads[i])
		}
	}
	return to.Publish(ctx, events)
}

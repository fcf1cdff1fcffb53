package lease

import "time"

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
	// PublishedAt is the backend's clock when the message was published; if it was delayed,
	// when it joined the log.
	PublishedAt time.Time
	// IdempotencyKey is the same for all messages that are one item to a handler made with
	// Once, at every delivery: the consumer, a slash and the item's key. For others it is the ID.
	IdempotencyKey string
}

package backend

import (
	"bytes"
	"context"
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
	// ID, when set, excludes a second event with the same ID on the same topic, for 7
	// days: it is left out without an error.
	ID string
	// At and After delay the event: it joins the log when the backend's clock has reached
	// At, and After has passed since its publication. Zero values do not delay.
	At    time.Time
	After time.Duration
}

// Due is when the event joins a log that it is published to now: now, or later when At and After delay it.
func (e *Event) Due(now time.Time) time.Time {
	due := now.Add(max(e.After, 0))
	if e.At.After(due) {
		due = e.At
	}
	return due
}

// Raw is the event as a message, with a payload of at most maxPayload bytes. It shares no memory with the event.
func (e *Event) Raw(id string, publishedAt time.Time, maxPayload int) Raw {
	r := Raw{ID: id, Topic: e.Topic, Key: e.Key, Kind: e.Kind, Headers: maps.Clone(e.Headers), PublishedAt: publishedAt, Size: len(e.Payload)}
	if r.Size <= maxPayload {
		r.Payload = bytes.Clone(e.Payload)
	}
	return r
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

// Publisher appends events to a backend's log.
// A backend is a Publisher that commits by itself; a backend with transactions
// offers another one that joins the caller's.
type Publisher interface {
	// Publish appends events in the order given, in one step or several, each of which appends its events all or none:
	// leasepg and leasemem append all events of a call in one, leaseredis up to 1,000 events and 1 MB of one topic, or less
	// where many consumers take copies. After an error the first steps may have been made. A repetition appends again, but
	// for events whose ID is there already.
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

// isText reports whether every backend can store s as text.
func isText(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

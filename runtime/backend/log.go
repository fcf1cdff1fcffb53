package backend

import (
	"context"
	"slices"
	"strings"
	"time"
)

// Log is the messages in the order in which they became visible: one that is published after another's publication
// returned comes after it.
type Log interface {
	// OpenFeed starts watching the log and the ownership tables on behalf of one process.
	OpenFeed(ctx context.Context, consumers []ConsumerInfo) (Feed, error)

	// Fetch reads the next messages of each item, in order, in one round trip to each server. It writes no rows.
	// Items without news come back without messages. Messages that match no pattern are passed over in Next. It answers for no resource that it was not asked for.
	Fetch(ctx context.Context, req FetchRequest) ([]Fetched, error)
}

// Raw is a message as a backend stores it, its payload still encoded.
type Raw struct {
	ID               string
	Topic, Key, Kind string
	Payload          []byte
	Headers          map[string]string
	// PublishedAt of a delayed event is when it joined the log.
	PublishedAt time.Time
	// Attempt is the number of failures so far: 0 for a message read from the log.
	Attempt int
	// Value is the payload of a source that reads it typed; Payload is nil then.
	Value any
	// Size is the payload's length in bytes. When it exceeds FetchRequest.MaxPayload
	// the backend leaves Payload nil rather than load it.
	Size int
}

// Cursor is how far a consumer has got on a resource; nil is the beginning. Only its backend can read it.
// Its values can be compared with ==, and one may be in use by a Fetch and a Commit at once.
type Cursor any

// Feed reports changes. It is used by one goroutine.
type Feed interface {
	// Next waits until there is news or a poll interval of the backend's choice has
	// passed. It may report too much, never too little.
	Next(ctx context.Context) (News, error)
	Close()
}

// News is what changed since the feed's last answer.
type News struct {
	// Topics of the log received messages. Topics that no consumer of the feed matches are left out.
	Topics []string
	// Resources received messages, by consumer: slots, streams, the resources of consumers with a source of their own, which Topics
	// cannot tell, and a group whose messages Topics do not tell. Topics of which only consumers named here read need not be named.
	Resources map[string][]string
	// Ownership: a session joined, left or died, or leases were released.
	Ownership bool
	// Wanted are consumers of which streams became wanted, as far as Ownership does not tell it.
	Wanted []string
	// Parked: an operator replayed dead letters.
	Parked bool
}

// Add notes that a resource of a consumer received messages.
func (n *News) Add(consumer, resource string) {
	if n.Resources == nil {
		n.Resources = map[string][]string{}
	}
	n.Resources[consumer] = append(n.Resources[consumer], resource)
}

// Compact sorts topics and resources, and removes those that are named twice.
func (n *News) Compact() {
	slices.Sort(n.Topics)
	n.Topics = slices.Compact(n.Topics)
	for consumer, resources := range n.Resources {
		slices.Sort(resources)
		n.Resources[consumer] = slices.Compact(resources)
	}
}

// FetchRequest asks for the next messages of many resources of one consumer.
type FetchRequest struct {
	Consumer   ConsumerInfo
	Items      []FetchItem
	MaxPayload int // bytes; larger payloads are not loaded
}

// FetchItem is one resource to read.
type FetchItem struct {
	Resource string
	From     Cursor
	Limit    int // messages
}

// Fetched is what Fetch read of one resource.
type Fetched struct {
	Resource string
	Messages []Raw
	// Next is the cursor after all messages; the very same as FetchItem.From (by ==)
	// when no message was passed over, so that no module has to be stored.
	Next Cursor
	// Cut returns the cursor after the first n messages, 0 <= n <= len(Messages).
	Cut func(n int) Cursor
	// More is true when the limit cut the read short.
	More bool
}

// MatchTopic reports whether topic matches any of the patterns. In a pattern,
// * stands for any run of characters, dots and slashes included; everything
// else stands for itself.
func MatchTopic(patterns []string, topic string) bool {
	for _, p := range patterns {
		if matchOne(p, topic) {
			return true
		}
	}
	return false
}

func matchOne(pattern, s string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == s
	}
	if !strings.HasPrefix(s, parts[0]) {
		return false
	}
	s = s[len(parts[0]):]
	last := parts[len(parts)-1]
	for _, part := range parts[1 : len(parts)-1] {
		i := strings.Index(s, part)
		if i < 0 {
			return false
		}
		s = s[i+len(part):]
	}
	return strings.HasSuffix(s, last)
}

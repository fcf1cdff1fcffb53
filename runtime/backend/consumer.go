package backend

import (
	"strconv"
	"time"
)

// ConsumerInfo is what a backend needs to know of a consumer.
type ConsumerInfo struct {
	Name   string
	Per    Per
	Topics []string // patterns, see MatchTopic
	Lock   Lock
	TTL    time.Duration // of leases that expire one by one (LockRow)
	Grace  time.Duration
	From   From
	// Source is what the backend reads instead of its log; nil for the log.
	Source any
	// Announced says that streams are named by the application, not by messages.
	Announced bool
	// OnceKeep is how long executed items are remembered; 0 = for ever.
	OnceKeep time.Duration
	Keep     time.Duration // how long dead letters are kept; 0 = for ever
	Max      int           // how many dead letters are kept; 0 = no bound
}

// ReadsNothing reports that a consumer has work but no messages: see [operate.ErrNoCursor].
func (c ConsumerInfo) ReadsNothing() bool { return c.Per == PerCluster || c.Announced }

// Per sets the unit of ownership.
type Per int

const (
	// PerTopic gives each topic that matches the consumer's patterns its own lease.
	PerTopic Per = iota + 1
	// PerGroup gives the whole consumer one lease: one drainer, total order, hot standbys.
	PerGroup
	// PerCluster gives the consumer one lease and no messages: a singleton.
	PerCluster
	// PerPartition gives each slot of the key's hash a lease: order by key, spread over
	// the replicas, and rebalanced when they join or leave. How many slots there are is
	// a property of the log. Resources are named by their number, "0" onwards. A message
	// without a key goes to any slot.
	PerPartition
	// PerStream gives each named stream a lease while there is work for it. Streams are
	// the keys of the messages consumed, or are named by the application (Spec.Streams).
	// Messages without a key are one stream, whose name is empty.
	PerStream
)

// String returns the word used in annotations.
func (p Per) String() string {
	switch p {
	case PerTopic:
		return "topic"
	case PerGroup:
		return "group"
	case PerCluster:
		return "cluster"
	case PerPartition:
		return "partition"
	case PerStream:
		return "stream"
	}
	return "unknown"
}

// Whole reports that a consumer has one resource, whose name is Whole.
func (p Per) Whole() bool { return p == PerGroup || p == PerCluster }

// ResourceOf names the resource that a message belongs to, given its slot.
func (p Per) ResourceOf(topic, key string, slot int) string {
	switch p {
	case PerTopic:
		return topic
	case PerPartition:
		return strconv.Itoa(slot)
	case PerStream:
		return key
	}
	return Whole
}

// Lock says how ownership is held.
type Lock int

const (
	// LockSession holds all leases by the one heartbeat of the process. The default.
	LockSession Lock = iota
	// LockAdvisory (PerCluster, PerGroup) holds each lease by an advisory lock on the
	// session's connection: no writes at all, and lost with the connection.
	LockAdvisory
	// LockRow (PerStream) gives each lease an expiry of its own, renewed every third of
	// the TTL.
	LockRow
)

// String returns the word used in annotations.
func (l Lock) String() string {
	switch l {
	case LockSession:
		return "session"
	case LockAdvisory:
		return "advisory"
	case LockRow:
		return "row"
	}
	return "unknown"
}

// From says where a consumer begins that has never run.
type From int

const (
	// FromBeginning begins with the oldest message there is. The default.
	FromBeginning From = iota
	// FromNow passes over what is there when the consumer runs for the first time.
	FromNow
)

// String returns the word used in annotations.
func (f From) String() string {
	switch f {
	case FromBeginning:
		return "beginning"
	case FromNow:
		return "now"
	}
	return "unknown"
}

// Whole is the one resource of a group or cluster consumer.
const Whole = "*"

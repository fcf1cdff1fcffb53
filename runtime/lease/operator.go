package lease

import (
	"context"
	"time"
)

// Operator is what the leasegen command, and tests, use to look at a backend and
// to mend it. Backends implement it beside Backend.
type Operator interface {
	// Status describes every consumer known to the backend, ordered by name.
	Status(ctx context.Context) ([]ConsumerStatus, error)
	// Members lists the live sessions of a consumer, ordered by the time they joined.
	Members(ctx context.Context, consumer string) ([]MemberStatus, error)
	// Leases lists up to limit leases of a consumer, the furthest behind first.
	Leases(ctx context.Context, consumer string, limit int) ([]LeaseStatus, error)
	// DeadLetters lists dead letters, the oldest first.
	DeadLetters(ctx context.Context, f DeadLetterFilter) ([]DeadLetterInfo, error)
	// Replay puts dead letters back for their consumer, as parked messages that are
	// due at once with their attempts forgotten, and returns how many.
	Replay(ctx context.Context, f DeadLetterFilter) (int, error)
	// Purge deletes dead letters and returns how many.
	Purge(ctx context.Context, f DeadLetterFilter) (int, error)
}

// CursorOperator is what leasegen cursor uses. Backends implement it beside Operator. Of a
// consumer that reads no messages both return ErrNoCursor.
type CursorOperator interface {
	// Cursors shows how far a consumer has got on the resource given, or on up to limit
	// of all when it is empty, the furthest behind first.
	Cursors(ctx context.Context, consumer, resource string, limit int) ([]CursorStatus, error)
	// SetCursor moves the cursor of the resource given, or of all when it is empty, and
	// returns how many it moved. Owners are fenced and their leases freed, so that whoever
	// owns them next begins there. Parked messages and dead letters of those resources are
	// dropped when the target is Beginning, and left otherwise.
	SetCursor(ctx context.Context, consumer, resource string, to CursorTarget) (int, error)
}

// ParkedOperator is what leasegen parked uses. Backends implement it beside Operator.
type ParkedOperator interface {
	// Parked lists the messages that wait for a retry and the messages queued behind those, lane by lane, each lane in
	// the order in which it is handled. With a Key it
	// looks at every parked message of the consumer until it has found Limit.
	Parked(ctx context.Context, f ParkedFilter) ([]ParkedInfo, error)
}

// ParkedFilter selects parked messages of a consumer. Other fields that are empty select all.
type ParkedFilter struct {
	Consumer string
	Resource string
	Key      string
	Limit    int // 0 = no limit
}

// ParkedInfo is one parked message. Times are by the server's clock.
type ParkedInfo struct {
	Resource         string
	MessageID        string
	Topic, Key, Kind string
	Size             int       // of the payload in bytes; 0 of a row of an application's table
	Attempts         int       // that have failed; 0 of one that waits behind another, and after a replay
	Due              time.Time // of its next attempt; messages ahead of it in its lane come first
	FirstFailed      time.Time // zero when it has not failed
	Behind           bool      // another message of its lane is ahead of it
	Error            string    // of the last attempt
}

// CursorTarget says where to; exactly one field is set.
type CursorTarget struct {
	Beginning bool
	Now       bool
	After     string // the id of the last message to count as handled
}

// CursorStatus is how far a consumer has got on one resource.
type CursorStatus struct {
	Resource string
	Session  string // of the owner; empty when unowned
	Epoch    int64
	Position string // id of the last message passed; empty at the beginning
	Lag      int64  // messages not yet passed
	// OldestUnread is the age of the oldest message not yet passed; 0 when there is none.
	OldestUnread time.Duration
}

// ConsumerStatus is one line of leasegen status.
type ConsumerStatus struct {
	Consumer  string
	Per       string
	Lock      string
	Resources int
	Members   int
	Standbys  int // members that own nothing
	Unowned   int
	// OldestUnread is the age of the oldest message not yet passed; 0 when there is none.
	OldestUnread time.Duration
	LagMax       int64 // messages behind, of the resource furthest behind
	LagTotal     int64
	// Delayed counts events of its topics that are published for later, as far as the backend
	// counts them; only the memory backend does.
	Delayed     int64
	ParkedKeys  int
	DeadLetters int
	// Note is what the figures leave out, and why; empty when they are whole.
	Note string
}

// MemberStatus is one live session of a consumer. Durations are by the server's clock.
type MemberStatus struct {
	Session      string
	Host         string
	PID          int
	Since        time.Duration // since the session was opened
	SinceBeat    time.Duration // since its last heartbeat
	Owned        int
	FairShare    int
	TTLRemaining time.Duration
}

// LeaseStatus is one lease.
type LeaseStatus struct {
	Resource  string
	Session   string // empty when unowned
	Epoch     int64
	Since     time.Duration // since it was acquired
	Lag       int64
	Parked    int
	Suspicion int
}

// DeadLetterFilter selects dead letters. Empty fields select all.
type DeadLetterFilter struct {
	Consumer string
	IDs      []string // dead-letter ids
	Topic    string   // pattern as in MatchTopic
	Key      string
	Reason   string // pattern as in MatchTopic
	Limit    int    // 0 = no limit
}

// DeadLetterInfo is one dead letter.
type DeadLetterInfo struct {
	ID               string // of the dead letter
	Consumer         string
	Resource         string
	MessageID        string
	Topic, Key, Kind string
	Payload          []byte // only when exactly one id was asked for
	Size             int
	Headers          map[string]string
	PublishedAt      time.Time
	FirstFailed      time.Time
	DeadAt           time.Time
	Attempts         int
	Reason           string
}

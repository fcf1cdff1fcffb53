// Package operate is for those who run consumers: what a backend reports of them and what can be repaired there
// ([Operator]), and what the runtime reports of its work as it happens ([Observer]), for metrics and traces.
package operate

import (
	"context"
	"time"
)

// Operator looks at a backend and repairs it: the leasegen command, pages and exporters use it. A backend offers it in
// its Capabilities. Its actions are no observations, for most are made by other processes than those that work; a program
// that keeps a log of them wraps it. Its answers are of one moment for each consumer, not for all. Of a consumer that is not known lists are
// empty, without an error.
type Operator interface {
	// Status describes every consumer known to the backend, ordered by name.
	Status(ctx context.Context) ([]ConsumerStatus, error)
	// Members lists the live sessions of a consumer, ordered by the time they joined.
	Members(ctx context.Context, consumer string) ([]MemberStatus, error)
	// Pause stops the work on a consumer until Resume: owners finish the calls that they are in and give their leases
	// back, and no lease of it is granted. Its members stay members, its cursors, parked messages and dead letters stay
	// as they are, and its log grows. It survives restarts of all there is. Pausing one that is paused has no effect.
	// A consumer that is not known is an error. After an error it may have taken effect in part; a repetition does the rest.
	Pause(ctx context.Context, consumer string) error
	// Resume lets leases of a consumer be granted again: its members acquire them at once. Resuming one that is not
	// paused has no effect. Errors are those of Pause.
	Resume(ctx context.Context, consumer string) error
	// Leases lists up to limit leases of a consumer, the furthest behind first.
	Leases(ctx context.Context, consumer string, limit int) ([]LeaseStatus, error)
	// DeadLetters lists dead letters, the oldest first. With After and Limit it makes pages: one that dies is listed after
	// those that were there before.
	DeadLetters(ctx context.Context, f DeadLetterFilter) ([]DeadLetterInfo, error)
	// DeadLetterGroups counts dead letters by consumer, kind and reason. It looks at those that the filter selects, of more
	// than 100,000 at the newest.
	DeadLetterGroups(ctx context.Context, f DeadLetterFilter) (DeadLetterGroups, error)
	// Replay puts dead letters back for their consumer, as parked messages that are
	// due at once with their attempts forgotten, and returns how many. It works in steps: after an error, the number says how
	// many were put back before. Those that die while it runs are left.
	Replay(ctx context.Context, f DeadLetterFilter) (int, error)
	// Purge deletes dead letters and returns how many, in steps as Replay does.
	Purge(ctx context.Context, f DeadLetterFilter) (int, error)
	// Parked lists the messages that wait for a retry and the messages queued behind those, lane by lane, each lane in
	// the order in which it is handled. With After and Limit it makes pages; a message that is handled, or tried again,
	// between two of them may be on none, or on both. With a Key, or with IDs and no Resource, it looks at every parked
	// message of the consumer until it has found Limit, or all IDs.
	Parked(ctx context.Context, f ParkedFilter) ([]ParkedInfo, error)
	// RetryParked makes the parked messages that the filter selects due now, with their attempts kept, and returns how many;
	// those that were due count. Their owner tries them at once; one behind another in its lane comes when that one has been
	// handled. Progress that an owner stores of a message that it is handling goes on top. It works in steps, as Replay does.
	RetryParked(ctx context.Context, f ParkedFilter) (int, error)
	// Cursors shows how far a consumer has got on the resource given, or on up to limit
	// of all when it is empty, the furthest behind first. For a consumer that reads no messages it returns ErrNoCursor.
	Cursors(ctx context.Context, consumer, resource string, limit int) ([]CursorStatus, error)
	// SetCursor moves the cursor of the resource given, or of all when it is empty, and
	// returns how many it moved. Owners are fenced and their leases freed, so that the next owners
	// begin there. Parked messages and dead letters of those resources are
	// dropped when the target is Beginning, and left otherwise. For a consumer that reads no messages it returns
	// ErrNoCursor.
	SetCursor(ctx context.Context, consumer, resource string, to CursorTarget) (int, error)
}

// ConsumerStatus is one line of leasegen status.
type ConsumerStatus struct {
	Consumer  string
	Per       string
	Lock      string
	Paused    bool          // see Operator.Pause
	PausedFor time.Duration // since when, by the server's clock; 0 when it is not paused
	Resources int
	Members   int
	Standbys  int // members that own no lease
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

// AddLag counts the unread messages of one more resource.
func (s *ConsumerStatus) AddLag(lag int64, oldest time.Duration) {
	s.LagTotal += lag
	s.LagMax = max(s.LagMax, lag)
	s.OldestUnread = max(s.OldestUnread, oldest)
}

// MemberStatus is one live session of a consumer. Durations are by the server's clock.
type MemberStatus struct {
	Session      string
	Host         string
	PID          int
	Since        time.Duration // since the session was opened
	SinceBeat    time.Duration // since its last heartbeat
	Owned        int
	FairShare    int // resources divided by members, rounded up
	TTLRemaining time.Duration
	// Detection says by what the others find out that it has died: "lock" in about 0.1 s, by the end of its connections; "polling" within
	// a second, likewise; "connection" in half a second, by the end of its connections to Redis; "ttl" when its TTL is over. Empty
	// where the backend does not tell.
	Detection string
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

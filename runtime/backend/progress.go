package backend

import (
	"context"
	"time"
)

// Commits stores what became of messages.
type Commits interface {
	// FetchParked reads parked messages whose wait is over, of resources that the session owns. It writes no rows.
	FetchParked(ctx context.Context, req ParkedRequest) (Parked, error)

	// Commit stores the progress of many leases of one consumer: each entry in one step, cursor, parked messages, dead
	// letters and all. Entries of leases that the session does not hold under their epoch any more have no effect; their
	// resources are returned in fenced. Repeating an entry has no further effect: see Progress.Seq.
	Commit(ctx context.Context, session, consumer string, progress []Progress) (fenced []string, err error)
}

// Progress is what happened on one lease since its last commit. Messages are
// named by id; the backend has their content.
type Progress struct {
	Ref
	// Seq rises from one progress of a lease to the next; a repeated one keeps its Seq. One
	// that arrives when a higher Seq of the same epoch is stored has no effect and is not
	// fenced: it is an old request that was held up on its way. A repetition of the stored Seq may be ignored or applied
	// again. Seq 0 is not numbered: it is applied each time, and does not change the stored one.
	Seq int64
	// Cursor replaces the stored cursor; nil leaves it.
	Cursor Cursor
	// Park sets messages aside, in this order, or updates those that are parked.
	Park []Park
	// Done removes parked messages that were handled.
	Done []string
	// Dead turns messages, from the log or parked, into dead letters.
	Dead []Dead
	// Mark, when set, names the one message that is about to be handled; the backend
	// counts how many epochs marked the same one. A progress without Mark, or with another one, clears it; Release and
	// the end of a session leave it.
	Mark string
	// Once tells how executions that were begun with StartOnce have ended.
	Once []OnceResult
	// Trust sets the suspicion count back to zero.
	Trust bool
}

// Park is one message to set aside.
type Park struct {
	ID, Lane string
	// Attempt is the number of failures so far; 0 for one that only waits behind another.
	Attempt int
	// After is how long the message waits, from the server's present.
	After time.Duration
	// Error is the handler's last error, shortened and without control characters.
	Error string
}

// Dead is one message to give up on.
type Dead struct {
	ID      string
	Attempt int    // failures in all
	Reason  string // one line, shortened, without payload
}

// OnceResult is how the execution of an item that StartOnce began has ended.
type OnceResult struct {
	Key  string
	Done bool // false: it failed, and may be started again
	// Asked, when set, names the message that became a dead letter because the end of the
	// item's earlier execution is unknown, and stays so. When that message comes again,
	// somebody has replayed it: StartOnce for it returns OnceNew.
	Asked string
}

// ParkedRequest asks for due parked messages of resources that the session owns.
type ParkedRequest struct {
	Session  string
	Consumer ConsumerInfo
	// Resources are those to read; empty: all that the session owns, but those of Exclude.
	Resources, Exclude []string
	Limit              int // messages in all
	PerResource        int // messages of one resource; 0: as many as Limit
	MaxPayload         int // bytes
}

// Parked is what is due, and when to ask again.
type Parked struct {
	// Messages come lane by lane, in order within a lane, starting at its head.
	Messages []ParkedMessage
	// More is true when the limit cut the read short.
	More bool
	// Next is the time until the next lane is due; negative when no work waits.
	Next time.Duration
}

// ParkedMessage is a message set aside after a failure, or because one before it
// in the same lane failed.
type ParkedMessage struct {
	Resource, Lane string
	Raw
	// Last is true when no message of the lane is parked behind this one.
	Last bool
	// Error is that of the Park that set it aside, or parked it last.
	Error string
	// Waited is how long ago, by the server's clock, the message was set aside, its Attempt last
	// rose or its Error last changed. Parking it again without that, a handover or a restart does
	// not begin it anew.
	Waited time.Duration
}

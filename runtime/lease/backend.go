package lease

import (
	"context"
	"time"
)

// Backend stores sessions, leases and messages. The runtime is its only caller;
// every method may be called from many goroutines at once.
//
// A backend judges time by its own server's clock, never by the caller's, and
// makes each call below atomic. Of the errors it returns, ErrSessionLost, ErrFenced and
// ErrRolledBack are definite; any other error means "unknown": the call may or may not
// have taken effect, and every call is safe to repeat.
type Backend interface {
	Publisher

	// Check reports, in one line that names cause and fix, why this backend cannot
	// be used now (unmigrated, read-only, missing grants, ...), or not by these consumers
	// (locks that do not go through a pooler, ...). Run calls it first.
	Check(ctx context.Context, consumers []ConsumerInfo) error

	// OpenSession starts a new incarnation of this process.
	OpenSession(ctx context.Context, spec SessionSpec) (Session, error)

	// Register makes resources known to a consumer: those given, or, when resources is
	// nil, all that the consumer's source holds. They are topics for PerTopic, streams for
	// PerStream; a PerPartition consumer has all slots of its source, a group or cluster
	// consumer the one resource Whole, whatever is given.
	// Known resources are left as they are, at the price of a read, except that a stream
	// which has work (see Streamer) becomes wanted.
	// Of the log a consumer reads what matches the patterns of any of its members: from when
	// Register returned to one of them on, at least as long as that member's session lives,
	// no Fetch and no housekeeping passes over a message that its patterns match, whichever
	// patterns the call itself has. What the caller does not take is for the caller to set aside.
	// With FromNow, what the source holds when the consumer is registered for the first
	// time is passed over; resources that appear later begin at their beginning.
	Register(ctx context.Context, consumer ConsumerInfo, resources []string) error

	// Survey counts members and leases. It writes nothing.
	Survey(ctx context.Context, consumers []string) ([]Survey, error)

	// Acquire takes up to Max free resources in one step. A resource is free when
	// it has no owner or its owner's session is dead; the backend first moves an
	// expired session from live to dead, terminally, and then takes its leases.
	// Each grant has a new, higher epoch. Repeating a call with the same Attempt
	// returns what that attempt was granted.
	Acquire(ctx context.Context, req AcquireRequest) ([]Grant, error)

	// Release gives leases back while their session lives. Epochs survive.
	// Leases that are no longer held are passed over.
	Release(ctx context.Context, session, consumer string, leases []Ref) error

	// Owned lists the leases of the consumer that the session owns, as far as the backend
	// knows; it may name one twice. It writes nothing. After a failover that lost writes, or when a request comes
	// late, these are not those that the process holds; the runtime compares them.
	Owned(ctx context.Context, session, consumer string) ([]Ref, error)

	// OpenFeed starts watching the log and the ownership tables on behalf of one process.
	OpenFeed(ctx context.Context, consumers []ConsumerInfo) (Feed, error)

	// Fetch reads the next messages of each item, in order, in one round trip.
	// Items without news come back without messages.
	Fetch(ctx context.Context, req FetchRequest) ([]Fetched, error)

	// FetchParked reads parked messages whose wait is over.
	FetchParked(ctx context.Context, req ParkedRequest) (Parked, error)

	// Commit stores the progress of many leases of one consumer. Entries whose epoch
	// is no longer current change nothing and are returned in fenced.
	Commit(ctx context.Context, session, consumer string, progress []Progress) (fenced []string, err error)

	// Maintain does the backend's housekeeping (retention, dead-letter bounds,
	// forgotten sessions). Any replica may call it at any time; replicas that
	// race leave the work to one.
	Maintain(ctx context.Context, consumers []ConsumerInfo) (MaintainReport, error)
}

// RowLocker is a Backend with leases that expire one by one (LockRow).
type RowLocker interface {
	// Renew extends leases of a LockRow consumer by ConsumerInfo.TTL from the server's
	// present, in one step, and returns the resources of those that were not extended,
	// because they had expired or changed hands. It cannot revive a lease.
	Renew(ctx context.Context, session string, consumer ConsumerInfo, leases []Ref) (lost []string, err error)
}

// Streamer is a Backend whose streams (PerStream) are owned only while they have work. A
// stream is wanted from its Register on, as long as it has unread or parked messages, or,
// without a message source, until it is retired. Acquire grants, and Survey counts as
// free, only streams that are wanted; Survey counts as resources those wanted or owned.
type Streamer interface {
	// Retire is Release for streams whose owner sees no more work in them: each stops
	// being wanted, unless messages that its owner has not passed are there after all.
	Retire(ctx context.Context, session, consumer string, leases []Ref) error
}

// Ledger is a Backend that remembers what a consumer has executed, by a key of the
// application. Transactions of a Transactor that is a Ledger implement LedgerTx.
type Ledger interface {
	// StartOnce notes durably that the execution of key is about to begin under the
	// lease, for a message, and returns how the one before it ended; repeated under the
	// same lease it returns the same. OnceDone and OnceBusy note nothing. It returns
	// ErrFenced when the lease's epoch is no longer current. The end is told in
	// Progress.Once; without that it is unknown once the lease has ended.
	StartOnce(ctx context.Context, session, consumer string, ref Ref, key, message string) (OnceState, error)
}

// IntactTx is a [Tx] that tells after each handler, without asking the server, whether that has left the
// transaction as it was. An error is the handler's failure.
type IntactTx interface {
	Intact() error
}

// LedgerTx is the ledger inside a transaction.
type LedgerTx interface {
	// Once notes key as done when the transaction commits. It reports false when it was
	// done before; it waits for another transaction that is noting the same key.
	Once(ctx context.Context, consumer, key string) (first bool, err error)
}

// OnceState is how far the execution of an item has got.
type OnceState int

const (
	// OnceNew: it was never started, or every start is known to have failed, or it is
	// started for a message that was asked about, see OnceResult.
	OnceNew OnceState = iota
	// OnceUnknown: it was started, and nobody told how it ended.
	OnceUnknown
	// OnceDone: it was executed.
	OnceDone
	// OnceBusy: it was started under another lease, which has not ended.
	OnceBusy
)

// OnceResult is how the execution of an item that StartOnce began has ended.
type OnceResult struct {
	Key  string
	Done bool // false: it failed, and may be started again
	// Asked, when set, names the message that became a dead letter because the end of the
	// item's earlier execution is unknown, and stays so. When that message comes again,
	// somebody has replayed it: StartOnce for it returns OnceNew.
	Asked string
}

// Whole is the one resource of a group or cluster consumer.
const Whole = "*"

// Transactor is a Backend whose transactions a handler can join.
type Transactor interface {
	// Begin opens a transaction. ctx bounds the call, not the transaction.
	Begin(ctx context.Context) (Tx, error)
}

// Tx is a transaction that ends with the fenced commit of one lease's progress.
type Tx interface {
	// Handle is the driver's transaction, as the transaction form passes it to handlers.
	Handle() any
	// Commit stores progress and commits, or returns ErrFenced and rolls back. When it is
	// what the handler did that cannot be committed (a deferred constraint, a statement
	// whose error the handler passed over, a conflict), it rolls back and the error wraps
	// ErrRolledBack.
	Commit(ctx context.Context, session, consumer string, p Progress) error
	// Rollback undoes everything. It is a no-op after Commit.
	Rollback(ctx context.Context) error
	// Lost reports that the connection is gone: what a handler's error says then is not
	// about the message.
	Lost() bool
}

// SessionSpec describes a process incarnation.
type SessionSpec struct {
	ID        string        // 128 random bits in hex, new for every incarnation
	TTL       time.Duration // how long the session lives without a heartbeat
	Consumers []string      // the consumers it is a member of
	// Topics are the patterns of those that read the log, by consumer; see Register.
	Topics map[string][]string
	// Replaces is the session that the same process lost before, if none of its handlers runs
	// any more and none of its consumers has a Grace, or one that it tried to open and had no
	// answer about. The backend ends it in the step that opens the new one and frees all it
	// holds, not as after a crash; one that it does not know it keeps from being opened later.
	// So nobody has to wait until it expires, and no share is kept for it.
	Replaces string
	// Advisory says that all its consumers use LockAdvisory: the session lives as long as
	// its connection, and its heartbeats need not write.
	Advisory bool
	Host     string
	PID      int
}

// Session is the liveness of one process incarnation.
type Session interface {
	// Heartbeat extends the session by its TTL, from the server's present. It returns
	// ErrSessionLost when the session is dead or expired: it can neither create nor
	// revive one. It uses a connection of its own that no handler can starve.
	Heartbeat(ctx context.Context) error
	// Close ends the session and frees its leases at once.
	Close(ctx context.Context) error
}

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

// ReadsNothing reports that a consumer has work but no messages: see [ErrNoCursor].
func (c ConsumerInfo) ReadsNothing() bool { return c.Per == PerCluster || c.Announced }

// Survey is one consumer's state of ownership.
type Survey struct {
	Consumer  string
	Resources int
	// Free counts resources that Acquire would grant now.
	Free int
	// Members are the live sessions, ordered by session id, with what each owns.
	Members []Member
}

// Member is a live session and how many resources of the surveyed consumer it owns.
type Member struct {
	Session string
	Owned   int
}

// AcquireRequest asks for leases.
type AcquireRequest struct {
	Session  string
	Consumer ConsumerInfo
	Max      int      // at most so many, at least 1
	Attempt  string   // 128 random bits in hex
	Exclude  []string // resources on which a handler of this process still runs
}

// Ref names a lease.
type Ref struct {
	Resource string
	Epoch    int64
}

// Grant is a lease just acquired.
type Grant struct {
	Ref
	Cursor Cursor
	// Lanes are the parked lanes of the resource.
	Lanes []string
	// Suspicion counts takeovers from crashed sessions since the resource last made progress.
	Suspicion int
	// Mark is the message that was being handled alone when its owner crashed; empty if none.
	// MarkCount says how many owners marked it without getting past it.
	Mark      string
	MarkCount int
}

// Cursor is how far a consumer has got on a resource. Only its backend can read it.
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
	// Resources received messages, by consumer: slots, streams, and the resources of
	// consumers with a source of their own, which Topics cannot tell.
	Resources map[string][]string
	// Ownership: a session joined, left or died, or leases were released.
	Ownership bool
	// Wanted are consumers of which streams became wanted, as far as Ownership does not tell it.
	Wanted []string
	// Parked: an operator replayed dead letters.
	Parked bool
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
	// when nothing was passed over, so that nothing has to be stored.
	Next Cursor
	// Cut returns the cursor after the first n messages, 0 <= n <= len(Messages).
	Cut func(n int) Cursor
	// More is true when the limit cut the read short.
	More bool
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
	// Next is the time until the next lane is due; negative when nothing waits.
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

// Progress is what happened on one lease since its last commit. Messages are
// named by id; the backend has their content.
type Progress struct {
	Ref
	// Seq rises from one progress of a lease to the next; a repeated one keeps its Seq. One
	// that arrives when a higher Seq of the same epoch is stored changes nothing and is not
	// fenced: it is an old request that was held up on its way.
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
	// counts how often the same one is marked. A progress without Mark clears it.
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

// MaintainReport says what housekeeping did.
type MaintainReport struct {
	DeadLettersExpired int // older than Keep
	DeadLettersDropped int // over Max
	SessionsForgotten  int
	SegmentsDropped    int // parts of the log that every consumer has passed
	OnceForgotten      int // executed items older than OnceKeep
	StreamsForgotten   int // streams without work whose messages are gone
	IDsForgotten       int // message ids that no longer keep out a second message
}

package backend

import "context"

// Ownership says which session owns which resource of a consumer.
type Ownership interface {
	// OpenSession starts a new incarnation of a process, in one step with the end of the session that it replaces.
	// Repeating it with the same id is an error or returns the same session; it never revives one that is dead.
	OpenSession(ctx context.Context, spec SessionSpec) (Session, error)

	// Register makes resources known to a consumer: those given, or, when resources is
	// nil, all that the consumer's source holds. They are topics for PerTopic, streams for
	// PerStream; a PerPartition consumer has all slots of its source, a group or cluster
	// consumer the one resource Whole, whatever is given.
	// Known resources are left as they are, at the price of a read, except that a stream
	// which has work (see Streamer) becomes wanted. A consumer that is known with another Per is refused with an error
	// that names both; group and cluster may pass for one, since their resource is the same.
	// Of the log a consumer reads what matches the patterns of any of its members: from when
	// Register returned to one of them on, or its session was opened with them, until housekeeping forgets that session,
	// no Fetch and no housekeeping passes over a message that its patterns match, whichever
	// patterns the call itself has. The caller parks those that it does not take.
	// With FromNow, what the source holds when the consumer is registered for the first
	// time is passed over; resources that appear later begin at their beginning.
	// It is atomic for each resource; a repetition adds what is missing. A backend whose sessions may lack a part of the servers
	// passes over what is kept there; its feeds fail when they have it again. Their caller registers all whenever it opens one.
	Register(ctx context.Context, consumer ConsumerInfo, resources []string) error

	// Survey counts members and leases. It writes no rows, and costs a count of each consumer's leases.
	Survey(ctx context.Context, consumers []string) ([]Survey, error)

	// Acquire takes up to Max free resources, each in one step. A resource is free when
	// it has no owner or its owner's session is dead; the backend first moves an
	// expired session from live to dead, terminally, and then takes its leases.
	// It takes none of a consumer that is paused (operate.Operator.Pause), which it finds in that same step: a grant comes
	// wholly before a Pause that has not returned, or not at all.
	// Each grant has a new, higher epoch. Repeating a call with the same Attempt
	// returns what that attempt was granted, as far as it is still held. It returns ErrSessionLost when the session is not live.
	Acquire(ctx context.Context, req AcquireRequest) ([]Grant, error)

	// Release gives leases back while their session lives, each in one step. Epochs survive.
	// Leases that are no longer held are passed over, so that a repetition has no effect. For a session that is not live
	// it may return ErrSessionLost.
	Release(ctx context.Context, session, consumer string, leases []Ref) error

	// Owned lists the leases of the consumer that the session owns, as far as the backend
	// knows; it may name one twice. It writes no rows. After a failover that lost writes, or when a request comes
	// late, these are not those that the process holds; the runtime compares them.
	Owned(ctx context.Context, session, consumer string) ([]Ref, error)
}

// RowLocker has leases that expire one by one (LockRow).
type RowLocker interface {
	// Renew extends leases of a LockRow consumer by ConsumerInfo.TTL from the server's present, each lease in one step, and
	// returns the resources of those that were not extended, because they had expired, were released or changed hands. It
	// cannot revive a lease. A session that is dead gets all of them back as lost, and no error. A repetition extends
	// again. leasemem's streams.go is the shortest Renew; leasetest's contract_row.go has the rules as tests.
	Renew(ctx context.Context, session string, consumer ConsumerInfo, leases []Ref) (lost []string, err error)
}

// Streamer gives streams (PerStream) an owner only while they have work. A
// stream is wanted from its Register on, as long as it has unread or parked messages, or,
// without a message source, until it is retired. Acquire grants, and Survey counts as
// free, only streams that are wanted; Survey counts as resources those wanted or owned.
type Streamer interface {
	// Retire is Release for streams whose owner sees no more work in them: each stops
	// being wanted, unless messages that its owner has not passed are there after all.
	Retire(ctx context.Context, session, consumer string, leases []Ref) error
}

// Survey is one consumer's state of ownership.
type Survey struct {
	Consumer  string
	Resources int
	// Free counts resources that Acquire would grant now: none while the consumer is paused.
	Free int
	// Paused says that an operator has paused the consumer: its owners give back what they hold.
	Paused bool
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
	// Suspicion counts takeovers from crashed sessions since the last Progress with Trust.
	Suspicion int
	// Mark is the message that was being handled alone when its owner crashed; empty if none.
	// MarkCount says how many owners marked it without getting past it.
	Mark      string
	MarkCount int
}

package lease

import "github.com/leasegen/leasegen/runtime/backend"

// Names of the contract with backends that generated code, options and publishers use.
type (
	// Backend is where leases and messages are kept: leasepg, leaseredis and leasemem make one.
	Backend = backend.Backend
	// Publisher appends events to a backend's log, in order: on PostgreSQL and in memory all of a call or none, on Redis so
	// up to 1,000 events and 1 MB of one topic.
	Publisher = backend.Publisher
	// Event is what a publisher hands to a backend.
	Event = backend.Event
	// PublishMiddleware wraps the calls of Publish: the backends' option WithPublishMiddleware takes it.
	PublishMiddleware = backend.PublishMiddleware
	// PublishFunc makes a call of Publish.
	PublishFunc = backend.PublishFunc
	// Publication is a call of Publish as middleware sees it.
	Publication = backend.Publication
	// Per sets the unit of ownership.
	Per = backend.Per
	// Lock says how ownership is held.
	Lock = backend.Lock
	// From says where a consumer begins that has never run.
	From = backend.From
)

// The units of ownership, see backend.Per.
const (
	PerTopic     = backend.PerTopic
	PerGroup     = backend.PerGroup
	PerCluster   = backend.PerCluster
	PerPartition = backend.PerPartition
	PerStream    = backend.PerStream
)

// The ways to hold ownership, see backend.Lock.
const (
	LockSession  = backend.LockSession
	LockAdvisory = backend.LockAdvisory
	LockRow      = backend.LockRow
)

// Where a new consumer begins, see backend.From.
const (
	FromBeginning = backend.FromBeginning
	FromNow       = backend.FromNow
)

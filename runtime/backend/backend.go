package backend

import (
	"context"

	"github.com/leasegen/leasegen/runtime/operate"
)

// Backend stores sessions, leases and messages. See the package's rules.
type Backend interface {
	// Capabilities are what this backend has beyond the roles below. The answer never changes.
	Capabilities() Capabilities

	Publisher
	Ownership
	Log
	Commits
	Housekeeping
}

// Capabilities are optional roles. A field that is nil is a role that the backend lacks: the runtime refuses consumers
// that need it when they are made. Register and Check refuse what else a backend lacks, a Source for instance. Its zero value is that of a backend without any.
type Capabilities struct {
	Rows     RowLocker        // lock=row
	Streams  Streamer         // per=stream
	Ledger   Ledger           // once=
	Tx       Transactor       // handlers that take a transaction
	Operator operate.Operator // the leasegen command, and most of leasetest
}

// Housekeeping is what keeps a store usable.
type Housekeeping interface {
	// Check reports, in one line that names cause and fix, why this backend cannot
	// be used now (unmigrated, read-only, missing grants, ...), or not by these consumers
	// (locks that do not go through a pooler, ...). Run calls it first. It writes no rows.
	Check(ctx context.Context, consumers []ConsumerInfo) error

	// Maintain does what is due (retention, bounds on dead letters, forgotten sessions), a bounded part of it in a
	// call. Any replica may call it at any time; replicas that race leave the work to one. Repeating it does what is
	// left.
	Maintain(ctx context.Context, consumers []ConsumerInfo) (operate.MaintainReport, error)
}

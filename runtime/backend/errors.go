package backend

import "errors"

// ErrSessionLost: the session is dead; all its leases are lost with it.
var ErrSessionLost = errors.New("lease: session lost")

// ErrFenced: the session does not hold the lease under this epoch any more; the call wrote no row.
var ErrFenced = errors.New("lease: fenced: the lease is not held under this epoch any more")

// ErrRolledBack: the backend refused a transaction for what a handler did in it, and
// no part of it was written. It counts as a failure of the messages in it.
var ErrRolledBack = errors.New("lease: transaction refused and rolled back")

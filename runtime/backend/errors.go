package backend

import "errors"

// ErrSessionLost: the session is dead; all its leases are lost with it.
var ErrSessionLost = errors.New("lease: session lost")

// ErrFenced: the lease has a newer epoch; nothing was written.
var ErrFenced = errors.New("lease: fenced by a newer epoch")

// ErrRolledBack: the backend refused a transaction for what a handler did in it, and
// nothing of it was written. It counts as a failure of the messages in it.
var ErrRolledBack = errors.New("lease: transaction refused and rolled back")

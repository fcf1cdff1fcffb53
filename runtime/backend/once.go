package backend

import "context"

// Ledger remembers what a consumer has executed, by a key of the application. In transactions Tx.Once does so.
type Ledger interface {
	// StartOnce notes durably that the execution of key is about to begin under the
	// lease, for a message, and returns how the one before it ended; repeated under the
	// same lease it returns the same. OnceDone and OnceBusy store no note. It returns
	// ErrFenced when the lease's epoch is no longer current. Progress.Once
	// reports the end; without it, the end is unknown as soon as the lease has ended.
	StartOnce(ctx context.Context, session, consumer string, ref Ref, key, message string) (OnceState, error)
}

// OnceState is how far the execution of an item has got.
type OnceState int

const (
	// OnceNew: it was never started, or every start is known to have failed, or it is
	// started for a message that was asked about, see OnceResult.
	OnceNew OnceState = iota
	// OnceUnknown: it was started, and its end was not reported.
	OnceUnknown
	// OnceDone: it was executed.
	OnceDone
	// OnceBusy: it was started under another lease, which has not ended.
	OnceBusy
)

package backend

import "context"

// Transactor opens transactions that a handler can join.
type Transactor interface {
	// Begin opens a transaction for work under a session. ctx bounds the call, not the transaction. Should the process freeze, a
	// server on which the transaction holds locks ends it about a TTL of the session later.
	Begin(ctx context.Context, session string) (Tx, error)
}

// Tx is a transaction that ends with the fenced commit of one lease's progress.
type Tx interface {
	// Handle is the driver's transaction, as the transaction form passes it to handlers.
	Handle() any
	// Commit stores progress and commits, all in one step, or returns ErrFenced and rolls back. When it is
	// what the handler did that cannot be committed (a deferred constraint, a statement
	// whose error the handler passed over, a conflict), it rolls back and the error wraps
	// ErrRolledBack.
	Commit(ctx context.Context, session, consumer string, p Progress) error
	// Rollback undoes everything. It is a no-op after Commit.
	Rollback(ctx context.Context) error
	// Once notes key as done when the transaction commits. It reports false when it was
	// done before; it waits for another transaction that is noting the same key. It is called only where the
	// backend has a Ledger.
	Once(ctx context.Context, consumer, key string) (first bool, err error)
	// Intact tells after each handler, without asking the server, whether that has left the
	// transaction as it was, as far as the backend can see it. An error is the handler's failure.
	Intact() error
	// Lost reports that the connection is gone: what a handler's error says then is not
	// about the message.
	Lost() bool
}

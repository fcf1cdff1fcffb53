package backend

import (
	"context"
	"time"
)

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
	// So no process has to wait until it expires, and no share is kept for it.
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
	// revive one. After any other error it is not known whether the session was extended, and the
	// runtime sends another. It uses a connection of its own that no handler can starve.
	Heartbeat(ctx context.Context) error
	// Alarm is ready when the session notices by itself that its connection broke, or that it was declared dead. The
	// runtime then sends a heartbeat at once, to learn what is left. Nil: this session notices no loss by itself.
	Alarm() <-chan struct{}
	// Close ends the session and frees its leases at once. A repetition has no effect.
	Close(ctx context.Context) error
}

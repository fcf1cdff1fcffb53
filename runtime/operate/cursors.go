package operate

import (
	"errors"
	"time"
)

// CursorTarget says where to; exactly one field is set.
type CursorTarget struct {
	Beginning bool
	Now       bool
	After     string // the id of the last message to count as handled
}

// Check refuses a target that is none, or more than one.
func (t CursorTarget) Check() error {
	if t == (CursorTarget{Beginning: true}) || t == (CursorTarget{Now: true}) || t == (CursorTarget{After: t.After}) && t.After != "" {
		return nil
	}
	return Invalid("say exactly one of the beginning, now, and after which message")
}

// CursorStatus is how far a consumer has got on one resource.
type CursorStatus struct {
	Resource string
	Session  string // of the owner; empty when unowned
	Epoch    int64
	Position string // id of the last message passed; empty at the beginning
	Lag      int64  // messages not yet passed
	// OldestUnread is the age of the oldest message not yet passed; 0 when there is none.
	OldestUnread time.Duration
	// Gone is an id: the log has no message of the resource up to it any more, so that a cursor moved before it does not
	// bring them back. It is empty when the backend knows of none that was removed, and of tables.
	Gone string
}

// ErrNoCursor says that a consumer reads no messages, so that it has no cursor to show or to move: a
// singleton, or one whose streams the application announces.
var ErrNoCursor = errors.New("lease: the consumer reads no messages and has no cursor; a stream runs again when it is announced again")

package lease

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrLost is the cause of a handler's cancelled context when its lease ended
	// against its will.
	ErrLost = errors.New("lease: lease lost")
	// ErrHandover is the cause when the lease is being given away or the process
	// shuts down and the drain time is over.
	ErrHandover = errors.New("lease: lease handed over")
	// ErrStuck is the cause when a handler ran past its deadline and cancelling was asked for.
	ErrStuck = errors.New("lease: handler ran past its deadline")
)

// DeadLetter returns an error that makes the runtime give up on a message at
// once, whatever attempts are left. reason is stored with the dead letter;
// keep payload data out of it.
func DeadLetter(reason string) error { return &deadLetterError{reason} }

type deadLetterError struct{ reason string }

// ErrorType names the error in telemetry.
func (e *deadLetterError) ErrorType() string { return "dead_letter" }

func (e *deadLetterError) Error() string { return e.reason }

// RetryAfter returns an error that makes the runtime retry a message after d
// instead of its usual backoff; a d below 0 means 0, one above ten years ten years. The
// attempt is counted. err is the cause; it may be nil. Joined with a DeadLetter error it has
// no effect.
func RetryAfter(d time.Duration, err error) error { return &retryAfterError{d, err} }

type retryAfterError struct {
	after time.Duration
	err   error
}

// ErrorType names the error in telemetry.
func (e *retryAfterError) ErrorType() string { return "retry_after" }

func (e *retryAfterError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("retry after %v", e.after)
	}
	return fmt.Sprintf("retry after %v: %v", e.after, e.err)
}

func (e *retryAfterError) Unwrap() error { return e.err }

// NilHandler is the error of a generated constructor that was given no handler struct.
func NilHandler(consumer string) error {
	return fmt.Errorf("lease: make consumer %q: its handler is nil; set it, or run the other consumers only, each by its constructor", consumer)
}

// Package must ends a measurement at its first error: what is measured is one step after the other, and none can go on
// without the last. It is not for goroutines that a measurement starts, nor for handlers.
package must

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"
)

type failure struct{ err error }

// Do ends the measurement at an error.
func Do(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// Get is the value of a call that may not fail.
func Get[T any](v T, err error) T {
	Do(err)
	return v
}

// Catch, deferred, makes the end of a measurement its function's error.
func Catch(err *error) {
	switch r := recover().(type) {
	case nil:
	case failure:
		*err = r.err
	default:
		panic(r)
	}
}

// Main is what the main function of a command that measures does, and returns its exit code.
func Main(command string, run func(ctx context.Context, args []string, out io.Writer) error) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", command, err)
		return 1
	}
	return 0
}

// patience is how long a drain may stand still.
const patience = 30 * time.Second

// Await waits for done, and gives up when a drain ends or the count of messages that it has handled stands still.
func Await(ctx context.Context, done <-chan struct{}, ended <-chan error, count func() int64) {
	tick := time.NewTicker(patience)
	defer tick.Stop()
	for seen := int64(-1); ; {
		select {
		case <-done:
			return
		case err := <-ended:
			Do(fmt.Errorf("it ended by itself: %w", err))
		case <-ctx.Done():
			Do(ctx.Err())
		case <-tick.C:
			now := count()
			if now == seen {
				Do(fmt.Errorf("no progress for %v at %d messages", patience, now))
			}
			seen = now
		}
	}
}

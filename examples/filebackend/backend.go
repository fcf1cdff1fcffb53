// Package filebackend is a backend of leasegen that keeps everything in the memory of one process and in one file. It
// is an example for authors of backends: complete enough to pass the conformance suite, small enough to read whole.
//
// The store is a deterministic state machine. Each call that changes something is a command, a struct that holds its
// arguments. A command is written as one line of a journal with the time at which it was carried out, and opening the
// file carries all of them out again. So the state needs no format of its own, and no command may look at a clock, at
// random numbers or at the order of a map.
//
// One process may have the file open at a time. Its consumers may share one Backend, which keeps nothing of its callers.
// The journal only grows, no message is ever deleted, and a call that waits for the disk does not end with its context.
package filebackend

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// Backend is a backend.Backend on one file. See Open.
type Backend struct {
	mu      sync.Mutex
	state   *state
	file    *os.File
	broken  error         // why no call is answered any more
	changed chan struct{} // closed when something changes: feeds wait for it
	opened  time.Time
	start   time.Time // the time of the store when it was opened
}

// Open opens the file, or makes it.
func Open(path string) (*Backend, error) {
	b := &Backend{state: newState(), changed: make(chan struct{}), opened: time.Now()}
	file, err := openJournal(path, func(line []byte) error {
		_, err := b.state.carryOut(line)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", filepath.Base(path), err)
	}
	b.file, b.start = file, b.opened.UTC().Round(0)
	if b.start.Before(b.state.now) {
		b.start = b.state.now // a clock that was set back while the file was closed would revive dead sessions
	}
	return b, nil
}

// Close closes the file. Sessions go on living for their TTL: another Open before that finds them.
func (b *Backend) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.broken == nil {
		b.broken = errors.New("the backend was closed; open the file again")
		b.wake()
	}
	return b.file.Close()
}

// Capabilities says that there are no streams, no ledger, no transactions and no leases that expire one by one.
func (b *Backend) Capabilities() backend.Capabilities {
	return backend.Capabilities{Operator: operator{b}}
}

// Check reports why the file cannot be used.
func (b *Backend) Check(ctx context.Context, consumers []backend.ConsumerInfo) error {
	return b.read(ctx, "check", func(*state) error {
		for _, c := range consumers {
			if err := supported(c); err != nil {
				return err
			}
		}
		return nil
	})
}

// Maintain forgets what is due to be forgotten.
func (b *Backend) Maintain(ctx context.Context, consumers []backend.ConsumerInfo) (report maintained, err error) {
	return change[maintained](ctx, b, "maintain", maintain{consumers})
}

// enter locks the store for one call and sets its clock. The clock is that of the machine when the file was opened, and
// goes on by the monotonic clock from there: it cannot be set back under the sessions.
func (b *Backend) enter(ctx context.Context, operation string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b.mu.Lock()
	if b.broken != nil {
		b.mu.Unlock()
		return fmt.Errorf("%s: %w", operation, b.broken)
	}
	b.state.advance(b.start.Add(time.Since(b.opened)))
	return nil
}

// read calls fn on the state, which it must not change.
func (b *Backend) read(ctx context.Context, operation string, fn func(*state) error) error {
	if err := b.enter(ctx, operation); err != nil {
		return err
	}
	defer b.mu.Unlock()
	return fn(b.state)
}

// change carries out a command and writes it down before it answers. What is carried out is what will be read back,
// not what the caller gave: encoding may have changed it, and the caller may go on using its slices.
// A command that changed nothing is not written.
func change[A any](ctx context.Context, b *Backend, kind string, args command) (answer A, err error) {
	if err := b.enter(ctx, kind); err != nil {
		return answer, err
	}
	defer b.mu.Unlock()
	line, err := encode(b.state.now, kind, args)
	if err != nil {
		return answer, fmt.Errorf("%s: %w; leave out what JSON cannot hold", kind, err)
	}
	a, err := b.state.carryOut(line)
	if err != nil || !b.state.changed {
		answer, _ = a.(A)
		return answer, err
	}
	if err := appendLine(b.file, line); err != nil {
		// The state is ahead of the file now, and the end of the file is unknown. Reading it again settles both.
		b.broken = fmt.Errorf("the journal cannot be written: %w; mend the disk and open the file again", err)
		b.wake()
		return answer, fmt.Errorf("%s: %w", kind, b.broken)
	}
	b.wake()
	answer, _ = a.(A)
	return answer, nil
}

// wake lets the feeds look for news.
func (b *Backend) wake() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// Package filebackend is a backend of leasegen that keeps everything in the memory of one process and in one file. It
// is an example for authors of backends: it answers to the whole contract but its optional roles.
//
// The store is a deterministic state machine. Each call that changes something is a command, which is written as one
// line of a journal with its arguments and its time. Opening the file carries all of them out again. So the state needs
// no format of its own, and no command may look at a clock, at random numbers or at the order of a map.
//
// One process may have the file open at a time. Its consumers may share one Backend, which has no state of any caller.
// The journal only grows, and the log keeps every message. A call that waits for the disk does not end with its context.
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

// Backend is a backend.Backend on one file.
type Backend struct {
	mu      sync.Mutex
	state   *state
	file    *os.File
	broken  error         // every later call returns it
	changed chan struct{} // the next change closes it; feeds wait for that
	opened  time.Time
	start   time.Time // the time of the store when it was opened
}

// Open opens the file, or makes it.
func Open(path string) (*Backend, error) {
	b := &Backend{state: newState(), changed: make(chan struct{}), opened: time.Now()}
	file, err := openJournal(path, b.state)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", filepath.Base(path), err)
	}
	b.file, b.start = file, b.opened.UTC().Round(0)
	if b.start.Before(b.state.now) {
		b.start = b.state.now // a clock that was set back while the file was closed would revive dead sessions
	}
	return b, nil
}

// Close closes the file. Sessions live on for their TTL: opening the file again before that finds them alive.
func (b *Backend) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fail(errors.New("the backend was closed; open the file again"))
	return b.file.Close()
}

// fail makes every later call return err.
func (b *Backend) fail(err error) {
	if b.broken == nil {
		b.broken = err
		b.wake()
	}
}

// wake lets the feeds look for news.
func (b *Backend) wake() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// read calls fn on the state, which it must not change. The clock of the store is that of the machine when the file was
// opened, and goes on by the monotonic clock from there: it cannot be set back under the sessions.
func read[A any](ctx context.Context, b *Backend, operation string, fn func(*state) (A, error)) (answer A, err error) {
	if err := ctx.Err(); err != nil {
		return answer, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.broken != nil {
		return answer, fmt.Errorf("%s: %w", operation, b.broken)
	}
	b.state.advance(b.start.Add(time.Since(b.opened)))
	return fn(b.state)
}

// change carries out a command and writes it down before it answers. It carries out the line that will be read back and
// not the caller's arguments: encoding may have changed them, and the caller may go on using its slices. Only commands
// that have changed the state are written.
func change[A any](ctx context.Context, b *Backend, kind string, args any) (A, error) {
	return read(ctx, b, kind, func(s *state) (answer A, err error) {
		line, err := encode(s.now, kind, args)
		if err != nil {
			return answer, fmt.Errorf("%s: %w; leave out what JSON cannot hold", kind, err)
		}
		a, err := s.carryOut(line)
		if err == nil && s.changed {
			if err = appendLine(b.file, line); err != nil {
				// The state is ahead of the file, and the end of the file is unknown. Reading it again settles both.
				err = fmt.Errorf("the journal cannot be written: %w; fix the disk and open the file again", err)
				b.fail(err)
			}
			b.wake()
		}
		answer, _ = a.(A)
		return answer, err
	})
}

// Capabilities says that there are no streams, no ledger, no transactions and no leases that expire one by one.
func (b *Backend) Capabilities() backend.Capabilities {
	return backend.Capabilities{Operator: operator{b}}
}

// Check reports why the file cannot be used, or not by these consumers.
func (b *Backend) Check(ctx context.Context, consumers []backend.ConsumerInfo) error {
	_, err := read(ctx, b, "check", func(*state) (any, error) {
		for _, c := range consumers {
			if err := supported(c); err != nil {
				return nil, err
			}
		}
		return nil, nil
	})
	return err
}

// Package filebackend is a backend of leasegen that keeps everything in one file. It is an example for authors of
// backends: it has the whole contract, and of the optional roles that for operators.
//
// The rules of ownership and progress are those of rows.Rows, which leasemem has, too. The rest of a backend is here:
// the clock, the log and its feed, and rows that outlast the process. A call changes rows, and writes those that it
// changed, whole, as one line of the file before it answers. So each call happens wholly or not at all, and to open the
// file is to read its lines: a row takes the place of the one before.
//
// One process may have the file open at a time; its consumers may share one Backend. The file only grows, and all
// messages and their ids are kept: a fetch looks at all that came after its cursor. A call that waits for the disk does
// not end with its context.
package filebackend

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/backend/rows"
)

// Backend is a backend.Backend on one file.
type Backend struct {
	mu      sync.Mutex // guards what follows
	store   *store
	file    *os.File
	broken  error         // every later call returns it
	changed chan struct{} // the next change closes it; feeds wait for that

	opened, start time.Time // when the file was opened, by the machine's clock and by that of the store
}

// line is a line of the file: the rows that a call changed, and the messages that it published. A row that is null is gone.
type line struct {
	*rows.Rows
	Messages []*message `json:",omitempty"`
}

// store is what is in memory. Its methods are called with Backend.mu held.
type store struct {
	*rows.Rows                       // all there are
	line       line                  // what the present call changes
	log        []*message            // in the order in which they became visible
	delayed    []*message            // those that will join the log, in that order
	ids        map[eventID]time.Time // until when they dedupe
}

// apply takes over what a line holds.
func (s *store) apply(l line) {
	s.advance(l.At)
	s.Merge(l.Rows)
	s.join(l.Messages)
}

// Open opens the file, or makes it.
func Open(path string) (*Backend, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	b := &Backend{file: file, changed: make(chan struct{}), store: &store{Rows: rows.New(), ids: map[eventID]time.Time{}}}
	b.store.Log = b.store
	if err := b.load(path); err != nil {
		file.Close()
		return nil, fmt.Errorf("open %s: %w", filepath.Base(path), err)
	}
	b.opened = time.Now()
	b.start = b.opened.UTC().Round(0)
	if b.start.Before(b.store.At) {
		b.start = b.store.At // a clock that was set back while the file was closed would revive dead sessions
	}
	return b, nil
}

// load reads the file. A last line without its end is a write that a crash cut short before its call had answered: load
// cuts it off. Any other line that does not decode is damage, and an error.
func (b *Backend) load(path string) error {
	r, offset := bufio.NewReader(b.file), int64(0)
	for {
		text, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		l := line{Rows: &rows.Rows{}}
		if err == nil {
			err = json.Unmarshal(text, &l)
		}
		if err == nil && l.At.IsZero() {
			err = errors.New("it has no time")
		}
		if err != nil {
			return fmt.Errorf("line at offset %d: %w; restore the file from a copy", offset, err)
		}
		b.store.apply(l)
		offset += int64(len(text))
	}
	dir, err := os.Open(filepath.Dir(path)) // syncing it too makes a new file outlast a crash
	if err != nil {
		return err
	}
	defer dir.Close()
	return errors.Join(b.file.Truncate(offset), b.file.Sync(), dir.Sync())
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

// call runs fn on the store, and writes the rows that it changed: rows.Rows put them into store.line. The clock of the
// store is that of the machine when the file was opened, and goes on by the monotonic clock from there: it cannot be set
// back under the sessions.
func call[A any](ctx context.Context, b *Backend, operation string, fn func(*store) (A, error)) (answer A, err error) {
	if err = ctx.Err(); err != nil {
		return answer, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err = b.broken; err == nil {
		b.store.advance(b.start.Add(time.Since(b.opened)))
		b.store.line = line{Rows: rows.New()}
		b.store.line.At, b.store.Changed = b.store.At, b.store.line.Rows
		answer, err = fn(b.store)
		err = cmp.Or(b.write(b.store.line), err)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", operation, err)
	}
	return answer, err
}

// do is call for what has no answer.
func do(ctx context.Context, b *Backend, operation string, fn func(*store) error) error {
	_, err := call(ctx, b, operation, func(s *store) (any, error) { return nil, fn(s) })
	return err
}

// write appends a line to the file. The store gets what will be read back, and shares no memory with the caller's arguments.
func (b *Backend) write(l line) error {
	if len(l.Messages)+len(l.Sessions)+len(l.Consumers)+len(l.Leases)+len(l.Dead) == 0 {
		return nil
	}
	written := line{Rows: &rows.Rows{}}
	text, err := json.Marshal(l)
	if err == nil {
		err = json.Unmarshal(text, &written)
	}
	if err != nil {
		return fmt.Errorf("encode a line: %w; leave out what JSON cannot hold", err)
	}
	if _, err = b.file.Write(append(text, '\n')); err == nil {
		err = b.file.Sync()
	}
	if err != nil {
		b.fail(fmt.Errorf("the file cannot be written: %w; fix the disk and open it again", err))
		return b.broken
	}
	b.store.apply(written)
	b.wake()
	return nil
}

// Capabilities says that there are no streams, no ledger, no transactions and no leases that expire one by one.
func (b *Backend) Capabilities() backend.Capabilities {
	return backend.Capabilities{Operator: operator{b}}
}

// Check reports why the file cannot be used, or not by these consumers.
func (b *Backend) Check(ctx context.Context, consumers []backend.ConsumerInfo) error {
	for _, c := range consumers {
		if err := supported(c); err != nil {
			return err
		}
	}
	return do(ctx, b, "check", func(*store) error { return nil })
}

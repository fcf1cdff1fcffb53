package filebackend

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// record is one line of the journal.
type record struct {
	At   time.Time
	Kind string
	Args json.RawMessage
}

// command is a call that changes the state. It changes nothing when it returns an error, and sets state.changed when it
// changes something. Its present is state.now.
type command interface {
	apply(s *state) (answer any, err error)
}

// commands are all kinds there are. A name that was written once must stay, and so must the meaning of its arguments.
var commands = map[string]func() command{
	"publish":    func() command { return new(publish) },
	"open":       func() command { return new(openSession) },
	"heartbeat":  func() command { return new(heartbeat) },
	"close":      func() command { return new(closeSession) },
	"register":   func() command { return new(register) },
	"acquire":    func() command { return new(acquire) },
	"release":    func() command { return new(release) },
	"commit":     func() command { return new(commit) },
	"maintain":   func() command { return new(maintain) },
	"replay":     func() command { return new(replay) },
	"purge":      func() command { return new(purge) },
	"set cursor": func() command { return new(setCursor) },
}

func encode(at time.Time, kind string, args command) ([]byte, error) {
	raw, err := json.Marshal(args)
	if err != nil {
		return nil, err
	}
	line, err := json.Marshal(record{at, kind, raw})
	return append(line, '\n'), err
}

// carryOut decodes a line and applies it. Both a new command and one that is read back go through here.
func (s *state) carryOut(line []byte) (answer any, err error) {
	var r record
	if err := json.Unmarshal(line, &r); err != nil {
		return nil, err
	}
	make := commands[r.Kind]
	if make == nil {
		return nil, fmt.Errorf("unknown command %q", r.Kind)
	}
	c := make()
	if err := json.Unmarshal(r.Args, c); err != nil {
		return nil, err
	}
	s.advance(r.At)
	s.changed = false
	return c.apply(s)
}

// openJournal opens the file and hands each line to apply. A last line without its end is a write that was cut short
// before its call had answered: it is cut off. Any other line that does not decode is damage, which is not mended here.
func openJournal(path string, apply func(line []byte) error) (_ *os.File, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	r, offset := bufio.NewReader(f), int64(0)
	for {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if err := apply(line); err != nil {
			return nil, fmt.Errorf("record at offset %d: %w; restore the file from a copy", offset, err)
		}
		offset += int64(len(line))
	}
	if err := f.Truncate(offset); err != nil {
		return nil, err
	}
	if err := f.Sync(); err != nil {
		return nil, err
	}
	// A file that was just made is there after a crash only when its directory was synced too.
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return f, dir.Sync()
}

func appendLine(f *os.File, line []byte) error {
	if _, err := f.Write(line); err != nil {
		return err
	}
	return f.Sync()
}

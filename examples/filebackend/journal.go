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

// commands are all kinds there are. A kind that was written once must keep its name, its arguments and its meaning.
var commands = map[string]func(*state, json.RawMessage) (any, error){
	"publish":    command((*state).publish),
	"open":       command((*state).open),
	"heartbeat":  command((*state).heartbeat),
	"close":      command((*state).close),
	"register":   command((*state).register),
	"acquire":    command((*state).acquire),
	"release":    command((*state).release),
	"commit":     command((*state).commit),
	"maintain":   command((*state).maintain),
	"replay":     command((*state).replay),
	"purge":      command((*state).purge),
	"set cursor": command((*state).setCursor),
}

// command decodes the arguments of a method. A method that changes the state says so in state.changed. One that returns
// an error has left the state as it was. The present of both is state.now.
func command[A, B any](method func(*state, A) (B, error)) func(*state, json.RawMessage) (any, error) {
	return func(s *state, raw json.RawMessage) (any, error) {
		var args A
		if err := json.Unmarshal(raw, &args); err != nil {
			return nil, err
		}
		return method(s, args)
	}
}

func encode(at time.Time, kind string, args any) ([]byte, error) {
	raw, err := json.Marshal(args)
	if err != nil {
		return nil, err
	}
	line, err := json.Marshal(record{at, kind, raw})
	return append(line, '\n'), err
}

// carryOut decodes a line and carries it out. Both a new command and one that is read back go through here.
func (s *state) carryOut(line []byte) (answer any, err error) {
	var r record
	if err := json.Unmarshal(line, &r); err != nil {
		return nil, err
	}
	method := commands[r.Kind]
	if method == nil {
		return nil, fmt.Errorf("unknown command %q", r.Kind)
	}
	s.advance(r.At)
	s.changed = false
	return method(s, r.Args)
}

// openJournal opens the file and carries out each line. A last line without its end is a write that a crash cut short
// before its call had answered: openJournal cuts it off. Any other line that does not decode is damage, and an error.
func openJournal(path string, s *state) (_ *os.File, err error) {
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
		if err == nil {
			_, err = s.carryOut(line)
		}
		if err != nil {
			return nil, fmt.Errorf("record at offset %d: %w; restore the file from a copy", offset, err)
		}
		offset += int64(len(line))
	}
	// Syncing the directory too makes a new file outlast a crash.
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return f, errors.Join(f.Truncate(offset), f.Sync(), dir.Sync())
}

func appendLine(f *os.File, line []byte) error {
	if _, err := f.Write(line); err != nil {
		return err
	}
	return f.Sync()
}

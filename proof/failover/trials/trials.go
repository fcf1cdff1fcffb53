// Package trials is what command failover has measured, as a file.
package trials

import (
	"encoding/json"
	"os"
)

// Line is the trials of one fault on one kind of lock.
type Line struct {
	On    string    `json:"on"` // postgres or redis
	Lock  string    `json:"lock"`
	Per   string    `json:"per"`
	Fault string    `json:"fault"`
	TTL   float64   `json:"ttl"`  // milliseconds
	Took  []float64 `json:"took"` // milliseconds without an owner, sorted
	Late  int       `json:"late"` // calls that an old owner began after the new owner's first
	// A client that does no more, beside the trials: how long it took for a connection and for a write, p50 in milliseconds.
	BareConnection float64 `json:"bare_connection"`
	BareWrite      float64 `json:"bare_write"`
}

// Write writes lines to a file.
func Write(path string, lines []Line) error {
	text, err := json.MarshalIndent(lines, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// Read reads what Write has written.
func Read(path string) (lines []Line, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return lines, json.Unmarshal(text, &lines)
}

package operate

import "time"

// ParkedFilter selects parked messages of a consumer. Other fields that are empty select all.
type ParkedFilter struct {
	Consumer string
	Resource string
	Key      string
	IDs      []string // message ids
	After    string   // ParkedInfo.Place of a message, which may be gone: only those that are listed after it
	Limit    int      // 0 = no limit
}

// ParkedInfo is one parked message. Times are by the server's clock.
type ParkedInfo struct {
	Place            string // where it is listed; see ParkedFilter.After
	Resource         string
	MessageID        string
	Topic, Key, Kind string
	Size             int       // of the payload in bytes; 0 of a row of an application's table
	Attempts         int       // that have failed; 0 of one that waits behind another, and after a replay
	Due              time.Time // of its next attempt; messages ahead of it in its lane come first
	FirstFailed      time.Time // zero when it has not failed
	Behind           bool      // another message of its lane is ahead of it
	Error            string    // of the last attempt
}

package operate

import "time"

// DeadLetterFilter selects dead letters. Empty fields select all.
type DeadLetterFilter struct {
	Consumer string
	IDs      []string // dead-letter ids
	Topic    string   // pattern as in MatchTopic
	Key      string
	Reason   string // pattern as in MatchTopic
	Limit    int    // 0 = no limit
}

// DeadLetterInfo is one dead letter.
type DeadLetterInfo struct {
	ID               string // of the dead letter
	Consumer         string
	Resource         string
	MessageID        string
	Topic, Key, Kind string
	Payload          []byte // only when exactly one id was asked for
	Size             int
	Headers          map[string]string
	PublishedAt      time.Time
	FirstFailed      time.Time
	DeadAt           time.Time
	Attempts         int
	Reason           string
}

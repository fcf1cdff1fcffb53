package operate

import "time"

// DeadLetterFilter selects dead letters. Empty fields select all. Fields that name an index of the backend (Consumer, IDs, After,
// Through and MaxAge) are found at once; for the others a backend looks at dead letters, step by step, until it has Limit.
type DeadLetterFilter struct {
	Consumer string
	IDs      []string // dead-letter ids
	Topic    string   // pattern as in MatchTopic
	Key      string
	Kind     string
	Reason   string        // pattern as in MatchTopic
	Text     string        // a text within the reason or the key; A to Z are like a to z, other letters are themselves
	MinAge   time.Duration // dead for at least so long, by the server's clock
	MaxAge   time.Duration // dead for at most so long
	After    string        // id of a dead letter, which may be gone: only those that are listed after it
	Through  string        // id of a dead letter, which may be gone: only those listed up to it, and it; no later ones
	Limit    int           // 0 = no limit
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

// DeadLetterGroup is dead letters of one kind whose reasons differ in numbers and ids alone.
type DeadLetterGroup struct {
	Consumer string
	Kind     string
	// Reason is their reason with * for numbers, uuids and long hexadecimal words, cut to 300 bytes with a * at the end. As
	// DeadLetterFilter.Reason it selects all of them, and others that have any other text where it has a *.
	Reason         string
	Count          int
	Oldest, Newest time.Time // when the first and the last of them died
	Example        string    // id of the one that is listed last
}

// DeadLetterGroups is an answer of Operator.DeadLetterGroups.
type DeadLetterGroups struct {
	Groups []DeadLetterGroup // the largest first, at most 100
	Total  int               // dead letters that were counted
	More   bool              // there are more dead letters than the newest 100,000, which were looked at; or more groups
	// Last is the id of the last one that was counted, in the order of lists: DeadLetterFilter.Through with it selects none
	// that died later. Empty when none was counted.
	Last string
}

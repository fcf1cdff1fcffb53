package operate

// MaintainReport says what housekeeping did.
type MaintainReport struct {
	DeadLettersExpired int // older than Keep
	DeadLettersDropped int // over Max
	SessionsForgotten  int
	SegmentsDropped    int // parts of the log that every consumer has passed
	OnceForgotten      int // executed items older than OnceKeep
	StreamsForgotten   int // streams without work whose messages are gone
	IDsForgotten       int // message ids that no longer dedupe
}

package operate

import "time"

// Observer receives what the runtime does, for metrics and traces. Each consumer calls its
// observer from one goroutine at a time, in the order in which things happened and a moment
// after they did. No work waits for it: one that is slow loses what comes on top of 16,384
// observations that wait, and gets their number in ObservedDropped; a panic is logged. A flood of those
// that come by the message leaves room for what is rarer: ObservedHandle and ObservedCommit fill three quarters
// at most, ObservedRetry seven eighths, ObservedDeadLetter fifteen sixteenths. Outcomes of messages are reported
// exactly, see ObservedDropped; to see each call, use lease.WithMiddleware. All is
// reported before Run returns, unless that takes more than two seconds. Consumers may share an
// observer, which is then called by several at once. Use names of consumers and kinds as
// metric labels; resources and ids are unbounded.
type Observer interface {
	Observe(o Observation)
}

// ObserverFunc is a function as an Observer.
type ObserverFunc func(Observation)

// Observe calls f.
func (f ObserverFunc) Observe(o Observation) { f(o) }

// Observation is one of the Observed types of this package. New ones may be added:
// ignore those you do not know.
type Observation interface{ observation() }

// ObservedAcquire: a lease was acquired.
type ObservedAcquire struct {
	Consumer, Resource, Session string
	Epoch                       int64
	Crashed                     bool // the owner before did not release it
}

func (ObservedAcquire) observation() {}

// ObservedRelease: a lease was given back.
type ObservedRelease struct {
	Consumer, Resource, Session string
	Epoch                       int64
	Retired                     bool // a stream without more work
}

func (ObservedRelease) observation() {}

// ObservedLoss: a lease ended against the holder's will. Reported once per lease.
type ObservedLoss struct {
	Consumer, Resource, Session string
	Epoch                       int64
	Reason                      string
}

func (ObservedLoss) observation() {}

// ObservedSession: the process's session began, or ended with a reason.
type ObservedSession struct {
	Session string
	Open    bool
	Reason  string
}

func (ObservedSession) observation() {}

// ObservedHeartbeat: one heartbeat was tried.
type ObservedHeartbeat struct {
	Session  string
	Duration time.Duration
	Err      error
}

func (ObservedHeartbeat) observation() {}

// ObservedRenew: the renewal of a LockRow consumer's leases was tried.
type ObservedRenew struct {
	Consumer, Session string
	Leases, Lost      int // asked for, and found to be lost
	Duration          time.Duration
	Err               error
}

func (ObservedRenew) observation() {}

// ObservedHandle: a handler call ended. Count is the number of messages it was given, Attempt the highest of theirs and
// PublishedAt the earliest, by the backend's clock; all three are zero for Run handlers.
type ObservedHandle struct {
	Consumer, Resource, Kind string
	Epoch                    int64
	Count                    int
	Attempt                  int
	PublishedAt              time.Time
	Duration                 time.Duration
	Err                      error // nil on success
}

func (ObservedHandle) observation() {}

// Outcomes counts messages by what became of them: handled, parked for a retry or behind one that is, given up on, and
// passed over.
type Outcomes struct{ Handled, Parked, Dead, Skipped int }

// Add adds more of them.
func (o *Outcomes) Add(more Outcomes) {
	o.Handled += more.Handled
	o.Parked += more.Parked
	o.Dead += more.Dead
	o.Skipped += more.Skipped
}

// KindOutcomes are the outcomes of the messages of a kind.
type KindOutcomes struct {
	Kind string
	Outcomes
}

// ObservedCommit: progress was stored. It counts the messages since the commit before, and the same by kind; of more than
// 200 kinds the rest is in the sum alone. Duration is that of the call, in which progress of other
// resources may have been stored, too.
type ObservedCommit struct {
	Consumer, Resource string
	Epoch              int64
	Outcomes
	Kinds    []KindOutcomes // not to be changed
	Duration time.Duration
}

func (ObservedCommit) observation() {}

// ObservedFenced: progress was refused because the lease is not held under this epoch any more.
type ObservedFenced struct {
	Consumer, Resource, Session string
	Epoch                       int64
}

func (ObservedFenced) observation() {}

// ObservedRetry: a handler failed, and gets the message again after a while. Attempt is the one that failed.
type ObservedRetry struct {
	Consumer, Resource, Kind, ID string
	Attempt                      int
	After                        time.Duration
	Reason                       string // the error, cut to what is stored of it
}

func (ObservedRetry) observation() {}

// ObservedDeadLetter: a message was given up on.
type ObservedDeadLetter struct {
	Consumer, Resource, Kind, ID, Reason string
	Attempts                             int
}

func (ObservedDeadLetter) observation() {}

// ObservedUnknown: messages of a kind that the process has no handler for, or of a topic that
// it does not read, wait for another version of the consumer, up to Wait. Reported once per
// process and kind, or topic.
type ObservedUnknown struct {
	Consumer, Kind string
	Topic          string // when that is what is not known
	Wait           time.Duration
}

func (ObservedUnknown) observation() {}

// ObservedStuck: a handler call has been running for too long. Reported once per call.
type ObservedStuck struct {
	Consumer, Resource, Kind, ID string
	Running                      time.Duration
}

func (ObservedStuck) observation() {}

// ObservedMaintain: housekeeping was done.
type ObservedMaintain struct {
	MaintainReport
	Err error
}

func (ObservedMaintain) observation() {}

// ObservedTopology: a backend asked its cluster for the present topology, after the error
// Cause, or because it was stopped.
type ObservedTopology struct {
	Cause error
	Err   error
}

func (ObservedTopology) observation() {}

// ObservedStalled: a consumer has work of one kind and has not got on with it for too long.
// It is reported once, and once more with Over when it goes on.
type ObservedStalled struct {
	Consumer, Session string
	Waits             string // for what, and since when
	Over              bool
}

func (ObservedStalled) observation() {}

// ObservedPaused: a consumer was found to be paused, or to be resumed, see Operator.Pause. It is reported once for each change
// that a process notices.
type ObservedPaused struct {
	Consumer string
	Paused   bool
}

func (ObservedPaused) observation() {}

// ObservedDropped: observations were dropped because the observer is too slow. The counts of the ObservedCommit among them
// is counted here, so that the sum over both is exact.
type ObservedDropped struct {
	Consumer string
	Dropped  int
	Outcomes
	Kinds []KindOutcomes // as in ObservedCommit
}

func (ObservedDropped) observation() {}

// ObservedSetBack: a position lay beyond what the server has given out, because the server, its log or a
// table was set back, and was taken back to where no message is passed over.
type ObservedSetBack struct {
	Consumer string
	Resource string // empty: all of them
	Reason   string
}

func (ObservedSetBack) observation() {}

// ObservedMissed: messages of a stream that others write to were deleted before they were read.
type ObservedMissed struct {
	Consumer string
	Resource string // the stream
	Messages int    // 0: it is not known how many
}

func (ObservedMissed) observation() {}

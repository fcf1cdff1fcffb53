package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// ABI1 is named by generated code. When the runtime changes so that code generated
// before no longer means the same, ABI1 goes and ABI2 comes, and old generated code
// stops compiling at a line that says: regenerate.
const ABI1 = true

// Spec is a consumer as its annotations declare it. Generated code fills it in;
// zero values mean the defaults given here.
type Spec struct {
	// Name is shared by all replicas of the consumer.
	Name string
	// Per says what has exactly one owner.
	Per Per
	// Topics are the patterns of the topics consumed, see MatchTopic. Empty for PerCluster,
	// with Streams, and with Source.
	Topics []string
	// Streams, for PerStream, names the streams that have work now; it is asked every Poll
	// by every replica. Each stream's owner calls Run until it returns nil; a stream that is
	// still named after that, or by a replica whose question is older, runs once more. One
	// that fails Retry.Max times in a row is not run by this process for Retry.Cap.
	Streams func(context.Context) ([]string, error)
	// Poll is how often Streams is asked. Default 5 s.
	Poll time.Duration
	// Source is what the backend reads instead of its log, made by the backend's package.
	Source any
	// Handlers are the consumer's methods: one Run for PerCluster and with Streams, else
	// one per kind.
	Handlers []Handler

	// Lock says how ownership is held. Default LockSession.
	Lock Lock
	// From says where the consumer begins when it runs for the first time. Default FromBeginning.
	From From
	// Capacity is how many resources this process owns at most; what no process has room
	// for waits. Default 0, no bound; for PerStream 32. Streams are not shared out evenly:
	// a process with room takes them.
	Capacity int
	// Idle is how long a stream without work stays with its owner, unless others wait for
	// its place. Default 5 s. It may stay a tenth longer: streams are given back together.
	Idle time.Duration
	// OnceKeep is how long executed items are remembered (see Once). Default 0, for ever.
	OnceKeep time.Duration

	// TTL is how long a silent process keeps its leases. Default 15 s, at least 1 s.
	TTL time.Duration
	// Margin is how long before the TTL a holder stops believing. Default max(TTL/10, 250 ms).
	Margin time.Duration
	// Grace is how long the leases of a dead session stay untaken beyond its TTL, for
	// effects that cannot be fenced. Released leases are free at once. Default 0.
	Grace time.Duration

	// Workers is how many messages of one resource are handled at once. Messages with
	// one key are never handled at once; with 1, the default, none are, and the
	// resource is worked on in total order.
	Workers int
	// Batch is how many messages are read, handled and committed together. Default 100, at most 10,000.
	Batch int
	// Drain is how long a stopping process lets running handlers finish. Default 10 s.
	Drain time.Duration
	// Unknown says what becomes of messages of a kind without a handler.
	Unknown Unknown
	// UnknownWait is how long a message of a kind without a handler, or of a topic that only
	// another version of the consumer reads, is set aside for an owner that takes it, before it
	// becomes a dead letter: as long as a deploy takes. It is not an attempt, and Retry.Order says
	// what waits with it. Default 10 min; negative: not at all.
	UnknownWait time.Duration

	Retry       Retry
	DeadLetters DeadLetters
}

// Unknown says what becomes of messages of a kind that a consumer has no handler for.
type Unknown int

const (
	// UnknownDeadLetter keeps them as dead letters, after UnknownWait. The default.
	UnknownDeadLetter Unknown = iota
	// UnknownSkip passes over them.
	UnknownSkip
)

// Retry says how failed messages are retried. The wait before attempt n+1 is
// Min·2^(n-1), at most Cap, of which the fraction Jitter is random.
type Retry struct {
	Max    int           // attempts in all before the message becomes a dead letter. Default 8.
	Min    time.Duration // default 200 ms
	Cap    time.Duration // default 1 min
	Jitter float64       // 0 to 1, default 0.2; negative for none
	Order  Order         // default OrderKey
}

// Order says what waits while a failed message waits for its retry.
type Order int

const (
	// OrderKey: the later messages with the same key (in the same resource) wait; other
	// keys flow. Messages without a key are one key. The default.
	OrderKey Order = iota
	// OrderBlock: the whole resource waits.
	OrderBlock
	// OrderNone: only the message waits; order is given up for it.
	OrderNone
)

// String returns the word used in annotations.
func (o Order) String() string {
	switch o {
	case OrderKey:
		return "key"
	case OrderBlock:
		return "block"
	case OrderNone:
		return "none"
	}
	return "unknown"
}

// DeadLetters bounds what is kept of messages given up on.
type DeadLetters struct {
	Keep time.Duration // 0 = for ever
	Max  int           // 0 = no bound, on Redis leaseredis.WithMaxDeadLetters; the oldest go first, counted and logged
}

func (s *Spec) setDefaults() {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&s.TTL, 15*time.Second)
	def(&s.Margin, max(s.TTL/10, 250*time.Millisecond))
	def(&s.Drain, 10*time.Second)
	def(&s.Poll, 5*time.Second)
	def(&s.Idle, 5*time.Second)
	def(&s.UnknownWait, 10*time.Minute)
	if s.Capacity == 0 && s.Per == PerStream {
		s.Capacity = 32
	}
	def(&s.Retry.Min, 200*time.Millisecond)
	def(&s.Retry.Cap, max(time.Minute, s.Retry.Min))
	if s.Workers == 0 {
		s.Workers = 1
	}
	if s.Batch == 0 {
		s.Batch = 100
	}
	if s.Retry.Max == 0 {
		s.Retry.Max = 8
	}
	if s.Retry.Jitter == 0 {
		s.Retry.Jitter = 0.2
	}
	s.Retry.Jitter = max(s.Retry.Jitter, 0)
	for _, d := range []*time.Duration{&s.TTL, &s.Margin, &s.Grace, &s.Poll, &s.Idle, &s.OnceKeep, &s.Drain, &s.Retry.Min, &s.Retry.Cap, &s.DeadLetters.Keep} {
		*d = min(*d, longest) // so that no sum overflows
	}
}

// validate reports all that is wrong with s, each named by its field.
func (s *Spec) validate() error {
	var errs []error
	bad := func(cond bool, format string, args ...any) {
		if cond {
			errs = append(errs, fmt.Errorf("lease: consumer %q: "+format, append([]any{s.Name}, args...)...))
		}
	}
	if err := backend.CheckNames(s.Name); err != nil {
		errs = append(errs, err)
	}
	bad(s.Per < PerTopic || s.Per > PerStream, "Per %d is unknown", s.Per)
	bad(s.Lock < LockSession || s.Lock > LockRow, "Lock %d is unknown", s.Lock)
	bad(s.Lock == LockAdvisory && s.Per != PerCluster && s.Per != PerGroup, "LockAdvisory goes with PerCluster and PerGroup only")
	bad(s.Lock == LockRow && s.Per != PerStream, "LockRow goes with PerStream only")
	bad(s.From < FromBeginning || s.From > FromNow, "From %d is unknown", s.From)
	bad(s.Poll < 0, "Poll %v is negative", s.Poll)
	bad(s.Idle < 0, "Idle %v is negative", s.Idle)
	bad(s.Capacity < 0, "Capacity %d is negative", s.Capacity)
	bad(s.OnceKeep < 0, "OnceKeep %v is negative", s.OnceKeep)
	bad(s.TTL < time.Second, "TTL %v is below 1s", s.TTL)
	bad(s.TTL > 24*time.Hour, "TTL %v is above 24h", s.TTL)
	bad(s.Margin < 0 || s.Margin > s.TTL/2, "Margin %v is not within 0 and TTL/2 = %v", s.Margin, s.TTL/2)
	bad(s.Grace < 0, "Grace %v is negative", s.Grace)
	bad(s.Workers < 1 || s.Workers > 1024, "Workers %d is not within 1 and 1024", s.Workers)
	bad(s.Batch < 1 || s.Batch > 10_000, "Batch %d is not within 1 and 10000", s.Batch)
	bad(s.Drain < 0, "Drain %v is negative", s.Drain)
	bad(s.Retry.Max < 1, "Retry.Max %d is below 1", s.Retry.Max)
	bad(s.Retry.Min < 0, "Retry.Min %v is negative", s.Retry.Min)
	bad(s.Retry.Cap < s.Retry.Min, "Retry.Cap %v is below Retry.Min %v", s.Retry.Cap, s.Retry.Min)
	bad(!(s.Retry.Jitter <= 1), "Retry.Jitter %v is not within 0 and 1", s.Retry.Jitter) // NaN too
	bad(s.Retry.Order < OrderKey || s.Retry.Order > OrderNone, "Retry.Order %d is unknown", s.Retry.Order)
	bad(s.DeadLetters.Keep < 0, "DeadLetters.Keep %v is negative", s.DeadLetters.Keep)
	bad(s.DeadLetters.Max < 0, "DeadLetters.Max %d is negative", s.DeadLetters.Max)

	if s.Per == PerCluster || s.Streams != nil {
		what := "PerCluster"
		if s.Streams != nil {
			what = "Streams"
			bad(s.Per != PerStream, "Streams go with PerStream only")
		}
		bad(len(s.Topics) > 0, what+" and Topics are given; there is no message source to read")
		bad(s.Source != nil, what+" and a Source are given; there is no message source to read")
		bad(len(s.Handlers) != 1 || s.Handlers[0].run == nil, what+" takes exactly one Run handler")
		return errors.Join(errs...)
	}
	bad(len(s.Topics) == 0 && s.Source == nil, "Topics are empty")
	bad(len(s.Topics) > 0 && s.Source != nil, "Topics and a Source are given; messages come from one of them")
	bad(slices.Contains(s.Topics, ""), "a topic pattern is empty")
	bad(len(s.Handlers) == 0, "there are no handlers")
	seen := map[string]bool{}
	for _, h := range s.Handlers {
		bad(h.run != nil, "a Run handler needs PerCluster or Streams")
		bad(h.run == nil && h.call == nil, "a handler is empty; make it with One, Batch, OneTx or BatchTx")
		bad(seen[h.kind], "two handlers for kind %q", h.kind)
		bad(h.tx && s.Workers > 1, "Workers %d does not go with transaction handlers: one cursor moves in one transaction", s.Workers)
		seen[h.kind] = true
	}
	return errors.Join(errs...)
}

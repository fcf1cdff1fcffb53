package lease

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/leasegen/leasegen/runtime/operate"
)

// Option overrides what the annotations say, or sets what they cannot, without
// generating again.
type Option func(*settings)

type settings struct {
	spec        Spec
	logger      *slog.Logger
	observer    operate.Observer
	concurrency int
	maxPayload  int
	stuckAfter  time.Duration
	stallAfter  time.Duration
	cancelStuck bool
	middleware  []Middleware
}

// WithLogger sets the logger. Default slog.Default(). Lines are written by a goroutine of their
// own, in order, so that no work waits for them: a logger that is slow loses what comes on top
// of 16,384 lines that wait, and gets their number. All are written before Run returns, unless
// that takes more than two seconds.
func WithLogger(l *slog.Logger) Option { return func(s *settings) { s.logger = l } }

// WithObserver sets the receiver of metrics and traces. Default none.
func WithObserver(o operate.Observer) Option { return func(s *settings) { s.observer = o } }

// WithMiddleware puts middleware around the calls of handlers, the first outermost; given again, it adds more inside.
func WithMiddleware(m ...Middleware) Option {
	return func(s *settings) { s.middleware = append(s.middleware, m...) }
}

// WithTTL overrides Spec.TTL, and Spec.Margin with its default for that TTL.
func WithTTL(d time.Duration) Option {
	return func(s *settings) { s.spec.TTL, s.spec.Margin = d, 0 }
}

// WithBatch overrides Spec.Batch.
func WithBatch(n int) Option { return func(s *settings) { s.spec.Batch = n } }

// WithWorkers overrides Spec.Workers.
func WithWorkers(n int) Option { return func(s *settings) { s.spec.Workers = n } }

// WithDrain overrides Spec.Drain.
func WithDrain(d time.Duration) Option { return func(s *settings) { s.spec.Drain = d } }

// WithUnknownWait overrides Spec.UnknownWait. Negative: messages that this version does not take
// become dead letters at once.
func WithUnknownWait(d time.Duration) Option { return func(s *settings) { s.spec.UnknownWait = d } }

// WithRetry overrides Spec.Retry as a whole.
func WithRetry(r Retry) Option { return func(s *settings) { s.spec.Retry = r } }

// WithDeadLetters overrides Spec.DeadLetters as a whole.
func WithDeadLetters(d DeadLetters) Option { return func(s *settings) { s.spec.DeadLetters = d } }

// WithConcurrency sets how many resources this process handles messages of at once for
// the consumer. Default 16; with PerStream Spec.Capacity, since what is owned there and
// waits is worked on by no process. Run handlers are bounded by Spec.Capacity alone.
func WithConcurrency(n int) Option { return func(s *settings) { s.concurrency = n } }

// WithCapacity overrides Spec.Capacity.
func WithCapacity(n int) Option { return func(s *settings) { s.spec.Capacity = n } }

// WithMaxPayload sets the largest payload in bytes that is loaded and decoded;
// larger ones become dead letters. Default 1 MiB.
func WithMaxPayload(n int) Option { return func(s *settings) { s.maxPayload = n } }

// WithStuckAfter sets how long one handler call may take before it is reported as
// stuck, once per call. With cancel its context is cancelled too, with cause ErrStuck,
// and the message counts as failed. Default 1 min, without cancel. Run handlers are exempt.
func WithStuckAfter(d time.Duration, cancel bool) Option {
	return func(s *settings) { s.stuckAfter, s.cancelStuck = d, cancel }
}

// WithStallAfter sets for how long the consumer may make no step though it has work until that is
// reported: in the log, to the observer (ObservedStalled), and by Ready. Default 1 min. Handlers
// that run are given at least what WithStuckAfter says, and Run handlers are exempt.
func WithStallAfter(d time.Duration) Option { return func(s *settings) { s.stallAfter = d } }

// byDefault is a concurrency that no option can mean.
const byDefault = math.MinInt

func (s *settings) setDefaults() {
	s.spec.setDefaults()
	s.stuckAfter, s.stallAfter = min(s.stuckAfter, longest), min(s.stallAfter, longest)
	if s.concurrency == byDefault {
		s.concurrency = 16
		if s.spec.Per == PerStream {
			s.concurrency = max(s.spec.Capacity, 1) // a wrong capacity is reported as such
		}
	}
}

func (s *settings) validate() error {
	var errs []error
	bad := func(cond bool, format string, args ...any) {
		if cond {
			errs = append(errs, fmt.Errorf("lease: consumer %q: "+format, append([]any{s.spec.Name}, args...)...))
		}
	}
	bad(s.logger == nil, "WithLogger was given nil")
	bad(s.concurrency < 1, "WithConcurrency %d is below 1", s.concurrency)
	bad(s.maxPayload < 1, "WithMaxPayload %d is below 1 byte", s.maxPayload)
	bad(s.stuckAfter <= 0, "WithStuckAfter %v is not positive", s.stuckAfter)
	bad(s.stallAfter <= 0, "WithStallAfter %v is not positive", s.stallAfter)
	return errors.Join(errs...)
}

package lease

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/leasegen/leasegen/runtime/backend"
)

// wait is the backoff after the given number of failures.
func (r Retry) wait(failures int) time.Duration {
	d := r.Cap
	if shift := failures - 1; shift < 62 && r.Min<<shift>>shift == r.Min {
		d = min(r.Min<<shift, r.Cap)
	}
	return d - time.Duration(r.Jitter*rand.Float64()*float64(d))
}

// verdict is what becomes of one message.
type verdict int

const (
	undecided verdict = iota // not handled; it stays where it is, uncounted
	handled
	skipped
	parked
	dead
	stays // parked already, and to be left as it is
)

type outcome struct {
	verdict verdict
	lane    string        // parked
	after   time.Duration // parked
	attempt int           // parked, dead: failures so far
	reason  string        // parked, dead
	asked   string        // dead: the item whose outcome is unknown, see OnceResult
	failed  bool          // parked: its handler was called and failed
	late    bool          // dead: no version of the consumer took it in time
}

// failure is an error of a handler, read once: its methods are the handler's own code, and may
// panic.
type failure struct {
	err    error  // safe to be read again
	reason string // one line
	dead   bool   // no retry can help
	decode *decodeError
	after  *time.Duration // until the next attempt; nil: as the backoff says
}

// examine reads a handler's error. DeadLetter wins over RetryAfter where both are joined.
func examine(err error) (f *failure) {
	defer func() {
		if r := recover(); r != nil {
			reason := fmt.Sprintf("the handler returned a %T whose methods panic", err)
			if v := reflect.ValueOf(err); v.Kind() == reflect.Pointer && v.IsNil() {
				reason = fmt.Sprintf("the handler returned a nil %T as its error; return nil itself", err)
			}
			f = &failure{err: errors.New(reason), reason: reason}
		}
	}()
	f = &failure{err: err, reason: oneLine(err.Error())}
	if de, ok := errors.AsType[*decodeError](err); ok {
		f.decode, f.dead = de, true
		return f
	}
	if _, ok := errors.AsType[*deadLetterError](err); ok {
		f.dead = true
		return f
	}
	if ra, ok := errors.AsType[*retryAfterError](err); ok {
		after := min(max(ra.after, 0), longestWait)
		f.after = &after
		if direct, ok := err.(*retryAfterError); ok && direct.err != nil {
			f.reason = oneLine(direct.err.Error())
		}
	}
	return f
}

// longestWait bounds what RetryAfter can ask for.
const longestWait = 10 * 365 * 24 * time.Hour

// judge says what becomes of a message whose handler failed.
func (r Retry) judge(m *backend.Raw, f *failure) outcome {
	o := outcome{attempt: m.Attempt + 1, reason: f.reason}
	if f.dead || o.attempt >= r.Max {
		o.verdict = dead
		return o
	}
	o.verdict, o.lane, o.after, o.failed = parked, r.Order.lane(m), r.wait(o.attempt), true
	if f.after != nil {
		o.after = *f.after
	}
	return o
}

// lane is the queue in which a failed message waits.
func (o Order) lane(m *backend.Raw) string {
	switch o {
	case OrderBlock:
		return ""
	case OrderNone:
		return "#" + m.ID
	}
	return m.Key
}

const maxReason = 1024 // bytes

// oneLine makes text fit for a log line or a table cell.
func oneLine(s string) string {
	var b strings.Builder
	for _, r := range s {
		if b.Len() > maxReason-2*utf8.UTFMax { // room for this rune and the ellipsis
			b.WriteString("…")
			break
		}
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			r = ' '
		}
		b.WriteRune(r)
	}
	return b.String()
}

// errGoexit is the failure of a handler that ended its goroutine.
var errGoexit = errors.New("handler called runtime.Goexit")

type panicError struct{ value any }

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// ErrorType names the error in telemetry.
func (e *panicError) ErrorType() string { return "panic" }

package lease

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
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
)

type outcome struct {
	verdict verdict
	lane    string        // parked
	after   time.Duration // parked
	attempt int           // parked, dead: failures so far
	reason  string        // parked, dead
	asked   string        // dead: the item whose outcome is unknown, see OnceResult
}

// judge turns a handler's error into an outcome.
func (r Retry) judge(m *Raw, err error) outcome {
	o := outcome{attempt: m.Attempt + 1, reason: oneLine(err.Error())}
	if _, ok := errors.AsType[*decodeError](err); ok {
		o.verdict = dead
		return o
	}
	after := r.wait(o.attempt)
	if ra, ok := errors.AsType[*retryAfterError](err); ok {
		after, o.reason = max(ra.after, 0), oneLine(ra.err.Error())
	}
	if _, ok := errors.AsType[*deadLetterError](err); ok || o.attempt >= r.Max {
		o.verdict = dead
		return o
	}
	o.verdict, o.lane, o.after = parked, r.Order.lane(m), after
	return o
}

// lane is the queue in which a failed message waits.
func (o Order) lane(m *Raw) string {
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

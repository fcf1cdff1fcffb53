package lease

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/leasegen/leasegen/runtime/backend"
)

func TestRetryWait(t *testing.T) {
	r := Retry{Min: 200 * time.Millisecond, Cap: time.Minute}
	for failures, want := range map[int]time.Duration{
		1: 200 * time.Millisecond, 2: 400 * time.Millisecond, 5: 3200 * time.Millisecond,
		9: 51200 * time.Millisecond, 10: time.Minute, 63: time.Minute, 64: time.Minute, math.MaxInt: time.Minute,
	} {
		if got := r.wait(failures); got != want {
			t.Errorf("wait after %d failures: %v, want %v", failures, got, want)
		}
	}
	r.Jitter = 0.5
	for range 1000 {
		if d := r.wait(2); d < 200*time.Millisecond || d > 400*time.Millisecond {
			t.Fatalf("wait with jitter 0.5: %v, want within 200ms and 400ms", d)
		}
	}
}

func TestJudge(t *testing.T) {
	boom := errors.New("boom")
	for _, c := range []struct {
		name    string
		order   Order
		attempt int
		err     error
		want    outcome
	}{
		{"first failure", OrderKey, 0, boom, outcome{verdict: parked, lane: "k", after: time.Second, attempt: 1, reason: "boom", failed: true}},
		{"blocks the resource", OrderBlock, 0, boom, outcome{verdict: parked, lane: "", after: time.Second, attempt: 1, reason: "boom", failed: true}},
		{"waits alone", OrderNone, 0, boom, outcome{verdict: parked, lane: "#7", after: time.Second, attempt: 1, reason: "boom", failed: true}},
		{"last attempt", OrderKey, 2, boom, outcome{verdict: dead, lane: "", after: 0, attempt: 3, reason: "boom"}},
		{"given up by the handler", OrderKey, 0, fmt.Errorf("x: %w", DeadLetter("hopeless")), outcome{verdict: dead, lane: "", after: 0, attempt: 1, reason: "x: hopeless"}},
		{"asked to wait", OrderKey, 1, RetryAfter(time.Hour, boom), outcome{verdict: parked, lane: "k", after: time.Hour, attempt: 2, reason: "boom", failed: true}},
		{"asked to wait for ever", OrderKey, 1, RetryAfter(1<<63-1, boom), outcome{verdict: parked, lane: "k", after: longestWait, attempt: 2, reason: "boom", failed: true}},
		{"asked to wait without a cause", OrderKey, 1, RetryAfter(time.Hour, nil), outcome{verdict: parked, lane: "k", after: time.Hour, attempt: 2, reason: "retry after 1h0m0s", failed: true}},
		{"asked to wait and given up", OrderKey, 1, errors.Join(RetryAfter(time.Hour, boom), DeadLetter("hopeless")), outcome{verdict: dead, attempt: 2, reason: "retry after 1h0m0s: boom hopeless"}},
		{"a nil pointer", OrderKey, 1, (*nilError)(nil), outcome{verdict: parked, lane: "k", after: time.Second, attempt: 2, reason: "the handler returned a nil *lease.nilError as its error; return nil itself", failed: true}},
		{"a panicking As", OrderKey, 1, asError{}, outcome{verdict: parked, lane: "k", after: time.Second, attempt: 2, reason: "the handler returned a lease.asError whose methods panic", failed: true}},
		{"asked to wait, last attempt", OrderKey, 2, RetryAfter(time.Hour, boom), outcome{verdict: dead, lane: "", after: 0, attempt: 3, reason: "boom"}},
		{"undecodable", OrderKey, 0, &decodeError{0, boom}, outcome{verdict: dead, lane: "", after: 0, attempt: 1, reason: "boom"}},
	} {
		r := Retry{Max: 3, Min: time.Second, Cap: time.Second, Order: c.order}
		if got := r.judge(&backend.Raw{ID: "7", Key: "k", Attempt: c.attempt}, examine(c.err)); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }

type asError struct{}

func (asError) Error() string { return "as" }
func (asError) As(any) bool   { panic("as") }

func TestOneLine(t *testing.T) {
	if got := oneLine("a\nb\x1b[31mc\xffd\u202ee"); got != "a b [31mc d e" {
		t.Errorf("%q", got)
	}
	long := oneLine(strings.Repeat("ä", 4000))
	if len(long) > maxReason || !utf8.ValidString(long) || !strings.HasSuffix(long, "…") {
		t.Errorf("%d bytes, valid %v", len(long), utf8.ValidString(long))
	}
}

func TestMatchTopic(t *testing.T) {
	for _, c := range []struct {
		pattern, topic string
		want           bool
	}{
		{"orders.*", "orders.eu", true},
		{"orders.*", "orders.", true},
		{"orders.*", "orders", false},
		{"orders.eu", "orders.eu", true},
		{"orders.eu", "orders.eu2", false},
		{"*", "owner/repo", true},
		{"*.eu", "orders.eu", true},
		{"a*b*c", "a-b-b-c", true},
		{"a*b*c", "acb", false},
		{"a*a", "a", false},
		{"ab*ba", "aba", false},
		{"*x*", "axb", true},
		{"%", "a", false},
		{"_", "a", false},
	} {
		if got := backend.MatchTopic([]string{"never", c.pattern}, c.topic); got != c.want {
			t.Errorf("MatchTopic(%q, %q) = %v", c.pattern, c.topic, got)
		}
	}
}

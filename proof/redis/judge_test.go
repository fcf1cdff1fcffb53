package redisproof

import (
	"fmt"
	"strings"
	"testing"

	"github.com/leasegen/leasegen/runtime/operate"
)

// The checks themselves: each kind of wrong history is found, and a right one is not.
func TestHistoryIsJudged(t *testing.T) {
	for _, c := range []struct {
		name  string
		lines string
		want  func(*history) int64
		is    int64
	}{
		{"in order", "effect a 1 10 100-0 x|begin c1 a 10|commit c1 a 10 100|effect a 2 10 200-0 x", func(h *history) int64 { return h.twice + h.undone + h.stale + h.disorder + h.doubled }, 0},
		{"a crash before the commit", "effect a 1 10 100-0 x|begin c1 a 10|effect a 1 11 100-0 y|effect a 2 11 200-0 y", func(h *history) int64 { return h.twice + h.undone + h.stale + h.disorder + h.doubled }, 0},
		{"twice", "effect a 1 10 100-0 x|effect a 1 10 100-0 x", func(h *history) int64 { return h.twice }, 1},
		{"undone", "effect a 1 10 100-0 x|begin c1 a 10|commit c1 a 10 100|effect a 1 11 100-0 y", func(h *history) int64 { return h.undone }, 1},
		{"undone two owners later", "effect a 1 10 100-0 x|begin c1 a 10|commit c1 a 10 100|effect a 2 11 200-0 y|effect a 1 12 100-0 z", func(h *history) int64 { return h.undone }, 1},
		{"stale effect", "effect a 1 11 100-0 y|effect a 2 10 200-0 x", func(h *history) int64 { return h.stale }, 1},
		{"stale commit", "effect a 1 10 100-0 x|effect a 1 11 100-0 y|begin c1 a 10|commit c1 a 10 100", func(h *history) int64 { return h.stale }, 1},
		{"a commit that was under way", "effect a 1 10 100-0 x|begin c1 a 10|effect a 1 11 100-0 y|commit c1 a 10 100", func(h *history) int64 { return h.stale }, 0},
		{"out of order", "effect a 2 10 200-0 x|effect a 1 10 100-0 x", func(h *history) int64 { return h.disorder }, 1},
		{"out of order over epochs", "effect a 2 10 200-0 x|effect a 1 11 100-0 x", func(h *history) int64 { return h.disorder }, 1},
		{"published twice", "effect a 1 10 100-0 x|effect a 1 10 101-0 x", func(h *history) int64 { return h.doubled }, 1},
	} {
		h := newHistory(&site{topics: map[string]*published{"a": {last: 2}}})
		for _, l := range strings.Split(c.lines, "|") {
			h.judge(t, l)
		}
		if got := c.want(h); got != c.is {
			t.Errorf("%s: %d violations, want %d: %s", c.name, got, c.is, h.examples())
		}
	}
}

// A message without an effect is lost, unless no process knows whether it was published.
func TestLossIsJudged(t *testing.T) {
	s := &site{topics: map[string]*published{"a": {last: 5, unsure: map[int64]bool{4: true, 5: true}}}}
	h := newHistory(s)
	for _, l := range []string{"effect a 1 10 100-0 x", "effect a 3 10 300-0 x", "effect a 4 10 400-0 x"} {
		h.judge(t, l)
	}
	if v := h.verdict(t); v.published != 3 || v.unsure != 2 || v.lost != 1 {
		t.Errorf("%+v, want 3 published, 2 unsure, 1 lost", v)
	}
}

// A dead letter is one of a poisoned message that was tried as often as it may be, or of one over which as many owners died.
func TestDeadLettersAreJudged(t *testing.T) {
	letter := func(seq, attempts int, reason string) operate.DeadLetterInfo {
		return operate.DeadLetterInfo{Topic: "a", MessageID: fmt.Sprint(seq, "-0"), Attempts: attempts, Reason: reason, Headers: map[string]string{"seq": fmt.Sprint(seq)}}
	}
	blamed := func(seq, deaths int) operate.DeadLetterInfo {
		return letter(seq, 1, fmt.Sprintf("the process died %d times while handling this message, the last time alone", deaths))
	}
	failed, sound := letter(poisonAt, attempts, "as it was told"), letter(poisonAt+1, attempts, "as it was told")
	for _, c := range []struct {
		name       string
		lines      string
		letters    []operate.DeadLetterInfo
		dead, want int64
	}{
		{"none", "", nil, 0, 0},
		{"of a poisoned message", "", []operate.DeadLetterInfo{failed}, 1, 0},
		{"tried too seldom", "", []operate.DeadLetterInfo{letter(poisonAt, attempts-1, "as it was told")}, 1, 1},
		{"two of one message", "", []operate.DeadLetterInfo{failed, failed}, 1, 1},
		{"of a message with an effect", "effect a 50 10 50-0 x", []operate.DeadLetterInfo{failed}, 0, 1},
		{"of a message that does not fail", "", []operate.DeadLetterInfo{sound}, 1, 1},
		{"blamed", "begin c1 a 10 7-0|begin c2 a 11 7-0|begin c3 a 12 7-0", []operate.DeadLetterInfo{blamed(7, 3)}, 1, 0},
		{"blamed, with an effect", "effect a 7 10 7-0 x|begin c1 a 10 7-0|begin c2 a 11 7-0|begin c3 a 12 7-0", []operate.DeadLetterInfo{blamed(7, 3)}, 0, 0},
		{"blamed too soon", "begin c1 a 10 7-0|begin c2 a 11 7-0|begin c3 a 12 7-0", []operate.DeadLetterInfo{blamed(7, 2)}, 1, 1},
		{"blamed for one owner's marks", "begin c1 a 10 7-0|begin c2 a 10 7-0|begin c3 a 10 7-0", []operate.DeadLetterInfo{blamed(7, 3)}, 1, 1},
		{"blamed for another message's owners", "begin c1 a 10 7-0|begin c2 a 11 8-0|begin c3 a 12 7-0", []operate.DeadLetterInfo{blamed(7, 3)}, 1, 1},
		{"blamed for another topic's owners", "begin c1 a 10 7-0|begin c2 b 11 7-0|begin c3 a 12 7-0", []operate.DeadLetterInfo{blamed(7, 3)}, 1, 1},
		{"blamed for owners that marked none", "begin c1 a 10|begin c2 a 11|begin c3 a 12", []operate.DeadLetterInfo{blamed(7, 3)}, 1, 1},
	} {
		s := &site{lanes: true, topics: map[string]*published{"a": {last: 100}}}
		h := newHistory(s)
		for _, l := range strings.Split(c.lines, "|") {
			if l != "" {
				h.judge(t, l)
			}
		}
		h.judgeDead(c.letters)
		v := h.verdict(t)
		v.lost = 0 // most of the hundred
		if v.dead != c.dead || v.violations(s) != c.want {
			t.Errorf("%s: %+v, want %d dead and %d violations: %s", c.name, v, c.dead, c.want, h.examples())
		}
	}
}

package redisproof

import (
	"strings"
	"testing"

	"github.com/leasegen/leasegen/internal/fleet"
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

// A message is blamed for deaths that were, of owners of its own topic.
func TestBlameIsJudged(t *testing.T) {
	takeover := func(topic string) fleet.Event {
		return fleet.Event{What: "acquired", Resource: topic, Detail: "crashed"}
	}
	var events []fleet.Event
	for range deaths {
		events = append(events, takeover("a"), takeover("b"))
	}
	events = append(events, takeover("b"), fleet.Event{What: "acquired", Resource: "b"}, fleet.Event{What: "lost", Resource: "b"})
	for _, c := range []struct {
		blamed map[string]int
		want   int64
	}{
		{nil, 0},
		{map[string]int{"a": 1, "b": 1}, 0},
		{map[string]int{"b": 2}, 1},
		{map[string]int{"c": 1}, 1},
		{map[string]int{"a": 3, "c": 1}, 3},
	} {
		h := history{blamed: c.blamed}
		if v := (verdict{blamedWrongly: h.blamedWrongly(events)}); v.violations(&site{}) != c.want {
			t.Errorf("%v: %+v, want %d violations", c.blamed, v, c.want)
		}
	}
}

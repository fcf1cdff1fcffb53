package pace

import (
	"testing"
	"time"
)

// A slow machine runs fewer tests at once, and at least two.
func TestShare(t *testing.T) {
	for _, c := range []struct {
		n    int
		took time.Duration
		want int
	}{{8, start / 2, 8}, {8, start, 8}, {8, 2 * start, 4}, {6, 3 * start, 2}, {6, 100 * start, 2}, {1, 100 * start, 1}, {8, 0, 8}} {
		if got := share(c.n, c.took); got != c.want {
			t.Errorf("%d tests at %v: got %d, want %d", c.n, c.took, got, c.want)
		}
	}
}

// A judgment fails where the machine answered soon, and does not where it was busy.
func TestWithin(t *testing.T) {
	for _, c := range []struct {
		longest, took time.Duration
		fails         bool
	}{
		{time.Millisecond, time.Second, false},
		{time.Millisecond, 1005 * time.Millisecond, false},
		{time.Millisecond, 1100 * time.Millisecond, true},
		{busy + time.Millisecond, time.Hour, false},
	} {
		told := &teller{TB: t}
		(&Bare{longest: c.longest, began: time.Now()}).Within(told, "it", c.took, time.Second)
		if told.failed != c.fails {
			t.Errorf("%v where a bare request took %v: failed %v", c.took, c.longest, told.failed)
		}
	}
}

// teller notes whether a test would have failed.
type teller struct {
	testing.TB
	failed bool
}

func (t *teller) Errorf(string, ...any) { t.failed = true }
func (t *teller) Logf(string, ...any)   {}
func (t *teller) Helper()               {}

package pace

import (
	"context"
	"testing"
	"testing/synctest"
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

// A judgment fails where the machine answered soon. It does not where the machine was busy, or is as slow in starting processes.
func TestWithin(t *testing.T) {
	for _, c := range []struct {
		longest, took time.Duration
		slow          float64
		fails         bool
	}{
		{time.Millisecond, time.Second, 1, false},
		{time.Millisecond, 1005 * time.Millisecond, 1, false},
		{time.Millisecond, 1100 * time.Millisecond, 1, true},
		{time.Millisecond, 1100 * time.Millisecond, 0.2, true},
		{time.Millisecond, 2400 * time.Millisecond, 2.5, false},
		{time.Millisecond, 2600 * time.Millisecond, 2.5, true},
		{busy + time.Millisecond, time.Hour, 1, false},
	} {
		told := &teller{TB: t}
		(&Bare{longest: c.longest, slow: c.slow, began: time.Now()}).Within(told, "it", c.took, time.Second)
		if told.failed != c.fails {
			t.Errorf("%v where a bare request took %v and a process %v times as long: failed %v", c.took, c.longest, c.slow, told.failed)
		}
	}
}

// Stalls are counted one by one, the present one too, and time after Stop is no request's.
func TestStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		took := make(chan time.Duration, 4)
		for _, d := range []time.Duration{time.Millisecond, stalled * 2, time.Millisecond, stalled * 3} {
			took <- d
		}
		b := Beside(t, func(ctx context.Context) error {
			select {
			case d := <-took:
				time.Sleep(d)
			case <-ctx.Done():
			default:
			}
			return nil
		})
		for _, at := range []struct {
			after time.Duration
			want  int
		}{{stalled, 0}, {stalled, 1}, {stalled, 1}, {stalled, 2}, {5 * stalled, 2}} {
			time.Sleep(at.after)
			if got := b.Stalls(); got != at.want || b.Stalled() != (got > 0) {
				t.Errorf("%d stalls, want %d", got, at.want)
			}
		}
		b.Stop()
		longest := b.Longest()
		time.Sleep(time.Hour)
		if got := b.Longest(); got != longest || got < 3*stalled || b.Stalls() != 2 {
			t.Errorf("after an hour: the longest took %v, at the end %v; %d stalls", got, longest, b.Stalls())
		}
	})
}

// teller notes whether a test would have failed.
type teller struct {
	testing.TB
	failed bool
}

func (t *teller) Errorf(string, ...any) { t.failed = true }
func (t *teller) Logf(string, ...any)   {}
func (t *teller) Helper()               {}

package pace

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A slow machine bears fewer pairs at once, and at least two.
func TestShare(t *testing.T) {
	for _, c := range []struct {
		n      int
		worked time.Duration
		want   int
	}{{8, start / 2, 8}, {8, start, 8}, {8, 2 * start, 4}, {6, 3 * start, 2}, {6, 100 * start, 2}, {1, 100 * start, 1}, {8, 0, 8}} {
		if got := share(c.n, c.worked); got != c.want {
			t.Errorf("%d pairs at %v: got %d, want %d", c.n, c.worked, got, c.want)
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

// A busy moment excuses what it reaches into, and no more. Time after Stop is no request's.
func TestBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		took := make(chan time.Duration, 1)
		b := Beside(t, func(ctx context.Context) error {
			select {
			case d := <-took:
				time.Sleep(d)
			default:
			}
			return nil
		})
		time.Sleep(busy)
		quiet := b.BusySince(time.Time{})
		took <- 3 * busy
		time.Sleep(2 * busy)
		inside := time.Now()
		waits := b.BusySince(inside)
		time.Sleep(2 * busy)
		reaches, after := b.BusySince(inside), time.Now()
		time.Sleep(2 * busy)
		if later := b.BusySince(after); quiet || !waits || !reaches || later || !b.BusySince(time.Time{}) || b.Stalled() {
			t.Errorf("before %v, in it %v, when it has ended %v, since then %v; a stall %v", quiet, waits, reaches, later, b.Stalled())
		}
		took <- 2 * stalled
		time.Sleep(2 * stalled)
		if !b.Stalled() {
			t.Error("no stall is seen while the request waits")
		}
		time.Sleep(stalled)
		b.Stop()
		after, longest := time.Now(), b.Longest()
		time.Sleep(time.Hour)
		if got := b.Longest(); got != longest || got != 2*stalled || b.BusySince(after) {
			t.Errorf("an hour after the end the longest took %v, at the end %v", got, longest)
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

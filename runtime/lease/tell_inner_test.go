package lease

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Observations in quick succession wake the goroutine that tells them once a millisecond, not once each: on a machine whose
// processors all work, waking one for each message costs more than the message.
func TestWhatComesQuicklyIsToldTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var all []int
		told := func() []int {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(all)
		}
		tell := func(n int) {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, n)
		}
		tl := &teller[int]{tell: tell, room: func(int) int { return tellAtMost },
			counts: func(int) counts { return counts{} }, pause: tellPause, lossy: func(losses) { t.Error("something was dropped") }}
		add := func(n int) {
			tl.add(n)
			synctest.Wait()
		}
		for n := range 100 {
			add(n)
		}
		if len(told()) != 1 {
			t.Errorf("%d were told at once, want the first alone", len(told()))
		}
		time.Sleep(tellPause)
		synctest.Wait()
		if len(told()) != 100 {
			t.Errorf("%d were told after the pause, want 100", len(told()))
		}
		time.Sleep(2 * tellPause)
		add(100)
		if len(told()) != 101 {
			t.Error("what came after a quiet time had to wait")
		}
		add(101)
		began := time.Now()
		tl.flush(time.Second)
		if len(told()) != 102 || time.Since(began) > 0 {
			t.Errorf("flush told %d of 102 after %v, want all at once", len(told()), time.Since(began))
		}
		for n, got := range told() {
			if got != n {
				t.Fatalf("number %d was told as %d", got, n)
			}
		}
	})
}

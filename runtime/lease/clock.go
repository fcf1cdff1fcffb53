package lease

import "time"

// instant is a point in time on this process's clocks.
type instant struct {
	t      time.Time     // wall and monotonic
	asleep time.Duration // time the machine has been suspended since it booted
}

func now() instant { return instant{time.Now(), asleep()} }

// since is the time passed since i by whichever clock says most: the monotonic one
// (which stands still while the machine sleeps), the same with sleep added, or the
// wall clock. Overestimating ends belief early, which is safe.
func (i instant) since() time.Duration {
	n := now()
	mono := n.t.Sub(i.t)
	wall := n.t.Round(0).Sub(i.t.Round(0))
	return max(mono, mono+n.asleep-i.asleep, wall)
}

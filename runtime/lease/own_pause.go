package lease

import (
	"sync"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// Operators pause consumers, see operate.Operator.Pause. The backend grants no lease of one that is paused, and a survey says
// so: its owners then give back what they hold, as in a handover, and look at surveys until one says that it is resumed.

// pausing is what a process knows of the pause of a consumer, whatever its session.
type pausing struct {
	mu     sync.Mutex
	paused bool
	told   time.Time // when the log said last that it is paused
}

// tellPaused is how often the log says that a consumer is paused.
const tellPaused = time.Hour

// hear takes what a survey says, and reports whether that is a change, and whether it is time to say that the consumer is
// paused.
func (p *pausing) hear(paused bool, now time.Time) (changed, tell bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	changed = paused != p.paused
	p.paused = paused
	if tell = paused && (changed || now.Sub(p.told) >= tellPaused); tell {
		p.told = now
	}
	return changed, tell
}

func (p *pausing) is() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.paused
}

// pauses gives all leases back if the consumer is paused, and reports that it is.
func (o *owner) pauses(s backend.Survey) bool {
	changed, tell := o.c.pausing.hear(s.Paused, time.Now())
	if changed {
		o.c.observe(operate.ObservedPaused{Consumer: o.info.Name, Paused: s.Paused})
	}
	switch {
	case tell:
		o.log.Warn("the consumer is paused: it gets no leases until it is resumed", "session", o.s.id)
	case changed:
		o.log.Info("the consumer is resumed", "session", o.s.id)
	}
	if !s.Paused {
		return false
	}
	o.surveys.want(0)
	o.giveBack(o.owned())
	return true
}

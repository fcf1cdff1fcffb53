package lease

import (
	"strings"
	"time"
)

// Health is how a consumer of this process is: for probes, see package leasehealth, and for pages. It is a look at the
// process alone and asks no server.
type Health struct {
	Consumer string
	// Ended says that Run has returned: this process does not work for the consumer any more.
	Ended bool
	// Trouble says why the consumer is not ready, see Consumer.Ready; empty when it is.
	Trouble string
	// Paused says that an operator has paused the consumer, as far as this process has heard; see operate.Operator.Pause.
	Paused bool
	// Session is the present session; empty without one.
	Session string
	// Belief is for how much longer the process believes in its session if no heartbeat is confirmed.
	Belief time.Duration
	// Leases is how many leases the process holds.
	Leases int
	// Progress is when progress was last stored under the session; zero before that.
	Progress time.Time
	// Stuck are the calls of handlers that take longer than WithStuckAfter allows, the longest first: also those that a
	// session began which has ended since, as long as they go on.
	Stuck []StuckCall
}

// StuckCall is a handler call that takes too long. Kind and ID are those of its first message.
type StuckCall struct {
	Resource, Kind, ID string
	Running            time.Duration
}

// Health describes the consumer. It may be called at any time from any goroutine, and takes microseconds.
func (c *Consumer) Health() Health {
	h := Health{Consumer: c.Name(), Paused: c.pausing.is(), Stuck: c.calls.stuck(c.stuckAfter)}
	if err := c.Ready(); err != nil {
		h.Trouble = strings.TrimPrefix(err.Error(), c.unready())
	}
	c.mu.Lock()
	w := c.work
	h.Ended = c.ended
	c.mu.Unlock()
	if w == nil {
		return h
	}
	h.Session, h.Belief, h.Leases = w.s.id, max(w.s.left(), 0), w.own.owned()
	if at := w.course.progressed.Load(); at != 0 {
		h.Progress = time.Unix(0, at)
	}
	return h
}

// Health describes each consumer, see Consumer.Health.
func (g *Group) Health() (all []Health) {
	for _, p := range g.processes {
		for _, c := range p.consumers {
			all = append(all, c.Health())
		}
	}
	return all
}

package lease

import (
	"sync"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// Streams are owned only while they have work. A process that hears of messages of a stream that it does
// not own registers it, which makes it wanted; a process with room takes it, and retires
// it when there is no more work. Without room anywhere it stays wanted and free.

// streams takes streams that have work, and retires the ones that have none. Its lock may be taken with owner.mu held.
type streams struct {
	*scope
	own      *owner
	wanted   chan struct{} // a hint that streams became wanted
	searches chan struct{} // a hint to look for streams that were forgotten

	mu      sync.Mutex
	lookAt  time.Time // when to look for streams without work
	waiting int       // streams that wait for room, as of the last survey
	short   bool      // there was no room for all when streams were last taken
	members []string  // of the last survey
}

// sweepEvery is how often all of the log is searched for streams with work, in case their
// owner ended between two steps.
const sweepEvery = 30 * time.Second

// sweep makes streams wanted that have messages and were forgotten.
func (x *streams) sweep() {
	for x.s.ctx.Err() == nil {
		t := time.NewTimer(jitter(sweepEvery))
		select {
		case <-x.searches:
		case <-t.C:
		case <-x.s.ctx.Done():
		}
		t.Stop()
		x.own.names.registerAll()
		pause(x.s.ctx, surveyGap) // hints may come all the time
	}
}

// vainGap is the least time between acquisitions of streams of which one got none: each message of a stream that another process
// owns makes this one try.
const vainGap = 20 * time.Millisecond

// crowdedGap is the least time between surveys for want of room.
const crowdedGap = 100 * time.Millisecond

// takeWanted takes streams that became wanted, without a survey first: an acquisition costs what is free, a survey what
// there is. It reports that this process may have had no room for all: a survey tells how many wait.
func (x *streams) takeWanted() (crowded bool) {
	if x.own.stopping() || x.c.pausing.is() {
		return false
	}
	gap, room := surveyGap, x.own.room()
	granted := 0
	if room > 0 {
		granted = x.own.acquire(room)
	}
	if granted == 0 {
		gap = vainGap
	}
	x.mu.Lock()
	x.short = granted == room
	x.mu.Unlock()
	pause(x.s.ctx, gap)
	return granted == room
}

// takeFree takes what is free as long as there is room: the process that comes first has it.
func (x *streams) takeFree(s backend.Survey) {
	members := make(map[string]bool, len(s.Members))
	for _, m := range s.Members {
		members[m.Session] = true
	}
	x.mu.Lock()
	for _, m := range x.members {
		if !members[m] {
			hint(x.searches)
			break
		}
	}
	x.members = x.members[:0]
	for m := range members {
		x.members = append(x.members, m)
	}
	x.mu.Unlock()
	room := x.own.room()
	x.own.surveys.want(min(room, s.Free-x.own.withheld()))
	if s.Free > 0 && room > 0 && !x.own.stopping() {
		x.own.acquire(min(room, s.Free))
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.waiting = max(s.Free-room, 0); x.waiting > 0 && !x.runs() {
		x.lookAt = time.Time{}
		hint(x.own.wake)
	}
}

// crowded reports that streams wait for room, as far as this process knows.
func (x *streams) crowded() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.waiting > 0 || x.short
}

// crowdedIdle is how long a stream without work stays when others wait for its place.
const crowdedIdle = 20 * time.Millisecond

// stepIdle retires streams without work, and returns when to look again. The caller holds x.own.mu.
func (x *streams) stepIdle() time.Duration {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := time.Now()
	if wait := x.lookAt.Sub(now); wait > 0 {
		return wait
	}
	idle := x.c.spec.Idle
	if x.waiting > 0 {
		idle = min(idle, crowdedIdle)
	}
	x.lookAt = now.Add(max(idle, time.Millisecond))
	soonest := now.Add(max(idle/10, min(idle, crowdedIdle)/2)) // streams that rest within that time are retired in one call
	for _, h := range x.own.held {
		since, quiet := x.own.run.quietSince(h)
		if !quiet {
			continue
		}
		leave, crowded := since.Add(x.c.spec.Idle), false
		if now.Before(leave) && x.waiting > 0 {
			leave, crowded = since.Add(idle), true
		}
		switch {
		case now.Before(leave):
			if leave.Before(x.lookAt) {
				x.lookAt = leave
			}
		case x.own.run.stopQuiet(h):
			x.own.retire(h)
			if crowded {
				x.waiting--
			}
		}
	}
	if x.lookAt.Before(soonest) {
		x.lookAt = soonest
	}
	return x.lookAt.Sub(now)
}

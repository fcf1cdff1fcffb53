package lease

import (
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// Streams are owned only while they have work. Who hears of messages of a stream that is
// not its own registers it, which makes it wanted; whoever has room takes it, and retires
// it when there is nothing more to do. What nobody has room for stays wanted and free.

// streamState is guarded by owner.mu.
type streamState struct {
	lookAt  time.Time // when to look for streams without work
	waiting int       // streams that wait for room, as of the last survey
	short   bool      // there was no room for all when streams were last taken
	members []string  // of the last survey
}

// sweepEvery is how often all of the log is searched for streams with work, in case their
// owner ended between two steps.
const sweepEvery = 30 * time.Second

// sweep makes streams wanted that have messages and were forgotten.
func (o *owner) sweep() {
	for o.s.ctx.Err() == nil {
		t := time.NewTimer(jitter(sweepEvery))
		select {
		case <-o.searches:
		case <-t.C:
		case <-o.s.ctx.Done():
		}
		t.Stop()
		o.names.registerAll()
		pause(o.s.ctx, surveyGap) // hints may come all the time
	}
}

// room is how many more streams this process can take.
func (o *owner) room() int { return max(o.c.spec.Capacity-o.owned(), 0) }

// vainGap is the least time between acquisitions of streams of which one got nothing: each message of a stream that another process
// owns makes this one try.
const vainGap = 20 * time.Millisecond

// crowdedGap is the least time between surveys for want of room.
const crowdedGap = 100 * time.Millisecond

// takeWanted takes streams that became wanted, without a survey first: an acquisition costs what is free, a survey what
// there is. It reports that this process may have had no room for all: a survey tells how many wait.
func (o *owner) takeWanted() (crowded bool) {
	if o.stopping() {
		return false
	}
	gap, room := surveyGap, o.room()
	granted := 0
	if room > 0 {
		granted = o.acquire(room)
	}
	if granted == 0 {
		gap = vainGap
	}
	o.mu.Lock()
	o.streams.short = granted == room
	o.mu.Unlock()
	pause(o.s.ctx, gap)
	return granted == room
}

// takeStreams takes what is free as long as there is room. Who comes first is served first.
func (o *owner) takeStreams(s backend.Survey) {
	members := make(map[string]bool, len(s.Members))
	for _, m := range s.Members {
		members[m.Session] = true
	}
	o.mu.Lock()
	for _, m := range o.streams.members {
		if !members[m] {
			hint(o.searches)
			break
		}
	}
	o.streams.members = o.streams.members[:0]
	for m := range members {
		o.streams.members = append(o.streams.members, m)
	}
	o.mu.Unlock()
	room := o.room()
	o.surveys.want(min(room, s.Free-o.withheld()))
	if s.Free > 0 && room > 0 && !o.stopping() {
		o.acquire(min(room, s.Free))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.streams.waiting = max(s.Free-room, 0); o.streams.waiting > 0 && !o.runs() {
		o.streams.lookAt = time.Time{}
		hint(o.wake)
	}
}

// crowded reports that streams wait for room, as far as this process knows.
func (o *owner) crowded() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.streams.waiting > 0 || o.streams.short
}

// crowdedIdle is how long a stream without work stays when others wait for its place.
const crowdedIdle = 20 * time.Millisecond

// stepIdle retires streams without work, and returns when to look again. The caller holds o.mu.
func (o *owner) stepIdle() time.Duration {
	now := time.Now()
	if wait := o.streams.lookAt.Sub(now); wait > 0 {
		return wait
	}
	idle := o.c.spec.Idle
	if o.streams.waiting > 0 {
		idle = min(idle, crowdedIdle)
	}
	o.streams.lookAt = now.Add(max(idle, time.Millisecond))
	soonest := now.Add(max(idle/10, min(idle, crowdedIdle)/2)) // those that rest within that time are retired in one call
	for _, h := range o.held {
		since, quiet := o.run.quiet(h)
		if !quiet {
			continue
		}
		leave := since.Add(o.c.spec.Idle)
		if now.Before(leave) && o.streams.waiting > 0 {
			leave = since.Add(idle)
			if !now.Before(leave) {
				o.streams.waiting--
			}
		}
		if !now.Before(leave) {
			if o.run.stopQuiet(h) {
				o.retire(h)
			}
		} else if leave.Before(o.streams.lookAt) {
			o.streams.lookAt = leave
		}
	}
	if o.streams.lookAt.Before(soonest) {
		o.streams.lookAt = soonest
	}
	return o.streams.lookAt.Sub(now)
}

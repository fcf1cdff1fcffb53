package lease

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/leasegen/leasegen/runtime/backend"
)

// Streams are owned only while they have work. Who hears of messages of a stream that is
// not its own registers it, which makes it wanted; whoever has room takes it, and retires
// it when there is nothing more to do. What nobody has room for stays wanted and free.

// streamState is guarded by work.mu.
type streamState struct {
	wanted  chan struct{} // a hint that streams became wanted
	sweep   chan struct{} // a hint to look for streams that were forgotten
	lookAt  time.Time     // when to look for streams without work
	waiting int           // streams that wait for room, as of the last survey
	short   bool          // there was no room for all when streams were last taken
	members []string      // of the last survey

	finished map[string]struct{}  // retired since the application was last asked
	avoided  map[string]time.Time // failed too often: not to be run here until then
}

func (w *work) hintSweep() {
	select {
	case w.streams.sweep <- struct{}{}:
	default:
	}
}

// sweepEvery is how often all of the log is searched for streams with work, in case their
// owner ended between two steps.
const sweepEvery = 30 * time.Second

// sweep makes streams wanted that have messages and were forgotten.
func (w *work) sweep() {
	for w.s.ctx.Err() == nil {
		t := time.NewTimer(jitter(sweepEvery))
		select {
		case <-w.streams.sweep:
		case <-t.C:
		case <-w.s.ctx.Done():
		}
		t.Stop()
		w.registerAll()
		pause(w.s.ctx, surveyGap) // hints may come all the time
	}
}

// room is how many more streams this process can take.
func (w *work) room() int { return max(w.c.spec.Capacity-w.owned(), 0) }

// vainGap is the least time between acquisitions of streams of which one got nothing: each message of a stream that another process
// owns makes this one try.
const vainGap = 20 * time.Millisecond

// crowdedGap is the least time between surveys for want of room.
const crowdedGap = 100 * time.Millisecond

// takeWanted takes streams that became wanted, without a survey first: an acquisition costs what is free, a survey what
// there is. It reports that this process may have had no room for all: a survey tells how many wait.
func (w *work) takeWanted() (crowded bool) {
	if w.stopping() {
		return false
	}
	gap, room := surveyGap, w.room()
	granted := 0
	if room > 0 {
		granted = w.acquire(room)
	}
	if granted == 0 {
		gap = vainGap
	}
	w.mu.Lock()
	w.streams.short = granted == room
	w.mu.Unlock()
	pause(w.s.ctx, gap)
	return granted == room
}

// takeStreams takes what is free as long as there is room. Who comes first is served first.
func (w *work) takeStreams(s backend.Survey) {
	members := make(map[string]bool, len(s.Members))
	for _, m := range s.Members {
		members[m.Session] = true
	}
	w.mu.Lock()
	for _, m := range w.streams.members {
		if !members[m] {
			w.hintSweep()
			break
		}
	}
	w.streams.members = w.streams.members[:0]
	for m := range members {
		w.streams.members = append(w.streams.members, m)
	}
	w.mu.Unlock()
	room := w.room()
	w.want(min(room, s.Free-w.withheld()))
	if s.Free > 0 && room > 0 && !w.stopping() {
		w.acquire(min(room, s.Free))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.streams.waiting = max(s.Free-room, 0); w.streams.waiting > 0 && !w.runs() {
		w.streams.lookAt = time.Time{}
		w.kick()
	}
}

// crowded reports that streams wait for room, as far as this process knows.
func (w *work) crowded() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.streams.waiting > 0 || w.streams.short
}

// crowdedIdle is how long a stream without work stays when others wait for its place.
const crowdedIdle = 20 * time.Millisecond

// stepIdle retires streams without work, and returns when to look again.
func (w *work) stepIdle() time.Duration {
	now := time.Now()
	if wait := w.streams.lookAt.Sub(now); wait > 0 {
		return wait
	}
	idle := w.c.spec.Idle
	if w.streams.waiting > 0 {
		idle = min(idle, crowdedIdle)
	}
	w.streams.lookAt = now.Add(max(idle, time.Millisecond))
	soonest := now.Add(max(idle/10, min(idle, crowdedIdle)/2)) // those that rest within that time are retired in one call
	for _, h := range w.held {
		if !w.quiet(h) {
			continue
		}
		leave := h.activeAt.Add(w.c.spec.Idle)
		if now.Before(leave) && w.streams.waiting > 0 {
			leave = h.activeAt.Add(idle)
			if !now.Before(leave) {
				w.streams.waiting--
			}
		}
		if !now.Before(leave) {
			w.retire(h)
		} else if leave.Before(w.streams.lookAt) {
			w.streams.lookAt = leave
		}
	}
	if w.streams.lookAt.Before(soonest) {
		w.streams.lookAt = soonest
	}
	return w.streams.lookAt.Sub(now)
}

// quiet reports that nothing is left to do for h as far as is known.
func (w *work) quiet(h *held) bool {
	return w.idle(h) && !h.dirty && !h.reads.busy && !h.reads.queued && len(h.next) == 0 && len(h.waited) == 0 &&
		len(h.lanes) == 0 && !h.gone && !h.giving.Load()
}

// retire gives a stream back that has no more work. The caller holds w.mu.
func (w *work) retire(h *held) {
	h.retire = true
	w.queueGive(h)
	if w.streams.finished != nil {
		w.streams.finished[h.Resource] = struct{}{}
	}
}

// announce registers the streams that the application names, until the session ends.
func (w *work) announce() {
	var failed backoff
	for w.s.ctx.Err() == nil && !w.stopping() {
		names, err := w.ask()
		if err != nil {
			failed.pause(w.s.ctx, w.log, "asking for streams failed", err)
			continue
		}
		for len(names) > 0 && err == nil {
			n := min(len(names), registerItems)
			some := names[:n]
			err = do(of(w.s.ctx, "register"), func(ctx context.Context) error { return w.be.Register(ctx, w.info, some) })
			names = names[n:]
		}
		if err != nil {
			failed.pause(w.s.ctx, w.log, "registering streams failed", err)
			continue
		}
		failed.reset()
		hint(w.streams.wanted)
		pause(w.s.ctx, max(jitter(w.c.spec.Poll), pollLeast))
	}
}

const (
	pollLeast      = time.Millisecond // between two questions, whatever Spec.Poll is
	streamsTimeout = 30 * time.Second // of one question
)

// ask asks the application for streams, and returns those that are to be registered. It
// is asked once at a time, also across sessions, and not waited for when the session ends.
func (w *work) ask() ([]string, error) {
	defer w.course.waiting("Streams, the application's function, to return")()
	select {
	case w.c.asking <- struct{}{}:
	case <-w.s.ctx.Done():
		return nil, w.s.ctx.Err()
	}
	w.mu.Lock()
	w.streams.finished = map[string]struct{}{}
	w.mu.Unlock()
	type answer struct {
		names []string
		err   error
	}
	answered := make(chan answer, 1)
	ctx, cancel := context.WithTimeout(w.s.ctx, streamsTimeout)
	go func() {
		defer cancel()
		a := answer{err: errGoexit}
		defer func() {
			if r := recover(); r != nil {
				a = answer{err: &panicError{r}}
				w.log.Error("Streams panicked", "panic", oneLine(fmt.Sprint(r)), "stack", string(debug.Stack()))
			}
			<-w.c.asking
			answered <- a
		}()
		names, err := w.c.spec.Streams(ctx)
		a = answer{names, err}
	}()
	select {
	case a := <-answered:
		if a.err != nil {
			return nil, a.err
		}
		return w.announced(a.names), nil
	case <-w.s.ctx.Done():
		return nil, w.s.ctx.Err()
	}
}

// maxStream is the longest name of a stream that an application may announce, in bytes.
const maxStream = 512

// announced returns the names that this process shall register.
func (w *work) announced(names []string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.allowAgain()
	seen := make(map[string]struct{}, len(names))
	var fresh []string
	bad := 0
	for _, n := range names {
		if n == "" || len(n) > maxStream || !utf8.ValidString(n) || strings.IndexByte(n, 0) >= 0 {
			bad++
			continue
		}
		if _, ok := seen[n]; ok {
			continue
		}
		seen[n] = struct{}{}
		_, finished := w.streams.finished[n]
		_, avoided := w.streams.avoided[n]
		if w.held[n] == nil && !finished && !avoided {
			fresh = append(fresh, n)
		}
	}
	w.streams.finished = nil
	if bad > 0 {
		w.log.Warn("Streams returned names that cannot be used: empty, not UTF-8, with a zero byte, or too long", "names", bad, "longest", maxStream)
	}
	return fresh
}

// allowAgain forgets which streams failed too often when their time is over. The caller
// holds w.mu.
func (w *work) allowAgain() {
	for n, until := range w.streams.avoided {
		if time.Now().After(until) {
			delete(w.streams.avoided, n)
		}
	}
}

// excluded returns the resources that this process must not be granted now.
func (w *work) excluded() []string {
	names := append(w.c.busyResources(), w.refusals.shunned()...)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.allowAgain()
	for n := range w.streams.avoided {
		names = append(names, n)
	}
	return names
}

// avoid gives a stream up whose Run keeps failing. The caller holds w.mu.
func (w *work) avoid(h *held) {
	if w.streams.avoided == nil {
		w.streams.avoided = map[string]time.Time{}
	}
	w.streams.avoided[h.Resource] = time.Now().Add(w.c.spec.Retry.Cap)
	w.retire(h)
}

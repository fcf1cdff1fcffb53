package lease

import (
	"context"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// announcer registers the streams that the application names.
type announcer struct {
	*scope
	own *owner

	mu       sync.Mutex
	finished map[string]struct{}  // retired since the application was last asked; nil while it is not asked
	avoided  map[string]time.Time // failed too often: not to be run here until then
}

// announce registers the streams that the application names, until the session ends.
func (an *announcer) announce() {
	var failed backoff
	for an.s.ctx.Err() == nil && !an.own.stopping() {
		names, err := an.ask()
		if err != nil {
			failed.pause(an.s.ctx, an.log, "asking for streams failed", err)
			continue
		}
		for len(names) > 0 && err == nil {
			n := min(len(names), registerItems)
			some := names[:n]
			err = do(of(an.s.ctx, "register"), func(ctx context.Context) error { return an.be.Register(ctx, an.info, some) })
			names = names[n:]
		}
		if err != nil {
			failed.pause(an.s.ctx, an.log, "registering streams failed", err)
			continue
		}
		failed.reset()
		hint(an.own.streams.wanted)
		pause(an.s.ctx, max(jitter(an.c.spec.Poll), pollLeast))
	}
}

const (
	pollLeast      = time.Millisecond // between two questions, whatever Spec.Poll is
	streamsTimeout = 30 * time.Second // of one question
)

// ask asks the application for streams, and returns the names to register. It
// is asked once at a time, also across sessions, and not waited for when the session ends.
func (an *announcer) ask() ([]string, error) {
	defer an.course.waiting("Streams, the application's function, to return")()
	select {
	case an.c.asking <- struct{}{}:
	case <-an.s.ctx.Done():
		return nil, an.s.ctx.Err()
	}
	an.mu.Lock()
	an.finished = map[string]struct{}{}
	an.mu.Unlock()
	type answer struct {
		names []string
		err   error
	}
	answered := make(chan answer, 1)
	ctx, cancel := context.WithTimeout(an.s.ctx, streamsTimeout)
	go func() {
		defer cancel()
		a := answer{err: errGoexit}
		defer func() {
			if r := recover(); r != nil {
				a = answer{err: &panicError{r}}
				an.log.Error("Streams panicked", "panic", oneLine(fmt.Sprint(r)), "stack", string(debug.Stack()))
			}
			<-an.c.asking
			answered <- a
		}()
		names, err := an.c.spec.Streams(ctx)
		a = answer{names, err}
	}()
	select {
	case a := <-answered:
		if a.err != nil {
			return nil, a.err
		}
		return an.fresh(a.names), nil
	case <-an.s.ctx.Done():
		return nil, an.s.ctx.Err()
	}
}

// maxStream is the longest name of a stream that an application may announce, in bytes.
const maxStream = 512

// fresh returns the names that this process shall register.
func (an *announcer) fresh(names []string) []string {
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
		if !an.own.has(n) {
			fresh = append(fresh, n)
		}
	}
	// A stream that is not held may have been retired since it was named.
	an.mu.Lock()
	an.allowAgain()
	fresh = slices.DeleteFunc(fresh, func(n string) bool {
		_, finished := an.finished[n]
		_, avoided := an.avoided[n]
		return finished || avoided
	})
	an.finished = nil
	an.mu.Unlock()
	if bad > 0 {
		an.log.Warn("Streams returned names that cannot be used: empty, not UTF-8, with a zero byte, or too long", "names", bad, "longest", maxStream)
	}
	return fresh
}

// allowAgain forgets which streams failed too often when their time is over. The caller
// holds an.mu.
func (an *announcer) allowAgain() {
	for n, until := range an.avoided {
		if time.Now().After(until) {
			delete(an.avoided, n)
		}
	}
}

// retired notes that a stream has ended. It may be called with owner.mu held.
func (an *announcer) retired(stream string) {
	an.mu.Lock()
	defer an.mu.Unlock()
	if an.finished != nil {
		an.finished[stream] = struct{}{}
	}
}

// avoid gives a stream up for a while whose Run keeps failing.
func (an *announcer) avoid(stream string) {
	an.mu.Lock()
	defer an.mu.Unlock()
	if an.avoided == nil {
		an.avoided = map[string]time.Time{}
	}
	an.avoided[stream] = time.Now().Add(an.c.spec.Retry.Cap)
}

// avoids returns the streams that are not to be run here now.
func (an *announcer) avoids() []string {
	an.mu.Lock()
	defer an.mu.Unlock()
	an.allowAgain()
	return slices.Collect(maps.Keys(an.avoided))
}

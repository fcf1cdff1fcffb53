package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"

	"github.com/leasegen/leasegen/internal/must"
)

// fault is what happens to an owner.
type fault struct {
	name, what string
	target     time.Duration // for p99; 0 for none
	pairs      int           // at most so many side by side: they share the machine's cores
	// once makes one trial of one pair. Nil for faults of the server, which all pairs share.
	once func(context.Context, *pair) (took time.Duration, late int)
}

func faults(ttl time.Duration) []fault {
	return []fault{
		{"SIGTERM", "graceful handover (SIGTERM)", 10 * time.Millisecond, 1, terminate},
		{"SIGKILL", "SIGKILL", 60 * time.Millisecond, 2, kill},
		{"SIGSTOP", "SIGSTOP", ttl + time.Second, 10, freeze},
		{"cut", "cut off, no connection breaks", ttl + time.Second, 10, cutOff},
		{"backend", "connection of the heartbeat ended by the server", 500 * time.Millisecond, 4, endConnection},
		{"restart", "server restarted, from when it is up", 0, 10, nil},
	}
}

// trials makes n trials of a fault, shared out over the pairs.
func (s *site) trials(ctx context.Context, f fault, n int) (took []time.Duration, late int, err error) {
	if f.once == nil {
		took, err := s.restarts(ctx, n)
		return took, 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		errs []error
		left = n
	)
	for _, pr := range s.pairs {
		wg.Go(func() {
			for {
				mu.Lock()
				left--
				done := left < 0 || ctx.Err() != nil
				mu.Unlock()
				if done {
					return
				}
				settle()
				d, l, err := pr.try(ctx, f)
				mu.Lock()
				took, late = append(took, d), late+l
				if err != nil {
					errs = append(errs, err)
					cancel()
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil && len(errs) == 0 {
		errs = append(errs, ctx.Err())
	}
	return took, late, errors.Join(errs...)
}

func (f *pair) try(ctx context.Context, what fault) (took time.Duration, late int, err error) {
	defer must.Catch(&err)
	took, late = what.once(ctx, f)
	return took, late, nil
}

// settle waits a little, so that faults hit at any time between two polls.
func settle() { time.Sleep(100*time.Millisecond + rand.N(500*time.Millisecond)) }

// terminate stops the owner in good order: from the end of its last call.
func terminate(_ context.Context, f *pair) (time.Duration, int) {
	old, i := f.owner()
	must.Do(old.Signal(syscall.SIGTERM))
	next := f.first("the standby at work", func(c call) bool { return c.by == f.replicas[1-i] })
	must.Do(old.Left()) // all it told has been read
	var last time.Time
	f.mu.Lock()
	for _, c := range f.calls {
		if c.by == old {
			last = c.ended
		}
	}
	f.mu.Unlock()
	late := f.late(old, next)
	f.replace(i)
	return next.began.Sub(last), late
}

func kill(_ context.Context, f *pair) (time.Duration, int) {
	old, i := f.owner()
	at := time.Now()
	must.Do(old.Signal(syscall.SIGKILL))
	next := f.first("the standby at work", func(c call) bool { return c.by == f.replicas[1-i] })
	late := f.late(old, next)
	f.replace(i)
	return next.began.Sub(at), late
}

func freeze(_ context.Context, f *pair) (time.Duration, int) {
	return f.away(
		func(p *process) error { return p.Signal(syscall.SIGSTOP) },
		func(p *process) error { return p.Signal(syscall.SIGCONT) })
}

func cutOff(_ context.Context, f *pair) (time.Duration, int) {
	return f.away(
		func(p *process) error { p.proxy.BlackHole(); return nil },
		func(p *process) error { p.proxy.Heal(); return nil })
}

// away takes the owner away for a while, until the standby is at work.
func (f *pair) away(begin, end func(*process) error) (time.Duration, int) {
	old, i := f.owner()
	f.mu.Lock()
	losses := old.losses
	f.mu.Unlock()
	at := time.Now()
	must.Do(begin(old))
	next := f.first("the standby at work", func(c call) bool { return c.by == f.replicas[1-i] })
	must.Do(end(old))
	// A lease that expires by itself may end before its session, which then lives on.
	f.await("the old owner knows that it has lost its lease", func() bool { return old.losses > losses })
	return next.began.Sub(at), f.late(old, next)
}

// late counts calls that the old owner began after the new owner's first.
func (f *pair) late(old *process, next call) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.calls {
		if c.by == old && c.epoch < next.epoch && c.began.After(next.began) {
			n++
		}
	}
	return n
}

// endConnection ends the connection by which the others know that the owner lives. No process need take
// over: what counts is the longest time without an effect.
func endConnection(ctx context.Context, f *pair) (time.Duration, int) {
	old, _ := f.owner()
	at := time.Now()
	must.Do(f.site.store.endHeartbeat(ctx, f.name, old.PID()))
	return f.pause(at), 0
}

// pause is the longest time without an effect in the two seconds after a fault.
func (f *pair) pause(at time.Time) (longest time.Duration) {
	f.first("an effect long after the fault", func(c call) bool { return c.began.Sub(at) > 2*time.Second })
	f.mu.Lock()
	defer f.mu.Unlock()
	last := at
	for _, c := range f.calls {
		if c.began.After(last) {
			longest = max(longest, c.began.Sub(last))
		}
		if c.ended.After(last) {
			last = c.ended
		}
	}
	return longest
}

// restarts restarts the server under all pairs: the longest time without an effect from
// when it is up again.
func (s *site) restarts(ctx context.Context, n int) (took []time.Duration, err error) {
	defer must.Catch(&err)
	for len(took) < n && ctx.Err() == nil {
		for _, f := range s.pairs {
			f.owner()
		}
		settle()
		s.store.Restart()
		up := time.Now()
		for _, f := range s.pairs[:min(len(s.pairs), n-len(took))] {
			took = append(took, f.pause(up))
		}
	}
	return took, ctx.Err()
}

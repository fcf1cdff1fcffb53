package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"
)

// fault is what happens to an owner.
type fault struct {
	name, what string
	target     time.Duration // for p99; 0 for none
	fleets     int           // at most so many side by side: they share the machine's cores
	// once makes one trial of one fleet. Nil for faults of the server, which all fleets share.
	once func(context.Context, *fleet) (took time.Duration, late int, err error)
}

func faults() []fault {
	return []fault{
		{"SIGTERM", "graceful handover (SIGTERM)", 20 * time.Millisecond, 1, terminate},
		{"SIGKILL", "SIGKILL", 500 * time.Millisecond, 2, kill},
		{"SIGSTOP", "SIGSTOP", ttl + time.Second, 10, freeze},
		{"cut", "cut off, no connection breaks", ttl + time.Second, 10, cutOff},
		{"backend", "backend of the heartbeat terminated", 500 * time.Millisecond, 4, terminateBackend},
		{"restart", "server restarted, from when it is up", 0, 10, nil},
	}
}

// trials makes n trials of a fault, shared out over the fleets.
func (s *site) trials(ctx context.Context, f fault, n int) (took []time.Duration, late int, err error) {
	if f.once == nil {
		return s.restarts(ctx, n)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		errs []error
		left = n
	)
	for _, fl := range s.fleets {
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
				d, l, err := f.once(ctx, fl)
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

// settle waits a little, so that faults hit at any time between two polls.
func settle() { time.Sleep(100*time.Millisecond + rand.N(500*time.Millisecond)) }

// terminate stops the owner in good order: from the end of its last call.
func terminate(_ context.Context, f *fleet) (time.Duration, int, error) {
	old, i, err := f.owner()
	if err != nil {
		return 0, 0, err
	}
	if err := old.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return 0, 0, err
	}
	next, err := f.first("the standby at work", func(c call) bool { return c.by == f.replicas[1-i] })
	if err != nil {
		return 0, 0, err
	}
	<-old.ended // all it told has been read
	if !old.cmd.ProcessState.Success() {
		return 0, 0, fmt.Errorf("%s: a replica ended with %v", f.name, old.cmd.ProcessState)
	}
	var last time.Time
	f.mu.Lock()
	for _, c := range f.calls {
		if c.by == old {
			last = c.ended
		}
	}
	f.mu.Unlock()
	late := f.late(old, next)
	return next.began.Sub(last), late, f.replace(i)
}

func kill(_ context.Context, f *fleet) (time.Duration, int, error) {
	old, i, err := f.owner()
	if err != nil {
		return 0, 0, err
	}
	at := time.Now()
	if err := old.cmd.Process.Kill(); err != nil {
		return 0, 0, err
	}
	next, err := f.first("the standby at work", func(c call) bool { return c.by == f.replicas[1-i] })
	if err != nil {
		return 0, 0, err
	}
	return next.began.Sub(at), f.late(old, next), f.replace(i)
}

func freeze(_ context.Context, f *fleet) (time.Duration, int, error) {
	return f.away(
		func(p *process) error { return p.cmd.Process.Signal(syscall.SIGSTOP) },
		func(p *process) error { return p.cmd.Process.Signal(syscall.SIGCONT) })
}

func cutOff(_ context.Context, f *fleet) (time.Duration, int, error) {
	return f.away(
		func(p *process) error { p.proxy.BlackHole(); return nil },
		func(p *process) error { p.proxy.Heal(); return nil })
}

// away takes the owner away for a while, until the standby is at work.
func (f *fleet) away(begin, end func(*process) error) (time.Duration, int, error) {
	old, i, err := f.owner()
	if err != nil {
		return 0, 0, err
	}
	f.mu.Lock()
	losses := old.losses
	f.mu.Unlock()
	at := time.Now()
	if err := begin(old); err != nil {
		return 0, 0, err
	}
	next, err := f.first("the standby at work", func(c call) bool { return c.by == f.replicas[1-i] })
	err = errors.Join(err, end(old))
	if err != nil {
		return 0, 0, err
	}
	// A lease that expires by itself may end before its session, which then lives on.
	err = f.await("the old owner knows that it has lost its lease", func() bool { return old.losses > losses })
	return next.began.Sub(at), f.late(old, next), err
}

// late counts calls that the old owner began after the new owner's first.
func (f *fleet) late(old *process, next call) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.calls {
		if c.by == old && c.epoch < next.epoch && c.began.After(next.began) {
			n++
		}
	}
	return n
}

// terminateBackend ends the connection that the owner's heartbeats use. Nobody need take
// over: what counts is the longest time without an effect.
func terminateBackend(ctx context.Context, f *fleet) (time.Duration, int, error) {
	old, _, err := f.owner()
	if err != nil {
		return 0, 0, err
	}
	at := time.Now()
	var ended bool
	err = f.site.pool.QueryRow(ctx, `SELECT coalesce(bool_and(pg_terminate_backend(backend_pid)), false)
		FROM `+f.name+`.session WHERE pid = $1 AND state = 'live'`, old.cmd.Process.Pid).Scan(&ended)
	if err != nil {
		return 0, 0, err
	}
	if !ended {
		return 0, 0, fmt.Errorf("%s: no backend of the owner's heartbeat to terminate", f.name)
	}
	d, err := f.pause(at)
	return d, 0, err
}

// pause is the longest time without an effect in the two seconds after a fault.
func (f *fleet) pause(at time.Time) (longest time.Duration, err error) {
	if _, err := f.first("an effect long after the fault", func(c call) bool { return c.began.Sub(at) > 2*time.Second }); err != nil {
		return 0, err
	}
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
	return longest, nil
}

// restarts restarts the server under all fleets: the longest time without an effect from
// when it is up again.
func (s *site) restarts(ctx context.Context, n int) (took []time.Duration, late int, err error) {
	for len(took) < n && ctx.Err() == nil {
		for _, f := range s.fleets {
			if _, _, err := f.owner(); err != nil {
				return nil, 0, err
			}
		}
		settle()
		s.server.Restart()
		up := time.Now()
		s.pool.Reset()
		for _, f := range s.fleets[:min(len(s.fleets), n-len(took))] {
			d, err := f.pause(up)
			if err != nil {
				return nil, 0, err
			}
			took = append(took, d)
		}
	}
	return took, 0, ctx.Err()
}

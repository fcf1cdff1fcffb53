package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/leasegen/leasegen/internal/faultproxy"
	"github.com/leasegen/leasegen/internal/fleet"
	"github.com/leasegen/leasegen/internal/must"
	"github.com/leasegen/leasegen/runtime/lease"
)

// patience is how long anything may take before the measurement is given up: on a machine that stalls, sessions end again and
// again before it happens.
const patience = 5 * time.Minute

// site is a server, and the pairs that work on it.
type site struct {
	store store
	kind  lockKind
	ttl   time.Duration
	pairs []*pair

	publishing sync.WaitGroup
	cancel     context.CancelFunc
	stderr     fleet.Tail
}

// pair is two replicas of one consumer with one resource, in a schema of their own: sessions
// of one schema watch each other, and those of other pairs are away half of the time.
type pair struct {
	site     *site
	name     string
	replicas [2]*process

	mu    sync.Mutex
	calls []call
}

// process is one replica, behind a proxy of its own.
type process struct {
	*fleet.Process
	proxy *faultproxy.Proxy

	// guarded by pair.mu
	member bool // it has a session
	losses int  // of leases
}

// call is one effect of a replica.
type call struct {
	by           *process
	epoch        int64
	began, ended time.Time
}

func newSite(ctx context.Context, st store, name string, k lockKind, ttl time.Duration, pairs int) (_ *site, err error) {
	s := &site{store: st, kind: k, ttl: ttl}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\nreplicas said:\n%s", err, s.stderr.Last(40))
			s.close()
		}
	}()
	defer must.Catch(&err)
	for i := range pairs {
		f := &pair{site: s, name: fmt.Sprintf("%s_%d", name, i)}
		must.Do(st.prepare(ctx, f.name))
		s.pairs = append(s.pairs, f)
	}
	ctx, s.cancel = context.WithCancel(ctx)
	if k.asPer != lease.PerCluster {
		for _, f := range s.pairs {
			s.publishing.Go(func() { f.publish(ctx) })
		}
	}
	for _, f := range s.pairs {
		for i := range f.replicas {
			f.replicas[i] = f.start()
		}
	}
	for _, f := range s.pairs {
		for _, p := range f.replicas {
			f.await("every replica has a session", func() bool { return p.member })
		}
	}
	return s, nil
}

// publish keeps a backlog for each pair: more comes than can be handled.
func (f *pair) publish(ctx context.Context) {
	// It is cut off in the middle, at the end.
	be := f.site.store.publisher(f.name)
	events := make([]lease.Event, 120)
	for i := range events {
		events[i] = lease.Event{Topic: f.name, Key: "one", Kind: "tick", Payload: []byte("{}")}
	}
	for ctx.Err() == nil {
		_ = be.Publish(ctx, events) // the server may be down just now
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func (f *pair) start() *process {
	p := &process{proxy: must.Get(faultproxy.Listen(f.site.store.Addr()))}
	kind := slices.Index(locks(), f.site.kind)
	p.Process = fleet.NewProcess(f.name, []string{
		envReplica + "=" + f.name, envKind + "=" + strconv.Itoa(kind), envTTL + "=" + f.site.ttl.String(),
		envDSN + "=" + f.site.store.url(p.proxy.Addr()),
	}, func(line string) { f.record(p, line) }, &f.site.stderr)
	must.Do(p.Start())
	return p
}

func (f *pair) record(p *process, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch text {
	case "session", "ended":
		p.member = text == "session"
		return
	case "loss":
		p.losses++
		return
	}
	var epoch, began, ended int64
	if _, err := fmt.Sscanf(text, "effect %d %d %d", &epoch, &began, &ended); err == nil {
		f.calls = append(f.calls, call{p, epoch, time.Unix(0, began), time.Unix(0, ended)})
	}
}

// await polls until cond, which is called with f.mu held.
func (f *pair) await(what string, cond func() bool) {
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		f.mu.Lock()
		done := cond()
		f.mu.Unlock()
		if done {
			return
		}
		if time.Now().After(deadline) {
			must.Do(fmt.Errorf("%s: not within %v: %s", f.name, patience, what))
		}
	}
}

// first waits for the first call that match accepts.
func (f *pair) first(what string, match func(call) bool) (c call) {
	f.await(what, func() bool {
		for _, c = range f.calls {
			if match(c) {
				return true
			}
		}
		return false
	})
	return c
}

// owner waits until a replica is at work, and returns it and the index of the other.
func (f *pair) owner() (*process, int) {
	f.await("both replicas have a session", func() bool { return f.replicas[0].member && f.replicas[1].member })
	f.mu.Lock()
	f.calls = nil
	f.mu.Unlock()
	for deadline := time.Now().Add(patience); ; {
		c := f.first("an owner at work", func(c call) bool { return c.by == f.replicas[0] || c.by == f.replicas[1] })
		if f.site.kind.asPer != lease.PerPartition || f.stays(c.by) {
			return c.by, slices.Index(f.replicas[:], c.by)
		}
		if time.Now().After(deadline) {
			must.Do(fmt.Errorf("%s: the slot changes its owner each second for %v", f.name, patience))
		}
	}
}

// stays reports whether a replica works alone for a second: the two share the slots, and hand some over when one has joined.
func (f *pair) stays(p *process) bool {
	time.Sleep(time.Second)
	f.mu.Lock()
	defer f.mu.Unlock()
	alone := !slices.ContainsFunc(f.calls, func(c call) bool { return c.by != p })
	if !alone {
		f.calls = nil
	}
	return alone
}

// replace starts a replica in the place of one that has ended.
func (f *pair) replace(i int) {
	<-f.replicas[i].Ended()
	f.replicas[i].proxy.Close()
	p := f.start()
	f.replicas[i] = p
	f.await("the new replica has a session", func() bool { return p.member })
}

func (s *site) close() {
	if s.cancel != nil {
		s.cancel()
	}
	for _, f := range s.pairs {
		for _, p := range f.replicas {
			if p != nil {
				p.End()
				p.proxy.Close()
			}
		}
	}
	s.publishing.Wait()
}

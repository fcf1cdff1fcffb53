package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/leasegen/leasegen/bench/report"
	"github.com/leasegen/leasegen/internal/must"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// scene is how much there is of everything.
type scene struct {
	Topics, Backlog, Parked, Dead, Replicas, Consumers int
	Masters                                            int // of a Redis Cluster; 0: on PostgreSQL
}

// growthFigures are what is measured in each scene.
func growthFigures() []report.Figure {
	return []report.Figure{
		{ID: "drain", Name: "drain", Unit: "msg/s", Rate: true},
		{ID: "publish", Name: "publish", Unit: "msg/s", Rate: true},
		{ID: "p50", Name: "commit to handler, p50", Unit: "ms"},
		{ID: "p95", Name: "commit to handler, p95", Unit: "ms", Aside: true},
		{ID: "acquire", Name: "acquire all leases", Unit: "ms"},
		{ID: "takeover", Name: "take over a killed replica's", Unit: "ms"},
		{ID: "idle", Name: "idle", Unit: "statements or commands/s"},
		{ID: "idle-cpu", Name: "idle, CPU of server and clients", Unit: "ms/s", Aside: true},
		{ID: "server-cpu", Name: "drain, server CPU per 1,000", Unit: "ms", Aside: true},
		{ID: "client-cpu", Name: "drain, client CPU per 1,000", Unit: "ms", Aside: true},
	}
}

// stage is a scene that plays.
type stage struct {
	scene
	size  growthSize
	store store
	be    backend.Backend
	crew  *crew
	got   sample
	most  []report.Statement
}

// play measures all figures of a scene: replicas begin on the backlog, which is passed over after the window; then come single
// messages, silence, publishing at full speed, and the end of a replica.
func (g *growing) play(ctx context.Context, sc scene) (_ sample, _ []report.Statement, err error) {
	defer must.Catch(&err)
	ctx, cancel := context.WithTimeout(ctx, g.size.patience)
	defer cancel()
	s := &stage{scene: sc, size: g.size, store: must.Get(g.place(ctx, sc)), got: sample{}}
	defer s.store.close()
	dsn, nodes := s.store.at()
	at := grown{dsn, nodes, sc.Consumers}
	be, closing := at.open(ctx, connections)
	defer closing()
	s.be = be
	must.Do(s.store.fill(ctx, be, sc))
	s.crew = newCrew(at)
	defer s.crew.end()
	runtime.GC()
	for _, act := range []func(context.Context) error{s.drain, s.latency, s.idle, s.publish, s.takeover} {
		must.Do(act(ctx))
	}
	if n := s.crew.total().refused; n > 0 {
		return nil, nil, fmt.Errorf("%d messages were parked, dead or skipped", n)
	}
	return s.got, s.most, nil
}

// drain lets the replicas begin: until all leases are owned, and the backlog is empty or the window over.
func (s *stage) drain(ctx context.Context) (err error) {
	defer must.Catch(&err)
	must.Do(s.store.watch(ctx))
	before, own := s.store.spent(ctx), 0.0
	begin := must.Get(s.crew.start(ctx, s.Replicas))
	own = s.crew.seconds()
	must.Do(s.owned(ctx, s.Replicas))
	s.got["acquire"] = ms(time.Since(begin))
	all := s.Backlog * s.Consumers
	must.Do(until(ctx, time.Minute, "a message is handled", &s.crew.errors, func() bool {
		t := s.crew.total()
		return t.n >= all || t.n > 0 && time.Since(t.first) > s.size.window
	}))
	t := s.crew.total()
	after := s.store.spent(ctx)
	k := float64(t.n) / 1000
	s.got["drain"] = float64(t.n) / t.last.Sub(t.first).Seconds()
	s.got["server-cpu"], s.got["client-cpu"] = (after.seconds-before.seconds)/k*1000, (s.crew.seconds()-own)/k*1000
	s.most = must.Get(s.store.most(ctx))
	if t.n < all {
		for i := range s.Consumers {
			must.Get(s.be.Capabilities().Operator.SetCursor(ctx, specOf(i).Name, "", operate.CursorTarget{Now: true}))
		}
	}
	return s.quiet(ctx, s.Replicas)
}

// owned returns when so many replicas are members and own all topics. It asks seldom where the answer takes long.
func (s *stage) owned(ctx context.Context, members int) (err error) {
	defer must.Catch(&err)
	for {
		asked := time.Now()
		all := must.Get(s.be.Survey(ctx, []string{specOf(0).Name}))
		if len(all) == 1 && all[0].Free == 0 && len(all[0].Members) == members {
			return nil
		}
		select {
		case <-time.After(max(2*time.Millisecond, 3*time.Since(asked))):
		case <-ctx.Done():
			return fmt.Errorf("not all leases are owned by %d replicas; they said: %s", members, s.crew.errors.Last(5))
		}
	}
}

// quiet returns when all topics are owned and no message has been handled for a while.
func (s *stage) quiet(ctx context.Context, members int) error {
	if err := s.owned(ctx, members); err != nil {
		return err
	}
	was, since := s.crew.total().n, time.Now()
	return until(ctx, time.Minute, "the replicas have handled all", &s.crew.errors, func() bool {
		if n := s.crew.total().n; n != was {
			was, since = n, time.Now()
		}
		return time.Since(since) > 200*time.Millisecond
	})
}

// latency publishes one message after the other, to one topic after the other, with pauses of up to 40 ms.
func (s *stage) latency(ctx context.Context) error {
	published := make([]time.Time, s.size.probes)
	for i := range published {
		time.Sleep(time.Duration(i%9) * 5 * time.Millisecond)
		if err := s.be.Publish(ctx, asEvents(i*s.Topics/len(published), payloads(probed+i, probed+i+1))); err != nil {
			return err
		}
		published[i] = time.Now()
		if err := until(ctx, 30*time.Second, "a message is handled", &s.crew.errors, func() bool { return !s.crew.probe(i).IsZero() }); err != nil {
			return err
		}
	}
	took := make([]float64, len(published))
	for i, at := range published {
		took[i] = max(0.01, ms(s.crew.probe(i).Sub(at))) // the handler may run before publishing has returned
	}
	slices.Sort(took)
	s.got["p50"], s.got["p95"] = took[len(took)/2], took[len(took)*95/100]
	return nil
}

// probe is when a probe was handled first.
func (c *crew) probe(i int) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.probes[probed+i]
}

func (s *stage) idle(ctx context.Context) (err error) {
	defer must.Catch(&err)
	time.Sleep(max(s.size.idle/2, time.Second)) // what the messages have set going ends
	before, own := s.spent(ctx), s.ownSpent()
	time.Sleep(s.size.idle)
	after, ownAfter := s.spent(ctx), s.ownSpent()
	s.got["idle"] = (after.calls - before.calls) / after.since(before)
	s.got["idle-cpu"] = ((after.seconds-before.seconds)/after.since(before) + (ownAfter.seconds-own.seconds)/ownAfter.since(own)) * 1000
	return nil
}

// spent is what the server has spent, and ownSpent what the replicas have. Each has a time of its own: on a busy machine it takes
// long to ask.
func (s *stage) spent(ctx context.Context) spent {
	x := s.store.spent(ctx)
	x.at = time.Now()
	return x
}

func (s *stage) ownSpent() spent { return spent{seconds: s.crew.seconds(), at: time.Now()} }

// publish makes calls of 100 messages for a hundred topics, or all of them, while the replicas handle what comes.
func (s *stage) publish(ctx context.Context) error {
	var n, turn atomic.Int64
	errs := make(chan error, publishers)
	var wg sync.WaitGroup
	begin := time.Now()
	for range publishers {
		wg.Go(func() {
			for time.Since(begin) < s.size.calls {
				from := int(turn.Add(100)) - 100
				if err := s.be.Publish(ctx, events(func(i int) int { return i % s.Topics }, from, from+100)); err != nil {
					errs <- err
					return
				}
				n.Add(100)
			}
		})
	}
	wg.Wait()
	close(errs)
	s.got["publish"] = float64(n.Load()) / time.Since(begin).Seconds()
	if err := <-errs; err != nil {
		return err
	}
	return s.quiet(ctx, s.Replicas)
}

// takeover kills a replica. Its time is over when it is no member, and all topics are owned.
func (s *stage) takeover(ctx context.Context) error {
	begin := time.Now()
	if err := s.crew.all[0].Signal(syscall.SIGKILL); err != nil {
		return err
	}
	err := s.owned(ctx, s.Replicas-1)
	s.got["takeover"] = ms(time.Since(begin))
	return err
}

func ms(d time.Duration) float64 { return d.Seconds() * 1000 }

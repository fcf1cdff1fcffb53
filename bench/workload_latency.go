package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasegen/leasegen/bench/report"
	"github.com/leasegen/leasegen/internal/must"
)

func latencyMetrics(more ...report.Metric) []report.Metric {
	return append([]report.Metric{{ID: "p50", Name: "p50", Unit: "ms"}, {ID: "p99", Name: "p99", Unit: "ms"}}, more...)
}

func latencyIdle() workload {
	return workload{
		Workload: report.Workload{ID: "latency-idle", Title: "How long from commit to handler, on an idle system?",
			What:    "One message after the other, with pauses of 0 to 100 ms between them. From the end of the publishing call to the call of the handler.",
			Metrics: latencyMetrics()},
		slow: true, telling: true,
		run: func(ctx context.Context, t *turn) sample {
			probe := must.Get(t.probe(ctx))
			defer probe.close()
			begin := time.Now()
			for seq := range t.size.probes {
				if time.Since(begin) > 4*t.size.window { // a system that polls seldom is measured less often
					break
				}
				// Awake, dozing and asleep.
				time.Sleep(time.Duration(seq%20) * 5 * time.Millisecond)
				must.Do(probe.publish(ctx, 1))
				must.Do(probe.wait(ctx, probe.sent.Load()))
			}
			return probe.sample()
		},
	}
}

func latencyHalfLoad() workload {
	return workload{
		Workload: report.Workload{ID: "latency-half-load", Title: "How long at half load?",
			What: "Half of the rate at which the contender itself takes messages in and hands them out, one publisher with batches of 20. " +
				"That rate is measured first; it is another for each.",
			Metrics: latencyMetrics(report.Metric{ID: "load", Name: "load", Unit: "msg/s"})},
		slow: true,
		run: func(ctx context.Context, t *turn) sample {
			probe := must.Get(t.probe(ctx))
			defer probe.close()
			const each = 20
			window := t.size.calls
			begin, from := time.Now(), probe.handled.Load()
			for time.Since(begin) < window {
				must.Do(probe.publish(ctx, each))
				must.Do(probe.wait(ctx, probe.sent.Load()-100*each)) // at most so many are on their way
			}
			must.Do(probe.wait(ctx, probe.sent.Load()))
			load := float64(probe.handled.Load()-from) / time.Since(begin).Seconds() / 2
			probe.reset()
			pace := time.Duration(each / load * float64(time.Second))
			begin = time.Now()
			for i := 0; time.Since(begin) < window; i++ {
				time.Sleep(time.Until(begin.Add(time.Duration(i) * pace)))
				must.Do(probe.publish(ctx, each))
			}
			must.Do(probe.wait(ctx, probe.sent.Load()))
			s := probe.sample()
			s["load"] = load
			return s
		},
	}
}

// probing is a contender that handles what a probe publishes, and the time that each message took.
type probing struct {
	sys  system
	stop func() error

	sent, handled atomic.Int64

	mu        sync.Mutex
	published map[int]time.Time // when the call had ended, by number
	called    map[int]time.Time
}

// probe starts a contender that has no work yet.
func (t *turn) probe(ctx context.Context) (_ *probing, err error) {
	defer must.Catch(&err)
	p := &probing{sys: must.Get(t.contender.open(ctx, t.site)), published: map[int]time.Time{}, called: map[int]time.Time{}}
	const first = 20
	must.Do(p.sys.Fill(ctx, first, 1))
	p.sent.Store(first)
	p.stop = must.Get(p.sys.Consume(ctx, job{topics: 1, call: p.call}))
	must.Do(p.wait(ctx, first)) // warm
	time.Sleep(300 * time.Millisecond)
	return p, nil
}

func (p *probing) close() {
	_ = p.stop() // what counts was measured before
	p.sys.Close()
}

func (p *probing) call(payload []byte) {
	now := time.Now()
	p.mu.Lock()
	n := number(payload)
	if _, again := p.called[n]; !again {
		p.called[n] = now
		p.handled.Add(1)
	}
	p.mu.Unlock()
}

// publish sends some messages in one call.
func (p *probing) publish(ctx context.Context, n int) error {
	from := int(p.sent.Load())
	if err := p.sys.Publish(ctx, 0, payloads(from, from+n)); err != nil {
		return err
	}
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := from; i < from+n; i++ {
		p.published[i] = now
	}
	p.sent.Add(int64(n))
	return nil
}

// wait returns when as many messages have been handled.
func (p *probing) wait(ctx context.Context, n int64) error {
	for begin := time.Now(); p.handled.Load() < n; time.Sleep(50 * time.Microsecond) {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Since(begin) > 15*time.Second:
			return errors.New("a message was not handled within 15 s")
		}
	}
	return nil
}

// reset forgets the messages so far.
func (p *probing) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.published)
}

func (p *probing) sample() sample {
	p.mu.Lock()
	defer p.mu.Unlock()
	var took []float64
	for n, at := range p.published {
		took = append(took, max(0, p.called[n].Sub(at).Seconds()*1000))
	}
	slices.Sort(took)
	return sample{"p50": took[len(took)/2], "p99": took[len(took)*99/100]}
}

package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasegen/leasegen/bench/report"
	"github.com/leasegen/leasegen/internal/must"
)

func drainOf(topics int) workload {
	title := map[int]string{1: "How fast is a backlog drained?", 100: "How fast with 100 topics?", 10_000: "How fast with 10,000 topics?"}[topics]
	what := fmt.Sprintf("A backlog of the same total in %d topics, a handler without work. "+
		"The clock runs from the first call of a handler to the last progress that is stored.", topics)
	if topics >= 10_000 {
		what += " Messages are few in each topic: what acquires topics acquires most of them in that time, and stores progress in each; " +
			"the bare loops acquire none."
	}
	return workload{
		Workload: report.Workload{ID: fmt.Sprint("drain-", topics), Title: title, What: what, Metrics: append([]report.Metric{rate("messages")}, costs()...)},
		telling:  topics == 1,
		run: func(ctx context.Context, t *turn) sample {
			s, _ := t.drain(ctx, topics, t.size.messages, noEffect)
			return s
		},
	}
}

// progress counts what is done, and when.
type progress struct {
	began atomic.Int64 // nanoseconds; when the first handler began
	mu    sync.Mutex
	n     int
	last  time.Time
	want  int
	all   chan struct{} // closed when as many are done as wanted
}

func newProgress(want int) *progress { return &progress{want: want, all: make(chan struct{})} }

func (p *progress) done(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	before := p.n
	p.n, p.last = p.n+n, now
	if before < p.want && p.n >= p.want {
		close(p.all)
	}
}

func (p *progress) begun() {
	if p.began.Load() == 0 {
		p.began.CompareAndSwap(0, time.Now().UnixNano())
	}
}

func (p *progress) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.n
}

// rate is messages in a second, from when the first handler began.
func (p *progress) rate() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return float64(p.n) / p.last.Sub(time.Unix(0, p.began.Load())).Seconds()
}

// drain lets a contender work on a backlog, until it is empty or the window is over.
func (t *turn) drain(ctx context.Context, topics, n int, effect effect) (sample, int) {
	sys := must.Get(t.contender.open(ctx, t.site))
	defer sys.Close()
	must.Do(sys.Fill(ctx, n, topics))
	p := newProgress(n)
	before := t.counters(ctx)
	stop := must.Get(sys.Consume(ctx, job{topics: topics, effect: effect, begun: p.begun, done: p.done}))
	t.await(ctx, p)
	s := sample{"rate": p.rate()}
	done := p.count()
	t.perThousand(ctx, s, before, done)
	must.Do(stop())
	return s, done
}

// await returns when all is done or the window is over, which begins with the first progress.
func (t *turn) await(ctx context.Context, p *progress) {
	begun := time.Now()
	var over <-chan time.Time
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-p.all:
			return
		case <-over:
			return
		case <-ctx.Done():
			must.Do(ctx.Err())
		case <-tick.C:
			switch {
			case over == nil && p.count() > 0:
				over = time.After(t.size.window)
			case over == nil && time.Since(begun) > time.Minute:
				must.Do(fmt.Errorf("no message was handled within a minute"))
			}
		}
	}
}

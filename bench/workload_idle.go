package main

import (
	"context"
	"fmt"
	"time"

	"github.com/leasegen/leasegen/bench/report"
	"github.com/leasegen/leasegen/internal/must"
)

func idle(z size) workload {
	return workload{
		Workload: report.Workload{ID: "idle", Title: "What does an idle process cost?",
			What: fmt.Sprintf("One process, %d topics with a message each that has been handled, where a system has topics. Then %v pass.", z.held, z.idle),
			Metrics: []report.Metric{
				{ID: "queries", Name: "transactions or commands", Unit: "/s"},
				{ID: "reads", Name: "of these, reads", Unit: "/s"},
				{ID: "requests", Name: "reads of a Redis server from its clients, pipelines as one", Unit: "/s"},
				{ID: "wal", Name: "WAL", Unit: "kB/s"},
				{ID: "server-cpu", Name: "server CPU", Unit: "ms/s"},
				{ID: "client-cpu", Name: "client CPU", Unit: "ms/s"},
			}},
		slow: true,
		run: func(ctx context.Context, t *turn) sample {
			sys := must.Get(t.contender.open(ctx, t.site))
			defer sys.Close()
			n := t.size.held
			must.Do(sys.Fill(ctx, n, n))
			p := newProgress(n)
			stop := must.Get(sys.Consume(ctx, job{topics: n, done: p.done}))
			t.await(ctx, p)
			time.Sleep(t.settling())
			before := t.counters(ctx)
			time.Sleep(t.size.idle)
			after := t.counters(ctx)
			must.Do(stop())
			took := after.at.Sub(before.at).Seconds()
			s := sample{
				"server-cpu": (after.serverSeconds - before.serverSeconds) / took * 1000,
				"client-cpu": (after.ownSeconds - before.ownSeconds) / took * 1000,
			}
			switch t.contender.Backend {
			case "PostgreSQL":
				transactions := after.commits - before.commits - 1 // the one that counted
				s["queries"], s["wal"] = transactions/took, (after.wal-before.wal)/took/1000
				s["reads"] = max(transactions-(after.writes-before.writes), 0) / took
			case "Redis":
				s["queries"], s["requests"] = (after.commands-before.commands)/took, (after.requests-before.requests)/took
			}
			return s
		},
	}
}

// settling is how long it takes until what handling messages has set going ends. A session of PostgreSQL that comes to rest reports the last of its
// transactions up to ten seconds later (PGSTAT_IDLE_INTERVAL).
func (t *turn) settling() time.Duration {
	if t.contender.Backend == "PostgreSQL" {
		return min(5*t.size.idle, 11*time.Second)
	}
	return min(t.size.idle, 5*time.Second)
}

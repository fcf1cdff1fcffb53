package report

import (
	"fmt"
	"math"
)

// Goal is what a ratio, or a figure, is to reach, with the figure that this run measured.
type Goal struct {
	What, Want string
	Got        Spread
	Before     Spread // of the run before, if there is one
	Met        bool
	Why        string // beside one that is not met
}

// The contenders that goals name.
const (
	Ours      = "leasegen"
	OursRedis = "leasegen-redis"
	Bare      = "pgx"
	BareRedis = "go-redis"
	River     = "river"
	JetStream = "jetstream-queue"
)

// goal is a ratio of two contenders, or a figure of one: without by.
type goal struct {
	what, workload, metric, who, by string
	limit                           float64
	most                            bool // limit is the most, not the least
	why                             string
	slowest                         bool // the most of all figures is judged, not their median
}

func goals() []goal {
	return []goal{
		atLeast("ordered drain of 1 topic, beside the bare loop", "drain-1", Ours, Bare, 0.8, readAhead),
		atLeast("ordered drain of 100 topics, beside the bare loop", "drain-100", Ours, Bare, 0.8, readAhead),
		atLeast("ordered drain of 10,000 topics, beside the bare loop", "drain-10000", Ours, Bare, 0.8,
			"a lease to acquire and a cursor to store for each topic, of which the bare loop has none"),
		atLeast("ordered drain, beside River at its best", "drain-1", Ours, River, 20, limited),
		atLeast("one row for each message, in batches, beside the bare loop that loses no message", "rows-batch", Ours, Bare, 0.9,
			"the fenced commit is one more statement than the bare loop's"),
		atLeast("one row for each message, one by one, beside the bare loop", "rows-one", Ours, Bare, 1, "an observer, a deadline and a context for each call"),
		{what: "publish in the caller's transaction: the time of its INSERT alone, times", workload: "publish-tx", metric: "rate", who: Bare, by: Ours,
			limit: 1.3, most: true, why: publishing},
		atLeast("Redis: ordered drain beside a bare XRANGE loop", "drain-1", OursRedis, BareRedis, 0.6, readAhead),
		atLeast("ordered drain, beside JetStream's work-queue consumer at its best", "drain-1", Ours, JetStream, 3, limited),
		slowest("SIGKILL to the next effect, slowest, ms", "crash", Ours, 60, secondLook),
		slowest("Redis: SIGKILL to the next effect, slowest, ms", "crash", OursRedis, 500, ""),
		atMost("handover in good order, p50, ms", "handover", "gap", Ours, 3, sixSteps),
		slowest("handover in good order, slowest, ms", "handover", Ours, 10, sixSteps),
		atMost("Redis: handover in good order, p50, ms", "handover", "gap", OursRedis, 3, fourSteps),
		slowest("Redis: handover in good order, slowest, ms", "handover", OursRedis, 10, fourSteps),
		atMost("idle process, reads a second, the watch of its neighbours included", "idle", "reads", Ours, 1,
			"0.7 are its own (TestCostOfIdling), and a round of housekeeping makes it 2.2; the rest was not separated: pgxpool asks a connection that has rested for a second whether it lives"),
		atMost("Redis: idle process, commands a second, those inside of scripts too", "idle", "queries", OursRedis, 5, insideScripts),
	}
}

// Why goals are missed that are missed together.
const (
	limited       = "the bare loop sets the limit, and leasegen reaches the share of it that the first row shows"
	readAhead     = "goroutines read ahead, handle and store beside each other, and hand each batch on twice"
	publishing    = "a second INSERT of a plain row makes 1.26 of it, one into the log, with its partitions and two more indexes, 1.66 (bench/NOTES.md)"
	secondLook    = "a process that may come back is given as long as five tries to connect take, about half of it"
	insideScripts = "the process sends fewer than two a second; most of its scripts run nine to eleven commands"
	sixSteps      = "the last commit, the end of the session, its news, a look at the fair share, the grant and the first read follow each other, and each waits until a process wakes"
	fourSteps     = "the release, its news, the grant and the first read follow each other, and each waits until a process wakes"
)

// atLeast is a goal for a rate beside another's.
func atLeast(what, workload, who, by string, limit float64, why string) goal {
	return goal{what: what, workload: workload, metric: "rate", who: who, by: by, limit: limit, why: why}
}

// atMost is a goal for a figure by itself.
func atMost(what, workload, metric, who string, limit float64, why string) goal {
	return goal{what: what, workload: workload, metric: metric, who: who, limit: limit, most: true, why: why}
}

// slowest is a goal for each single trial.
func slowest(what, workload, who string, limit float64, why string) goal {
	g := atMost(what, workload, "gap", who, limit, why)
	g.slowest = true
	return g
}

// of is the goal's figure in a run.
func (g goal) of(r *Report) Spread {
	w := r.workload(g.workload)
	if g.by != "" {
		return w.Ratio(g.metric, g.who, g.by)
	}
	return spread(w.Cell(g.who).Samples[g.metric])
}

// Goals are those that this run has figures for.
func (r *Report) Goals() (all []Goal) {
	for _, g := range goals() {
		got := g.of(r)
		if math.IsNaN(got.Median) {
			continue
		}
		before := spread(nil)
		if r.before != nil {
			before = g.of(r.before)
		}
		figure := got.Median
		if g.slowest {
			figure = got.Most
		}
		met, sign := figure >= g.limit, "≥"
		if g.most {
			met, sign = figure <= g.limit, "≤"
		}
		all = append(all, Goal{g.what, fmt.Sprintf("%s %s", sign, number(g.limit)), got, before, met, g.why})
	}
	return all
}

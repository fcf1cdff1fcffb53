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
}

func goals() []goal {
	drain := func(topics, what, why string) goal {
		return goal{"ordered drain of " + what + ", beside the bare loop", "drain-" + topics, "rate", Ours, Bare, 0.8, false, why}
	}
	return []goal{
		drain("1", "1 topic", readAhead), drain("100", "100 topics", readAhead),
		drain("10000", "10,000 topics", "a lease to acquire and a cursor to store for each topic, of which the bare loop has none"),
		{"ordered drain, beside River at its best", "drain-1", "rate", Ours, River, 20, false, limited},
		{"one row for each message, in batches, beside the bare loop that loses no message", "rows-batch", "rate", Ours, Bare, 0.9, false, "the fenced commit is one more statement than the bare loop's"},
		{"one row for each message, one by one, beside the bare loop", "rows-one", "rate", Ours, Bare, 1, false, "an observer, a deadline and a context for each call"},
		{"publish in the caller's transaction: the time of its INSERT alone, times", "publish-tx", "rate", Bare, Ours, 1.3, true,
			"four round trips beside three are 1.33 by themselves"},
		{"Redis: ordered drain beside a bare XRANGE loop", "drain-1", "rate", OursRedis, BareRedis, 0.6, false, readAhead},
		{"ordered drain, beside JetStream's work-queue consumer at its best", "drain-1", "rate", Ours, JetStream, 3, false, limited},
		absolute("SIGKILL to the next effect, slowest, ms", "crash", "max", Ours, 60).because("a process that may come back is given time to"),
		absolute("Redis: SIGKILL to the next effect, slowest, ms", "crash", "max", OursRedis, 500),
		absolute("handover in good order, p50, ms", "handover", "p50", Ours, 3).because(sixSteps),
		absolute("handover in good order, slowest, ms", "handover", "max", Ours, 10).because(sixSteps),
		absolute("Redis: handover in good order, p50, ms", "handover", "p50", OursRedis, 3).because(fourSteps),
		absolute("Redis: handover in good order, slowest, ms", "handover", "max", OursRedis, 10).because(fourSteps),
		absolute("idle process, reads a second, the watch of its neighbours included", "idle", "reads", Ours, 1).because("pgxpool asks a connection that has rested for a second whether it lives, before each of them"),
		absolute("Redis: idle process, commands a second", "idle", "queries", OursRedis, 5).because("commands inside of scripts count, of which a heartbeat has several"),
	}
}

// Why goals are missed that are missed together.
const (
	limited   = "the bare loop sets the limit, and leasegen reaches the share of it that the first row shows"
	readAhead = "goroutines read ahead, handle and store beside each other, and hand each batch on twice"
	sixSteps  = "the last commit, the end of the session, its news, a look at the fair share, the grant and the first read follow each other, and each waits until a process wakes"
	fourSteps = "the release, its news, the grant and the first read follow each other, and each waits until a process wakes"
)

func absolute(what, workload, metric, of string, limit float64) goal {
	return goal{what, workload, metric, of, "", limit, true, ""}
}

func (g goal) because(why string) goal {
	g.why = why
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
		if g.metric == "max" { // the slowest is that of all rounds
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

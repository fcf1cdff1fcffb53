package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"runtime"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/bench/report"
	"github.com/leasegen/leasegen/internal/must"
)

// sample is one turn's figures, by metric.
type sample map[string]float64

// workload is what all contenders do.
type workload struct {
	report.Workload
	// cannot says why a contender does not take part. Empty: it does.
	cannot func(contender) string
	// slow: a turn takes seconds on any machine.
	slow bool
	// telling: settings make a difference.
	telling bool
	run     func(context.Context, *turn) sample
	// trials takes run's place where a turn has several figures. It adds them one by one: those before a failure count.
	trials func(context.Context, *turn, func(sample))
}

func (w workload) named(name string) bool { return w.ID == name || strings.HasPrefix(w.ID, name+"-") }

// turn is one contender in one round of a workload. Its errors end it by panics of package must.
type turn struct {
	contender contender
	site      *site
	size      size
	round     int
	redis     *redis.Client // counters ask on it; nil before the first
}

// turns runs one workload.
type turns struct {
	workload   workload
	contenders []contender
	size       size
	servers    *servers
	out        io.Writer
}

// patience is how long a turn may take beyond its window: it fills, starts, settles and stops.
const patience = 2 * time.Minute

func (ts turns) run(ctx context.Context) report.Workload {
	w := ts.workload.Workload
	fmt.Fprintf(ts.out, "== %s\n", w.Title)
	w.Cells = make([]report.Cell, len(ts.contenders))
	for i, c := range ts.contenders {
		w.Cells[i] = report.Cell{Contender: c.ID, Words: ts.refusal(c), Samples: map[string][]float64{}}
	}
	takesPart := make([]bool, len(w.Cells))
	for i, c := range ts.contenders {
		if w.Cells[i].Words == "" {
			takesPart[i], w.Cells[i].Words = true, c.notes[w.ID]
		}
	}
	for round := range ts.rounds() {
		for i, c := range ts.contenders {
			cell := &w.Cells[i]
			if !takesPart[i] || cell.Failed || ctx.Err() != nil {
				continue
			}
			begin := time.Now()
			got, err := ts.once(ctx, c, round)
			if err != nil { // it stops only itself
				cell.Failed, cell.Words = true, "failed: "+strings.ReplaceAll(err.Error(), "\n", " ")
			}
			line := fmt.Sprintf("   %d %-22s", round+1, c.ID)
			for _, s := range got {
				if !isFigure(s[w.Metrics[0].ID]) {
					cell.Failed, cell.Words = true, "failed: too little was done to measure it"
				}
				for _, m := range w.Metrics {
					if v, ok := s[m.ID]; ok && isFigure(v) {
						cell.Samples[m.ID] = append(cell.Samples[m.ID], v)
						line += fmt.Sprintf(" %s %.4g", m.ID, v)
					}
				}
			}
			fmt.Fprintf(ts.out, "%s %s (%v)\n", line, cell.Words, time.Since(begin).Round(10*time.Millisecond))
		}
	}
	return w
}

func isFigure(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// notTelling is said of another setting of a contender, where that takes part.
const notTelling = "not run with these settings"

// refusal says why a contender does not take part.
func (ts turns) refusal(c contender) string {
	if words := ts.workload.cannot(c); words != "" || !c.variant || ts.workload.telling {
		return words
	}
	return notTelling
}

func (ts turns) rounds() int {
	if ts.size.slow > 0 && ts.workload.slow {
		return ts.size.slow
	}
	return ts.size.rounds
}

func (ts turns) once(ctx context.Context, c contender, round int) (took []sample, err error) {
	defer must.Catch(&err)
	ctx, cancel := context.WithTimeout(ctx, patience+ts.size.window)
	defer cancel()
	t := &turn{contender: c, size: ts.size, round: round, site: must.Get(ts.servers.site(ctx))}
	defer t.site.close()
	defer t.closeCounters()
	runtime.GC()
	if ts.workload.trials != nil {
		ts.workload.trials(ctx, t, func(s sample) { took = append(took, s) })
		return took, nil
	}
	return []sample{ts.workload.run(ctx, t)}, nil
}

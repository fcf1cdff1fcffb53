package report

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/leasegen/leasegen/internal/svg"
)

// Write makes the page docs/bench.md below a directory, and its charts.
func (r *Report) Write(docs string) error {
	images := filepath.Join(docs, "images", "bench")
	page, charts := r.Page()
	if err := svg.Write(images, charts); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(docs, "bench.md"), []byte(page), 0o644)
}

// Page is the page, and its charts by their names.
func (r *Report) Page() (page string, charts map[string][]byte) {
	charts = map[string][]byte{}
	var p strings.Builder
	p.WriteString("# How fast is it beside others?\n\n")
	p.WriteString("The program in `bench` writes this page. `make bench` repeats all of it, `make bench-quick` a smaller form.\n")
	p.WriteString("It starts servers of its own. Contenders take turns; a figure is the median of the rounds, with the least and the most of them. " +
		"A ratio is that of two medians, with the least and the most of the rounds' own ratios. A crash or a handover is one trial, of which a round has several.\n")
	p.WriteString("Rates are given as ratios to a bare loop on the same server, in the same run: machines differ, ratios travel better. ")
	p.WriteString("JetStream, which has no bare loop, is beside PostgreSQL's. Absolute figures are of one machine: the raw results have them: `bench/results.json`, and `bench/results-before.json` of the run before.\n\n")
	r.goals(&p)
	for i := range r.Workloads {
		r.section(&p, &r.Workloads[i], charts)
	}
	r.contenders(&p)
	r.conditions(&p)
	return p.String(), charts
}

func (r *Report) goals(p *strings.Builder) {
	goals := r.Goals()
	if len(goals) == 0 {
		return
	}
	p.WriteString("| ratio in one run, or figure with its unit | goal | measured | in the run before | |\n|---|---:|---:|---:|---|\n")
	for _, g := range goals {
		verdict, before := "met", ""
		if !g.Met {
			verdict = strings.TrimSuffix("not met: "+g.Why, ": ")
		}
		if g.Before.Known() {
			before = g.Before.String()
		}
		fmt.Fprintf(p, "| %s | %s | %s | %s | %s |\n", g.What, g.Want, g.Got, before, verdict)
	}
	p.WriteString("\nCrashes and handovers have goals for p99. A run makes few of them, so the slowest trial, the last figure in the parentheses, " +
		"is judged; `make failover` makes more. Their p50 is the median of the trials of all rounds.\n")
	p.WriteString("`go test -run TestRebalance -v ./proof` measures how long slots rest while 1,024 of them are spread from 4 to 8 replicas. " +
		"The goal is 50 ms at p99; [failover-times.md](failover-times.md#what-does-joining-and-leaving-cost) has the figures.\n")
	p.WriteString("`make proof` and `make proof-redis` end connections of live sessions 10,000 times, and fail if a session is taken for dead. " +
		"On PostgreSQL a reconnect that a busy machine made late is made again, so that 10,000 are judged.\n\n")
}

func (r *Report) section(p *strings.Builder, w *Workload, charts map[string][]byte) {
	fmt.Fprintf(p, "## %s\n\n%s\n\n", w.Title, w.What)
	if chart := r.chartOf(w); chart != nil {
		maps.Copy(charts, chart.Files(w.ID))
		p.WriteString(svg.Embed("images/bench/"+w.ID, w.Title) + "\n\n")
	}
	heads, rules := "| contender |", "|---|"
	for _, m := range w.Metrics {
		heads += " " + m.head() + " |"
		rules += "---:|"
	}
	fmt.Fprintf(p, "%s |\n%s---|\n", heads, rules)
	for _, c := range r.ordered(w) {
		fmt.Fprintf(p, "| %s |", r.contender(c.Contender).Name)
		for _, m := range w.Metrics {
			fmt.Fprintf(p, " %s |", r.figure(w, m, c))
		}
		fmt.Fprintf(p, " %s |\n", c.Words)
	}
	p.WriteString("\n")
}

// head is a metric's name in a table. A rate is shown as a ratio.
func (m Metric) head() string {
	switch {
	case m.Rate:
		return m.Name + ", of the bare loop's"
	case m.Unit == "":
		return m.Name
	}
	return m.Name + ", " + m.Unit
}

// figure is what a table shows of a metric: a rate as a ratio to the bare loop on the same backend.
func (r *Report) figure(w *Workload, m Metric, c Cell) string {
	s := r.shown(w, m, c)
	if !s.Known() {
		return ""
	}
	return s.String()
}

func (r *Report) shown(w *Workload, m Metric, c Cell) Spread {
	if !m.Rate {
		return spread(c.Samples[m.ID])
	}
	backend := r.contender(c.Contender).Backend
	limit := r.limit(backend)
	if limit == "" || len(w.Cell(limit).Samples[m.ID]) == 0 { // a server without a bare loop is beside PostgreSQL's
		limit = Bare
	}
	return w.Ratio(m.ID, c.Contender, limit)
}

// ordered are the cells with figures, by backend, best first, then those with words alone.
func (r *Report) ordered(w *Workload) []Cell {
	cells := slices.Clone(w.Cells)
	backends := []string{"PostgreSQL", "Redis", "JetStream"}
	slices.SortStableFunc(cells, func(a, b Cell) int {
		ca, cb := r.contender(a.Contender), r.contender(b.Contender)
		return cmp.Or(
			cmp.Compare(slices.Index(backends, ca.Backend), slices.Index(backends, cb.Backend)),
			cmp.Compare(rank(w, a), rank(w, b)))
	})
	return cells
}

// rank is less for what is better.
func rank(w *Workload, c Cell) float64 {
	s := spread(c.Samples[w.Metrics[0].ID])
	switch {
	case !s.Known():
		return math.Inf(1)
	case w.Metrics[0].Rate:
		return -s.Median
	}
	return s.Median
}

func (r *Report) chartOf(w *Workload) *svg.Drawing {
	if len(w.Metrics) == 0 {
		return nil
	}
	m := w.Metrics[0]
	var bars []bar
	for _, c := range r.ordered(w) {
		if s := r.shown(w, m, c); s.Known() {
			who := r.contender(c.Contender)
			bars = append(bars, bar{who.Name, s, number(s.Median), who.Ours})
		}
	}
	if len(bars) < 2 {
		return nil
	}
	return chart(w.Title, m.head(), bars)
}

func (r *Report) contenders(p *strings.Builder) {
	p.WriteString("## Which contenders, with which settings?\n\n| contender | on | settings | what it keeps |\n|---|---|---|---|\n")
	for _, c := range r.Contenders {
		fmt.Fprintf(p, "| %s | %s | %s | %s |\n", c.Name, c.Backend, c.Settings, c.Keeps)
	}
	p.WriteString("\n")
}

func (r *Report) conditions(p *strings.Builder) {
	fmt.Fprintf(p, "## Under which conditions?\n\nThe %s tier, %d rounds, %s in all.\n\n| | |\n|---|---|\n", r.Tier, r.Rounds, r.Took)
	for _, c := range r.Conditions {
		fmt.Fprintf(p, "| %s | %s |\n", c.Name, c.Value)
	}
	p.WriteString("\n")
}

func (s Spread) String() string {
	if s.Least == s.Most {
		return number(s.Median)
	}
	return fmt.Sprintf("%s (%s–%s)", number(s.Median), number(s.Least), number(s.Most))
}

// number has three digits that count, and commas.
func number(v float64) string {
	abs := math.Abs(v)
	switch {
	case v == 0:
		return "0"
	case abs >= 1000:
		s := strconv.FormatFloat(math.Round(v), 'f', 0, 64)
		for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
			s = s[:i] + "," + s[i:]
		}
		return s
	case abs >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	digits := 2 - int(math.Floor(math.Log10(abs)))
	s := strconv.FormatFloat(v, 'f', min(digits, 6), 64)
	if strings.Contains(s, ".") {
		s = strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
	}
	return s
}

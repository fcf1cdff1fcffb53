package report

import (
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/leasegen/leasegen/internal/svg"
)

// Write makes the page docs/growth.md below a directory, and its charts.
func (g *Growth) Write(docs string) error {
	page, charts := g.Page()
	if err := svg.Write(filepath.Join(docs, "images", "growth"), charts); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(docs, "growth.md"), []byte(page), 0o644)
}

// Page is the page, and its charts by their names.
func (g *Growth) Page() (page string, charts map[string][]byte) {
	charts = map[string][]byte{}
	var p strings.Builder
	p.WriteString("# Where does it bend as things grow?\n\n")
	p.WriteString("The program in `bench` writes this page; `make bench-growth` repeats it. One thing grows at a time, and all main figures are measured at each\n")
	p.WriteString("size. A chart shows how many times as slow, or as costly, each is as at the smallest size: a line that stays at 1 does not notice. A\n")
	fmt.Fprintf(&p, "figure has bent where it is %d times as bad, and no round was as good as at the smallest size.\n\n", bendAt)
	p.WriteString("Replicas are processes. They begin on a backlog at once, which gives the time to acquire all leases and the rate of the drain, from the first\n")
	p.WriteString("call of a handler on. Then come single messages, silence, calls of 100 messages from 8 publishers while the replicas handle them, and the end\n")
	p.WriteString("of one replica by SIGKILL, until others own all that it had. Work that one server cannot do goes [beyond it](beyond.md).\n\n")
	p.WriteString("Silence is three seconds, and begins a second and a half after the messages: some of what they have set going is in it. A process that has rested\n")
	p.WriteString("for longer costs [less](bench.md#what-does-an-idle-process-cost). All curves but that of masters are of PostgreSQL; on Redis only they were measured.\n\n")
	for i := range g.Curves {
		g.section(&p, &g.Curves[i], charts)
	}
	fmt.Fprintf(&p, "## Under which conditions?\n\nThe %s tier, rounds: %d; %s in all.\n\n| | |\n|---|---|\n", g.Tier, g.Rounds, g.Took)
	for _, c := range g.Conditions {
		fmt.Fprintf(&p, "| %s | %s |\n", c.Name, c.Value)
	}
	return p.String(), charts
}

func (g *Growth) section(p *strings.Builder, c *Curve, charts map[string][]byte) {
	fmt.Fprintf(p, "## %s\n\n", c.Title)
	if c.What != "" {
		p.WriteString(c.What + "\n\n")
	}
	if d := g.chart(c); d != nil {
		maps.Copy(charts, d.Files(c.ID))
		p.WriteString(svg.Embed("images/growth/"+c.ID, c.Title+": "+c.Where(g.Figures)) + "\n\n")
	}
	for _, words := range []string{c.Where(g.Figures), c.Why(g.Figures)} {
		if words != "" {
			p.WriteString(words + "\n\n")
		}
	}
	heads, rules := "| "+c.Of+" |", "|---|"
	for _, pt := range c.Points {
		heads += " " + number(pt.Size) + " |"
		rules += "---:|"
	}
	fmt.Fprintf(p, "%s\n%s\n", heads, rules)
	for _, f := range g.Figures {
		fmt.Fprintf(p, "| %s, %s |", f.Name, f.Unit)
		for _, pt := range c.Points {
			cell := pt.Words
			if s := spread(pt.Samples[f.ID]); s.Known() {
				cell = s.String()
			}
			fmt.Fprintf(p, " %s |", cell)
		}
		p.WriteString("\n")
	}
	p.WriteString("\n")
}

// line is one figure of a chart.
type line struct {
	name  string
	at    []float64 // sizes
	worse []float64 // times as bad as at the first
	color svg.Color
	label float64 // where its name stands
}

// lines are the figures that a chart shows.
func (g *Growth) lines(c *Curve) (all []line) {
	colors := []svg.Color{svg.Blue, svg.Orange, svg.Green, svg.Purple, svg.Red, svg.Muted}
	for _, f := range g.Figures {
		ps := c.known(f)
		if f.Aside || len(ps) < 2 {
			continue
		}
		l := line{name: f.Name, color: colors[len(all)%len(colors)]}
		for _, p := range ps {
			l.at, l.worse = append(l.at, p.Size), append(l.worse, worse(f, p, ps[0]))
		}
		all = append(all, l)
	}
	return all
}

// chart draws a curve on two logarithmic scales, with the names of its lines at their ends.
func (g *Growth) chart(c *Curve) *svg.Drawing {
	const (
		width, height            = 760.0, 400.0
		left, right, top, bottom = 64.0, 470.0, 60.0, 330.0
		between                  = 22.0 // of two names
	)
	all := g.lines(c)
	if len(all) == 0 {
		return nil
	}
	low, high, small, large := 0.5, 2.0, math.Inf(1), 0.0
	for _, l := range all {
		low, high = min(low, slices.Min(l.worse)), max(high, slices.Max(l.worse))
		small, large = min(small, l.at[0]), max(large, l.at[len(l.at)-1])
	}
	x := func(v float64) float64 { return left + math.Log(v/small)/math.Log(large/small)*(right-left) }
	y := func(v float64) float64 { return bottom - math.Log(v/low)/math.Log(high/low)*(bottom-top) }
	d := svg.New(width, height, c.Title, c.Where(g.Figures))
	d.Text(16, 30, c.Title, svg.Size(20), svg.Bold, svg.Fill(svg.Ink))
	for _, p := range c.Points {
		if p.Size >= small && p.Size <= large {
			d.Line(x(p.Size), top, x(p.Size), bottom, svg.Stroke(svg.Grid, 1))
			d.Text(x(p.Size), bottom+22, number(p.Size), svg.Middle, svg.Size(14), svg.Fill(svg.Muted))
		}
	}
	for _, v := range ticks(low, high) {
		d.Line(left, y(v), right, y(v), svg.Stroke(svg.Grid, 1))
		d.Text(left-8, y(v)+5, "×"+number(v), svg.End, svg.Size(14), svg.Fill(svg.Muted))
	}
	d.Text((left+right)/2, bottom+48, c.Of+"; up is slower, or costs more", svg.Middle, svg.Size(14), svg.Fill(svg.Muted))
	for i := range all {
		l := &all[i]
		path := ""
		for j := range l.at {
			path += fmt.Sprintf("%s%s %s ", map[bool]string{true: "M", false: "L"}[j == 0], svg.Num(x(l.at[j])), svg.Num(y(l.worse[j])))
			d.Circle(x(l.at[j]), y(l.worse[j]), 4, svg.Fill(l.color))
		}
		d.Path(strings.TrimSpace(path), svg.Fill(svg.None), svg.Stroke(l.color, 2.5))
		l.label = y(l.worse[len(l.worse)-1]) + 5
	}
	// Names keep the order of their lines' ends, and as much room as they need.
	slices.SortStableFunc(all, func(a, b line) int { return int(math.Copysign(1, a.label-b.label)) })
	for i := range all {
		if i > 0 {
			all[i].label = max(all[i].label, all[i-1].label+between)
		}
	}
	if over := all[len(all)-1].label - (bottom + 5); over > 0 {
		for i := len(all) - 1; i >= 0; i-- {
			limit := bottom + 5 - float64(len(all)-1-i)*between
			all[i].label = min(all[i].label, limit)
		}
	}
	for _, l := range all {
		d.Circle(right+16, l.label-5, 5, svg.Fill(l.color))
		last, at := l.worse[len(l.worse)-1], ""
		if end := l.at[len(l.at)-1]; end < large {
			at = " at " + number(end)
		}
		d.Text(right+28, l.label, fmt.Sprintf("%s ×%s%s", l.name, number(round2(last)), at), svg.Size(14), svg.Fill(svg.Ink))
	}
	return d
}

// round2 keeps two digits that count.
func round2(v float64) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(v))-1)
	return math.Round(v/unit) * unit
}

// ticks are powers of ten between two values, or of two where those are few.
func ticks(low, high float64) (all []float64) {
	base := 10.0
	if high/low < 100 {
		base = 2
	}
	for e := math.Ceil(math.Log(low) / math.Log(base)); math.Pow(base, e) <= high*1.0001; e++ {
		all = append(all, math.Pow(base, e))
	}
	return all
}

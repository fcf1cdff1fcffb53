package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/leasegen/leasegen/internal/must"
	"github.com/leasegen/leasegen/internal/svg"
	"github.com/leasegen/leasegen/proof/failover/trials"
)

// shownFault is a fault, in the order of the picture.
type shownFault struct{ name, title string }

func shownFaults() []shownFault {
	return []shownFault{{"SIGTERM", "handed over (SIGTERM)"}, {"SIGKILL", "killed (SIGKILL)"}, {"SIGSTOP", "frozen (SIGSTOP)"}}
}

func drawFailover(lines []trials.Line) *svg.Drawing {
	const (
		width, height   = 640.0, 452.0
		left, right     = 124.0, 624.0
		top, row, group = 92.0, 38.0, 104.0
		bottom          = top + 3*group - 8
		from, to        = 0.0, 3.6 // powers of ten, of milliseconds
	)
	lines = slices.DeleteFunc(slices.Clone(lines), func(l trials.Line) bool { return l.Per != "topic" })
	if len(lines) == 0 {
		must.Do(errors.New("no trials of per=topic; make pictures records them"))
	}
	x := func(ms float64) float64 { return left + (math.Log10(max(ms, 1))-from)/(to-from)*(right-left) }
	var said []string
	for _, l := range lines {
		said = append(said, fmt.Sprintf("%s on %s: median %s, slowest %s", l.Fault, l.On, millis(median(l.Took)), millis(l.Took[len(l.Took)-1])))
	}
	d := svg.New(width, height, "How long is a topic without an owner?", strings.Join(said, "; ")+".")
	d.Text(16, 30, "How long is a topic without an owner?", svg.Size(20), svg.Bold, svg.Fill(svg.Ink))
	d.Text(16, 54, fmt.Sprintf("each dot is one of %d trials, each line a median", len(lines[0].Took)), svg.Fill(svg.Muted))
	for p, label := range []string{"1 ms", "10 ms", "0.1 s", "1 s"} {
		at := x(math.Pow(10, float64(p)))
		for i := range shownFaults() {
			y := top + float64(i)*group
			d.Line(at, y+14, at, y+group-16, svg.Stroke(svg.Grid, 1))
		}
		d.Text(at, bottom+22, label, svg.Middle, svg.Fill(svg.Muted))
	}
	ttl := lines[0].TTL
	d.Line(x(ttl), top-14, x(ttl), bottom, svg.Stroke(svg.Muted, 1.5), svg.Dashed())
	d.Text(x(ttl), top-20, "TTL "+seconds(ttl), svg.Middle, svg.Fill(svg.Muted))
	for i, f := range shownFaults() {
		y := top + float64(i)*group
		d.Text(16, y+8, f.title, svg.Bold, svg.Fill(svg.Ink))
		for j, on := range []struct {
			id, name string
			color    svg.Color
		}{{"postgres", "PostgreSQL", svg.Blue}, {"redis", "Redis", svg.Orange}} {
			y := y + 28 + float64(j)*row
			d.Text(left-10, y+6, on.name, svg.End, svg.Fill(on.color))
			for _, l := range lines {
				if l.On == on.id && l.Fault == f.name {
					strip(d, x, x(ttl), y, l.Took, on.color)
				}
			}
		}
	}
	d.Text(16, height-14, "from the fault, or the old owner's last effect, to the new owner's first", svg.Fill(svg.Muted))
	return d
}

// strip draws a dot for each trial, spread a little so that they can be told apart, and their median. Its label is before
// the dots if there is no room up to free.
func strip(d *svg.Drawing, x func(float64) float64, free, y float64, took []float64, color svg.Color) {
	for i, ms := range took {
		d.Circle(x(ms), y+float64(i*7%15-7), 3.5, svg.Fill(color), svg.Faint(0.6))
	}
	mid := median(took)
	d.Line(x(mid), y-13, x(mid), y+13, svg.Stroke(svg.Ink, 2.5))
	label := millis(mid)
	if mid >= 1000 {
		label = seconds(mid)
	}
	if after := x(took[len(took)-1]) + 12; after+75 < free {
		d.Text(after, y+6, label, svg.Bold, svg.Fill(svg.Ink))
		return
	}
	d.Text(x(took[0])-12, y+6, label, svg.End, svg.Bold, svg.Fill(svg.Ink))
}

// median is that of sorted values.
func median(sorted []float64) float64 { return sorted[(len(sorted)-1)/2] }

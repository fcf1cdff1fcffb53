package report

import (
	"math"
	"strings"

	"github.com/leasegen/leasegen/internal/svg"
)

// bar is one line of a chart: a dot at the median, a line from the least to the most.
type bar struct {
	name   string
	value  Spread
	text   string
	accent bool // leasegen
}

// chart draws bars on a logarithmic scale: contenders differ by powers of ten.
func chart(title, axis string, bars []bar) *svg.Drawing {
	const (
		width, left, right   = 640.0, 32.0, 548.0
		top, row, foot       = 56.0, 46.0, 56.0
		underName, lineInRow = 20.0, 32.0
	)
	low, high := math.Inf(1), math.Inf(-1)
	for _, b := range bars {
		if b.value.Least > 0 {
			low, high = min(low, b.value.Least), max(high, b.value.Most)
		}
	}
	if math.IsInf(low, 0) {
		return nil
	}
	from, to := math.Floor(math.Log10(low)), math.Ceil(math.Log10(high))
	if from == to {
		to++
	}
	x := func(v float64) float64 { return left + (math.Log10(v)-from)/(to-from)*(right-left) }
	bottom := top + float64(len(bars))*row
	d := svg.New(width, bottom+foot, title, summary(bars)+".")
	d.Text(16, 30, title, svg.Size(20), svg.Bold, svg.Fill(svg.Ink))
	for e := from; e <= to; e++ {
		v := math.Pow(10, e)
		d.Line(x(v), top, x(v), bottom, svg.Stroke(svg.Grid, 1))
		d.Text(x(v), bottom+18, number(v), svg.Middle, svg.Size(14), svg.Fill(svg.Muted))
	}
	d.Text((left+right)/2, bottom+42, axis, svg.Middle, svg.Fill(svg.Muted))
	for i, b := range bars {
		y, color, weight := top+float64(i)*row, svg.Muted, []svg.Attr(nil)
		if b.accent {
			color, weight = svg.Blue, []svg.Attr{svg.Bold}
		}
		d.Text(16, y+underName, b.name, append(weight, svg.Fill(svg.Ink))...)
		d.Text(width-16, y+lineInRow+6, b.text, append(weight, svg.End, svg.Fill(svg.Ink))...)
		if b.value.Least > 0 {
			d.Line(x(b.value.Least), y+lineInRow, x(b.value.Most), y+lineInRow, svg.Stroke(color, 3))
			d.Circle(x(b.value.Median), y+lineInRow, 6, svg.Fill(color))
		}
	}
	return d
}

// summary says a chart in words, for readers that do not see it.
func summary(bars []bar) string {
	var s []string
	for _, b := range bars {
		s = append(s, b.name+" "+b.text)
	}
	return strings.Join(s, ", ")
}

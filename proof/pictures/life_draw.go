package main

import (
	"fmt"
	"strings"

	"github.com/leasegen/leasegen/internal/svg"
)

func drawLife(l life) *svg.Drawing {
	const (
		width, height = 640.0, 468.0
		wide, tall    = 110.0, 44.0
		first, second = 62.0, 208.0 // rows of boxes
	)
	at := func(spots []spot, what string) float64 {
		for _, s := range spots {
			if s.What == what {
				return s.At
			}
		}
		return 0
	}
	good := func(from, to string) string { return millis(at(l.Good, to) - at(l.Good, from)) }
	var waits, said []string
	for i, s := range l.Bad {
		said = append(said, s.What+" at "+millis(s.At))
		if s.What == retried && l.Bad[i-1].What == parked {
			waits = append(waits, millis(s.At-l.Bad[i-1].At))
		}
	}
	d := svg.New(width, height, "The life of a message", fmt.Sprintf(
		"A message is published, fetched, handled and committed in %s. One that fails is parked and tried again; "+
			"after %d attempts it is a dead letter, until an operator replays it. One that failed: %s.",
		good(published, committed), l.Max, strings.Join(said, ", ")))
	d.Text(16, 30, "The life of a message", svg.Size(20), svg.Bold, svg.Fill(svg.Ink))
	box := func(x, y float64, text string, color svg.Color) {
		d.Rect(x, y, wide, tall, svg.Fill(svg.Paper), svg.Stroke(color, 2), svg.Round(6))
		d.Text(x+wide/2, y+28, text, svg.Middle, svg.Bold, svg.Size(15), svg.Fill(color))
	}
	x := [...]float64{16, 182, 348, 514}
	mid := first + tall/2
	for i, what := range []string{published, fetched, handled, committed} {
		box(x[i], first, what, []svg.Color{svg.Ink, svg.Ink, svg.Blue, svg.Green}[i])
	}
	for i, took := range []string{good(published, fetched), good(fetched, handled), good(handled, committed)} {
		d.Arrow(fmt.Sprintf("M%s %sH%s", svg.Num(x[i]+wide+3), svg.Num(mid), svg.Num(x[i+1]-9)), x[i+1]-3, mid, 1, 0, svg.Muted)
		d.Text((x[i]+wide+x[i+1])/2, mid-9, took, svg.Middle, svg.Size(14), svg.Fill(svg.Ink))
	}
	box(x[2], second, parked, svg.Orange)
	box(x[3], second, dead, svg.Red)
	under := first + tall
	d.Arrow(fmt.Sprintf("M366 %sV%s", svg.Num(under+3), svg.Num(second-9)), 366, second-3, 0, 1, svg.Orange)
	d.Arrow(fmt.Sprintf("M398 %sV%s", svg.Num(second-3), svg.Num(under+9)), 398, under+3, 0, -1, svg.Muted)
	d.Arrow(fmt.Sprintf("M438 %sV%sH567V%s", svg.Num(under+3), svg.Num(under+50), svg.Num(second-9)), 567, second-3, 0, 1, svg.Red)
	d.Arrow(fmt.Sprintf("M511 %sH467", svg.Num(second+tall/2)), 461, second+tall/2, -1, 0, svg.Muted)
	d.Text(352, under+42, "fails: set aside,", svg.End, svg.Fill(svg.Ink))
	d.Text(352, under+62, "its key waits, other keys go on;", svg.End, svg.Fill(svg.Ink))
	d.Text(352, under+82, "tried again after "+strings.Join(waits, ", "), svg.End, svg.Fill(svg.Ink))
	d.Text(446, under+42, fmt.Sprintf("fails %d times", l.Max), svg.Fill(svg.Ink))
	d.Text(485, second+tall+20, "replayed by an operator", svg.Middle, svg.Fill(svg.Ink))
	drawPast(d, l.Bad)
	return d
}

// drawPast draws what a message was over time.
func drawPast(d *svg.Drawing, spots []spot) {
	const (
		left, right = 16.0, 600.0
		y, tall     = 350.0, 36.0
	)
	d.Text(16, y-40, "One that failed, from when it was published", svg.Bold, svg.Fill(svg.Ink))
	end := spots[len(spots)-1].At
	x := func(ms float64) float64 { return left + 8 + ms/end*(right-left-8) }
	d.Rect(left, y, right-left, tall, svg.Fill(svg.Shade), svg.Round(4))
	for i, s := range spots {
		until := end
		if i+1 < len(spots) {
			until = spots[i+1].At
		}
		switch s.What {
		case parked, dead:
			color := svg.Orange
			if s.What == dead {
				color = svg.Red
			}
			d.Rect(x(s.At), y, x(until)-x(s.At), tall, svg.Fill(color), svg.Round(4))
			if wide := x(until) - x(s.At); wide > 60 {
				d.Text(x(s.At)+wide/2, y+24, s.What, svg.Middle, svg.Bold, svg.Fill(svg.OnHue))
			}
		case failed:
			d.Path(fmt.Sprintf("M%s %sl10 10m0 -10l-10 10", svg.Num(x(s.At)-5), svg.Num(y-17)), svg.Stroke(svg.Red, 3))
			d.Text(max(x(s.At), left+24), y+tall+20, millis(s.At), svg.Middle, svg.Size(14), svg.Fill(svg.Muted))
		case handled:
			d.Path(fmt.Sprintf("M%s %sl4 5l8 -11", svg.Num(x(s.At)-6), svg.Num(y-12)), svg.Fill(svg.None), svg.Stroke(svg.Green, 3))
			d.Text(x(s.At), y+tall+20, seconds(s.At), svg.Middle, svg.Size(14), svg.Fill(svg.Muted))
		}
	}
	d.Text(16, y+tall+56, "✕ an attempt fails", svg.Fill(svg.Red))
	d.Text(190, y+tall+56, "✓ handled and committed after the replay", svg.Fill(svg.Green))
}

package leaseweb

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/leasegen/leasegen/runtime/operate"
)

// chartWidth and chartHeight are of charts, in units of their own: they are stretched to the page.
const (
	chartWidth  = 900
	chartHeight = 100
	steps       = 90 // of a curve
)

// frameOf is the time that a chart shows: as much as is needed for what was seen since a moment.
func frameOf(now, since time.Time) time.Duration {
	for _, span := range []time.Duration{2 * time.Minute, 5 * time.Minute} {
		if now.Sub(since) <= span {
			return span
		}
	}
	return kept
}

// across is where a moment lies in a chart.
func across(now, at time.Time, span time.Duration) int {
	return max(0, chartWidth-int(now.Sub(at)*time.Duration(chartWidth)/span))
}

// curve is a curve over the time that a chart shows.
type curve struct {
	Line string // of a polyline, one or more with gaps between
	Area string
	Max  int64
	Dot  bool // there is one look only
}

// lagChart draws unread messages. Of several looks within a step the highest counts.
func lagChart(samples []sample, now time.Time, span time.Duration) (c curve) {
	type point struct {
		x    int
		lag  int64
		gone bool // a gap lies before it
	}
	var points []point
	var before time.Time
	for _, s := range samples {
		if now.Sub(s.at) > span {
			continue
		}
		x := across(now, s.at, span) / (chartWidth / steps) * (chartWidth / steps)
		c.Max = max(c.Max, s.lag)
		broken := len(points) == 0 || s.at.Sub(before) > gap+span/steps
		before = s.at
		if n := len(points); n > 0 && points[n-1].x == x {
			points[n-1].lag = max(points[n-1].lag, s.lag)
			continue
		}
		points = append(points, point{x, s.lag, broken})
	}
	c.Dot = len(points) == 1
	var line, area strings.Builder
	for i, p := range points {
		y := chartHeight - int(p.lag*int64(chartHeight-4)/max(c.Max, 1)) - 1
		if p.gone {
			fmt.Fprintf(&line, "M%d %d", p.x, y)
			fmt.Fprintf(&area, "M%d %dV%d", p.x, chartHeight, y)
		} else {
			fmt.Fprintf(&line, "L%d %d", p.x, y)
			fmt.Fprintf(&area, "L%d %d", p.x, y)
		}
		if i == len(points)-1 || points[i+1].gone {
			fmt.Fprintf(&line, "h%d", 1)
			fmt.Fprintf(&area, "V%dZ", chartHeight)
		}
	}
	c.Line, c.Area = line.String(), area.String()
	return c
}

// bar is the share of one member, in hundredths of the largest.
type bar struct{ Owned, Fair string }

func barOf(m operate.MemberStatus, most int) bar {
	return bar{percent(m.Owned, most), percent(m.FairShare, most)}
}

func percent(n, of int) string { return strconv.Itoa(n*100/max(of, 1)) + "%" }

// sharing is who owned how much over the time that a chart shows: a band for each process, one upon another.
type sharing struct {
	Bands []band
	Looks int
}

// band is what one process owned.
type band struct {
	Colour int
	Name   string
	Path   string
}

func sharesChart(h *history, now time.Time, span time.Duration) sharing {
	c := sharing{Looks: len(h.shares)}
	if len(h.shares) == 0 {
		return c
	}
	// The order in which they came, so that a band stays where it is.
	var order []string
	total := 1
	for _, s := range h.shares {
		sum := 0
		for _, o := range s.owned {
			if sum += o.n; o.n > 0 && !slices.Contains(order, o.session) {
				order = append(order, o.session)
			}
		}
		total = max(total, s.total, sum)
	}
	paths := make([]strings.Builder, len(order))
	type bounds struct{ low, high int }
	at := func(s shares) []bounds {
		edges, sum := make([]bounds, len(order)), 0
		for i, session := range order {
			n := 0
			for _, o := range s.owned {
				if o.session == session {
					n = o.n
				}
			}
			edges[i] = bounds{chartHeight - (sum+n)*chartHeight/total, chartHeight - sum*chartHeight/total}
			sum += n
		}
		return edges
	}
	// Looks with equal shares are one rectangle of each band.
	for i := 0; i < len(h.shares); {
		edges := at(h.shares[i])
		j := i + 1
		for j < len(h.shares) && h.shares[j].at.Sub(h.shares[j-1].at) <= gap && slices.Equal(edges, at(h.shares[j])) {
			j++
		}
		from, to := across(now, h.shares[i].at, span), across(now, h.shares[j-1].at, span)+1
		if j < len(h.shares) && h.shares[j].at.Sub(h.shares[j-1].at) <= gap {
			to = across(now, h.shares[j].at, span)
		} else if j == len(h.shares) {
			to = chartWidth
		}
		for k, e := range edges {
			if e.high > e.low {
				fmt.Fprintf(&paths[k], "M%d %dH%dV%dH%dZ", from, e.low, to, e.high, from)
			}
		}
		i = j
	}
	for k, session := range order {
		c.Bands = append(c.Bands, band{h.colours[session], h.owner(session), paths[k].String()})
	}
	return c
}

// square is one resource of the picture.
type square struct {
	Class string
	Title string
}

// justNow is how long a lease is shown as one that has changed hands.
const justNow = 20 * time.Second

// mapOf draws a cell for each lease, in the order of their names.
func mapOf(h *history, leases []operate.LeaseStatus) []square {
	leases = slices.Clone(leases)
	slices.SortFunc(leases, func(a, b operate.LeaseStatus) int {
		return cmp.Or(cmp.Compare(number(a.Resource), number(b.Resource)), cmp.Compare(a.Resource, b.Resource))
	})
	cells := make([]square, len(leases))
	for i, l := range leases {
		class, owner := "none", "no owner"
		if l.Session != "" {
			class, owner = "o"+strconv.Itoa(h.colours[l.Session]), h.owner(l.Session)
		}
		if l.Session != "" && l.Since < justNow {
			class, owner = class+" new", owner+" for "+age(l.Since)
		}
		if l.Lag > 0 {
			class, owner = class+" lag", fmt.Sprintf("%s, %s behind", owner, plural(l.Lag, "message"))
		}
		cells[i] = square{class, l.Resource + ": " + owner}
	}
	return cells
}

// number is that of a slot; names that are none come first, all alike.
func number(resource string) int {
	n, err := strconv.Atoi(resource)
	if err != nil {
		return -1
	}
	return n
}

package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/leasegen/leasegen/internal/must"
	"github.com/leasegen/leasegen/internal/svg"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

// rebalance is who owned each slot when, in milliseconds.
type rebalance struct {
	Replicas []string  `json:"replicas"`
	Slots    [][]owned `json:"slots"` // of each slot, in the order of time
	Steps    []step    `json:"steps"`
	End      float64   `json:"end"`
}

type owned struct {
	By   int     `json:"by"` // index in Replicas
	From float64 `json:"from"`
	To   float64 `json:"to"`
}

// step is what was done to the fleet, and how the slots were shared out after it.
type step struct {
	What  string  `json:"what"`
	At    float64 `json:"at"`
	Moved int     `json:"moved"`
	Each  []int   `json:"each"` // slots, in the order of Replicas
}

func recordRebalance(ctx context.Context, q quality) (r rebalance, err error) {
	defer must.Catch(&err)
	s := newSite(ctx, leasepg.WithSlots(q.slots))
	defer s.closing(&err)
	s.publish(ctx, "orders", 5*time.Millisecond)
	r.Replicas = []string{"A", "B", "C", "D"}
	live := map[string]bool{}
	var began time.Time
	ends := map[string]time.Time{} // of replicas that were killed or have left
	act := func(what, name string, lives bool, do func()) {
		at := time.Now()
		do()
		live[name] = lives
		if began.IsZero() {
			began = s.first(ctx, "the first acquires", func(e event) bool { return e.what == "acquired" }).at
			at = began
		}
		s.shared(ctx, q.slots, live)
		s.heard(ctx)
		r.Steps = append(r.Steps, step{What: what, At: since(began, at)})
		time.Sleep(q.pause)
	}
	for _, name := range r.Replicas {
		act(name+" joins", name, true, func() { s.add("rebalance", name) })
	}
	act("B is killed", "B", false, func() {
		ends["B"] = time.Now()
		must.Do(s.replicas["B"].Signal(syscall.SIGKILL))
	})
	act("A leaves", "A", false, func() { must.Do(s.replicas["A"].Signal(syscall.SIGTERM)) })
	must.Do(s.replicas["A"].Left())
	end := time.Now()
	r.End = since(began, end)
	told := s.events()
	for _, e := range told {
		if e.what == "closing" {
			ends[e.by] = e.at
		}
	}
	r.fill(told, began, end, ends)
	if len(r.Slots) != q.slots {
		return r, fmt.Errorf("%d slots were owned, want %d", len(r.Slots), q.slots)
	}
	return r, nil
}

// shared waits until the slots are shared out evenly over the replicas that live.
func (s *site) shared(ctx context.Context, slots int, live map[string]bool) {
	want := 0
	for _, lives := range live {
		if lives {
			want++
		}
	}
	until(ctx, fmt.Sprintf("%d replicas share the slots", want), func() bool {
		var owners, least, most, all int
		must.Do(s.pool.QueryRow(ctx, `SELECT count(*), coalesce(min(n), 0), coalesce(max(n), 0), coalesce(sum(n), 0)
			FROM (SELECT count(*) AS n FROM leasegen.lease WHERE session IS NOT NULL GROUP BY session) o`).Scan(&owners, &least, &most, &all))
		return owners == want && all == slots && most-least <= 1
	})
}

// fill makes of the reports a record of owners over time, and counts what the steps have moved.
func (r *rebalance) fill(told []event, began, end time.Time, ends map[string]time.Time) {
	slots := map[int][]owned{}
	for _, e := range told {
		slot, err := strconv.Atoi(e.resource)
		if err != nil || e.what != "acquired" {
			continue
		}
		o := owned{By: slices.Index(r.Replicas, e.by), From: since(began, e.at), To: since(began, end)}
		if at, ok := ends[e.by]; ok {
			o.To = since(began, at)
		}
		for _, until := range told {
			if until.by == e.by && until.resource == e.resource && until.epoch == e.epoch && (until.what == "released" || until.what == "lost") {
				o.To = min(o.To, since(began, until.at))
			}
		}
		slots[slot] = append(slots[slot], o)
	}
	for _, of := range slots {
		slices.SortFunc(of, func(a, b owned) int { return cmp.Compare(a.From, b.From) })
		r.Slots = append(r.Slots, of)
	}
	// Slots with one past are side by side.
	slices.SortFunc(r.Slots, func(a, b []owned) int {
		for i := range r.Steps {
			if c := cmp.Compare(owner(a, r.until(i)), owner(b, r.until(i))); c != 0 {
				return c
			}
		}
		return cmp.Compare(a[len(a)-1].From, b[len(b)-1].From)
	})
	for i := range r.Steps {
		st := &r.Steps[i]
		st.Each = make([]int, len(r.Replicas))
		for _, of := range r.Slots {
			st.Each[owner(of, r.until(i))]++
			for _, o := range of {
				if o.From >= st.At && o.From < r.until(i) {
					st.Moved++
				}
			}
		}
	}
}

// until is when a step was over.
func (r *rebalance) until(i int) float64 {
	if i+1 < len(r.Steps) {
		return r.Steps[i+1].At
	}
	return r.End
}

// owner is the last owner of a slot before a moment.
func owner(of []owned, at float64) (by int) {
	for _, o := range of {
		if o.From < at {
			by = o.By
		}
	}
	return by
}

// rests are how long slots were without an owner on their way, sorted.
func (r *rebalance) rests() (rests []float64) {
	for _, of := range r.Slots {
		for i := 1; i < len(of); i++ {
			rests = append(rests, of[i].From-of[i-1].To)
		}
	}
	slices.Sort(rests)
	return rests
}

func drawRebalance(r rebalance) *svg.Drawing {
	const (
		width, height = 640.0, 470.0
		left, right   = 16.0, 624.0
		top, bottom   = 112.0, 416.0
	)
	rests := r.rests()
	rested := fmt.Sprintf("%s at the median, %s at most", millis(rests[len(rests)/2]), millis(rests[len(rests)-1]))
	var said []string
	for _, st := range r.Steps {
		said = append(said, fmt.Sprintf("%s: %d slots move, and A, B, C and D have %v", st.What, st.Moved, st.Each))
	}
	d := svg.New(width, height, fmt.Sprintf("%d slots move as replicas come and go", len(r.Slots)),
		fmt.Sprintf("Each row is a slot, each colour a replica. %s. A slot was without an owner for %s.",
			strings.Join(said, "; "), rested))
	d.Text(16, 30, fmt.Sprintf("%d slots, shared out as replicas come and go", len(r.Slots)), svg.Size(20), svg.Bold, svg.Fill(svg.Ink))
	d.Text(16, 54, "each row is a slot, each colour the replica that owns it", svg.Fill(svg.Muted))
	x := func(ms float64) float64 { return left + ms/r.End*(right-left) }
	high := (bottom - top) / float64(len(r.Slots))
	colors := []svg.Color{svg.Blue, svg.Orange, svg.Green, svg.Purple}
	d.Rect(left, top, right-left, bottom-top, svg.Fill(svg.Shade))
	paths := make([]strings.Builder, len(r.Replicas))
	for i, of := range r.Slots {
		for _, o := range of {
			fmt.Fprintf(&paths[o.By], "M%s %.2fh%sv%.2fh-%[3]sz", svg.Num(x(o.From)), top+float64(i)*high, svg.Num(x(o.To)-x(o.From)), high)
		}
	}
	for i := range paths {
		d.Path(paths[i].String(), svg.Fill(colors[i]))
	}
	for i, st := range r.Steps {
		next, moved := r.until(i), fmt.Sprintf("%d move", st.Moved)
		if i == 0 {
			moved = fmt.Sprintf("takes %d", st.Moved)
		}
		d.Line(x(st.At), top-42, x(st.At), bottom, svg.Stroke(svg.Ink, 1))
		d.Text(x(st.At)+5, top-28, st.What, svg.Bold, svg.Fill(svg.Ink))
		d.Text(x(st.At)+5, top-9, moved, svg.Fill(svg.Muted))
		for by, n := range st.Each {
			if at, ok := r.largest(by, (st.At+next*2)/3); ok {
				d.Text((x(st.At)+x(next))/2, top+at*high+6, fmt.Sprintf("%s %d", r.Replicas[by], n), svg.Middle, svg.Bold, svg.Fill(svg.OnHue))
			}
		}
	}
	for ms := 0.0; x(ms) < right-24; ms += 2000 {
		d.Text(x(ms), bottom+20, fmt.Sprintf("%.0f s", ms/1000), svg.Fill(svg.Muted))
	}
	d.Text(right, bottom+42, "without an owner: "+rested, svg.End, svg.Fill(svg.Muted))
	return d
}

// largest is the middle, in rows, of the most slots side by side that a replica owns at a time.
func (r *rebalance) largest(by int, at float64) (middle float64, ok bool) {
	from, best := -1, 0
	for i := 0; i <= len(r.Slots); i++ {
		mine := i < len(r.Slots) && slices.ContainsFunc(r.Slots[i], func(o owned) bool { return o.By == by && o.From <= at && at < o.To })
		switch {
		case mine && from < 0:
			from = i
		case !mine && from >= 0:
			if i-from > best {
				best, middle = i-from, float64(from+i)/2
			}
			from = -1
		}
	}
	return middle, best > 0
}

func millis(ms float64) string {
	switch {
	case ms >= 10:
		return fmt.Sprintf("%.0f ms", ms)
	case ms >= 0.1:
		return fmt.Sprintf("%.1f ms", ms)
	}
	return fmt.Sprintf("%.0f µs", 1000*ms)
}

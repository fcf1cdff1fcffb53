package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/leasegen/leasegen/internal/must"
	"github.com/leasegen/leasegen/internal/svg"
)

// fence is a replica that was frozen just before it stored its progress, in milliseconds from then on.
type fence struct {
	TTL     float64      `json:"ttl"`
	Begin   float64      `json:"begin"` // of the recording
	End     float64      `json:"end"`
	Epochs  [2]int64     `json:"epochs"`  // of the frozen replica and of the next
	Taken   float64      `json:"taken"`   // by the next
	Thawed  float64      `json:"thawed"`  // the frozen one goes on
	Refused float64      `json:"refused"` // its commit is
	Commits [2][]float64 `json:"commits"` // that were stored
}

// errTooLate says that the replica stored its progress before it froze, or, without a fence, after it had lost its lease.
var errTooLate = errors.New("the commit that should have been caught was stored")

// recordFence tries three times: on a busy machine a replica may freeze too late.
func recordFence(ctx context.Context, q quality) (f fence, err error) {
	for range 3 {
		if f, err = freeze(ctx, q); !errors.Is(err, errTooLate) {
			break
		}
	}
	return f, err
}

func freeze(ctx context.Context, q quality) (f fence, err error) {
	defer must.Catch(&err)
	s := newSite(ctx)
	defer s.closing(&err)
	s.publish(ctx, "orders", 120*time.Millisecond)
	a := s.add("fence", "a", envFreezes+"=yes")
	s.first(ctx, "a is at work", func(e event) bool { return e.by == "a" && e.what == "committed" })
	s.add("fence", "b")
	s.first(ctx, "b stands by", func(e event) bool { return e.by == "b" && e.what == "session" })
	time.Sleep(q.pause) // some commits are seen
	began := time.Now()
	caught := s.first(ctx, "a is about to commit", func(e event) bool {
		return e.by == "a" && e.what == "committing" && e.at.After(began)
	})
	must.Do(a.Signal(syscall.SIGSTOP))
	frozen := time.Now()
	next := s.first(ctx, "b takes over", func(e event) bool { return e.by == "b" && e.what == "acquired" && e.epoch > caught.epoch })
	s.first(ctx, "b goes on", func(e event) bool { return e.by == "b" && e.what == "committed" && e.epoch == next.epoch })
	time.Sleep(q.pause / 2)
	thawed := time.Now()
	must.Do(a.Signal(syscall.SIGCONT))
	late := s.first(ctx, "a's commit is answered", func(e event) bool {
		return e.by == "a" && (e.what == "refused" || e.what == "committed") && e.at.After(caught.at)
	})
	if late.what == "committed" {
		return f, errTooLate
	}
	if late.epoch != caught.epoch || next.epoch <= caught.epoch {
		return f, fmt.Errorf("epoch %d was refused, %d caught and %d next", late.epoch, caught.epoch, next.epoch)
	}
	time.Sleep(q.pause / 2)
	f = fence{TTL: float64(ttl.Milliseconds()), Begin: -float64(q.pause.Milliseconds()) / 2, End: since(frozen, time.Now()),
		Epochs: [2]int64{caught.epoch, next.epoch},
		Taken:  since(frozen, next.at), Thawed: since(frozen, thawed), Refused: since(frozen, late.at)}
	for _, e := range s.events() {
		if at := since(frozen, e.at); e.what == "committed" && at >= f.Begin {
			i := map[string]int{"a": 0, "b": 1}[e.by]
			f.Commits[i] = append(f.Commits[i], at)
		}
	}
	return f, nil
}

func drawFence(f fence) *svg.Drawing {
	const (
		width, height        = 640.0, 372.0
		left, right          = 124.0, 624.0
		laneA, store, laneB  = 76.0, 158.0, 240.0
		tall, bottom, inLane = 48.0, 306.0, 24.0
	)
	d := svg.New(width, height, "A frozen replica is fenced", fmt.Sprintf(
		"Replica A holds the lease under epoch %d and freezes just before a commit. The TTL of %s passes without a heartbeat. "+
			"Replica B takes the lease over under epoch %d, %s after the freeze, and goes on. A goes on after %s; the store refuses its commit, because its epoch is old.",
		f.Epochs[0], seconds(f.TTL), f.Epochs[1], seconds(f.Taken), seconds(f.Thawed)))
	x := func(ms float64) float64 { return left + (ms-f.Begin)/(f.End-f.Begin)*(right-left) }
	d.Text(16, 30, "A frozen replica is fenced", svg.Size(20), svg.Bold, svg.Fill(svg.Ink))
	for ms := 0.0; ms <= f.End; ms += 1000 {
		d.Line(x(ms), laneA-8, x(ms), bottom, svg.Stroke(svg.Grid, 1))
		d.Text(x(ms), bottom+20, fmt.Sprintf("%.0f s", ms/1000), svg.Middle, svg.Fill(svg.Muted))
	}
	lane := func(y float64, first, second string) {
		d.Text(16, y+20, first, svg.Bold, svg.Fill(svg.Ink))
		d.Text(16, y+39, second, svg.Fill(svg.Muted))
	}
	lane(laneA, "replica A", "freezes")
	lane(store, "lease", "in the store")
	lane(laneB, "replica B", "stands by")

	d.Rect(x(0), laneA, x(f.Thawed)-x(0), tall, svg.Fill(svg.Shade), svg.Round(4))
	d.Text((x(0)+x(f.Thawed))/2, laneA+30, "frozen (SIGSTOP)", svg.Middle, svg.Fill(svg.Ink))
	band := func(from, to float64, color svg.Color, owner, epoch string) {
		d.Rect(x(from), store, x(to)-x(from), tall, svg.Fill(color), svg.Round(4))
		d.Text((x(from)+x(to))/2, store+20, owner, svg.Middle, svg.Bold, svg.Fill(svg.OnHue))
		d.Text((x(from)+x(to))/2, store+39, "epoch "+epoch, svg.Middle, svg.Fill(svg.OnHue))
	}
	epochs := tails(f.Epochs)
	band(f.Begin, f.Taken, svg.Blue, "A owns", epochs[0])
	band(f.Taken, f.End, svg.Orange, "B owns", epochs[1])
	for i, y := range []float64{laneA, laneB} {
		for _, at := range f.Commits[i] {
			d.Line(x(at), y+10, x(at), y+38, svg.Stroke([]svg.Color{svg.Blue, svg.Orange}[i], 3))
		}
	}
	d.Line(x(f.Taken), laneA+tall, x(f.Taken), laneB+tall, svg.Stroke(svg.Ink, 1.5), svg.Dashed())
	d.Text(x(f.Taken)-8, laneB+20, fmt.Sprintf("no heartbeat for %s, the TTL:", seconds(f.TTL)), svg.End, svg.Fill(svg.Ink))
	d.Text(x(f.Taken)-8, laneB+40, "B takes over", svg.End, svg.Bold, svg.Fill(svg.Ink))

	cross := x(f.Refused)
	d.Path(fmt.Sprintf("M%s %sl14 14m0 -14l-14 14", svg.Num(cross-7), svg.Num(laneA+inLane-7)), svg.Stroke(svg.Red, 4))
	d.Text(right, laneA-14, "A wakes: its commit has the old epoch and is refused", svg.End, svg.Bold, svg.Fill(svg.Red))
	d.Line(18, height-28, 18, height-10, svg.Stroke(svg.Blue, 3))
	d.Line(26, height-28, 26, height-10, svg.Stroke(svg.Orange, 3))
	d.Text(36, height-14, "a commit that was stored", svg.Fill(svg.Muted))
	d.Text(right, height-14, "time since the freeze", svg.End, svg.Fill(svg.Muted))
	return d
}

// tails are the ends of epochs from where they differ: the rest is the same for hours.
func tails(epochs [2]int64) (ends [2]string) {
	all := [2]string{fmt.Sprint(epochs[0]), fmt.Sprint(epochs[1])}
	same := 0
	for same < min(len(all[0]), len(all[1]))-1 && all[0][same] == all[1][same] {
		same++
	}
	return [2]string{"…" + all[0][same:], "…" + all[1][same:]}
}

func seconds(ms float64) string { return fmt.Sprintf("%.3g s", ms/1000) }

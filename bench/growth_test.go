package main

import (
	"strings"
	"testing"
	"time"

	"github.com/leasegen/leasegen/bench/report"
)

// A tiny system grows on PostgreSQL and has all figures, at each size.
func TestGrowth(t *testing.T) {
	z := growthSize{
		rounds: 1, base: scene{Topics: 3, Backlog: 60, Parked: 2, Dead: 2, Replicas: 2, Consumers: 1},
		window: 50 * time.Millisecond, calls: 20 * time.Millisecond, idle: 100 * time.Millisecond, probes: 2, patience: time.Minute,
	}
	var out strings.Builder
	r, err := measureGrowth(t.Context(), z, "parked", &out)
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if failed := r.Failures(); len(failed) > 0 {
		t.Fatalf("%s\n%s", strings.Join(failed, "\n"), out.String())
	}
	if len(r.Curves) != 1 || len(r.Curves[0].Points) != 3 {
		t.Fatalf("curves %+v, want one of 3 points", r.Curves)
	}
	for i, p := range r.Curves[0].Points {
		if want := []float64{2, 20, 200}[i]; p.Size != want {
			t.Errorf("point %d has the size %v, want %v", i, p.Size, want)
		}
		for _, f := range growthFigures() {
			if v := p.Samples[f.ID]; len(v) != 1 || v[0] < 0 {
				t.Errorf("%s at %v: %v, want one figure\n%s", f.ID, p.Size, v, out.String())
			}
		}
		if len(p.Statements) == 0 || p.Statements[0].Share <= 0 {
			t.Errorf("no statements at %v", p.Size)
		}
	}
}

// A size that has no room is reported, and not begun.
func TestGrowthWithoutRoom(t *testing.T) {
	for _, sc := range []scene{{Backlog: 1 << 50}, {Replicas: 1 << 30}} {
		var p report.Point
		var out strings.Builder
		(&growing{out: &out}).add(t.Context(), sc, &p)
		if !strings.HasPrefix(p.Words, "not measured: it takes") || p.Failed {
			t.Errorf("%+v: says %q, failed %v", sc, p.Words, p.Failed)
		}
	}
	for _, c := range fullGrowth().curves() {
		if c.scenes[0].Backlog > 100_000 {
			t.Errorf("%s begins with a backlog of %d", c.ID, c.scenes[0].Backlog)
		}
	}
}

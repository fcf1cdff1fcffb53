package report

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// growthFixture is a run in which one figure bends, one grows in proportion, and one does not notice.
func growthFixture() *Growth {
	point := func(size float64, drain, acquire, idle []float64, most ...Statement) Point {
		return Point{Size: size, Samples: map[string][]float64{"drain": drain, "acquire": acquire, "idle": idle}, Statements: most}
	}
	return &Growth{
		Tier: "quick", Rounds: 2, Took: "1m", Conditions: []Condition{{"machine", "2 cores"}},
		Figures: []Figure{{ID: "drain", Name: "drain", Unit: "msg/s", Rate: true}, {ID: "acquire", Name: "acquire", Unit: "ms"}, {ID: "idle", Name: "idle", Unit: "/s"}},
		Curves: []Curve{{ID: "topics", Title: "More topics", Of: "topics", Points: []Point{
			point(100, []float64{400_000, 500_000}, []float64{9, 11}, []float64{1, 1}, Statement{"Fetch", 10, 1, 0.9}),
			point(1000, []float64{300_000, 400_000}, []float64{95, 105}, []float64{1, 1.5}),
			point(10_000, []float64{40_000, 50_000}, []float64{1000, 1000}, []float64{0.9, 3}, Statement{"AcquireLeases", 20, 50, 0.6}, Statement{"Fetch", 90, 2, 0.3}),
			{Size: 100_000, Words: "not measured: no room"},
		}}},
	}
}

func TestGrowthPage(t *testing.T) {
	page, charts := growthFixture().Page()
	for _, want := range []string{
		"## More topics",
		"It bends: drain after 1,000 (10 times as slow at 10,000, in proportion); acquire after 100 (100 times as much at 10,000, in proportion).",
		"Within a factor of two, or of what rounds differ: idle.",
		"While leases were acquired and the backlog was drained with 10,000 topics, AcquireLeases took 60 % of the server's time in statements, in 20 calls of 50 ms; " +
			"with 100 it was not among the first three.\n",
		"| topics | 100 | 1,000 | 10,000 | 100,000 |",
		"| drain, msg/s | 450,000 (400,000–500,000) | 350,000 (300,000–400,000) | 45,000 (40,000–50,000) | not measured: no room |",
		"The quick tier, rounds: 2; 1m in all.",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	drawn := string(charts["topics.svg"])
	for _, want := range []string{"drain ×10<", "acquire ×100<", "10,000<", "×100<"} {
		if !strings.Contains(drawn, want) {
			t.Errorf("the chart lacks %q:\n%s", want, drawn)
		}
	}
	if strings.Contains(drawn, "100,000<") {
		t.Error("the chart has a size that was not measured")
	}
	if n := strings.Count(drawn, `r="4"`); n != 9 {
		t.Errorf("%d dots, want 9", n)
	}
	if t.Failed() {
		t.Log(page)
	}
}

// A figure that differs as much between rounds as between sizes has not bent.
func TestBendsBeyondNoise(t *testing.T) {
	f := Figure{ID: "p50"}
	curve := func(first, last []float64) *Curve {
		return &Curve{Points: []Point{{Size: 1, Samples: map[string][]float64{"p50": first}}, {Size: 10, Samples: map[string][]float64{"p50": last}}}}
	}
	for _, c := range []struct {
		name        string
		first, last []float64
		want        bool
	}{
		{"twice as much", []float64{1, 1.2}, []float64{2.2, 3}, true},
		{"noise", []float64{1, 5}, []float64{4, 9}, false},
		{"less than twice", []float64{1, 1}, []float64{1.9, 1.9}, false},
		{"one round as before", []float64{2, 2}, []float64{2, 9}, false},
		{"half", []float64{4, 4}, []float64{1, 1}, false},
	} {
		if _, got := curve(c.first, c.last).bends(f); got != c.want {
			t.Errorf("%s: bends %v, want %v", c.name, got, c.want)
		}
	}
	c := curve([]float64{1}, []float64{9})
	c.Points = append(c.Points, Point{Size: 100, Samples: map[string][]float64{"p50": {1.5}}})
	if _, got := c.bends(f); got {
		t.Error("what is good again at a larger size has bent")
	}
	if got := curve([]float64{4, 4}, []float64{1, 1}).Where([]Figure{{ID: "p50", Name: "latency"}}); got != "Less time or cost: latency (0.25 of it at 10)." {
		t.Errorf("what gets better is said as %q", got)
	}
}

func TestRawGrowthMakesTheSamePage(t *testing.T) {
	dir := t.TempDir()
	g := growthFixture()
	if err := g.Save(filepath.Join(dir, "growth.json")); err != nil {
		t.Fatal(err)
	}
	again, err := LoadGrowth(filepath.Join(dir, "growth.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Write(dir); err != nil {
		t.Fatal(err)
	}
	want, _ := g.Page()
	if got, err := os.ReadFile(filepath.Join(dir, "growth.md")); err != nil || string(got) != want {
		t.Errorf("the page of the raw results differs (%v)", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "images", "growth", "topics-dark.svg")); err != nil {
		t.Error(err)
	}
}

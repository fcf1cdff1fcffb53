package report

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fixture is a run of two workloads with figures that divide well.
func fixture() *Report {
	rates := func(v ...float64) map[string][]float64 { return map[string][]float64{"rate": v} }
	return &Report{
		Tier: "quick", Rounds: 3, Took: "1m", Conditions: []Condition{{"machine", "2 cores <of> some & \"kind\""}},
		Contenders: []Contender{
			{ID: Ours, Name: "leasegen", Backend: "PostgreSQL", Ours: true, Settings: "batches", Keeps: "order"},
			{ID: Bare, Name: "bare <loop>", Backend: "PostgreSQL", Limit: true},
			{ID: River, Name: "River", Backend: "PostgreSQL"},
			{ID: OursRedis, Name: "leasegen on Redis", Backend: "Redis", Ours: true},
			{ID: BareRedis, Name: "bare XRANGE loop", Backend: "Redis", Limit: true},
			{ID: JetStream, Name: "JetStream", Backend: "JetStream"},
		},
		Workloads: []Workload{
			{ID: "drain-1", Title: "How fast is a backlog drained?", What: "A backlog.", Metrics: []Metric{{"rate", "messages", "msg/s", true}}, Cells: []Cell{
				{Contender: Ours, Samples: rates(900_000, 800_000, 700_000)},
				{Contender: Bare, Samples: rates(1_000_000, 1_000_000, 2_000_000)},
				{Contender: River, Samples: rates(10_000, 20_000, 70_000)},
				{Contender: OursRedis, Samples: rates(400_000, 500_000, 600_000)},
				{Contender: BareRedis, Samples: rates(1_000_000, 1_000_000, 1_000_000)},
				{Contender: JetStream, Samples: rates(100_000, 200_000, 300_000)},
			}},
			{ID: "crash", Title: "When is it worked on again?", What: "A crash.", Metrics: []Metric{{"gap", "p50", "ms", false}}, Cells: []Cell{
				{Contender: Ours, Samples: map[string][]float64{"gap": {2, 9, 3, 4}}},
				{Contender: Bare, Words: "no second process takes over"},
				{Contender: River, Words: "failed: no such thing", Failed: true},
				{Contender: JetStream, Samples: map[string][]float64{"gap": {900, 1000, 2000}}},
			}},
		},
	}
}

func TestPage(t *testing.T) {
	page, charts := fixture().Page()
	for _, want := range []string{
		"| ordered drain of 1 topic, beside the bare loop | ≥ 0.8 | 0.8 (0.35–0.9) |  | met |",
		"| ordered drain, beside River at its best | ≥ 20 | 40 (10–90) |  | met |",
		"| Redis: ordered drain beside a bare XRANGE loop | ≥ 0.6 | 0.5 (0.4–0.6) |  | not met: goroutines read ahead",
		"| ordered drain, beside JetStream's work-queue consumer at its best | ≥ 3 | 4 (2.33–9) |  | met |",
		"| contender | messages, of the bare loop's | |",
		"| River | 0.02 (0.01–0.035) |  |",
		"| JetStream | 0.2 (0.1–0.2) |  |", // beside PostgreSQL's bare loop: it has none of its own
		"| leasegen | 3.5 (2–9) |  |",
		"| bare <loop> |  | no second process takes over |",
		"| leasegen | PostgreSQL | batches | order |",
		"The quick tier, 3 rounds, 1m in all.",
		`srcset="images/bench/drain-1-dark.svg"><img src="images/bench/drain-1.svg" alt="How fast is a backlog drained?">`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(page, "10,000 topics, beside") {
		t.Error("a goal without figures is on the page")
	}
	// A rate alone does not travel.
	if strings.Contains(page, "800,000") {
		t.Error("an absolute rate is shown")
	}
	if len(charts) != 4 {
		t.Errorf("%d files of charts, want 2 in 2 themes", len(charts))
	}
	if t.Failed() {
		t.Log(page)
	}
}

// The page in docs is what the program makes of the raw results beside it.
func TestCommittedPageIsThatOfTheRawResults(t *testing.T) {
	r, err := Load(filepath.Join("..", "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	want, _ := r.Page()
	got, err := os.ReadFile(filepath.Join("..", "..", "docs", "bench.md"))
	if err != nil {
		t.Fatal(err)
	}
	w, g := strings.Split(want, "\n"), strings.Split(string(got), "\n")
	for i := range max(len(w), len(g)) {
		if i >= len(w) || i >= len(g) || w[i] != g[i] {
			t.Fatalf("docs/bench.md differs from line %d on; run go run . -render in bench", i+1)
		}
	}
}

// A goal for the slowest is met if each trial meets it, not their median.
func TestSlowestTrialIsJudged(t *testing.T) {
	for slowest, met := range map[float64]bool{59: true, 61: false} {
		r := fixture()
		r.workload("crash").Cells[0].Samples["gap"] = []float64{50, 55, slowest}
		goals := r.Goals()
		if g := goals[len(goals)-1]; g.What != "SIGKILL to the next effect, slowest, ms" || g.Met != met {
			t.Errorf("%s: with one trial of %v ms met is %t", g.What, slowest, g.Met)
		}
	}
}

// Charts have a dot for each contender with figures.
func TestCharts(t *testing.T) {
	_, charts := fixture().Page()
	drain := string(charts["drain-1.svg"])
	if n := strings.Count(drain, "<circle"); n != 6 {
		t.Errorf("%d dots, want 6:\n%s", n, drain)
	}
	if n := strings.Count(drain, `r="6" fill="#0072b2"`); n != 2 {
		t.Errorf("%d dots of leasegen, want 2", n)
	}
	if n := strings.Count(string(charts["crash.svg"]), "<circle"); n != 2 {
		t.Errorf("crash: %d dots, want 2: who has words has none", n)
	}
}

func TestRawResultsMakeTheSamePage(t *testing.T) {
	dir := t.TempDir()
	r := fixture()
	if err := r.Save(filepath.Join(dir, "results.json")); err != nil {
		t.Fatal(err)
	}
	again, err := Load(filepath.Join(dir, "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Write(dir); err != nil {
		t.Fatal(err)
	}
	want, _ := r.Page()
	if got, err := os.ReadFile(filepath.Join(dir, "bench.md")); err != nil || string(got) != want {
		t.Errorf("the page of the raw results differs (%v)", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "images", "bench", "drain-1.svg")); err != nil {
		t.Error(err)
	}
	if got := r.Failures(); len(got) != 1 || !strings.Contains(got[0], "crash, river") {
		t.Errorf("failures: %q", got)
	}
}

// A second run stands beside the first one's figures, and both keep their raw results.
func TestTheRunBefore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.json")
	first, second := fixture(), fixture()
	second.Workloads[0].Cells[0].Samples["rate"] = []float64{500_000, 500_000, 500_000}
	for _, r := range []*Report{first, second} {
		if err := r.Save(path); err != nil {
			t.Fatal(err)
		}
	}
	again, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []*Report{second, again} {
		if page, _ := r.Page(); !strings.Contains(page, "beside the bare loop | ≥ 0.8 | 0.5 (0.25–0.5) | 0.8 (0.35–0.9) | not met") {
			t.Errorf("the page lacks both figures:\n%s", page)
		}
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.01234: "0.0123", 0.8: "0.8", 1.234: "1.23", 12.34: "12.3", 123.4: "123", 9999.6: "10,000", 1234567: "1,234,567", 0.1: "0.1", 1: "1", 10: "10"} {
		if got := number(v); got != want {
			t.Errorf("number(%v) = %q, want %q", v, got, want)
		}
	}
}

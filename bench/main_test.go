package main

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasegen/leasegen/bench/report"
	"github.com/leasegen/leasegen/internal/must"
)

// The JetStream servers and the replicas are this test binary, started again.
func TestMain(m *testing.M) {
	if run, ok := children()[os.Getenv(envChild)]; ok {
		os.Exit(run())
	}
	os.Exit(m.Run())
}

// tiny is a run of seconds.
func tiny(t *testing.T, workloads, contenders string) (*report.Report, string) {
	t.Helper()
	var out strings.Builder
	r, err := measure(t.Context(), options{quick: true, workloads: workloads, contenders: contenders, size: size{
		rounds: 1, messages: 300, window: 20 * time.Second, calls: 40 * time.Millisecond, probes: 2, trials: 1,
		leases: 100, held: 5, idle: 50 * time.Millisecond,
	}}, &out)
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if failed := r.Failures(); len(failed) > 0 {
		t.Errorf("%s\n%s", strings.Join(failed, "\n"), out.String())
	}
	return r, out.String()
}

// Each contender still drains, writes its rows once, publishes, and is on the page.
func TestContenders(t *testing.T) {
	r, _ := tiny(t, "drain-1,rows,publish", "")
	page, _ := r.Page()
	for _, c := range contenders() {
		if !strings.Contains(page, "| "+c.Name+" | "+c.Backend+" |") {
			t.Errorf("the page lacks %s", c.Name)
		}
		for _, w := range r.Workloads {
			cell, want := w.Cell(c.ID), refusal(w.ID)(c)
			if want == "" && c.variant && w.ID != "drain-1" {
				want = notTelling
			}
			if cell.Words != want {
				t.Errorf("%s, %s: says %q, want %q", w.ID, c.ID, cell.Words, want)
			}
			if want == "" && len(cell.Samples["rate"]) != 1 {
				t.Errorf("%s, %s: %d figures, want 1", w.ID, c.ID, len(cell.Samples["rate"]))
			}
		}
	}
}

// Workloads that need time or processes are measured, too, on each kind of server.
func TestOwnFigures(t *testing.T) {
	r, out := tiny(t, "latency,handover,crash,leases,idle", "leasegen,pgx,go-redis,jetstream-queue")
	for _, w := range r.Workloads {
		if got := w.Cell("leasegen").Samples[w.Metrics[0].ID]; len(got) != 1 || got[0] <= 0 {
			t.Errorf("%s: leasegen has the figures %v, want one\n%s", w.ID, got, out)
		}
	}
}

// A full run's crashes of one round are measured: a few over one message would make it a dead letter.
func TestCrashesOfARound(t *testing.T) {
	z := full()
	r, err := measure(t.Context(), options{workloads: "crash", contenders: "leasegen", size: size{rounds: 1, trials: z.trials}}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Workloads[0].Cell("leasegen"); got.Failed || len(got.Samples["gap"]) != z.trials {
		t.Errorf("%d figures, want %d; %s", len(got.Samples["gap"]), z.trials, got.Words)
	}
}

// The figures of trials before a failing one stay.
func TestFiguresBeforeAFailingTrialStay(t *testing.T) {
	cs := []contender{barePostgres()}
	servers, err := launch(cs)
	if err != nil {
		t.Fatal(err)
	}
	defer servers.close()
	w := workload{Workload: report.Workload{ID: "fails", Metrics: gapMetrics()}, cannot: func(contender) string { return "" },
		trials: func(_ context.Context, _ *turn, add func(sample)) {
			add(gap(time.Second))
			add(gap(2 * time.Second))
			must.Do(errors.New("the third fails"))
		}}
	r := turns{workload: w, contenders: cs, size: size{rounds: 2}, servers: servers, out: io.Discard}.run(t.Context())
	got := r.Cell("pgx")
	if !got.Failed || !slices.Equal(got.Samples["gap"], []float64{1000, 2000}) {
		t.Errorf("failed is %t, with the figures %v", got.Failed, got.Samples["gap"])
	}
}

// The workloads that a contender says it cannot do exist.
func TestRefusals(t *testing.T) {
	all := workloads(full())
	for _, c := range contenders() {
		for name, why := range c.cannot {
			known := false
			for _, w := range all {
				known = known || w.named(name)
			}
			if !known || why == "" {
				t.Errorf("%s refuses %q, which is no workload, or does not say why", c.ID, name)
			}
		}
	}
	if got := refusal("drain-100")(riverBest()); got == "" {
		t.Error("a queue has no topics, and does not say so")
	}
	if got := refusal("drain-1")(riverBest()); got != "" {
		t.Errorf("drain-1 is refused as drain-100 is: %q", got)
	}
}

func TestFlags(t *testing.T) {
	for _, args := range [][]string{{"-rounds", "-1"}, {"-messages", "-1"}, {"-workloads", "none"}, {"-contenders", "nobody"}, {"-render", "-raw", "missing"}} {
		if err := run(t.Context(), args, io.Discard); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}

func TestPayloadNumbers(t *testing.T) {
	for _, p := range []string{`{"n":"000000000042","text":"7"}`, `{"n": "000000000042", "text": "7"}`} {
		if got := number([]byte(p)); got != 42 {
			t.Errorf("number(%s) = %d, want 42", p, got)
		}
	}
	if got := number(payload(held)); got != held {
		t.Errorf("number of a held message is %d, want %d", got, held)
	}
}

package dashboards

import (
	"os"
	"os/exec"
	"testing"

	"go.yaml.in/yaml/v3"
)

// promtool runs Prometheus' own tool, which Debian has in its package prometheus.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("promtool", args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %v: %v\n%s", args, err, out)
	}
}

// Prometheus takes the rules, and each alert fires when it should and does not when it should not.
func TestAlerts(t *testing.T) {
	promtool(t, "check", "rules", "alerts.yaml")
	promtool(t, "test", "rules", "testdata/alerts.yaml")
	var cases struct {
		Tests []struct {
			Queries []struct {
				Expr    string
				Samples []any `yaml:"exp_samples"`
			} `yaml:"promql_expr_test"`
		}
	}
	text, err := os.ReadFile("testdata/alerts.yaml")
	ok(t, err)
	ok(t, yaml.Unmarshal(text, &cases))
	fires, quiet := map[string]bool{}, map[string]bool{}
	for _, c := range cases.Tests {
		for _, q := range c.Queries {
			if len(q.Samples) > 0 {
				fires[q.Expr] = true
			} else {
				quiet[q.Expr] = true
			}
		}
	}
	for _, a := range alerts() {
		if q := `ALERTS{alertname="` + a.Name + `", alertstate="firing"}`; !fires[q] || !quiet[q] {
			t.Errorf("%s is not tested: fires %v, does not %v", a.Name, fires[q], quiet[q])
		}
	}
}

package dashboards

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.yaml.in/yaml/v3"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/leaseotel"
	"github.com/leasegen/leasegen/runtime/operate"
)

// leftOut are metrics that neither the dashboard nor an alert asks for, and why.
var leftOut = map[string]string{}

// emitted has, of each metric, its labels, and the sum of its values.
type emitted struct {
	labels map[string]map[string]bool
	sum    map[string]float64
}

// scrape reads metrics as Prometheus does.
func scrape(t testing.TB, from prom.Gatherer) emitted {
	t.Helper()
	families, err := from.Gather()
	ok(t, err)
	e := emitted{map[string]map[string]bool{}, map[string]float64{}}
	for _, f := range families {
		names := []string{f.GetName()}
		for _, m := range f.GetMetric() {
			e.sum[f.GetName()] += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			of := map[string]bool{}
			for _, l := range m.GetLabel() {
				of[l.GetName()] = true
			}
			if m.GetHistogram() != nil {
				names = []string{f.GetName() + "_bucket", f.GetName() + "_count", f.GetName() + "_sum"}
				of["le"] = true
			}
			for _, n := range names {
				if e.labels[n] == nil {
					e.labels[n] = map[string]bool{}
				}
				maps.Copy(e.labels[n], of)
			}
		}
	}
	return e
}

// deaf is a backend whose heartbeats fail when they should.
type deaf struct {
	*leasemem.Backend
	fail atomic.Bool
}

type deafSession struct {
	backend.Session
	of *deaf
}

func (d *deaf) OpenSession(ctx context.Context, spec backend.SessionSpec) (backend.Session, error) {
	s, err := d.Backend.OpenSession(ctx, spec)
	return deafSession{s, d}, err
}

func (s deafSession) Heartbeat(ctx context.Context) error {
	if s.of.fail.Load() {
		return errors.New("no answer")
	}
	return s.Session.Heartbeat(ctx)
}

// emit runs consumers through all that there is to measure, and returns what a scrape then reads.
func emit(t testing.TB) emitted {
	t.Helper()
	registry := prom.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(registry))
	ok(t, err)
	telemetry, err := leaseotel.New(leaseotel.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))
	ok(t, err)
	be := &deaf{Backend: leasemem.New(leasemem.WithPublishMiddleware(telemetry.Publish))}
	entered, leave := make(chan bool, 1), make(chan bool)
	message := func(f func(m lease.Message[[]byte]) error) func(context.Context, lease.Message[[]byte]) error {
		return func(_ context.Context, m lease.Message[[]byte]) error { return f(m) }
	}
	spec := lease.Spec{Name: "c", Per: lease.PerTopic, Topics: []string{"*"}, TTL: time.Second, Retry: lease.Retry{Min: time.Millisecond}}
	spec.Handlers = []lease.Handler{
		lease.One("fails", message(func(m lease.Message[[]byte]) error {
			if m.Attempt == 1 {
				return errors.New("once")
			}
			return nil
		})),
		lease.One("dies", message(func(lease.Message[[]byte]) error { return lease.DeadLetter("of no use") })),
		lease.One("sticks", message(func(lease.Message[[]byte]) error {
			select {
			case entered <- true:
				<-leave
			default:
			}
			return nil
		})),
	}
	c, err := lease.NewConsumer(be, spec, append(telemetry.Options(), lease.WithLogger(slog.New(slog.DiscardHandler)),
		lease.WithStuckAfter(20*time.Millisecond, false), lease.WithStallAfter(20*time.Millisecond))...)
	ok(t, err)
	g := lease.NewGroup()
	ok(t, g.Add(c))
	_, err = telemetry.WatchHealth(g)
	ok(t, err)
	_, err = telemetry.WatchStatus(be.Capabilities().Operator)
	ok(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	publish := func(topic, kind string) {
		ok(t, be.Publish(t.Context(), []lease.Event{{Topic: topic, Kind: kind, Payload: []byte("{}")}}))
	}
	telemetry.Observe(operate.ObservedMissed{Consumer: "c", Messages: 1}) // as backends report it, of which memory is none
	telemetry.Observe(operate.ObservedSetBack{Consumer: "c"})
	telemetry.Observe(operate.ObservedRenew{Consumer: "c", Leases: 1, Duration: time.Millisecond})
	publish("x", "fails")
	publish("x", "dies")
	var all emitted
	until := func(what string, done func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
			if all = scrape(t, registry); done() {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("never: %s", what)
			}
		}
	}
	until("a retry and a dead letter", func() bool {
		return all.sum["leasegen_retries_total"] == 1 && all.sum["leasegen_dead_letters_total"] == 1
	})
	publish("y", "sticks")
	<-entered
	until("a call is stuck and the consumer stands still", func() bool {
		return all.sum["leasegen_handler_stuck_total"] > 0 && all.sum["leasegen_consumer_stalled_total"] > 0 && all.sum["leasegen_handler_stuck_now"] == 1
	})
	_, err = be.Capabilities().Operator.SetCursor(t.Context(), "c", "y", operate.CursorTarget{Beginning: true})
	ok(t, err)
	leave <- true
	until("the stuck handler's commit is refused, and its lease lost", func() bool {
		return all.sum["leasegen_lease_fenced_total"] > 0 && all.sum["leasegen_lease_lost_total"] > 0
	})
	be.fail.Store(true)
	until("a heartbeat fails", func() bool { return all.labels["leasegen_session_heartbeat_duration_seconds_count"]["error_type"] })
	be.fail.Store(false)
	cancel()
	ok(t, <-ended)
	until("leases are released", func() bool { return all.sum["leasegen_lease_released_total"] > 0 })
	return all
}

// expressions are all that the dashboard and the alerts ask for, with values for what Grafana fills in.
func expressions(t testing.TB) map[string]string {
	t.Helper()
	var d struct {
		Panels     []panel
		Templating struct{ List []struct{ Definition string } }
	}
	var rules struct{ Groups []ruleGroup }
	text, err := os.ReadFile("dashboard.json")
	ok(t, err)
	ok(t, json.Unmarshal(text, &d))
	text, err = os.ReadFile("alerts.yaml")
	ok(t, err)
	ok(t, yaml.Unmarshal(text, &rules))
	all := map[string]string{}
	filled := strings.NewReplacer("$consumer", ".*", "$kind", ".*", "$__rate_interval", "1m")
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			all[p.Title+" "+q.RefID] = filled.Replace(q.Expr)
		}
	}
	for _, v := range d.Templating.List {
		if m := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`).FindStringSubmatch(v.Definition); m != nil {
			all["variable "+m[2]] = by("group", filled.Replace(m[1]), m[2])
		}
	}
	for _, g := range rules.Groups {
		for _, a := range g.Rules {
			all[a.Name] = a.Expr
		}
	}
	if len(all) < 50 {
		t.Fatalf("%d expressions", len(all))
	}
	return all
}

// All that the dashboard and the alerts ask for is there to be read from a program that uses leaseotel, with the labels by
// which it is selected and aggregated; and what can be read there is asked for, or left out on purpose.
func TestMetricsExist(t *testing.T) {
	there := emit(t)
	asked := map[string]bool{}
	for name, expr := range expressions(t) {
		parsed, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		parser.Inspect(parsed, func(n parser.Node, _ []parser.Node) error {
			switch n := n.(type) {
			case *parser.VectorSelector:
				metric := n.Name
				for _, m := range n.LabelMatchers {
					switch {
					case m.Name != model.MetricNameLabel && !there.labels[metric][m.Name]:
						t.Errorf("%s: %s has no label %s", name, metric, m.Name)
					case m.Name == model.MetricNameLabel && metric == "":
						return nil // a pattern
					}
				}
				if there.labels[metric] == nil {
					t.Errorf("%s: there is no metric %s", name, metric)
				}
				asked[metric] = true
			case *parser.AggregateExpr:
				for _, selector := range parser.ExtractSelectors(n.Expr) {
					metric := ""
					for _, m := range selector {
						if m.Name == model.MetricNameLabel && m.Type == labels.MatchEqual {
							metric = m.Value
						}
					}
					for _, l := range n.Grouping {
						if target := l == "job" || l == "instance"; metric != "" && !target && !there.labels[metric][l] {
							t.Errorf("%s: %s has no label %s to aggregate by", name, metric, l)
						}
					}
				}
			}
			return nil
		})
	}
	histogram := regexp.MustCompile(`_(bucket|count|sum)$`)
	for base := range asked {
		asked[histogram.ReplaceAllString(base, "")] = true
	}
	for _, metric := range slices.Sorted(maps.Keys(there.labels)) {
		base := histogram.ReplaceAllString(metric, "")
		ours := strings.HasPrefix(metric, "leasegen_") || strings.HasPrefix(metric, "messaging_")
		if ours && asked[base] == (leftOut[base] != "") {
			t.Errorf("%s: asked for %v, left out %q", base, asked[base], leftOut[base])
		}
	}
}

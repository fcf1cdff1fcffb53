// Package dashboards makes a Grafana dashboard and Prometheus alerts of the metrics of package leaseotel. dashboard.json and
// alerts.yaml are what it makes; docs/alerts.md says how to use them. It is a module of its own: programs compile none of it.
package dashboards

//go:generate go test -run TestFiles -update

import (
	"fmt"
	"strings"

	"github.com/prometheus/otlptranslator"
	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/leasegen/leasegen/runtime/leaseotel/internal/metrics"
)

// Manual is the page that explains the dashboard and has a section for each alert.
const Manual = "https://github.com/leasegen/leasegen/blob/main/docs/alerts.md"

// Labels, as Prometheus has them.
var (
	consumer  = label(semconv.MessagingConsumerGroupNameKey)
	kind      = label(metrics.Kind)
	per       = label(metrics.Per)
	crashed   = label(metrics.Crashed)
	outcome   = label(metrics.Outcome)
	errorType = label(semconv.ErrorTypeKey)
	operation = label(semconv.MessagingOperationNameKey)
)

func label(k attribute.Key) string {
	name, err := (&otlptranslator.LabelNamer{}).Build(string(k))
	if err != nil {
		panic(fmt.Sprintf("dashboards: name label %s: %v", k, err)) // the keys are constants
	}
	return name
}

// series is a metric as Prometheus names it, with what selects series of it.
func series(m metrics.Metric, selectors ...string) string { return suffixed(m, "", selectors...) }

// buckets and count are two of the metrics that Prometheus has of a histogram.
func buckets(m metrics.Metric, selectors ...string) string {
	return suffixed(m, "_bucket", selectors...)
}
func count(m metrics.Metric, selectors ...string) string { return suffixed(m, "_count", selectors...) }

func suffixed(m metrics.Metric, suffix string, selectors ...string) string {
	forms := map[metrics.Form]otlptranslator.MetricType{metrics.Counter: otlptranslator.MetricTypeMonotonicCounter,
		metrics.Gauge: otlptranslator.MetricTypeGauge, metrics.Histogram: otlptranslator.MetricTypeHistogram}
	namer := otlptranslator.NewMetricNamer("", otlptranslator.UnderscoreEscapingWithSuffixes)
	name, err := namer.Build(otlptranslator.Metric{Name: m.Name, Unit: m.Unit, Type: forms[m.Form]})
	if err != nil {
		panic(fmt.Sprintf("dashboards: name metric %s: %v", m.Name, err)) // the definitions are constants
	}
	name += suffix
	if len(selectors) > 0 {
		name += "{" + strings.Join(selectors, ", ") + "}"
	}
	return name
}

// by aggregates an expression by labels.
func by(aggregate, expr string, labels ...string) string {
	return fmt.Sprintf("%s by (%s) (%s)", aggregate, strings.Join(labels, ", "), expr)
}

// told is a state that every process tells alike.
func told(expr string) string { return by("max", expr, consumer) }

// over applies a function to what was measured in a window.
func over(function, expr, window string) string {
	return fmt.Sprintf("%s(%s[%s])", function, expr, window)
}

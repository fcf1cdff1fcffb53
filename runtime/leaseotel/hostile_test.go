package leaseotel_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/leaseotel"
	"github.com/leasegen/leasegen/runtime/operate"
)

// Middleware outside that leaves no event makes no span.
func TestNoEventIsLeft(t *testing.T) {
	x := newTraced(t)
	none := func(next lease.PublishFunc) lease.PublishFunc {
		return func(ctx context.Context, p lease.Publication) error { p.Events = nil; return next(ctx, p) }
	}
	be := leasemem.New(leasemem.WithPublishMiddleware(none, x.Publish))
	ok(t, be.Publish(t.Context(), event("kind", nil)))
}

// nilError's methods panic, as those of many types do for a nil pointer.
type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }
func (e *nilError) Unwrap() error { return errors.New(e.text) }

type badType struct{}

func (badType) Error() string     { return "bad" }
func (badType) ErrorType() string { panic("of ErrorType") }

// Each call's span ends, with the type of an error whose methods panic and of a handler that ends its goroutine, too; what the
// runtime says of the error stays the same.
func TestEachSpanEnds(t *testing.T) {
	var null *nilError
	for kind, tc := range map[string]struct {
		fails         func() error
		named, stored string
	}{
		"nil":    {func() error { return null }, "_OTHER", "the handler returned a nil *leaseotel_test.nilError as its error; return nil itself"},
		"type":   {func() error { return badType{} }, "_OTHER", "bad"},
		"goexit": {func() error { runtime.Goexit(); return nil }, "goexit", "handler called runtime.Goexit"},
	} {
		t.Run(kind, func(t *testing.T) {
			x := newTraced(t)
			be := leasemem.New()
			var calls atomic.Int64
			reasons := make(chan string, 1)
			c, err := lease.NewConsumer(be, lease.Spec{Name: "c", Per: lease.PerTopic, Topics: []string{"*"}, Retry: lease.Retry{Min: time.Millisecond},
				Handlers: []lease.Handler{lease.One(kind, func(_ context.Context, m lease.Message[[]byte]) error {
					if calls.Add(1); m.Attempt > 1 {
						return nil
					}
					return tc.fails()
				})}}, lease.WithMiddleware(x.Handle), quiet, lease.WithObserver(operate.ObserverFunc(func(o operate.Observation) {
				if r, ok := o.(operate.ObservedRetry); ok {
					reasons <- r.Reason
				}
			})))
			ok(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- c.Run(ctx) }()
			ok(t, be.Publish(t.Context(), event(kind, nil)))
			eventually(t, "it is handled", func() bool { return calls.Load() == 2 })
			cancel()
			ok(t, <-ended)
			if reason := <-reasons; reason != tc.stored {
				t.Errorf("the reason is %q, want %q", reason, tc.stored)
			}
			spans := x.named("process " + kind)
			if len(spans) != 2 || spans[0].Status().Code != codes.Error || attr(spans[0], "error.type") != tc.named {
				t.Errorf("%d spans, want 2; the first has %v", len(spans), fmt.Sprint(spans[0].Status(), spans[0].Attributes()))
			}
		})
	}
}

// A kind that is no text, or very long, is an other one.
func TestKindsThatAreNoNames(t *testing.T) {
	x := newTraced(t)
	call := x.Handle(func(context.Context, lease.Call) error { return nil })
	for _, kind := range []string{"bad\xff", strings.Repeat("k", 5000)} {
		ok(t, call(t.Context(), lease.Call{Consumer: "c", Kind: kind, Messages: []lease.CallMessage{{ID: "1"}}}))
	}
	if spans := x.named("process _OTHER"); len(spans) != 2 || attr(spans[0], "messaging.leasegen.kind") != "_OTHER" {
		t.Errorf("%d spans of other kinds, want 2", len(spans))
	}
	if n := x.collect(t).sum("messaging.client.consumed.messages", "messaging.leasegen.kind", "_OTHER"); n != 2 {
		t.Errorf("%v messages of other kinds, want 2", n)
	}
}

// refusing is a backend that cannot be asked.
type refusing struct{ operate.Operator }

func (refusing) Status(context.Context) ([]operate.ConsumerStatus, error) {
	return nil, errors.New("connection refused")
}

// exported counts exports of a metric.
type exported struct {
	sdkmetric.Exporter
	n atomic.Int64
}

func (e *exported) Export(_ context.Context, rm *metricdata.ResourceMetrics) error {
	for _, s := range rm.ScopeMetrics {
		for _, m := range s.Metrics {
			if m.Name == "requests" {
				e.n.Add(1)
			}
		}
	}
	return nil
}

func (*exported) Temporality(sdkmetric.InstrumentKind) metricdata.Temporality {
	return metricdata.CumulativeTemporality
}
func (*exported) Aggregation(k sdkmetric.InstrumentKind) sdkmetric.Aggregation {
	return sdkmetric.DefaultAggregationSelector(k)
}
func (*exported) Shutdown(context.Context) error { return nil }

// A periodic reader exports the application's metrics while the backend cannot be asked.
func TestExportsWithoutAStatus(t *testing.T) {
	var to exported
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewPeriodicReader(&to, sdkmetric.WithInterval(10*time.Millisecond))))
	telemetry, err := leaseotel.New(leaseotel.WithMeterProvider(provider))
	ok(t, err)
	requests, err := provider.Meter("application").Int64Counter("requests")
	ok(t, err)
	requests.Add(t.Context(), 1)
	_, err = telemetry.WatchStatus(refusing{})
	ok(t, err)
	eventually(t, "the application's metrics are exported", func() bool { return to.n.Load() > 0 })
	ok(t, provider.Shutdown(t.Context()))
}

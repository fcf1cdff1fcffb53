package main

import (
	"context"
	"errors"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasehealth"
	"github.com/leasegen/leasegen/runtime/leaseotel"
	"github.com/leasegen/leasegen/runtime/leaseweb"
)

// replica is all that a service does: its consumers, and what those need who run it.
func replica(ctx context.Context, o options, name string) error {
	exporter, err := prometheus.New(prometheus.WithoutScopeInfo())
	if err != nil {
		return err
	}
	telemetry, err := leaseotel.New(leaseotel.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(exporter))))
	if err != nil {
		return err
	}
	be, end, err := connect(ctx, os.Getenv("DATABASE_URL"), telemetry)
	if err != nil {
		return err
	}
	defer end()
	g := lease.NewGroup()
	handlers := LeasegenHandlers{Billing: &Billing{be}, Shipping: &Shipping{}, Subscriptions: &Subscriptions{be}}
	// A call that takes longer than usual is worth a look.
	opts := append(telemetry.Options(), lease.WithStuckAfter(2*time.Second, false))
	if err := RegisterLeasegen(g, be, handlers, opts...); err != nil {
		return err
	}
	if _, err := telemetry.WatchHealth(g); err != nil {
		return err
	}
	if _, err := telemetry.WatchStatus(be); err != nil {
		return err
	}

	// All who reach this address may do everything: elsewhere a login stands before it, and says who may do what.
	everything := func(*http.Request) leaseweb.Access { return leaseweb.View | leaseweb.Payloads | leaseweb.Operate }
	pages := leaseweb.New(be, leaseweb.WithAccess(everything), leaseweb.WithTarget("the shop, seen by "+name))
	mux := http.NewServeMux()
	mux.Handle("/leasegen/", http.StripPrefix("/leasegen", pages))
	mux.Handle("/livez", leasehealth.Live(g))
	mux.Handle("/readyz", leasehealth.Ready(g))
	mux.Handle("/metrics", promhttp.Handler())

	// Probes are answered until it has drained.
	ctx, fail := context.WithCancel(ctx)
	answering, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() {
		defer fail()
		ended <- serve(answering, o.addr(name), mux, pages.Close)
	}()
	err = g.Run(ctx)
	stop()
	return errors.Join(err, <-ended)
}

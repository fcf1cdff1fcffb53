package lease_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/operate"
)

// BenchmarkDrain is what the runtime itself costs per message: the memory backend is
// all there is beneath it.
func BenchmarkDrain(b *testing.B) {
	for _, bc := range []struct {
		name    string
		handler func(done func(int)) lease.Handler
		opts    []lease.Option
	}{
		{"one-raw", func(done func(int)) lease.Handler {
			return lease.One("", func(_ context.Context, m lease.Message[[]byte]) error { done(1); return nil })
		}, nil},
		{"one-raw-observed", func(done func(int)) lease.Handler {
			return lease.One("", func(_ context.Context, m lease.Message[[]byte]) error { done(1); return nil })
		}, []lease.Option{lease.WithObserver(operate.ObserverFunc(func(operate.Observation) {}))}},
		{"one-raw-middleware", func(done func(int)) lease.Handler {
			return lease.One("", func(_ context.Context, m lease.Message[[]byte]) error { done(1); return nil })
		}, []lease.Option{lease.WithMiddleware(func(next lease.CallFunc) lease.CallFunc { return next })}},
		{"one-typed", func(done func(int)) lease.Handler {
			return lease.One("note", func(_ context.Context, m lease.Message[note]) error { done(1); return nil })
		}, nil},
		{"batch-typed", func(done func(int)) lease.Handler {
			return lease.Batch("note", func(_ context.Context, ms []lease.Message[note]) error { done(len(ms)); return nil })
		}, nil},
	} {
		b.Run(bc.name, func(b *testing.B) {
			be := leasemem.New()
			payload, _ := json.Marshal(note{1})
			events := make([]lease.Event, b.N)
			for i := range events {
				events[i] = lease.Event{Topic: "t", Kind: "note", Payload: payload}
			}
			if err := be.Publish(b.Context(), events); err != nil {
				b.Fatal(err)
			}
			ctx, cancel := context.WithCancel(b.Context())
			n := 0
			c, err := lease.NewConsumer(be, lease.Spec{
				Name: "bench", Per: lease.PerGroup, Topics: []string{"*"}, Batch: 500,
				Handlers: []lease.Handler{bc.handler(func(k int) {
					if n += k; n >= b.N {
						cancel()
					}
				})},
			}, append(bc.opts, quiet)...)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.ResetTimer()
			began := time.Now()
			if err := c.Run(ctx); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "msg/s")
		})
	}
}

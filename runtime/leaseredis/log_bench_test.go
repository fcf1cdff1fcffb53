package leaseredis_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leaseredis"
)

// BenchmarkPublish appends events of 60 bytes, so many to a call, to a topic that no process
// reads by group, and to one whose messages are copied for a group.
func BenchmarkPublish(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		for _, copied := range []bool{false, true} {
			b.Run(fmt.Sprintf("events=%d/copied=%v", n, copied), func(b *testing.B) {
				be := fresh(b)
				if copied {
					kit.OK(b, be.Register(b.Context(), grouped, nil))
				}
				es := kit.Events("orders", n)
				for b.Loop() {
					kit.OK(b, be.Publish(b.Context(), es))
				}
				b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "msg/s")
			})
		}
	}
}

// BenchmarkDrain reads and commits a backlog of 1,000,000 messages on 10 topics, 500 at a
// time, through the whole runtime with a handler that returns at once.
func BenchmarkDrain(b *testing.B) {
	const backlog, batch = 1_000_000, 500
	for _, per := range []backend.Per{backend.PerTopic, backend.PerGroup, backend.PerPartition} {
		b.Run(per.String(), func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				server := redistest.Start(b)
				be := leaseredis.New(server.Client(b))
				for i := range backlog / 10_000 {
					kit.OK(b, be.Publish(b.Context(), kit.Events(fmt.Sprint("orders.", i%10), 10_000)))
				}
				info := backend.ConsumerInfo{Name: "drain", Per: per, Topics: []string{"*"}}
				kit.OK(b, be.Register(b.Context(), info, nil))
				var seen atomic.Int64
				done := make(chan struct{})
				c := kit.Must[*lease.Consumer](b)(lease.NewConsumer(be, lease.Spec{
					Name: "drain", Per: per, Topics: []string{"*"}, Batch: batch,
					Handlers: []lease.Handler{lease.Batch("kind", func(_ context.Context, ms []lease.Message[[]byte]) error {
						if n := seen.Add(int64(len(ms))); n >= backlog {
							close(done)
						}
						return nil
					})},
				}, lease.WithLogger(slog.New(slog.DiscardHandler))))
				ctx, stop := context.WithCancel(b.Context())
				ended := make(chan error, 1)
				b.StartTimer()
				start := time.Now()
				go func() { ended <- c.Run(ctx) }()
				<-done
				b.ReportMetric(backlog/time.Since(start).Seconds(), "msg/s")
				b.StopTimer()
				stop()
				kit.OK(b, <-ended)
			}
		})
	}
}

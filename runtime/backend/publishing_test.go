package backend_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// Middleware that returns before a call of next that it made in another goroutine: Publish waits, so that no row is written
// in a transaction that its caller has gone on with.
func TestPublishWaitsForCallsInOtherGoroutines(t *testing.T) {
	began := make(chan struct{})
	p := backend.NewPublishing(func(next backend.PublishFunc) backend.PublishFunc {
		return func(ctx context.Context, p backend.Publication) error {
			go func() { _ = next(ctx, p) }()
			<-began
			return nil
		}
	})
	var written atomic.Bool
	err := p.Publish(t.Context(), []backend.Event{{Topic: "x"}}, true, func(context.Context, []backend.Event) error {
		close(began)
		time.Sleep(20 * time.Millisecond)
		written.Store(true)
		return nil
	})
	if err != nil || !written.Load() {
		t.Errorf("Publish returned %v; written: %v", err, written.Load())
	}
}

package leasetest

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/operate"
)

// A handler that outlives its consumer, and ends as the last of all in a test, still tells the observer of its end.
func TestWhatIsLeftBehindMayEnd(t *testing.T) {
	told := false
	kit.Bubble(t, func(t *testing.T) {
		be := leasemem.New()
		entered, released := make(chan struct{}), make(chan struct{})
		c, err := lease.NewConsumer(be, lease.Spec{Name: "deaf", Per: lease.PerTopic, Topics: []string{"x"}, Drain: time.Millisecond,
			Handlers: []lease.Handler{lease.One("placed", func(context.Context, lease.Message[payload]) error {
				close(entered)
				<-released
				return nil
			})},
		}, lease.WithLogger(slog.New(slog.DiscardHandler)), lease.WithObserver(operate.ObserverFunc(func(o operate.Observation) {
			_, is := o.(operate.ObservedHandle)
			told = told || is
		})))
		kit.OK(t, err)
		kit.OK(t, lease.Publish(t.Context(), be, "x", lease.EventType[payload]{Kind: "placed"}, []payload{{}}))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		<-entered
		stop()
		<-ended
		close(released)
	})
	kit.Equal(t, "the observer was told", told, true)
}

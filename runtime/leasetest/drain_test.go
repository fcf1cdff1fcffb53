package leasetest_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/leasetest"
	"github.com/leasegen/leasegen/runtime/operate"
)

type placed struct{ Cents int }

func TestDrainHandlesAllThatWasPublishedBefore(t *testing.T) {
	be := leasemem.New()
	var got []int
	consumer, err := lease.NewConsumer(be, lease.Spec{
		Name: "billing", Per: backend.PerTopic, Topics: []string{"orders.*"},
		Retry: lease.Retry{Max: 2, Min: time.Millisecond},
		Handlers: []lease.Handler{lease.One("placed", func(_ context.Context, m lease.Message[placed]) error {
			if m.Payload.Cents < 0 {
				return fmt.Errorf("negative amount")
			}
			got = append(got, m.Payload.Cents) // one topic is handled one by one
			return nil
		})},
	}, lease.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	publish := func(topic string, cents ...int) {
		t.Helper()
		var events []placed
		for _, c := range cents {
			events = append(events, placed{c})
		}
		if err := lease.Publish(t.Context(), be, topic, lease.EventType[placed]{Kind: "placed"}, events); err != nil {
			t.Fatal(err)
		}
	}
	publish("orders.eu", 1, -1, 2)
	leasetest.Drain(t, be, consumer)
	publish("orders.us", 3) // a topic that is new by the second time
	leasetest.Drain(t, be, consumer)
	leasetest.Drain(t, be, consumer) // no work
	if want := []int{1, 2, 3}; !slices.Equal(got, want) {
		t.Fatalf("handled %v, want %v", got, want)
	}
	dead, err := be.DeadLetters(t.Context(), operate.DeadLetterFilter{})
	if err != nil || len(dead) != 1 || dead[0].Attempts != 2 {
		t.Fatalf("dead letters: %+v, %v", dead, err)
	}
}

// numbers is a consumer that collects what it handles, and a function that publishes to it.
func numbers(t *testing.T, be *leasemem.Backend, got *[]int) (consumer *lease.Consumer, publish func(cents int, after time.Duration)) {
	t.Helper()
	consumer, err := lease.NewConsumer(be, lease.Spec{
		Name: "billing", Per: backend.PerTopic, Topics: []string{"orders.*"},
		Handlers: []lease.Handler{lease.One("placed", func(_ context.Context, m lease.Message[placed]) error {
			*got = append(*got, m.Payload.Cents)
			return nil
		})},
	}, lease.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	return consumer, func(cents int, after time.Duration) {
		t.Helper()
		if err := be.Publish(context.Background(), []backend.Event{{Topic: "orders.eu", Kind: "placed", Payload: fmt.Appendf(nil, `{"Cents":%d}`, cents), After: after}}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDrainHandlesWhatIsPublishedForLater(t *testing.T) {
	be := leasemem.New()
	var got []int
	consumer, publish := numbers(t, be, &got)
	publish(1, 200*time.Millisecond)
	leasetest.Drain(t, be, consumer)
	if want := []int{1}; !slices.Equal(got, want) {
		t.Fatalf("handled %v, want %v", got, want)
	}
}

func TestDrainInsideCleanup(t *testing.T) {
	be := leasemem.New()
	var got []int
	t.Run("test", func(t *testing.T) {
		consumer, publish := numbers(t, be, &got)
		publish(1, 0)
		t.Cleanup(func() { leasetest.Drain(t, be, consumer) })
	})
	if want := []int{1}; !slices.Equal(got, want) {
		t.Fatalf("handled %v, want %v", got, want)
	}
}

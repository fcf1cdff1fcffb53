package lease_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/operate"
)

func TestEachTopicInOrder(t *testing.T) {
	be := leasemem.New()
	var got seen
	c, err := lease.NewConsumer(be, lease.Spec{
		Name: "a", Per: lease.PerTopic, Topics: []string{"t.*"}, Batch: 7,
		Handlers: []lease.Handler{lease.One("note", func(ctx context.Context, m lease.Message[note]) error {
			got.add(m.Topic, m.Payload.N)
			return nil
		})},
	}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		publish(t, be, fmt.Sprintf("t.%d", i), 0, 50, nil)
	}
	start(t, c)
	for i := range 20 {
		publish(t, be, fmt.Sprintf("t.%d", i), 50, 100, nil)
	}
	publish(t, be, "t.new", 0, 10, nil)
	eventually(t, "all handled", func() bool { return got.count() >= 2010 })
	for i := range 20 {
		got.ordered(t, fmt.Sprintf("t.%d", i), 100)
	}
	got.ordered(t, "t.new", 10)
}

func TestRetryHoldsBackOnlyItsKey(t *testing.T) {
	be := leasemem.New()
	var got seen
	failures := 0
	c, err := lease.NewConsumer(be, lease.Spec{
		Name: "a", Per: lease.PerGroup, Topics: []string{"*"},
		Retry: lease.Retry{Min: 20 * time.Millisecond},
		Handlers: []lease.Handler{lease.One("note", func(ctx context.Context, m lease.Message[note]) error {
			if m.Payload.N == 3 && m.Attempt < 4 {
				failures++
				return errors.New("not yet")
			}
			got.add(m.Key, m.Payload.N)
			return nil
		})},
	}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	key := func(n *note) string { return fmt.Sprint(n.N % 2) }
	publish(t, be, "x", 0, 40, key)
	start(t, c)
	eventually(t, "all handled", func() bool { return got.count() == 40 })
	if failures != 3 {
		t.Errorf("%d failures, want 3", failures)
	}
	got.mu.Lock()
	defer got.mu.Unlock()
	for k, ns := range got.by {
		for i := 1; i < len(ns); i++ {
			if ns[i] <= ns[i-1] {
				t.Fatalf("key %s: %d after %d", k, ns[i], ns[i-1])
			}
		}
	}
}

func TestHandover(t *testing.T) {
	be := leasemem.New()
	var mu sync.Mutex
	owned := map[string]int{}
	newc := func(who string, h *seen) *lease.Consumer {
		c, err := lease.NewConsumer(be, lease.Spec{
			Name: "a", Per: lease.PerTopic, Topics: []string{"*"},
			Handlers: []lease.Handler{lease.One("note", func(ctx context.Context, m lease.Message[note]) error {
				h.add(m.Topic, m.Payload.N)
				return nil
			})},
		}, quiet, lease.WithObserver(operate.ObserverFunc(func(o operate.Observation) {
			mu.Lock()
			defer mu.Unlock()
			switch o.(type) {
			case operate.ObservedAcquire:
				owned[who]++
			case operate.ObservedRelease, operate.ObservedLoss:
				owned[who]--
			}
		})))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	var got seen
	stopA := start(t, newc("a", &got))
	for i := range 30 {
		publish(t, be, fmt.Sprint(i), 0, 10, nil)
	}
	has := func(a, b int) func() bool {
		return func() bool { mu.Lock(); defer mu.Unlock(); return owned["a"] == a && owned["b"] == b }
	}
	eventually(t, "a owns all", has(30, 0))
	start(t, newc("b", &got))
	eventually(t, "shared", has(15, 15))
	for i := range 30 {
		publish(t, be, fmt.Sprint(i), 10, 20, nil)
	}
	stopA()
	eventually(t, "b owns all", has(0, 30))
	for i := range 30 {
		publish(t, be, fmt.Sprint(i), 20, 30, nil)
	}
	eventually(t, "all handled", func() bool { return got.count() >= 900 })
	for i := range 30 {
		got.ordered(t, fmt.Sprint(i), 30)
	}
}

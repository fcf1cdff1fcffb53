package leaseredis_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leaseredis"
	"github.com/leasegen/leasegen/runtime/operate"
)

// workItem is what programs in other languages write, as docs/redis.md has it.
type workItem struct {
	Stream string
	N      int
}

// TestWorkItemsOfOthers: a consumer of a stream that others write to publishes its entries under their ids, and streams are owned by
// key. Each item is worked on once and in order, though the first try of each third one fails after it has published.
func TestWorkItemsOfOthers(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, c redis.UniversalClient, ns string) {
		be := on(c, ns, leaseredis.WithLogger(discard))
		const streams, each = 4, 15
		var mu sync.Mutex
		got, failed := map[string][]int{}, map[string]bool{}
		var total, dead, repeated atomic.Int64
		added := lease.EventType[workItem]{Kind: "added", Key: func(w *workItem) string { return w.Stream }}
		observer := lease.WithObserver(operate.ObserverFunc(func(o operate.Observation) {
			if _, ok := o.(operate.ObservedDeadLetter); ok {
				dead.Add(1)
			}
		}))
		run(t, be, lease.Spec{Name: "desk", Per: backend.PerTopic, Source: leaseredis.StreamSource{Names: []string{ns + ":work"}, DefaultKind: "added"},
			Retry: lease.Retry{Order: lease.OrderBlock}, Handlers: []lease.Handler{lease.One("added", func(ctx context.Context, m lease.Message[workItem]) error {
				err := lease.Publish(ctx, lease.With(be, lease.MessageID(m.ID)), "work", added, []workItem{m.Payload})
				mu.Lock()
				defer mu.Unlock()
				if m.Payload.N%3 == 0 && !failed[m.ID] {
					failed[m.ID] = true
					repeated.Add(1)
					return fmt.Errorf("after it was published: %v", err)
				}
				return err
			})}}, observer)
		run(t, be, lease.Spec{Name: "reader", Per: backend.PerStream, Topics: []string{"work"},
			Handlers: []lease.Handler{lease.One("added", func(_ context.Context, m lease.Message[workItem]) error {
				mu.Lock()
				defer mu.Unlock()
				got[m.Key] = append(got[m.Key], m.Payload.N)
				total.Add(1)
				return nil
			})}})
		for n := range each {
			for s := range streams {
				xadd(t, c, ns+":work", "payload", fmt.Sprintf(`{"Stream":"s%d","N":%d}`, s, n))
			}
		}
		xadd(t, c, ns+":work", "payload", `{"Stream":5}`)
		kit.Eventually(t, "all items", func() bool { return total.Load() >= streams*each && dead.Load() == 1 })
		mu.Lock()
		defer mu.Unlock()
		kit.Equal(t, "handled", total.Load(), streams*each)
		kit.Equal(t, "published again", repeated.Load(), streams*each/3)
		for s, ns := range got {
			if len(ns) != each || !slices.IsSorted(ns) {
				t.Errorf("stream %s: %v", s, ns)
			}
		}
	})
}

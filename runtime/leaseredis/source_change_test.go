package leaseredis_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leaseredis"
)

// The streams of a group consumer may become more, and stand in another order: each goes on
// where it was, and a new one begins at its beginning.
func TestAGroupGetsMoreStreams(t *testing.T) {
	client := redistest.Shared(t).Client(t)
	namespace := redistest.Namespace(t)
	name := func(s string) string { return namespace + "/" + s }
	var mu sync.Mutex
	var seen []string
	use := func(streams ...string) (stop func()) {
		names := make([]string, len(streams))
		for i, s := range streams {
			names[i] = name(s)
		}
		c := kit.Must[*lease.Consumer](t)(lease.NewConsumer(leaseredis.New(client, leaseredis.WithNamespace(namespace), quiet()), lease.Spec{
			Name: "c", Per: backend.PerGroup, Source: leaseredis.StreamSource{Names: names},
			Handlers: []lease.Handler{lease.One("", func(_ context.Context, m lease.Message[[]byte]) error {
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, string(m.Payload))
				return nil
			})},
		}, lease.WithLogger(discard)))
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- kit.Run(ctx, c) }()
		return func() { cancel(); kit.OK(t, <-ended) }
	}
	add := func(stream, payload string) {
		t.Helper()
		kit.OK(t, client.XAdd(t.Context(), &redis.XAddArgs{Stream: name(stream), Values: []any{"payload", payload}}).Err())
	}
	saw := func(want ...string) {
		t.Helper()
		kit.Eventually(t, fmt.Sprint("handled ", want), func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(seen) >= len(want)
		})
		mu.Lock()
		defer mu.Unlock()
		kit.Equal(t, "handled", fmt.Sprint(seen), fmt.Sprint(want))
	}
	add("new", "1") // older than all of the other's
	add("old", "2")
	stop := use("old")
	saw("2")
	stop()
	add("old", "3")
	stop = use("new", "old")
	saw("2", "1", "3")
	stop()
	add("new", "4")
	stop = use("new")
	saw("2", "1", "3", "4")
	stop()
	add("old", "5")
	stop = use("old", "new")
	saw("2", "1", "3", "4", "5")
	stop()
}

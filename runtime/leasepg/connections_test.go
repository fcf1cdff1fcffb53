package leasepg_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
)

// The sum in docs/sizing.md: the connections of a process beside its pool do not depend on the number of consumers and resources.
func TestConnectionsOfAProcess(t *testing.T) {
	t.Parallel()
	type group struct {
		name string
		ttls []time.Duration
		want int
	}
	for _, g := range []group{
		{"one consumer", []time.Duration{time.Minute}, 3},
		{"nine of one TTL", []time.Duration{8: 0}, 3},
		{"four of three TTLs", []time.Duration{time.Minute, time.Minute, time.Hour, 2 * time.Hour}, 9},
	} {
		t.Run(g.name, func(t *testing.T) {
			be, pool := migrated(t)
			kit.OK(t, be.Publish(t.Context(), kit.Events("x", 10)))
			all := lease.NewGroup()
			handled := make(chan struct{}, 1000)
			for i, ttl := range g.ttls {
				c := kit.Must[*lease.Consumer](t)(lease.NewConsumer(be, lease.Spec{
					Name: fmt.Sprint("c", i), Per: backend.PerTopic, Topics: []string{"*"}, TTL: ttl,
					Handlers: []lease.Handler{lease.One("kind", func(context.Context, lease.Message[struct{}]) error { handled <- struct{}{}; return nil })},
				}, lease.WithLogger(slog.New(slog.DiscardHandler))))
				kit.OK(t, all.Add(c))
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- all.Run(ctx) }()
			for range 10 * len(g.ttls) {
				<-handled
			}
			own := func() int {
				return query[int](t, pool, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'leasegen'")
			}
			// No handler waits for the last one, and one too many may come after it.
			kit.Eventually(t, fmt.Sprint(g.want, " connections of its own"), func() bool { return own() >= g.want })
			time.Sleep(time.Second)
			kit.Equal(t, "connections of its own", own(), g.want)
			cancel()
			kit.OK(t, <-ended)
		})
	}
}

package leaseredis_test

import (
	"context"
	"hash/fnv"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leaseredis"
)

// slack is kit.Slack for a small request.
func slack(t testing.TB, be *leaseredis.Backend) time.Duration {
	t.Helper()
	return kit.Slack(func() { kit.Must[[]backend.Survey](t)(be.Survey(t.Context(), []string{"c"})) })
}

var (
	topical = backend.ConsumerInfo{Name: "topical", Per: backend.PerTopic, Topics: []string{"*"}}
	grouped = backend.ConsumerInfo{Name: "grouped", Per: backend.PerGroup, Topics: []string{"*"}}
)

// fresh returns a backend on the shared server, in a namespace of its own.
func fresh(t testing.TB, opts ...leaseredis.Option) *leaseredis.Backend {
	t.Helper()
	return on(redistest.Shared(t).Client(t), redistest.Namespace(t), opts...)
}

// on returns a backend over a client.
func on(c redis.UniversalClient, namespace string, opts ...leaseredis.Option) *leaseredis.Backend {
	return leaseredis.New(c, append([]leaseredis.Option{leaseredis.WithNamespace(namespace)}, opts...)...)
}

func survey(t testing.TB, be *leaseredis.Backend, c backend.ConsumerInfo) backend.Survey {
	t.Helper()
	return kit.Must[[]backend.Survey](t)(be.Survey(context.Background(), []string{c.Name}))[0]
}

// discard logs no line.
var discard = slog.New(slog.DiscardHandler)

// tagOf is the tag of a topic, of so many.
func tagOf(name string, tags int) int {
	h := fnv.New64a()
	h.Write([]byte(name))
	return int(h.Sum64() % uint64(tags))
}

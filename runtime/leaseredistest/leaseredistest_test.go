package leaseredistest_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leaseredistest"
	"github.com/leasegen/leasegen/runtime/leasetest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// Tests at once on one server, each with a consumer of the same name, get what they published, and leave other keys alone.
func TestEachTestHasItsOwn(t *testing.T) {
	for name, client := range map[string]redis.UniversalClient{"server": redistest.Shared(t).Client(t), "cluster": redistest.SharedCluster(t).Client(t)} {
		t.Run(name, func(t *testing.T) {
			for i := range 50 {
				kit.OK(t, client.Set(t.Context(), fmt.Sprint("{lt-", i, "}:others"), "stays", 0).Err())
			}
			t.Run("all", func(t *testing.T) {
				for i := range 6 {
					t.Run(fmt.Sprint(i), func(t *testing.T) {
						t.Parallel()
						be := leaseredistest.New(t, client)
						var handled atomic.Int64
						c := kit.Must[*lease.Consumer](t)(lease.NewConsumer(be, lease.Spec{Name: "same", Per: lease.PerTopic, Topics: []string{"*"},
							Handlers: []lease.Handler{lease.One("kind", func(context.Context, lease.Message[struct{}]) error { handled.Add(1); return nil })}}))
						for topic := range 20 {
							kit.OK(t, be.Publish(t.Context(), kit.Events(fmt.Sprint("x", topic), 5+i)))
						}
						leasetest.Drain(t, be, c)
						kit.Equal(t, "handled", handled.Load(), int64(20*(5+i)))
						kit.OK(t, be.Publish(t.Context(), kit.Events("unread", 2000)))
					})
				}
			})
			left := 0
			count := func(ctx context.Context, node *redis.Client) error {
				keys, err := node.Keys(ctx, "*").Result()
				left += len(keys)
				return err
			}
			if cluster, ok := client.(*redis.ClusterClient); ok {
				for _, node := range masters(t, cluster) {
					kit.OK(t, count(t.Context(), node))
				}
			} else {
				kit.OK(t, count(t.Context(), client.(*redis.Client)))
			}
			kit.Equal(t, "keys left", left, 50)
		})
	}
}

func masters(t *testing.T, cluster *redis.ClusterClient) (all []*redis.Client) {
	nodes := make(chan *redis.Client, 100)
	kit.OK(t, cluster.ForEachMaster(t.Context(), func(_ context.Context, node *redis.Client) error { nodes <- node; return nil }))
	close(nodes)
	for node := range nodes {
		all = append(all, node)
	}
	return all
}

// Keys that cannot be deleted fail the test.
func TestAClosedClient(t *testing.T) {
	client := redis.NewClient(redistest.Shared(t).Client(t).Options())
	inner := &told{TB: t}
	leaseredistest.New(inner, client)
	kit.OK(t, client.Close())
	inner.cleanup()
	kit.Equal(t, "errors", inner.errors, 1)
}

type told struct {
	testing.TB
	errors  int
	cleanup func()
}

func (t *told) Cleanup(f func())      { t.cleanup = f }
func (t *told) Errorf(string, ...any) { t.errors++ }

package leaseredis_test

import (
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leaseredis"
	"github.com/leasegen/leasegen/runtime/leasetest"
)

func TestMain(m *testing.M) {
	pace.Parallel(8)
	redistest.Main(m)
}

// factory makes backends that have a namespace of their own, with clients that connect makes.
func factory(connect func(t testing.TB, namespace string) redis.UniversalClient, opts ...leaseredis.Option) leasetest.Factory {
	var namespaces sync.Map // of the backends
	open := func(t testing.TB, namespace string) backend.Backend {
		be := leaseredis.New(connect(t, namespace), append([]leaseredis.Option{leaseredis.WithNamespace(namespace)}, opts...)...)
		namespaces.Store(be, namespace)
		return be
	}
	return leasetest.Factory{
		New: func(t testing.TB) backend.Backend {
			be := open(t, redistest.Namespace(t))
			var err error
			for range 10 { // a busy machine may not answer the first time
				if err = be.Check(t.Context(), nil); err == nil {
					break
				}
			}
			kit.OK(t, err)
			return be
		},
		Again: func(t testing.TB, be backend.Backend) backend.Backend {
			namespace, _ := namespaces.Load(be)
			return open(t, namespace.(string))
		},
	}
}

func server(t testing.TB, _ string) redis.UniversalClient { return redistest.Shared(t).Client(t) }

func TestConformance(t *testing.T) { leasetest.Run(t, factory(server)) }

func TestConformanceOverManyTags(t *testing.T) {
	inProof(t)
	variant(t, factory(server, leaseredis.WithTags(4)))
}

// variant runs the whole suite in make proof-redis, and in make more as much of it as shows that the variant works.
func variant(t *testing.T, f leasetest.Factory) {
	if pace.Long() {
		leasetest.Run(t, f)
		return
	}
	leasetest.RunVariant(t, f)
}

// inProof is for what the suite shows of a variant by itself; in make more they are tested together.
func inProof(t *testing.T) {
	t.Helper()
	if !pace.Long() {
		t.Skip("make proof-redis runs it")
	}
}

// The suite passes for a user who may do no more than ACL says, over the older protocol and many tags.
func TestConformanceWithLeastRights(t *testing.T) {
	var mu sync.Mutex
	variant(t, factory(func(t testing.TB, namespace string) redis.UniversalClient {
		mu.Lock() // a server is for one goroutine at a time
		defer mu.Unlock()
		o := *redistest.Shared(t).User(t, namespace, leaseredis.ACL(namespace)...).Options()
		o.Protocol = 2
		c := redis.NewClient(&o)
		t.Cleanup(func() { kit.OK(t, c.Close()) })
		return c
	}, leaseredis.WithTags(4)))
}

func TestConformanceOnCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts six servers")
	}
	variant(t, factory(func(t testing.TB, _ string) redis.UniversalClient {
		return redistest.SharedCluster(t).Client(t)
	}))
}

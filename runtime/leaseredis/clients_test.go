package leaseredis_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leaseredis"
)

// The older protocol returns other types.
func TestConformanceOverRESP2(t *testing.T) {
	inProof(t)
	variant(t, factory(func(t testing.TB, _ string) redis.UniversalClient {
		return client(t, func(o *redis.Options) { o.Protocol = 2 })
	}, leaseredis.WithTags(2)))
}

// client returns a client of the shared server with options of its own.
func client(t testing.TB, set func(*redis.Options)) *redis.Client {
	o := &redis.Options{Addr: redistest.Shared(t).Addr()}
	set(o)
	c := redis.NewClient(o)
	t.Cleanup(func() { c.Close() })
	return c
}

func TestClientsThatCannotBeUsedAreRefused(t *testing.T) {
	addr := redistest.Shared(t).Addr()
	refused(t, leaseredis.New(nil).Check(t.Context(), nil), "no client")
	// A process that publishes, or looks, without having checked.
	refused(t, leaseredis.New(nil).Publish(t.Context(), []backend.Event{{Topic: "t", Kind: "kind", Payload: []byte("{}")}}), "no client")
	_, err := leaseredis.New(nil).Status(t.Context())
	refused(t, err, "no client")
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": addr}})
	defer ring.Close()
	refused(t, on(ring, "x").Check(t.Context(), nil), "Ring")
	for _, o := range []*redis.ClusterOptions{{ReadOnly: true}, {RouteByLatency: true}, {RouteRandomly: true}} {
		o.Addrs = []string{addr}
		c := redis.NewClusterClient(o)
		defer c.Close()
		refused(t, on(c, "x").Check(t.Context(), nil), "replicas", "ReadOnly")
	}
	alone := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}})
	defer alone.Close()
	refused(t, on(alone, "x").Check(t.Context(), nil), "not part of a cluster", "NewClient")
	if testing.Short() {
		t.Skip("it starts six servers")
	}
	for _, protocol := range []int{2, 3} { // the tag of the namespace may be this node's own, by luck
		for _, node := range redistest.SharedCluster(t).Addrs() {
			c := redis.NewClient(&redis.Options{Addr: node, Protocol: protocol})
			defer c.Close()
			refused(t, on(c, "x").Check(t.Context(), nil), "node of a cluster", "NewClusterClient")
		}
	}
}

// Settings that an application makes for its own sake stop no consumer, and no goroutine is left running.
func TestClientsOfAllKinds(t *testing.T) {
	for name, set := range map[string]func(*redis.Options){
		"one_connection": func(o *redis.Options) { o.PoolSize, o.MaxActiveConns = 1, 1 },
		"no_retries":     func(o *redis.Options) { o.MaxRetries, o.ContextTimeoutEnabled = -1, true },
		"impatient":      func(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = 150*time.Millisecond, 150*time.Millisecond },
		"fifth_database": func(o *redis.Options) { o.DB, o.Protocol = 5, 2 },
	} {
		t.Run(name, func(t *testing.T) {
			patient := client(t, func(o *redis.Options) { set(o); o.ReadTimeout, o.WriteTimeout = time.Minute, time.Minute })
			ignore := goleak.IgnoreCurrent()
			c := client(t, set)
			be := on(c, redistest.Namespace(t), leaseredis.WithTags(2), leaseredis.WithLogger(nil))
			theirs := redistest.Namespace(t) + "-input"
			g := lease.NewGroup()
			handled := map[string]*atomic.Int64{}
			for per, spec := range map[string]lease.Spec{
				"topics":     {Per: backend.PerTopic, Topics: []string{"*"}},
				"group":      {Per: backend.PerGroup, Topics: []string{"*"}},
				"partitions": {Per: backend.PerPartition, Topics: []string{"*"}},
				"streams":    {Per: backend.PerStream, Topics: []string{"*"}, Lock: backend.LockRow},
				"source":     {Per: backend.PerGroup, Source: leaseredis.StreamSource{Names: []string{theirs}, DefaultKind: "kind"}},
			} {
				n := &atomic.Int64{}
				handled[per] = n
				spec.Name, spec.Handlers = per, []lease.Handler{noop("kind", n)}
				kit.OK(t, g.Add(kit.Must[*lease.Consumer](t)(lease.NewConsumer(be, spec, lease.WithLogger(discard)))))
			}
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- kit.Run(ctx, g) }()
			const messages = 50
			for i := range messages {
				kit.OK(t, be.Publish(t.Context(), []backend.Event{{ID: fmt.Sprint(i), Topic: fmt.Sprint("t", i%5), Key: fmt.Sprint("k", i%9), Kind: "kind", Payload: []byte("{}")}}))
				kit.OK(t, patient.XAdd(t.Context(), &redis.XAddArgs{Stream: theirs, Values: []any{"payload", "{}"}}).Err())
			}
			for per, n := range handled {
				kit.Eventually(t, "all is handled per "+per, func() bool { return n.Load() == messages })
			}
			stop()
			kit.OK(t, <-done)
			kit.OK(t, c.Close())
			leaked := goleak.Find(ignore) // which looks for a second
			for try := 0; leaked != nil && try < 4; try++ {
				leaked = goleak.Find(ignore)
			}
			kit.OK(t, leaked)
		})
	}
}

// A process whose client was closed under it cannot work: others take what it holds, though its heartbeat has connections
// of its own.
func TestAClientThatWasClosed(t *testing.T) {
	name := redistest.Namespace(t)
	c := client(t, func(*redis.Options) {})
	spec := lease.Spec{Name: "c", Per: backend.PerGroup, Topics: []string{"*"}, TTL: 3 * time.Second}
	var first, second atomic.Int64
	spec.Handlers = []lease.Handler{noop("kind", &first)}
	run(t, on(c, name, leaseredis.WithLogger(discard)), spec)
	be := on(redistest.Shared(t).Client(t), name, leaseredis.WithLogger(discard))
	publish := func() {
		kit.OK(t, be.Publish(t.Context(), []backend.Event{{Topic: "x", Kind: "kind", Payload: []byte("{}")}}))
	}
	publish()
	kit.Eventually(t, "the first message is handled", func() bool { return first.Load() == 1 })
	kit.OK(t, c.Close())
	spec.Handlers = []lease.Handler{noop("kind", &second)}
	run(t, be, spec)
	publish()
	kit.Eventually(t, "another process handles the message after that", func() bool { return second.Load() > 0 })
}

// A failover client copies well: heartbeats follow the master as everything else does.
func TestAFailoverClient(t *testing.T) {
	old, next := redistest.Start(t), redistest.Start(t)
	var master atomic.Pointer[redistest.Server]
	master.Store(old)
	c := redis.NewClient(&redis.Options{Addr: "FailoverClient", Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", master.Load().Addr())
	}})
	defer c.Close()
	var handled sync.Map // topics
	run(t, on(c, "x"), lease.Spec{Name: "c", Per: backend.PerGroup, Topics: []string{"*"}, TTL: 2 * time.Second, Handlers: []lease.Handler{
		lease.One("kind", func(_ context.Context, m lease.Message[[]byte]) error { handled.Store(m.Topic, true); return nil }),
	}})
	be := on(c, "x", leaseredis.WithLogger(slog.New(slog.DiscardHandler)))
	handles := func(topic string) {
		kit.OK(t, be.Publish(t.Context(), []backend.Event{{Topic: topic, Kind: "kind", Payload: []byte("{}")}}))
		kit.Eventually(t, "the "+topic+" message is handled", func() bool { _, ok := handled.Load(topic); return ok })
	}
	handles("first")
	host, port, _ := net.SplitHostPort(old.Addr())
	admin := next.Client(t)
	kit.OK(t, admin.ReplicaOf(t.Context(), host, port).Err())
	before := kit.Must[map[string]string](t)(old.Client(t).HGetAll(t.Context(), "{x0}:consumers").Result())
	kit.Eventually(t, "the replica has it all", func() bool {
		return fmt.Sprint(admin.HGetAll(t.Context(), "{x0}:consumers").Val()) == fmt.Sprint(before)
	})
	kit.OK(t, admin.ReplicaOf(t.Context(), "no", "one").Err())
	master.Store(next)
	host, port, _ = net.SplitHostPort(next.Addr())
	kit.OK(t, old.Client(t).ReplicaOf(t.Context(), host, port).Err()) // as a Sentinel does: alive, and read-only
	handles("second")
}

// An event that is due in thousands of years is free until then.
func TestAnEventFarAhead(t *testing.T) {
	be := fresh(t)
	feed := kit.Must[backend.Feed](t)(be.OpenFeed(t.Context(), []backend.ConsumerInfo{topical}))
	defer feed.Close()
	kit.OK(t, be.Publish(t.Context(), []backend.Event{{Topic: "x", Kind: "kind", At: time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)}}))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	looks := 0
	for ; ctx.Err() == nil; looks++ {
		if news, _ := feed.Next(ctx); len(news.Topics) > 0 {
			t.Fatalf("news %v of an event that is not due", news)
		}
	}
	if looks > 10 {
		t.Errorf("the feed looked %d times within a second", looks)
	}
}

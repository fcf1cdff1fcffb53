package leaseredis_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
)

// Work on the nodes that are left goes on when a shard is lost, and the rest follows
// when it comes back.
func TestALostShardStopsOnlyWhatIsKeptThere(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it starts six servers")
	}
	cluster := redistest.StartCluster(t, redistest.Config("cluster-require-full-coverage", "no"))
	const name = "lg"
	lost := cluster.MasterOf(t, "lg0")
	replica := cluster.ReplicaOf(t, "lg0")
	out := map[int]bool{} // tags on it
	for tag := range 8 {
		out[tag] = cluster.MasterOf(t, fmt.Sprint(name, tag)) == lost
	}
	topics := kit.Topics(64)
	there := map[string]bool{} // topics on it
	for _, topic := range topics {
		there[topic] = out[tagOf(topic, 8)]
	}
	be := on(cluster.Client(t), name)
	var mu sync.Mutex
	handled := map[string]int{}
	run(t, be, lease.Spec{Name: "c", Per: backend.PerTopic, Topics: []string{"*"}, TTL: 3 * time.Second, Handlers: []lease.Handler{
		lease.One("kind", func(_ context.Context, m lease.Message[[]byte]) error {
			mu.Lock()
			defer mu.Unlock()
			handled[m.Topic]++
			return nil
		}),
	}})
	// One with a long TTL notices the loss late, and holds up no other of its process.
	run(t, be, lease.Spec{Name: "patient", Per: backend.PerGroup, Topics: []string{"none"}, TTL: time.Hour, Handlers: []lease.Handler{
		lease.One("kind", func(context.Context, lease.Message[[]byte]) error { return nil }),
	}})
	publisher := on(cluster.Client(t), name)
	// publish sends one event to each topic for which is is true.
	publish := func(is func(string) bool) {
		t.Helper()
		for _, topic := range topics {
			if is(topic) {
				kit.OK(t, publisher.Publish(t.Context(), []backend.Event{{Topic: topic, Kind: "kind", Payload: []byte("{}")}}))
			}
		}
	}
	all := func(string) bool { return true }
	rest := func(topic string) bool { return !there[topic] }
	awaited := func(n int, is func(string) bool) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			for _, topic := range topics {
				if is(topic) && handled[topic] < n {
					return false
				}
			}
			return true
		}
	}
	publish(all)
	kit.Eventually(t, "the first is handled everywhere", awaited(1, all))

	replica.Kill()
	lost.Kill()
	kit.Eventually(t, "the others can be written to", func() bool {
		for _, topic := range topics {
			if rest(topic) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				return publisher.Publish(ctx, []backend.Event{{Topic: topic, Kind: "kind", Payload: []byte("{}")}}) == nil
			}
		}
		return false
	})
	publisher = on(cluster.Client(t), name) // one that starts now finds what there is
	publish(rest)
	kit.Eventually(t, "the second is handled where it can be", awaited(2, rest))

	lost.Start()
	replica.Start()
	cluster.WaitHealthy(t)
	publish(all)
	kit.Eventually(t, "the last is handled everywhere", awaited(2, all))
}

// A session that could not enter a tag does not report it, and enters it as soon as it can. Register passes over the
// tag until then, so feeds fail once: consumers register all again.
func TestASessionEntersWhatComesBack(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it starts six servers")
	}
	cluster := redistest.StartCluster(t, redistest.Config("cluster-require-full-coverage", "no"))
	be := on(cluster.Client(t), "lg")
	topics := kit.Topics(64)
	kit.OK(t, be.Register(t.Context(), topical, topics))
	lost, replica := cluster.MasterOf(t, "lg0"), cluster.ReplicaOf(t, "lg0")
	unaware := kit.Join(t, be, grouped, time.Hour) // it hears of a loss after its TTL
	soleThere := "s"
	for tagOf(soleThere, 8) != 0 {
		soleThere += "s"
	}
	replica.Kill()
	lost.Kill()

	var id string
	var s backend.Session
	kit.Eventually(t, "a session opens", func() (opened bool) {
		spec := backend.SessionSpec{ID: kit.ID(), TTL: time.Minute, Consumers: []string{topical.Name}}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		var err error
		s, err = be.OpenSession(ctx, spec)
		id = spec.ID
		return err == nil
	})
	some := len(kit.Acting(t, be, id, topical).Acquires(64))
	if some == 0 || some == 64 {
		t.Fatalf("acquired %d leases, want those of the shards that are left", some)
	}
	kit.Equal(t, "resources", survey(t, be, topical).Resources, some)
	kit.Equal(t, "owned", len(kit.Must[[]backend.Ref](t)(be.Owned(t.Context(), id, topical.Name))), some)
	_, err := be.Survey(t.Context(), []string{grouped.Name})
	kit.Equal(t, "a consumer whose session has not noticed a loss is surveyed", err == nil, false)
	sole := backend.ConsumerInfo{Name: soleThere, Per: backend.PerCluster}
	kit.Equal(t, "acquired of a lost tag", len(kit.Acting(t, be, id, sole).Acquires(1)), 0)
	kit.OK(t, s.Heartbeat(t.Context())) // at once, though two nodes are dead
	feed := kit.Must[backend.Feed](t)(be.OpenFeed(t.Context(), []backend.ConsumerInfo{topical}))
	defer feed.Close()
	late := []string{soleThere}
	kit.OK(t, be.Register(t.Context(), topical, late))
	_, err = feed.Next(t.Context())
	kit.OK(t, err)

	lost.Start()
	replica.Start()
	cluster.WaitHealthy(t)
	kit.OK(t, unaware.Heartbeat())
	acquired := func(want int) func() bool {
		return func() bool {
			if err := s.Heartbeat(t.Context()); err != nil {
				t.Log(err)
				return false
			}
			some += len(kit.Acting(t, be, id, topical).Acquires(64))
			return some >= want
		}
	}
	refusing := 0 // topics of a tag that refuses the session
	for _, topic := range topics {
		if tagOf(topic, 8) == 0 {
			refusing++
		}
	}
	back := cluster.MasterOf(t, "lg0").Client(t)
	kit.OK(t, back.ACLSetUser(t.Context(), "default", "resetkeys", "~{lg[1-9]}*").Err())
	kit.Eventually(t, "the rest is acquired, but for a tag that refuses the session", acquired(64-refusing))
	kit.Eventually(t, "the feed fails", func() bool {
		_, err := feed.Next(t.Context())
		return err != nil && strings.Contains(err.Error(), "can be reached again")
	})
	kit.OK(t, back.ACLSetUser(t.Context(), "default", "~*").Err())
	kit.Eventually(t, "the rest is acquired", acquired(64))
	other := kit.Join(t, be, topical, time.Minute)
	now := survey(t, be, topical)
	kit.Equal(t, "resources, the late one passed over", now.Resources, 64)
	kit.Equal(t, "free", now.Free, 0)
	kit.Equal(t, "members", len(now.Members), 2)
	kit.Equal(t, "acquired by another", len(other.Acquires(64)), 0)
	again := kit.Must[backend.Feed](t)(be.OpenFeed(t.Context(), []backend.ConsumerInfo{topical}))
	defer again.Close()
	kit.OK(t, be.Register(t.Context(), topical, late))
	kit.Equal(t, "resources", survey(t, be, topical).Resources, 65)
	_, err = again.Next(t.Context())
	kit.OK(t, err)
	kit.OK(t, s.Close(t.Context()))
	kit.Equal(t, "acquired by another", len(other.Acquires(64)), 64)
}

// The nodes that a client got at its start may be gone when a session is opened later.
func TestASessionOpensWithoutTheFirstNodes(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it starts six servers")
	}
	cluster := redistest.StartCluster(t)
	seed, heir := cluster.MasterOf(t, "lg0"), cluster.ReplicaOf(t, "lg0")
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{seed.Addr()}})
	t.Cleanup(func() { c.Close() })
	be := on(c, "lg")
	kit.OK(t, be.Check(t.Context(), nil))
	cluster.Failover(t, heir, "TAKEOVER")
	seed.Kill()
	kit.Eventually(t, "a session opens under all tags", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		s, err := be.OpenSession(ctx, backend.SessionSpec{ID: kit.ID(), TTL: time.Minute, Consumers: []string{topical.Name}})
		if err != nil {
			return false
		}
		defer s.Close(t.Context())
		return s.Heartbeat(ctx) == nil && kit.Must[int64](t)(c.ZCard(ctx, "{lg0}:sessions").Result()) > 0
	})
}

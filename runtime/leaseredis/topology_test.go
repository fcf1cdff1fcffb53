package leaseredis_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leaseredis"
	"github.com/leasegen/leasegen/runtime/operate"
)

// A client that asks for the topology knows it then, and an observer hears of that. Without a cluster there is no work.
func TestTopologyIsAskedFor(t *testing.T) {
	t.Parallel()
	seen := make(chan operate.ObservedTopology, 100)
	observer := leaseredis.WithObserver(operate.ObserverFunc(func(o operate.Observation) {
		if o, is := o.(operate.ObservedTopology); is {
			seen <- o
		}
	}))
	ctx, cancel := context.WithTimeout(t.Context(), 2*kit.Patience(t))
	defer cancel()

	single := leaseredis.New(redistest.Shared(t).Client(t), quiet(), observer)
	if err := leaseredis.Reload(ctx, single); err != nil || len(seen) != 0 {
		t.Errorf("on one server: %v, observed %d times", err, len(seen))
	}

	c := redistest.StartCluster(t)
	client := c.Client(t)
	be := leaseredis.New(client, quiet(), observer, leaseredis.WithTags(1))
	kit.OK(t, be.Publish(ctx, []backend.Event{{Topic: "x", Kind: "k"}})) // the client knows the topology
	slot := redistest.KeySlot("lg0")
	old, replica := c.MasterOf(t, "lg0"), c.ReplicaOf(t, "lg0")
	c.Failover(t, replica, "")
	if err := leaseredis.Reload(ctx, be); err != nil {
		t.Fatal(err)
	}
	if o := <-seen; o.Err != nil || o.Cause != nil {
		t.Errorf("observed %+v, want neither error nor cause", o)
	}
	// A node that is asked may not have heard of it yet itself.
	kit.Eventually(t, "the client asks the new master first", func() bool {
		kit.OK(t, leaseredis.Reload(ctx, be))
		shard, err := client.MasterForKey(ctx, "{lg0}:meta")
		return err == nil && shard.Options().Addr == replica.Addr()
	})
	if got := c.MasterOf(t, "lg0"); got == old || redistest.KeySlot("{lg0}:meta") != slot {
		t.Errorf("slot %d is still on %s", slot, got.Addr())
	}

	nowhere := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, MaxRetries: -1})
	defer nowhere.Close()
	gone := leaseredis.New(nowhere, quiet(), observer)
	short, stop := context.WithTimeout(ctx, 200*time.Millisecond)
	defer stop()
	began := time.Now()
	_ = leaseredis.Reload(short, gone) // it returns, whatever becomes of it
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it took %v although its context ended", took)
	}
	<-seen
}

package redistest_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/redistest"
)

func TestClusterForms(t *testing.T) {
	began := time.Now()
	c := redistest.SharedCluster(t)
	t.Logf("formed in %v", time.Since(began))
	if c != redistest.SharedCluster(t) {
		t.Error("two shared clusters in one test binary")
	}
	if len(c.Nodes()) != 6 || len(c.Addrs()) != 6 {
		t.Fatalf("%d nodes, %d addresses; want 6", len(c.Nodes()), len(c.Addrs()))
	}
	roles := map[string]int{}
	for _, n := range c.Nodes() {
		r := n.Client(t)
		info := r.Info(t.Context(), "replication").Val()
		role, _, _ := strings.Cut(info[strings.Index(info, "role:")+len("role:"):], "\r")
		roles[role]++
		if got := r.ClusterInfo(t.Context()).Val(); !strings.Contains(got, "cluster_state:ok") || !strings.Contains(got, "cluster_known_nodes:6") {
			t.Errorf("%s: %s", n.Addr(), got)
		}
	}
	if roles["master"] != 3 || roles["slave"] != 3 {
		t.Errorf("roles %v, want 3 masters and 3 replicas", roles)
	}
	client := c.Client(t)
	served := map[*redistest.Server]bool{}
	for i := range 100 {
		key := fmt.Sprint("key", i)
		if err := client.Set(t.Context(), key, i, 0).Err(); err != nil {
			t.Fatal(err)
		}
		if got := client.ClusterKeySlot(t.Context(), key).Val(); int(got) != redistest.KeySlot(key) {
			t.Errorf("KeySlot(%s) = %d, the server says %d", key, redistest.KeySlot(key), got)
		}
		master := c.MasterOf(t, key)
		served[master] = true
		if got := master.Client(t).Get(t.Context(), key).Val(); got != fmt.Sprint(i) {
			t.Errorf("MasterOf(%s) has %q", key, got)
		}
	}
	if len(served) != 3 {
		t.Errorf("keys on %d masters, want 3", len(served))
	}
}

// A cluster has as many masters and replicas as it is asked for.
func TestClusterOf(t *testing.T) {
	for _, want := range []struct{ masters, copies int }{{1, 0}, {4, 0}} {
		c, err := redistest.LaunchClusterOf(want.masters, want.copies)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if n := len(c.Nodes()); n != want.masters*(1+want.copies) {
			t.Errorf("%d nodes, want %d masters with %d replicas each", n, want.masters, want.copies)
		}
		client, served := c.Client(t), map[string]bool{}
		for i := range 100 {
			if err := client.Set(t.Context(), fmt.Sprint("key", i), i, 0).Err(); err != nil {
				t.Fatal(err)
			}
		}
		for _, n := range c.Nodes() {
			if n.Client(t).DBSize(t.Context()).Val() > 0 {
				served[n.Addr()] = true
			}
		}
		if len(served) != want.masters {
			t.Errorf("keys on %d masters, want %d", len(served), want.masters)
		}
	}
}

func TestKeySlot(t *testing.T) {
	client := redistest.SharedCluster(t).Client(t)
	for _, key := range []string{"", "a", "123456789", "{user}.x", "x{user}y", "{}x", "{", "a}b{c}", "{{x}}", "ä{ö}"} {
		want, err := client.ClusterKeySlot(t.Context(), key).Result()
		if err != nil {
			t.Fatal(err)
		}
		if got := redistest.KeySlot(key); got != int(want) {
			t.Errorf("KeySlot(%q) = %d, want %d", key, got, want)
		}
	}
}

func TestClusterUser(t *testing.T) {
	client := redistest.SharedCluster(t).User(t, "clusterapp", "~app:*", "+get", "+set", "+cluster|slots", "+cluster|shards", "+command")
	for i := range 20 {
		if err := client.Set(t.Context(), fmt.Sprint("app:", i), "1", 0).Err(); err != nil {
			t.Errorf("what is granted: %v", err)
		}
		if err := client.Set(t.Context(), fmt.Sprint("other:", i), "1", 0).Err(); err == nil || !strings.Contains(err.Error(), "NOPERM") {
			t.Errorf("a key not granted: %v, want NOPERM", err)
		}
	}
}

// A master that dies is replaced; when it comes back it is a replica.
func TestClusterFailover(t *testing.T) {
	c := redistest.StartCluster(t)
	client := c.Client(t)
	if err := client.Set(t.Context(), "k", "1", 0).Err(); err != nil {
		t.Fatal(err)
	}
	old, replica := c.MasterOf(t, "k"), c.ReplicaOf(t, "k")
	if old == replica {
		t.Fatal("the replica of a key is its master")
	}
	if err := old.Client(t).Do(t.Context(), "WAIT", 1, 5000).Err(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	old.Kill()
	if got := c.MasterOf(t, "k"); got != replica {
		t.Errorf("%s became the master, want the replica %s", got.Addr(), replica.Addr())
	}
	t.Logf("elected after %v", time.Since(began))
	c.WaitHealthy(t)
	if got, err := replica.Client(t).Get(t.Context(), "k").Result(); got != "1" || err != nil {
		t.Errorf("after failover: %q, %v", got, err)
	}
	old.Start()
	c.WaitHealthy(t)
	if got := c.ReplicaOf(t, "k"); got != old {
		t.Errorf("the replica is %s, want the old master %s", got.Addr(), old.Addr())
	}

	// FORCE is tried on a shard that has just elected no master: see electable.
	other := "l"
	for i := 0; c.MasterOf(t, other) == replica; i++ {
		other = fmt.Sprint("l", i)
	}
	for _, try := range [][2]string{{"", "k"}, {"FORCE", other}, {"TAKEOVER", "k"}} {
		mode, key := try[0], try[1]
		replica = c.ReplicaOf(t, key)
		began = time.Now()
		c.Failover(t, replica, mode)
		t.Logf("failover %q in %v", mode, time.Since(began))
		if got := c.MasterOf(t, key); got != replica {
			t.Errorf("failover %q: the master is %s, want %s", mode, got.Addr(), replica.Addr())
		}
		c.WaitHealthy(t)
	}

	// Frozen, not dead: it still believes to be the master when it wakes up.
	old = c.MasterOf(t, "k")
	old.Pause()
	replica = c.ReplicaOf(t, "k")
	c.Failover(t, replica, "TAKEOVER")
	old.Resume()
	if got := c.MasterOf(t, "k"); got != replica {
		t.Errorf("the master is %s, want %s, which replaced the one that was frozen", got.Addr(), replica.Addr())
	}
	c.WaitHealthy(t)
}

// A slot moves with its keys, step by step, while clients use it.
func TestClusterMoveSlot(t *testing.T) {
	c := redistest.StartCluster(t)
	ctx, client := t.Context(), c.Client(t)
	key := func(i int) string { return fmt.Sprintf("{tag}%d", i) }
	for i := range 10 {
		if err := client.Set(ctx, key(i), i, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	slot := redistest.KeySlot("tag")
	from := c.MasterOf(t, "tag")
	to := c.Nodes()[0]
	if to == from {
		to = c.Nodes()[1]
	}
	all := func(when string) {
		t.Helper()
		for i := range 10 {
			if got, err := client.Get(ctx, key(i)).Result(); got != fmt.Sprint(i) || err != nil {
				t.Errorf("%s: %s = %q, %v", when, key(i), got, err)
			}
		}
	}
	m := c.OpenSlot(t, slot, to)
	if m.From != from || m.To != to || m.Slot != slot {
		t.Errorf("moves %d from %s to %s", m.Slot, m.From.Addr(), m.To.Addr())
	}
	all("open")
	if n := m.MoveKeys(t, 4); n != 4 {
		t.Errorf("moved %d keys, want 4", n)
	}
	all("some moved")
	r := from.Client(t)
	if got := r.ClusterCountKeysInSlot(ctx, slot).Val(); got != 6 {
		t.Errorf("%d keys left, want 6", got)
	}
	asked := 0
	for i := range 10 {
		if err := r.Get(ctx, key(i)).Err(); err != nil && redis.HasErrorPrefix(err, "ASK") {
			asked++
		}
	}
	if asked != 4 {
		t.Errorf("the old master answers ASK for %d keys, want 4", asked)
	}
	for m.MoveKeys(t, 4) > 0 {
	}
	m.CloseSlot(t)
	if got := c.MasterOf(t, "tag"); got != to {
		t.Errorf("the slot is on %s, want %s", got.Addr(), to.Addr())
	}
	all("closed")
	c.WaitHealthy(t)

	c.MoveSlot(t, slot, from)
	c.WaitHealthy(t)
	if got := c.MasterOf(t, "tag"); got != from {
		t.Errorf("the slot is on %s, want %s", got.Addr(), from.Addr())
	}
	all("moved back")

	// The cluster grows and shrinks.
	added := c.AddNode(t)
	c.MoveSlot(t, slot, added)
	c.WaitHealthy(t)
	all("on the node added")
	c.MoveSlot(t, slot, to)
	c.Replicate(t, added, to)
	c.RemoveNode(t, added)
	if n := len(c.Nodes()); n != 6 {
		t.Errorf("%d nodes, want 6", n)
	}
	client = c.Client(t) // the other one still knows the node that has gone
	all("after the node added has gone")
}

// A reply lost on its way from a node: the node has acted and the client cannot know.
func TestClusterProxied(t *testing.T) {
	c := redistest.SharedCluster(t)
	ctx, name := t.Context(), redistest.Namespace(t)
	client, proxies := c.Proxied(t)
	if len(proxies) != 6 {
		t.Fatalf("%d proxies, want 6", len(proxies))
	}
	if err := client.Incr(ctx, name).Err(); err != nil {
		t.Fatal(err)
	}
	p := proxies[c.MasterOf(t, name)]
	dropped := p.DropReply(func(request []byte) bool { return bytes.Contains(request, []byte(name)) })
	// The client asks again, so that it counts twice more.
	if n, err := client.Incr(ctx, name).Result(); n != 3 || err != nil {
		t.Errorf("with a reply lost: %d, %v; want 3", n, err)
	}
	select {
	case <-dropped:
	default:
		t.Error("no reply was dropped")
	}
}

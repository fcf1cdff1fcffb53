package redisproof

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/fleet"
	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/redistest"
)

// TestCluster takes six nodes through the rows CL5 to CL7 and CL10, and six through CL1 to CL4, one after the other: each
// row has a namespace and replicas of its own, and leaves the cluster healthy.
func TestCluster(t *testing.T) {
	t.Parallel()
	t.Run("nodes come and go", func(t *testing.T) {
		t.Parallel()
		c := redistest.StartCluster(t)
		t.Run("CL5 resharding", func(t *testing.T) { resharding(t, c) })
		t.Run("CL6 failover on request", func(t *testing.T) { requested(t, c) })
		t.Run("CL7 rolling restart", func(t *testing.T) { rollingRestart(t, c) })
		t.Run("CL10 lost shard", func(t *testing.T) { lostShard(t, c) })
	})
	t.Run("masters fail", func(t *testing.T) {
		t.Parallel()
		c := redistest.StartCluster(t)
		t.Run("CL1 master killed", func(t *testing.T) { masterKilled(t, c) })
		t.Run("CL2 master frozen", func(t *testing.T) { masterFrozen(t, c) })
		t.Run("mutant: "+string(neverReloads), func(t *testing.T) { topologyNotReloaded(t, c) })
		t.Run("CL3 lagging replica", func(t *testing.T) { laggingReplica(t, c) })
		t.Run("CL4 minority master", func(t *testing.T) { minorityMaster(t, c) })
	})
}

// recovery is how long after the cluster's own failover everything is worked on again. Of a
// node that hangs clients know only when ReadTimeout is over. Where writes are lost the last heartbeats may be among them, and
// leases are taken over when their time is over.
func (s *site) recovery(hangs bool) time.Duration {
	d := 2 * time.Second
	if hangs {
		d += readTimeout
	}
	if s.losesMessages {
		d += s.settings.TTL
	}
	return d
}

// onNodes injects n faults into a cluster under load and checks the history.
func onNodes(t *testing.T, c *redistest.Cluster, s *site, fault string, n int, round func(i int, f *fleet.Fleet)) row {
	t.Helper()
	begin, epoch := time.Now(), c.Epoch(t)
	stop := s.load(t, topicCount)
	f := startFleet(t, names(s.settings, 2)...)
	s.working(t, topicCount)
	for i := range n {
		round(i, f)
		c.WaitHealthy(t)
	}
	stop()
	if elections := int(c.Epoch(t) - epoch); s.elects >= 0 && elections > n*s.elects {
		t.Logf("%s: the cluster elected %d masters, not %d: some had no processor for too long, and what they acknowledged last may be lost",
			fault, elections, n*s.elects)
		s.losesMessages = true
	}
	return s.close(t, f, fault, n, begin)
}

// rest waits, after the first round, until all sessions have had a heartbeat since the fault before: two
// in a row may take longer than sessions live.
func (s *site) rest(round int) {
	if round > 0 {
		time.Sleep(s.settings.TTL * 11 / 30)
	}
}

// tag is a hash tag of the site, with which MasterOf finds its node.
func (s *site) tag(i int) string { return fmt.Sprintf("{%s%d}", s.settings.Namespace, i) }

const clusterTags = 8

// anyTag is the tag of a topic that is worked on, any of them.
func (s *site) anyTag() string { return s.tag(tagOf(topicName(rand.IntN(topicCount)), clusterTags)) }

// settled keeps publishers waiting until the replica of a tag's master has all that was
// acknowledged, and returns the function that lets them go on.
func (s *site) settled(t *testing.T, master *redistest.Server, tag string) (resume func()) {
	t.Helper()
	s.gate.Lock()
	resume = sync.OnceFunc(s.gate.Unlock)
	t.Cleanup(resume) // should the test end before
	admin := master.Client(t)
	if err := admin.Set(t.Context(), tag+":probe", 1, 0).Err(); err != nil {
		t.Fatal(err)
	}
	n, err := admin.Do(t.Context(), "WAIT", 1, 5000).Int()
	if err != nil || n < 1 {
		t.Fatalf("WAIT 1: %d replicas, %v", n, err)
	}
	return resume
}

// back checks that everything is worked on again soon after a replica has become the master of a tag.
func (s *site) back(t *testing.T, c *redistest.Cluster, tag string, begin time.Time, last map[string]int64, hangs bool) {
	t.Helper()
	bare := pace.Beside(t, s.sink.ping)
	published := make(chan time.Time, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for left := maps.Clone(last); len(left) > 0 && ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
			maps.DeleteFunc(left, func(topic string, last int64) bool { return s.sureBeyond(topic, last) })
		}
		published <- time.Now()
	}()
	c.MasterOf(t, tag)
	elected := time.Now()
	again := s.again(t, last)
	bare.Stop()
	cancel()
	t.Logf("failover after %v, everything published to %v later, and worked on %v later", elected.Sub(begin).Round(time.Millisecond),
		(<-published).Sub(elected).Round(time.Millisecond), again.Sub(elected).Round(time.Millisecond))
	bare.Within(t, "working on everything again after the failover", again.Sub(elected), s.recovery(hangs))
}

// A master whose replica is in sync is killed.
func masterKilled(t *testing.T, c *redistest.Cluster) {
	s := onCluster(t, c, whole)
	s.losesProgress = true // commits between the look at the replica and the kill
	s.elects = 1
	onNodes(t, c, s, "CL1 master SIGKILL", rounds(t, 1, 5), func(int, *fleet.Fleet) {
		tag := s.anyTag()
		master := c.MasterOf(t, tag)
		resume := s.settled(t, master, tag)
		last := s.lastOf()
		begin := time.Now()
		master.Kill()
		resume()
		s.back(t, c, tag, begin, last, false)
		master.Start()
	})
}

// A master is frozen until it is replaced, and goes on later.
func masterFrozen(t *testing.T, c *redistest.Cluster) {
	s := onCluster(t, c, whole)
	s.losesProgress = true
	s.elects = 1
	onNodes(t, c, s, "CL2 master SIGSTOP", rounds(t, 1, 5), func(i int, _ *fleet.Fleet) {
		s.rest(i)
		tag := s.anyTag()
		master := c.MasterOf(t, tag)
		resume := s.settled(t, master, tag)
		last := s.lastOf()
		begin := time.Now()
		master.Pause()
		resume()
		s.back(t, c, tag, begin, last, true)
		master.Resume()
	})
}

// With the topology left to go-redis, which looks at it once a minute, a master that hangs holds
// everything up for as long.
func topologyNotReloaded(t *testing.T, c *redistest.Cluster) {
	s := onCluster(t, c, neverReloads)
	s.settings.Tags = clusterTags
	stop := s.load(t, topicCount)
	f := startFleet(t, names(s.settings, 2)...)
	s.working(t, topicCount)
	tag := s.anyTag()
	master := c.MasterOf(t, tag)
	resume := s.settled(t, master, tag)
	last := s.lastOf()
	master.Pause()
	resume()
	c.MasterOf(t, tag)
	elected := time.Now()
	bound := s.recovery(true)
	worked := s.worked(t, last, bound+time.Second)
	t.Logf("%v after the failover %d of %d topics are worked on", time.Since(elected).Round(time.Millisecond), worked, len(last))
	if worked == len(last) {
		t.Errorf("all topics were worked on again within %v: the mutant does no harm", bound)
	}
	f.End()
	stop()
	master.Resume()
	c.WaitHealthy(t)
}

// A replica that lags becomes the master. Writes that it lacks are lost and counted, and no epoch falls.
func laggingReplica(t *testing.T, c *redistest.Cluster) {
	s := onCluster(t, c, whole)
	s.losesMessages = true
	r := onNodes(t, c, s, "CL3 lagging replica promoted", rounds(t, 1, 5), func(i int, f *fleet.Fleet) {
		tag := s.anyTag()
		master := c.MasterOf(t, tag)
		admin := master.Client(t)
		replicas := replicasOf(t, c, master)
		for _, r := range replicas {
			r.Pause()
		}
		// Requests on their way to them would reach them still.
		if n, err := admin.Do(t.Context(), "CLIENT", "KILL", "TYPE", "replica").Int(); err != nil || n != len(replicas) {
			t.Fatalf("%d links to %d replicas were cut: %v", n, len(replicas), err)
		}
		// Of what replicas do not get: messages, commits, a member that joins, and leases that are given to it.
		joined := f.Join(names(s.settings, 3)[2].replica())
		time.Sleep(500 * time.Millisecond)
		if err := admin.Set(t.Context(), tag+":lag", fmt.Sprint("round ", i), 0).Err(); err != nil {
			t.Fatal(err)
		}
		last := s.lastOf()
		begin := time.Now()
		master.Kill()
		for _, r := range replicas {
			r.Resume()
		}
		s.back(t, c, tag, begin, last, false)
		if v, err := s.client.Get(t.Context(), tag+":lag").Result(); err != redis.Nil && (err != nil || v == fmt.Sprint("round ", i)) {
			t.Errorf("a write that was acknowledged last is still there (%q, %v): the replica did not lag, and the test shows nothing", v, err)
		}
		f.Leave(joined)
		master.Start()
	})
	t.Logf("CL3: of %d acknowledged messages %d are lost, %d were handled again after their commit, as documented", r.published, r.lost, r.undone)
}

// A master that is cut off from all others goes on acknowledging for a while.
func minorityMaster(t *testing.T, c *redistest.Cluster) {
	s := onCluster(t, c, whole)
	s.losesMessages = true
	r := onNodes(t, c, s, "CL4 minority master", rounds(t, 1, 5), func(i int, _ *fleet.Fleet) {
		s.rest(i)
		tag := s.anyTag()
		master := c.MasterOf(t, tag)
		var others []*redistest.Server
		for _, n := range c.Nodes() {
			if n != master {
				others = append(others, n)
				n.Pause()
			}
		}
		time.Sleep(time.Second) // below cluster-node-timeout: it does not notice yet
		begin := time.Now()
		master.Pause()
		for _, n := range others {
			n.Resume()
		}
		last := s.lastOf()
		s.back(t, c, tag, begin, last, true)
		master.Resume()
	})
	t.Logf("CL4: of %d acknowledged messages %d are lost, %d were handled again after their commit, as documented", r.published, r.lost, r.undone)
}

// Slots of the namespace move from node to node while everything is worked on.
func resharding(t *testing.T, c *redistest.Cluster) {
	s := onCluster(t, c, whole)
	n := rounds(t, 3, 20)
	onNodes(t, c, s, "CL5 slots move", n, func(i int, _ *fleet.Fleet) {
		tag := s.anyTag()
		from := c.MasterOf(t, tag)
		var to *redistest.Server
		for _, n := range c.Nodes() {
			if n != from && isMaster(t, n) {
				to = n
			}
		}
		move := c.OpenSlot(t, redistest.KeySlot(tag), to)
		// Now and then it stays half moved for a while.
		for move.MoveKeys(t, 5) > 0 {
			if rand.IntN(3) == 0 {
				time.Sleep(rand.N(50 * time.Millisecond))
			}
		}
		move.CloseSlot(t)
		s.again(t, s.lastOf())
	})
}

// replicasOf is all replicas of a master.
func replicasOf(t *testing.T, c *redistest.Cluster, master *redistest.Server) (replicas []*redistest.Server) {
	t.Helper()
	nodes, err := master.Client(t).ClusterNodes(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	var me string
	for line := range strings.Lines(nodes) {
		if f := strings.Fields(line); strings.Contains(f[2], "myself") {
			me = f[0]
		}
	}
	for line := range strings.Lines(nodes) {
		f := strings.Fields(line)
		for _, n := range c.Nodes() {
			if f[3] == me && strings.HasPrefix(f[1], n.Addr()+"@") {
				replicas = append(replicas, n)
			}
		}
	}
	if len(replicas) == 0 {
		t.Fatalf("master %s has no replica:\n%s", master.Addr(), nodes)
	}
	return replicas
}

// isMaster reports whether a node is a master with slots.
func isMaster(t *testing.T, n *redistest.Server) bool {
	t.Helper()
	nodes, err := n.Client(t).ClusterNodes(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(nodes) {
		if f := strings.Fields(line); strings.Contains(f[2], "myself") {
			return strings.Contains(f[2], "master") && len(f) > 8
		}
	}
	return false
}

// A node joins, takes a slot, gives it back and leaves; replicas become masters when told to.
func requested(t *testing.T, c *redistest.Cluster) {
	s := onCluster(t, c, whole)
	s.losesProgress = true // TAKEOVER asks no master
	onNodes(t, c, s, "CL6 added, removed, failover", rounds(t, 1, 3), func(int, *fleet.Fleet) {
		tag := s.anyTag()
		old := c.MasterOf(t, tag)
		added := c.AddNode(t)
		c.MoveSlot(t, redistest.KeySlot(tag), added)
		s.again(t, s.lastOf())
		c.MoveSlot(t, redistest.KeySlot(tag), old)
		c.RemoveNode(t, added)
		s.again(t, s.lastOf())
		for _, mode := range []string{"", "TAKEOVER"} {
			replica := c.ReplicaOf(t, tag)
			resume := s.settled(t, c.MasterOf(t, tag), tag)
			last := s.lastOf()
			begin := time.Now()
			c.Failover(t, replica, mode)
			resume()
			s.back(t, c, tag, begin, last, false)
			c.WaitHealthy(t)
		}
	})
}

// All nodes are restarted one by one, as for an upgrade.
func rollingRestart(t *testing.T, c *redistest.Cluster) {
	s := onCluster(t, c, whole)
	s.losesProgress = true
	s.elects = 0 // a node is back before the others miss it
	onNodes(t, c, s, "CL7 restarted one by one", rounds(t, 1, 10), func(int, *fleet.Fleet) {
		for _, n := range c.Nodes() {
			n.Restart()
			c.WaitHealthy(t)
			s.again(t, s.lastOf())
		}
	})
}

// A master is lost with its replica. Topics of other nodes go on, no process spins, and
// when the nodes are back no message is missing.
func lostShard(t *testing.T, c *redistest.Cluster) {
	set := func(nodes []*redistest.Server, name, value string) {
		for _, n := range nodes {
			if err := n.Client(t).ConfigSet(t.Context(), name, value).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	const coverage = "cluster-require-full-coverage"
	set(c.Nodes(), coverage, "no")
	s := onCluster(t, c, whole)
	s.settings.TTL = 2 * ttl
	s.losesProgress = true
	onNodes(t, c, s, "CL10 shard lost", rounds(t, 1, 5), func(_ int, f *fleet.Fleet) {
		tag := s.anyTag()
		master := c.MasterOf(t, tag)
		shard := append(replicasOf(t, c, master), master)
		set(shard, "appendfsync", "always") // as in TestServerKilled: no replica takes over from a master that lost what it had answered
		elsewhere := map[string]int64{}
		for i := range topicCount {
			if c.MasterOf(t, s.tag(tagOf(topicName(i), clusterTags))) != master {
				elsewhere[topicName(i)] = 0
			}
		}
		if len(elsewhere) == 0 {
			t.Fatal("all topics are on one node")
		}
		from := f.Marker()
		for _, n := range shard {
			n.Kill()
		}
		now := func() map[string]int64 {
			last := s.lastOf()
			for topic := range elsewhere {
				elsewhere[topic] = last[topic]
			}
			return elsewhere
		}
		// Sessions end with the shard; new ones leave it out, and take over from the old ones.
		lost := time.Now()
		eventually(t, "all replicas have another session", func() bool {
			opened := map[string]bool{}
			for _, e := range f.Events(from) {
				if e.What == "session" {
					opened[e.Replica] = true
				}
			}
			return len(opened) == len(f.Replicas)
		})
		s.again(t, now())
		t.Logf("the other topics are worked on under new sessions %v after the shard was lost, ttl %v", time.Since(lost).Round(time.Millisecond), s.settings.TTL)
		began, busy := time.Now(), cpuOf(t, f)
		for time.Since(began) < s.settings.TTL {
			s.again(t, now())
		}
		spent := (cpuOf(t, f) - busy).Seconds() / time.Since(began).Seconds() / float64(len(f.Replicas))
		t.Logf("while a shard is lost each replica uses %.1f %% of a core, with the work that it does", 100*spent)
		slices.Reverse(shard) // the master first
		for _, n := range shard {
			n.Start()
		}
		c.WaitHealthy(t)
		set(c.Nodes(), coverage, "no") // those that were started anew do not know it
		s.again(t, s.lastOf())
	})
}

package redistest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Cluster is a Redis Cluster of servers of its own. Its methods are for one goroutine
// at a time; the nodes' own methods (Kill, Pause, ...) may be called between them.
type Cluster struct {
	opts    []Option
	masters int // when it was made, of which each had so many replicas
	copies  int
	nodes   []*Server
	fail    func(error)
}

// Slots is how many hash slots a cluster has.
const Slots = 16384

const (
	// How long the cluster is given for what takes it two to eight seconds on an idle
	// machine: to form, to elect, to agree.
	clusterTimeout = 3 * time.Minute
	pollEvery      = 20 * time.Millisecond
)

// StartCluster starts a cluster of the test's own, three masters and a replica of each,
// and stops it when the test ends. If the test failed, the nodes' logs are shown.
func StartCluster(t testing.TB, opts ...Option) *Cluster {
	t.Helper()
	c, err := LaunchCluster(forTests(opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	c.fail = func(err error) { t.Helper(); t.Fatal(err) }
	for _, n := range c.nodes {
		n.Fail = c.fail
	}
	t.Cleanup(c.Close)
	c.logOnFailure(t)
	return c
}

// LaunchCluster starts a cluster outside of a test: three masters and a replica of each. Close it. A master that does not
// answer for two seconds (cluster-node-timeout) is replaced by its replica.
func LaunchCluster(opts ...Option) (*Cluster, error) { return LaunchClusterOf(3, 1, opts...) }

// LaunchClusterOf is LaunchCluster with so many masters, at least one, and so many replicas of each.
func LaunchClusterOf(masters, copies int, opts ...Option) (*Cluster, error) {
	c := &Cluster{opts: append(nodeOptions(), opts...), masters: masters, copies: copies, fail: func(err error) { panic(err) }}
	ctx, cancel := context.WithTimeout(context.Background(), clusterTimeout)
	defer cancel()
	err := c.launch(ctx)
	if err == nil {
		err = c.form(ctx)
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("redistest: start cluster: %w", err)
	}
	return c, nil
}

func nodeOptions() []Option {
	return []Option{
		func(s *Server) { s.cluster = true },
		Config("cluster-enabled", "yes"),
		Config("cluster-config-file", "nodes.conf"),
		Config("cluster-node-timeout", "2000"),
		Config("cluster-announce-ip", "127.0.0.1"), // a node that no other has met does not know its own
	}
}

// launch starts the nodes side by side: the first ones become masters.
func (c *Cluster) launch(ctx context.Context) error {
	n := c.masters * (1 + c.copies)
	nodes, errs := make([]*Server, n), make([]error, n)
	var starting sync.WaitGroup
	for i := range nodes {
		starting.Go(func() { nodes[i], errs[i] = launch(c.opts) })
	}
	starting.Wait()
	c.nodes = slices.DeleteFunc(nodes, func(s *Server) bool { return s == nil })
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return ctx.Err()
}

// form makes a cluster of single nodes, as redis-cli --cluster create does.
func (c *Cluster) form(ctx context.Context) error {
	for i, n := range c.nodes {
		err := n.admin(ctx, func(r *redis.Client) error {
			// Different epochs from the start spare the nodes to sort out equal ones.
			if err := r.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err(); err != nil {
				return err
			}
			if i < c.masters {
				if err := r.ClusterAddSlots(ctx, span(i*Slots/c.masters, (i+1)*Slots/c.masters)...).Err(); err != nil {
					return err
				}
			}
			// All meet all: gossip would take seconds to spread the word.
			for _, other := range c.nodes[:i] {
				if err := r.ClusterMeet(ctx, "127.0.0.1", strconv.Itoa(other.Port)).Err(); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("node %s: %w", n.Addr(), err)
		}
	}
	for i, n := range c.nodes[c.masters:] {
		if err := c.replicate(ctx, n, c.nodes[i%c.masters]); err != nil {
			return err
		}
	}
	return c.healthy(ctx)
}

// Addrs are the nodes' addresses, stopped ones included.
func (c *Cluster) Addrs() []string {
	addrs := make([]string, len(c.nodes))
	for i, n := range c.nodes {
		addrs[i] = n.Addr()
	}
	return addrs
}

// Nodes are the cluster's servers, stopped ones included.
func (c *Cluster) Nodes() []*Server { return slices.Clone(c.nodes) }

// Client is a client of the cluster as user default, closed when the test ends.
func (c *Cluster) Client(t testing.TB) *redis.ClusterClient {
	t.Helper()
	return closing(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()}))
}

// User is Server.User on every node there is now.
func (c *Cluster) User(t testing.TB, name string, rules ...string) *redis.ClusterClient {
	t.Helper()
	for _, n := range c.nodes {
		if err := n.setUser(context.Background(), name, rules); err != nil {
			t.Fatal(err)
		}
	}
	return closing(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs(), Username: name, Password: password(name)}))
}

// Close ends all nodes at once and removes their files.
func (c *Cluster) Close() {
	for _, n := range c.nodes {
		n.Close()
	}
}

// AddNode starts one more node, a master without slots, and returns when all running
// nodes know it. Give it slots with MoveSlot, or make it a replica with Replicate.
func (c *Cluster) AddNode(t testing.TB) *Server {
	t.Helper()
	n, err := launch(c.opts)
	if err != nil {
		t.Fatalf("redistest: add node: %v", err)
	}
	n.Fail = c.fail
	n.LogOnFailure(t)
	err = c.do(func(ctx context.Context) error {
		return n.admin(ctx, func(r *redis.Client) error {
			for _, other := range c.running() {
				if err := r.ClusterMeet(ctx, "127.0.0.1", strconv.Itoa(other.Port)).Err(); err != nil {
					return err
				}
			}
			return nil
		})
	})
	c.nodes = append(c.nodes, n)
	if err == nil {
		err = c.do(c.healthy)
	}
	if err != nil {
		t.Fatalf("redistest: add node: %v", err)
	}
	return n
}

// Replicate makes a node without slots a replica of master and returns when it has
// the master's data.
func (c *Cluster) Replicate(t testing.TB, node, master *Server) {
	t.Helper()
	err := c.do(func(ctx context.Context) error {
		if err := c.replicate(ctx, node, master); err != nil {
			return err
		}
		return c.healthy(ctx)
	})
	if err != nil {
		t.Fatalf("redistest: replicate: %v", err)
	}
}

func (c *Cluster) replicate(ctx context.Context, node, master *Server) error {
	id, err := master.id(ctx)
	if err != nil {
		return err
	}
	return node.admin(ctx, func(r *redis.Client) error {
		// The node may not have met the master yet.
		return until(ctx, func() error { return r.ClusterReplicate(ctx, id).Err() })
	})
}

// RemoveNode makes the others forget a node, which must have no slots and no replicas,
// and stops it.
func (c *Cluster) RemoveNode(t testing.TB, node *Server) {
	t.Helper()
	err := c.do(func(ctx context.Context) error {
		view, err := node.view(ctx)
		if err != nil {
			return err
		}
		for _, n := range view {
			if n.myself && n.slots != "" {
				return fmt.Errorf("it has slots: %s", n.slots)
			}
		}
		id := view.myself().id
		for _, other := range c.running() {
			if other == node {
				continue
			}
			err := other.admin(ctx, func(r *redis.Client) error { return r.ClusterForget(ctx, id).Err() })
			if err != nil {
				return fmt.Errorf("forget it on %s: %w", other.Addr(), err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("redistest: remove node %s: %v", node.Addr(), err)
	}
	node.Close()
	c.nodes = slices.DeleteFunc(c.nodes, func(s *Server) bool { return s == node })
	c.WaitHealthy(t)
}

// Epoch is how many elections and moves of slots there have been, as the nodes that run know.
func (c *Cluster) Epoch(t testing.TB) (epoch int64) {
	t.Helper()
	for _, n := range c.running() {
		info, err := n.Client(t).ClusterInfo(t.Context()).Result()
		if err != nil {
			t.Fatal(err)
		}
		at, err := strconv.ParseInt(field(info, "cluster_current_epoch"), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		epoch = max(epoch, at)
	}
	return epoch
}

// running are the nodes that are neither stopped nor paused.
func (c *Cluster) running() []*Server {
	return slices.DeleteFunc(slices.Clone(c.nodes), func(s *Server) bool { return !s.Answers() })
}

// do runs a step of a test, or of its cleanup, within the time a cluster is given.
func (c *Cluster) do(step func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), clusterTimeout)
	defer cancel()
	return step(ctx)
}

func (c *Cluster) logOnFailure(t testing.TB) {
	for _, n := range c.nodes {
		n.LogOnFailure(t)
	}
}

// until repeats an attempt until it succeeds; its last error tells why it never did.
func until(ctx context.Context, attempt func() error) error {
	var last error
	for {
		err := attempt()
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), last)
		case <-time.After(pollEvery):
		}
	}
}

func span(from, to int) []int {
	s := make([]int, 0, to-from)
	for i := from; i < to; i++ {
		s = append(s, i)
	}
	return s
}

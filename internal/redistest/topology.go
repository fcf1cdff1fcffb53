package redistest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// member is one node as a line of CLUSTER NODES reports it.
type member struct {
	id, addr, master string // master: id of a replica's master
	flags            []string
	myself           bool
	epoch            int64
	slots            string // ranges, without slots that are being moved
	linked           bool
}

func (m member) is(flag string) bool { return slices.Contains(m.flags, flag) }

// view is the cluster as one node sees it.
type view []member

func (v view) myself() member {
	for _, m := range v {
		if m.myself {
			return m
		}
	}
	return member{}
}

// view asks the node how it sees the cluster.
func (s *Server) view(ctx context.Context) (v view, err error) {
	var nodes string
	err = s.admin(ctx, func(r *redis.Client) (err error) {
		nodes, err = r.ClusterNodes(ctx).Result()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("CLUSTER NODES of %s: %w", s.Addr(), err)
	}
	// id addr@bus[,host] flags master ping-sent pong-received epoch link-state slot...
	for line := range strings.Lines(nodes) {
		f := strings.Fields(line)
		if len(f) < 8 {
			return nil, fmt.Errorf("CLUSTER NODES of %s: unexpected line %q", s.Addr(), line)
		}
		addr, _, _ := strings.Cut(f[1], "@")
		m := member{id: f[0], addr: addr, flags: strings.Split(f[2], ","), master: f[3], linked: f[7] == "connected"}
		m.myself = m.is("myself")
		m.epoch, _ = strconv.ParseInt(f[6], 10, 64)
		m.slots = strings.Join(slices.DeleteFunc(f[8:], func(s string) bool { return s[0] == '[' }), " ")
		v = append(v, m)
	}
	return v, nil
}

// id is the node's own name in the cluster.
func (s *Server) id(ctx context.Context) (string, error) {
	v, err := s.view(ctx)
	return v.myself().id, err
}

// has reports whether a slot is the member's.
func (m member) has(slot int) bool {
	for r := range strings.FieldsSeq(m.slots) {
		from, to, ranged := strings.Cut(r, "-")
		if !ranged {
			to = from
		}
		low, _ := strconv.Atoi(from)
		high, _ := strconv.Atoi(to)
		if low <= slot && slot <= high {
			return true
		}
	}
	return false
}

// firstSlot is the lowest slot of a member that has any.
func (m member) firstSlot() int {
	digits, _, _ := strings.Cut(strings.Fields(m.slots)[0], "-")
	slot, _ := strconv.Atoi(digits)
	return slot
}

// WaitHealthy waits until all nodes that run say that the cluster is, agree on who has
// which slots and who follows whom, and every replica is linked to its master. Nodes
// that a test has stopped or paused are not waited for.
func (c *Cluster) WaitHealthy(t testing.TB) {
	t.Helper()
	if err := c.do(c.healthy); err != nil {
		t.Fatalf("redistest: the cluster is not healthy: %v", err)
	}
}

func (c *Cluster) healthy(ctx context.Context) error {
	return until(ctx, func() error {
		running := c.running()
		if len(running) == 0 {
			return errors.New("no node runs")
		}
		var agreed string
		for _, n := range running {
			seen, err := n.sees(ctx, running)
			if err != nil {
				return fmt.Errorf("node %s: %w", n.Addr(), err)
			}
			if agreed == "" {
				agreed = seen
			}
			if seen != agreed {
				return fmt.Errorf("%s and %s see different clusters:\n%s\n%s", running[0].Addr(), n.Addr(), agreed, seen)
			}
		}
		return nil
	})
}

// sees returns how a node sees the running ones, or what is wrong in its eyes.
func (s *Server) sees(ctx context.Context, running []*Server) (string, error) {
	var state, replication string
	err := s.admin(ctx, func(r *redis.Client) error {
		pipe := r.Pipeline()
		info, repl := pipe.ClusterInfo(ctx), pipe.Info(ctx, "replication")
		_, err := pipe.Exec(ctx)
		state, replication = info.Val(), repl.Val()
		return err
	})
	if err != nil {
		return "", err
	}
	if state := field(state, "cluster_state"); state != "ok" {
		return "", fmt.Errorf("cluster_state is %s", state)
	}
	if field(replication, "role") == "slave" && field(replication, "master_link_status") != "up" {
		return "", errors.New("a replica without a link to its master")
	}
	v, err := s.view(ctx)
	if err != nil {
		return "", err
	}
	var lines []string
	for _, n := range running {
		i := slices.IndexFunc(v, func(m member) bool { return m.addr == n.Addr() && !m.is("noaddr") })
		if i < 0 {
			return "", fmt.Errorf("does not know %s", n.Addr())
		}
		m := v[i]
		if m.is("fail") || m.is("fail?") || m.is("handshake") || !m.linked {
			return "", fmt.Errorf("sees %s as %s, linked: %t", m.addr, strings.Join(m.flags, ","), m.linked)
		}
		lines = append(lines, fmt.Sprintf("%s %s master=%s slots=%s", m.addr, m.id, m.master, m.slots))
	}
	return strings.Join(lines, "\n"), nil
}

// MasterOf is the running node that has the slot of a key, waited for while the cluster
// elects one.
func (c *Cluster) MasterOf(t testing.TB, key string) *Server {
	t.Helper()
	var master *Server
	err := c.do(func(ctx context.Context) (err error) {
		master, err = c.masterOf(ctx, KeySlot(key))
		return err
	})
	if err != nil {
		t.Fatalf("redistest: master of key %s: %v", key, err)
	}
	return master
}

func (c *Cluster) masterOf(ctx context.Context, slot int) (master *Server, err error) {
	err = until(ctx, func() error {
		// One that was cut off may still think so; the later epoch is right.
		epoch := int64(-1)
		for _, n := range c.running() {
			v, err := n.view(ctx)
			if err != nil {
				return err
			}
			if me := v.myself(); me.is("master") && me.has(slot) && me.epoch > epoch {
				master, epoch = n, me.epoch
			}
		}
		if epoch < 0 {
			return fmt.Errorf("no running node has slot %d", slot)
		}
		return nil
	})
	return master, err
}

// ReplicaOf is a running replica of the master of a key, which itself may be stopped or
// paused; it is waited for while there is none.
func (c *Cluster) ReplicaOf(t testing.TB, key string) *Server {
	t.Helper()
	var replica *Server
	err := c.do(func(ctx context.Context) error {
		return until(ctx, func() error {
			epoch := int64(-1)
			for _, n := range c.running() {
				v, err := n.view(ctx)
				if err != nil {
					return err
				}
				me := v.myself()
				for _, m := range v {
					if m.id == me.master && m.has(KeySlot(key)) && m.epoch > epoch {
						replica, epoch = n, m.epoch
					}
				}
			}
			if epoch < 0 {
				return fmt.Errorf("no running replica has slot %d", KeySlot(key))
			}
			return nil
		})
	})
	if err != nil {
		t.Fatalf("redistest: replica of key %s: %v", key, err)
	}
	return replica
}

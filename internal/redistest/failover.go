package redistest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Failover makes a replica the master and returns when it is. Mode "" asks the master
// to hand over without loss; FORCE, for a master that does not answer, has the other
// masters vote; TAKEOVER asks no master. Other nodes learn of it a little later: WaitHealthy.
func (c *Cluster) Failover(t testing.TB, replica *Server, mode string) {
	t.Helper()
	if err := c.do(func(ctx context.Context) error { return c.failover(ctx, replica, mode) }); err != nil {
		t.Fatalf("redistest: failover to %s: %v", replica.Addr(), err)
	}
}

func (c *Cluster) failover(ctx context.Context, replica *Server, mode string) error {
	v, err := replica.view(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(v, func(m member) bool { return m.id == v.myself().master })
	if i < 0 || v[i].slots == "" {
		return errors.New("it is no replica of a master with slots")
	}
	slot := v[i].firstSlot()
	args := []any{"CLUSTER", "FAILOVER"}
	if mode != "" {
		args = append(args, mode)
	}
	if mode != "TAKEOVER" {
		if err := replica.electable(ctx); err != nil {
			return err
		}
	}
	var asked time.Time
	return until(ctx, func() error {
		// A replica gives up after five seconds, such as when a master has just voted
		// and does not vote again so soon.
		if time.Since(asked) > 6*time.Second {
			if err := replica.admin(ctx, func(r *redis.Client) error { return r.Do(ctx, args...).Err() }); err != nil {
				return err
			}
			asked = time.Now()
		}
		master, err := c.masterOf(ctx, slot)
		if err == nil && master != replica {
			err = fmt.Errorf("%s still has slot %d", master.Addr(), slot)
		}
		return err
	})
}

var election = regexp.MustCompile(`(?m)^\d+:\w (.*?) # Starting a failover election`)

// electable waits until the votes of the node's last election are void. Until then, twice
// the node timeout after it began, Redis counts them for the next one, too: the node makes
// itself a master under its old epoch, and takes writes that it loses soon after.
func (s *Server) electable(ctx context.Context) error {
	log, err := os.ReadFile(s.LogPath())
	if err != nil {
		return err
	}
	all := election.FindAllSubmatch(log, -1)
	if all == nil {
		return nil
	}
	began, err := time.ParseInLocation("02 Jan 2006 15:04:05.000", string(all[len(all)-1][1]), time.Local)
	if err != nil {
		return fmt.Errorf("a time in the log: %w", err)
	}
	var timeout string
	err = s.admin(ctx, func(r *redis.Client) error {
		values, err := r.ConfigGet(ctx, "cluster-node-timeout").Result()
		timeout = values["cluster-node-timeout"]
		return err
	})
	if err != nil {
		return err
	}
	ms, err := strconv.Atoi(timeout)
	if err != nil {
		return fmt.Errorf("cluster-node-timeout %q: %w", timeout, err)
	}
	select {
	case <-time.After(time.Until(began.Add(2*time.Duration(ms)*time.Millisecond + 100*time.Millisecond))):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

package leaseredis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/runtime/backend"
)

const (
	// checkTime is how long Check waits for servers that do not answer.
	checkTime = 8 * time.Second
	// checkPatience is for how long it asks again when that fails: one lost reply is no reason not to start.
	checkPatience = 500 * time.Millisecond
	// nodeTime is how long it waits for one node of a cluster.
	nodeTime = 3 * time.Second
	allSlots = 16384
)

// checker looks whether client, server and rights are what the backend needs.
type checker struct{ *catalog }

// Check reports why the backend cannot be used now, or not by these consumers: options that do not
// fit the namespace, a server that is older than 6.2 or may evict leases, a cluster of which
// a part cannot be reached, commands, keys and channels that the client's user may not use. It warns
// of a server that loses what it acknowledged when it crashes. It changes no setting.
func (ch *checker) Check(ctx context.Context, consumers []backend.ConsumerInfo) error {
	if ch.misuse != nil {
		return ch.misuse
	}
	for _, c := range consumers {
		if err := checkName(c.Name); err != nil {
			return err
		}
		if err := checkSource(c); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	for began := time.Now(); ; {
		err := ch.checkServer(ctx, consumers)
		if !moved(err) || time.Since(began) > checkPatience || !pause(ctx, 100*time.Millisecond) {
			return ch.unusable(err)
		}
	}
}

// checkServer is Check without what needs no server, and without the words for its errors.
func (ch *checker) checkServer(ctx context.Context, consumers []backend.ConsumerInfo) error {
	var facts []serverFacts
	var err error
	if c, ok := ch.client.(*redis.ClusterClient); ok {
		facts, err = ch.nodes(ctx, c)
	} else {
		var f serverFacts
		f, err = within(ctx, func(ctx context.Context) (serverFacts, error) { return factsOf(ctx, ch.client) })
		f.addr = addressOf(ch.client)
		facts = []serverFacts{f}
	}
	if err != nil {
		return err
	}
	for _, f := range facts {
		if err := f.refused(ch.clustered()); err != nil {
			return err
		}
	}
	if err := ch.checkRights(ctx, consumers); err != nil {
		return err
	}
	sh, err := ch.shape(ctx)
	if err != nil {
		return err
	}
	if err := ch.checkKinds(ctx, sh, consumers); err != nil {
		return err
	}
	for _, f := range facts {
		ch.caution(f)
	}
	return nil
}

// checkClient refuses clients that read from anywhere else than the masters, or whose servers do
// not know of each other.
func (ch *checker) checkClient() error {
	switch c := ch.client.(type) {
	case nil:
		return errors.New("leaseredis: New was given no client")
	case *redis.Ring:
		return errors.New("leaseredis: a Ring moves keys to other servers when one is away, so that leases would have two owners: use one server, a failover client, or a Redis Cluster")
	case *redis.ClusterClient:
		if o := c.Options(); o.ReadOnly || o.RouteByLatency || o.RouteRandomly {
			return errors.New("leaseredis: the client reads from replicas, which lag behind, so that new messages would be passed over: give New a client without ReadOnly, RouteByLatency and RouteRandomly")
		}
	}
	return nil
}

// unusable words an error of a server that cannot be used now.
func (ch *checker) unusable(err error) error {
	says := func(format string, args ...any) error { return fmt.Errorf("leaseredis: "+format, args...) }
	has := func(word string) bool {
		return redis.HasErrorPrefix(err, word) || strings.Contains(err.Error(), ": "+word+" ")
	}
	var ne net.Error
	switch {
	case err == nil:
		return nil
	case has("LOADING"):
		return says("the server is still loading its data (LOADING): try again when it has")
	case has("CLUSTERDOWN"):
		return says("the cluster is down (CLUSTERDOWN): bring the nodes of the missing shard back, or see redis-cli --cluster check")
	case strings.Contains(err.Error(), "cluster support disabled"):
		return says("the server is not part of a cluster, and the client is one of a cluster: use redis.NewClient, or redis.NewFailoverClient")
	case has("MASTERDOWN"), has("READONLY"):
		return says("the server is a replica, which cannot be written to: connect to the master, or use a cluster or failover client")
	case has("MISCONF"):
		return says("the server refuses writes because it cannot save them (MISCONF): see its log, and make room on its disk")
	case has("NOAUTH"), has("WRONGPASS"):
		return says("the server does not let the client in: set Username and Password of the client's options: %w", err)
	case strings.HasPrefix(err.Error(), "leaseredis: "):
		return err
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &ne) && ne.Timeout():
		return says("the server did not answer in time: check its address, and that it is not stopped: %w", err)
	case errors.As(err, &ne):
		return says("the server cannot be reached: check its address: %w", err)
	}
	return says("the server cannot be used: %w", err)
}

// addressOf is where a client of one server connects to, if it has an address of its own.
func addressOf(client redis.UniversalClient) string {
	if c, ok := client.(*redis.Client); ok && c.Options().Addr != "FailoverClient" {
		return c.Options().Addr
	}
	return ""
}

// serverFacts is what a server says of itself. Facts that it withholds are empty.
type serverFacts struct {
	addr    string
	version string
	mode    string // standalone, cluster or sentinel
	info    map[string]string
}

// factsOf asks a server. The version comes from HELLO, which every user may call; of INFO,
// which managed servers or rules may forbid, no fact is known then.
func factsOf(ctx context.Context, c redis.Cmdable) (serverFacts, error) {
	f := serverFacts{info: map[string]string{}}
	hello, err := c.(interface {
		Do(ctx context.Context, args ...any) *redis.Cmd
	}).Do(ctx, "HELLO").Result()
	if err != nil && !strings.Contains(err.Error(), "unknown command") && !refusedRight(err) {
		return f, err
	}
	switch h := hello.(type) {
	case map[any]any:
		f.version, f.mode = text(h["version"]), text(h["mode"])
	case []any: // RESP2
		for ; len(h) > 1; h = h[2:] {
			switch text(h[0]) {
			case "version":
				f.version = text(h[1])
			case "mode":
				f.mode = text(h[1])
			}
		}
	default: // a server before 6.0
		f.version = "below 6"
	}
	for _, section := range []string{"memory", "persistence"} {
		lines, err := c.Info(ctx, section).Result()
		if err != nil {
			continue
		}
		for line := range strings.Lines(lines) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
				f.info[name] = value
			}
		}
	}
	return f, nil
}

// refused says why a server must not be used, by a client of a cluster or of one server.
func (f *serverFacts) refused(clustered bool) error {
	switch {
	case f.mode == "cluster" && !clustered:
		return fmt.Errorf("leaseredis: the server %sis a node of a cluster, and the client knows no others: use redis.NewClusterClient", f.of())
	case f.mode == "sentinel":
		return fmt.Errorf("leaseredis: the server %sis a Sentinel: use redis.NewFailoverClient", f.of())
	}
	major, rest, _ := strings.Cut(f.version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	a, _ := strconv.Atoi(major)
	m, _ := strconv.Atoi(minor)
	if f.version != "" && (a < 6 || a == 6 && m < 2) {
		return fmt.Errorf("leaseredis: the server %shas version %s, 6.2 or newer is needed", f.of(), f.version)
	}
	if policy := f.info["maxmemory_policy"]; strings.HasPrefix(policy, "allkeys-") && f.info["maxmemory"] != "0" {
		return fmt.Errorf("leaseredis: the server %sevicts any key when its memory is full (maxmemory-policy %s), leases and messages too: "+
			"set maxmemory-policy noeviction, or use another server", f.of(), policy)
	}
	return nil
}

func (f *serverFacts) of() string {
	if f.addr == "" {
		return ""
	}
	return f.addr + " "
}

// caution warns of what a server may lose.
func (ch *checker) caution(f serverFacts) {
	if f.info["aof_enabled"] == "0" {
		ch.warn("aof "+f.addr, "the server has no append-only file: what it acknowledged since its last snapshot is lost when it crashes",
			"server", f.addr, "fix", "set appendonly yes")
	}
	if policy := f.info["maxmemory_policy"]; strings.HasPrefix(policy, "volatile-") && f.info["maxmemory"] != "0" {
		ch.warn("volatile "+f.addr, "the server evicts keys that expire when its memory is full: an event id may then let a second message in",
			"server", f.addr, "maxmemory-policy", policy, "fix", "set maxmemory-policy noeviction")
	}
}

// nodes asks every master of a cluster, and reports those that cannot be reached, and slots that
// have no node.
func (ch *checker) nodes(ctx context.Context, c *redis.ClusterClient) ([]serverFacts, error) {
	var mu sync.Mutex
	facts := map[string]serverFacts{}
	failed := map[string]error{}
	covered := 0
	_, err := within(ctx, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, c.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
			addr := node.Options().Addr
			ctx, cancel := context.WithTimeout(ctx, nodeTime)
			defer cancel()
			slots := 0
			f, err := within(ctx, func(ctx context.Context) (f serverFacts, err error) {
				if f, err = factsOf(ctx, node); err == nil {
					slots, err = slotsWithNode(ctx, node)
				}
				return f, err
			})
			f.addr = addr
			mu.Lock()
			defer mu.Unlock()
			facts[addr] = f
			if err != nil {
				failed[addr] = err
			} else {
				covered = max(covered, slots)
			}
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	mu.Lock()
	defer mu.Unlock()
	if len(failed) > 0 {
		addr := slices.Min(slices.Collect(maps.Keys(failed)))
		if refusedRight(failed[addr]) {
			return nil, fmt.Errorf("leaseredis: the client's user may not ask for the cluster's slots (+cluster|slots): give it what leaseredis.ACL(%q) returns", ch.namespace)
		}
		return nil, fmt.Errorf("leaseredis: %d of the %d masters of the cluster cannot be reached, the first under the address %s that the cluster announces: "+
			"check that address from here (cluster-announce-ip, NAT): %w", len(failed), len(facts), addr, failed[addr])
	}
	if covered < allSlots {
		return nil, fmt.Errorf("leaseredis: the cluster has no node for %d of its %d hash slots: bring the nodes of the missing shard back, or see redis-cli --cluster check", allSlots-covered, allSlots)
	}
	return slices.Collect(maps.Values(facts)), nil
}

// slotsWithNode counts the hash slots that have a node, in the eyes of one.
func slotsWithNode(ctx context.Context, node *redis.Client) (n int, err error) {
	//lint:ignore SA1019 CLUSTER SHARDS, which is to replace it, is not there before Redis 7.
	ranges, err := node.ClusterSlots(ctx).Result()
	for _, r := range ranges {
		if len(r.Nodes) > 0 {
			n += r.End - r.Start + 1
		}
	}
	return n, err
}

// refusedRight reports that a user lacks a right.
func refusedRight(err error) bool { return redis.HasErrorPrefix(err, "NOPERM") }

// checkRights tries every command under every tag, on a key that goes away again, and names all that
// the client's user may not use.
func (ch *checker) checkRights(ctx context.Context, consumers []backend.ConsumerInfo) error {
	lacks := map[string]bool{}
	var streams []string // that may not be read
	note := func(command, key, channel string, err error) error {
		switch {
		case err == nil:
		case refusedRight(err) && strings.Contains(err.Error(), "channel"):
			lacks["channel "+channel] = true
		case refusedRight(err) && strings.Contains(err.Error(), "key"):
			lacks["keys "+key] = true
		case refusedRight(err), strings.HasPrefix(err.Error(), "ERR unknown command"):
			lacks["+"+command] = true
		case moved(err), redis.HasErrorPrefix(err, "MISCONF"), redis.HasErrorPrefix(err, "NOAUTH"):
			return err
		}
		return nil
	}
	sh := ch.first()
	if s := ch.shaped.Load(); s != nil {
		sh = *s
	}
	for tag := range sh.tags {
		p := ch.prefix(tag)
		if err := ch.tryCommands(ctx, p+"probe", p+"none", p+"news", func(command string, err error) error {
			return note(command, p+"*", p+"news", err)
		}); err != nil {
			return err
		}
	}
	news := ch.prefix(0) + "news"
	if err := note("subscribe", "", news, ch.tryHints(ctx, news)); err != nil {
		return err
	}
	for _, info := range consumers {
		s := sourceOf(info)
		if s == nil {
			continue
		}
		for _, name := range s.Names {
			_, err := within(ctx, func(ctx context.Context) (any, error) {
				return ch.client.XRevRangeN(ctx, name, "+", "-", 1).Result()
			})
			if refusedRight(err) {
				streams = append(streams, name)
			}
			if err := note("xrevrange", name, "", err); err != nil {
				return err
			}
		}
	}
	if len(lacks) > 0 {
		return fmt.Errorf("leaseredis: the client's user lacks rights: %s: give it what leaseredis.ACL(%s) returns",
			strings.Join(slices.Sorted(maps.Keys(lacks)), ", "), arguments(ch.namespace, streams))
	}
	return nil
}

// arguments writes those of ACL; of many streams the first stand for all.
func arguments(namespace string, streams []string) string {
	args := []string{strconv.Quote(namespace)}
	for i, s := range streams {
		if i == 3 {
			args = append(args, "…")
			break
		}
		args = append(args, strconv.Quote(s))
	}
	return strings.Join(args, ", ")
}

// tryCommands sends all commands in one round trip.
func (ch *checker) tryCommands(ctx context.Context, key, none, channel string, each func(command string, err error) error) error {
	names := slices.Sorted(maps.Keys(commands))
	// The key is a string from here on, and away in a minute at the latest.
	names = append([]string{"set"}, slices.DeleteFunc(names, func(n string) bool { return n == "set" })...)
	put := strings.NewReplacer("KEY", key, "NONE", none, "CHANNEL", channel)
	errs, err := within(ctx, func(ctx context.Context) ([]error, error) {
		pipe := ch.client.Pipeline()
		cmds := make([]*redis.Cmd, len(names))
		for i, n := range names {
			args := []any{n}
			for _, a := range commands[n] {
				args = append(args, put.Replace(a))
			}
			cmd := redis.NewCmd(ctx, args...)
			for j, a := range args { // so that a cluster client sends it to the tag's node
				if a == key || a == none || a == channel {
					cmd.SetFirstKeyPos(int8(j))
					break
				}
			}
			if n == "time" {
				cmd.SetFirstKeyPos(0)
			}
			cmds[i] = cmd
			pipe.Process(ctx, cmd)
		}
		pipe.Exec(ctx) // each command has its own error
		errs := make([]error, len(cmds))
		for i, c := range cmds {
			errs[i] = c.Err()
		}
		ch.client.Unlink(ctx, key)
		return errs, nil
	})
	if err != nil {
		return err
	}
	for i, n := range names {
		if err := each(n, errs[i]); err != nil {
			return err
		}
	}
	return nil
}

// checkKinds refuses consumers that were of another kind when they were registered.
func (ch *checker) checkKinds(ctx context.Context, sh *shape, consumers []backend.ConsumerInfo) error {
	stored := make([]*redis.StringCmd, len(consumers))
	err := ch.pipelined(ctx, func(pipe redis.Pipeliner) {
		for i, c := range consumers {
			stored[i] = pipe.HGet(ctx, ch.prefix(sh.tagOf(c.Name))+"consumers", c.Name)
		}
	})
	if err != nil {
		return err
	}
	for i, now := range consumers {
		s, err := stored[i].Result()
		if errors.Is(err, redis.Nil) {
			continue
		} else if err != nil {
			return err
		}
		was, err := infoOf(now.Name, s)
		if err != nil {
			return err
		}
		if kindOf(was) != kindOf(now) {
			return errOtherKind(now, kindOf(was))
		}
	}
	return nil
}

// kindOf is what must not change of a consumer.
func kindOf(info backend.ConsumerInfo) string {
	kind := "per " + info.Per.String()
	if info.Source != nil {
		kind += " of streams"
	}
	return kind
}

func errOtherKind(now backend.ConsumerInfo, was string) error {
	return fmt.Errorf("leaseredis: consumer %q is %s in this namespace, and now it is %s: its cursors would mean something else; "+
		"give it another name, or forget the old one first (leasegen forget %s)", now.Name, was, kindOf(now), now.Name)
}

// tryHints subscribes to a channel and leaves it again.
func (ch *checker) tryHints(ctx context.Context, channel string) error {
	_, err := within(ctx, func(ctx context.Context) (struct{}, error) {
		sub := ch.client.Subscribe(ctx, channel)
		defer sub.Close()
		_, err := sub.ReceiveTimeout(ctx, nodeTime)
		return struct{}{}, err
	})
	return err
}

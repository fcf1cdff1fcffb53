package leaseredis_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leaseredis"
)

// refused checks that an error is one line that says all of what.
func refused(t *testing.T, err error, what ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("it was not refused; want an error with %q", what)
	}
	if strings.ContainsAny(err.Error(), "\n") {
		t.Errorf("the error is not one line: %v", err)
	}
	for _, w := range what {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error does not say %q: %v", w, err)
		}
	}
}

func TestCheckRefusesMisuse(t *testing.T) {
	c := redistest.Shared(t).Client(t)
	check := func(info backend.ConsumerInfo, opts ...leaseredis.Option) error {
		opts = append([]leaseredis.Option{leaseredis.WithNamespace(redistest.Namespace(t))}, opts...)
		return leaseredis.New(c, opts...).Check(t.Context(), []backend.ConsumerInfo{info})
	}
	kit.OK(t, check(topical))
	refused(t, check(topical, leaseredis.WithTags(0)), "WithTags(0)", "1 and 256")
	refused(t, check(topical, leaseredis.WithSlots(1<<20)), "WithSlots(1048576)")
	refused(t, check(topical, leaseredis.WithNamespace("A{b}")), "WithNamespace", "lower-case")
	refused(t, check(backend.ConsumerInfo{Name: "a:b"}), `"a:b"`, "colon")
	refused(t, check(backend.ConsumerInfo{Name: "c", Per: backend.PerGroup, Source: 7}), `"c"`, "source")
}

// The settings of a new namespace hold for all; so two processes never look for a
// resource in two places.
func TestCheckKnowsTheShapeOfTheNamespace(t *testing.T) {
	c := redistest.Shared(t).Client(t)
	name := redistest.Namespace(t) + "-"
	kit.OK(t, on(c, name, leaseredis.WithTags(13), leaseredis.WithSlots(16)).Check(t.Context(), nil))
	kit.OK(t, on(c, name).Check(t.Context(), nil))
	refused(t, on(c, name, leaseredis.WithTags(3)).Check(t.Context(), nil), name, "13 tags", "WithTags(3)")
	refused(t, on(c, name, leaseredis.WithSlots(8)).Check(t.Context(), nil), name, "16 slots", "WithSlots(8)")
	// {x12} is the 13th tag of x and the third of x1.
	refused(t, on(c, name+"1", leaseredis.WithTags(3)).Check(t.Context(), nil), name+"1", "belongs to namespace")

	kit.OK(t, c.HSet(t.Context(), "{"+name+"0}:meta", "layout", "7").Err())
	refused(t, on(c, name).Check(t.Context(), nil), "layout 7", "update leasegen")
}

// A consumer that is of another kind than it was does not start: all consumers of its process would
// wait for it. The settings do not depend on anything that may change.
func TestCheckKnowsWhatAConsumerWas(t *testing.T) {
	be := on(redistest.Shared(t).Client(t), redistest.Namespace(t), leaseredis.WithTags(3))
	streams := backend.ConsumerInfo{Name: "s", Per: backend.PerGroup, Source: leaseredis.StreamSource{Names: []string{"a"}}}
	for _, info := range []backend.ConsumerInfo{topical, streams} {
		kit.OK(t, be.Check(t.Context(), []backend.ConsumerInfo{info}))
		kit.OK(t, be.Register(t.Context(), info, nil))
		kit.OK(t, be.Check(t.Context(), []backend.ConsumerInfo{info}))
	}
	changed := topical
	changed.Topics, changed.TTL, changed.From = []string{"other"}, time.Hour, backend.FromNow
	kit.OK(t, be.Check(t.Context(), []backend.ConsumerInfo{changed, {Name: "new", Per: backend.PerCluster}}))

	changed.Per = backend.PerPartition
	refused(t, be.Check(t.Context(), []backend.ConsumerInfo{streams, changed}), topical.Name, "is per topic", "now it is per partition", "leasegen forget "+topical.Name)
	streams.Source, streams.Topics = nil, []string{"a"}
	refused(t, be.Check(t.Context(), []backend.ConsumerInfo{streams}), `"s" is per group of streams`, "now it is per group:")
	refused(t, be.Register(t.Context(), streams, nil), `"s" is per group of streams`, "now it is per group:")
}

// logged returns what a check logs.
func logged(t *testing.T, s *redistest.Server) string {
	t.Helper()
	var log bytes.Buffer
	be := on(s.Client(t), redistest.Namespace(t), leaseredis.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	for range 3 {
		kit.OK(t, be.Check(t.Context(), nil))
	}
	return log.String()
}

func TestCheckLooksAtTheServersSettings(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts servers of its own")
	}
	s := redistest.Start(t, redistest.Config("maxmemory", "100mb"), redistest.Config("maxmemory-policy", "allkeys-lru"))
	refused(t, on(s.Client(t), "x").Check(t.Context(), nil), "the server "+s.Addr()+" evicts", "allkeys-lru", "noeviction")
	kit.Equal(t, "keys written before the refusal", s.Client(t).DBSize(t.Context()).Val(), 0)

	set := func(name, value string) { kit.OK(t, s.Client(t).ConfigSet(t.Context(), name, value).Err()) }
	set("maxmemory", "0")
	kit.Equal(t, "log with a policy that has no bound to act on", logged(t, s), "")
	set("maxmemory", "100mb")
	set("maxmemory-policy", "volatile-ttl")
	if got := logged(t, s); strings.Count(got, "volatile-ttl") != 1 {
		t.Errorf("logged %q, want one line about volatile-ttl", got)
	}
	set("maxmemory-policy", "noeviction")
	set("appendonly", "no")
	if got := logged(t, s); strings.Count(got, "append-only") != 1 || !strings.Contains(got, "server="+s.Addr()) {
		t.Errorf("logged %q, want one line about the append-only file", got)
	}
}

// All rights that are missing are named at once, and no command is sent that managed servers forbid.
func TestCheckNamesAllMissingRights(t *testing.T) {
	s := redistest.Shared(t)
	name := redistest.Namespace(t)
	all := leaseredis.ACL(name)
	without := func(drop ...string) *redis.Client {
		return s.User(t, name, slices.DeleteFunc(slices.Clone(all), func(r string) bool { return slices.Contains(drop, r) })...)
	}
	kit.OK(t, on(without(), name).Check(t.Context(), nil))
	refused(t, on(without("+zinter", "+publish", "+evalsha"), name).Check(t.Context(), nil), "+evalsha, +publish, +zinter", `ACL("`+name)
	refused(t, on(without("+subscribe"), name).Check(t.Context(), nil), "+subscribe")
	refused(t, on(without("~{"+name+"[0-9]}:*"), name).Check(t.Context(), nil), "keys {"+name+"0}:*")
	refused(t, on(without("&{"+name+"[0-9]}:news"), name).Check(t.Context(), nil), "channel {"+name+"0}:news")
	kit.OK(t, on(without("+info"), name).Check(t.Context(), nil)) // it then takes no look at the settings

	streams := backend.ConsumerInfo{Name: "c", Per: backend.PerGroup, Source: leaseredis.StreamSource{Names: []string{"input[1]"}}}
	refused(t, on(without(), name).Check(t.Context(), []backend.ConsumerInfo{streams}), "keys input[1]", `ACL("`+name+`", "input[1]")`)
	reader := s.User(t, name, leaseredis.ACL(name, "input[1]")...)
	kit.OK(t, on(reader, name).Check(t.Context(), []backend.ConsumerInfo{streams}))
	if err := reader.Get(t.Context(), "input1").Err(); !redis.HasErrorPrefix(err, "NOPERM") {
		t.Errorf("the rule for input[1] lets the user read input1: %v", err)
	}
}

// Check tries each command that is sent, and ACL allows no other.
func TestRulesAreWhatScriptsUse(t *testing.T) {
	used := map[string]bool{}
	files := kit.Must[[]string](t)(filepath.Glob("scripts/*.lua"))
	if len(files) < 10 {
		t.Fatalf("found %d scripts", len(files))
	}
	command := regexp.MustCompile(`\bp?call\('([A-Z]+)'`)
	for _, f := range files {
		for _, m := range command.FindAllStringSubmatch(string(kit.Must[[]byte](t)(os.ReadFile(f))), -1) {
			used["+"+strings.ToLower(m[1])] = true
		}
	}
	for rule := range used {
		if !slices.Contains(leaseredis.ACL("x"), rule) {
			t.Errorf("scripts use %s, and ACL does not allow it", rule)
		}
	}
	// Those that Go code sends itself.
	for _, c := range leaseredis.SentByGo {
		used["+"+c] = true
	}
	for _, rule := range leaseredis.ACL("x") {
		if rule[0] == '+' && !used[rule] {
			t.Errorf("ACL allows %s, and nothing uses it", rule)
		}
	}
}

func TestCheckWordsWhatAServerSays(t *testing.T) {
	for says, want := range map[string]string{
		"LOADING Redis is loading the dataset in memory":                    "still loading",
		"CLUSTERDOWN Hash slot not served":                                  "the cluster is down",
		"NOAUTH Authentication required.":                                   "Username and Password",
		"MISCONF Redis is configured to save RDB snapshots, but it cannot…": "refuses writes",
		"READONLY You can't write against a read only replica.":             "is a replica",
	} {
		be := on(saying(t, "-"+says+"\r\n"), "x")
		refused(t, be.Check(t.Context(), nil), want)
	}
	old := saying(t, "*4\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n6.0.9\r\n")
	refused(t, on(old, "x").Check(t.Context(), nil), "6.0.9", "6.2 or newer")
}

// saying returns a client of a server that always answers the same.
func saying(t *testing.T, answer string) *redis.Client {
	t.Helper()
	l := kit.Must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for buf := make([]byte, 1<<16); ; {
					n, err := c.Read(buf)
					if err != nil {
						return
					}
					for range bytes.Count(buf[:n], []byte("\r\n*")) + 1 {
						fmt.Fprint(c, answer)
					}
				}
			}()
		}
	}()
	c := redis.NewClient(&redis.Options{Addr: l.Addr().String(), Protocol: 2, MaxRetries: -1, DisableIdentity: true})
	t.Cleanup(func() { c.Close() })
	return c
}

func TestCheckDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	c := redis.NewClient(&redis.Options{Addr: kit.Must[net.Listener](t)(silent(t)).Addr().String()})
	defer c.Close()
	began := time.Now()
	refused(t, on(c, "x").Check(context.Background(), nil), "did not answer", "address")
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it took %v", took)
	}
	gone := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1})
	defer gone.Close()
	refused(t, on(gone, "x").Check(t.Context(), nil), "cannot be reached", "127.0.0.1:1")
}

// silent accepts connections and never answers.
func silent(t *testing.T) (net.Listener, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		t.Cleanup(func() { l.Close() })
	}
	return l, err
}

// A client that sees half of a cluster gets an error that says so.
func TestCheckFindsHalfAClusterMissing(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts six servers")
	}
	cluster := redistest.SharedCluster(t)
	whole := cluster.Client(t)
	//lint:ignore SA1019 it is what the client itself asks
	slots := kit.Must[[]redis.ClusterSlot](t)(whole.ClusterSlots(t.Context()).Result())
	seeing := func(change func([]redis.ClusterSlot) []redis.ClusterSlot) *redis.ClusterClient {
		c := redis.NewClusterClient(&redis.ClusterOptions{
			Addrs:        cluster.Addrs(),
			ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) { return change(slices.Clone(slots)), nil },
			DialTimeout:  time.Second, DialerRetries: 1,
		})
		t.Cleanup(func() { c.Close() })
		return c
	}
	began := time.Now()
	elsewhere := kit.Must[net.Listener](t)(silent(t)).Addr().String()
	unreachable := seeing(func(s []redis.ClusterSlot) []redis.ClusterSlot {
		s[0].Nodes = []redis.ClusterNode{{Addr: elsewhere}}
		return s
	})
	refused(t, on(unreachable, redistest.Namespace(t)).Check(t.Context(), nil), elsewhere[strings.LastIndexByte(elsewhere, ':'):], "announces")
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it took %v", took)
	}

	name := redistest.Namespace(t)
	user := cluster.User(t, name, append(leaseredis.ACL(name), "-cluster|slots")...)
	err := on(user, name).Check(t.Context(), nil)
	refused(t, err, "cluster")
	if errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it says only that it took too long: %v", err)
	}
	kit.OK(t, on(cluster.User(t, name, leaseredis.ACL(name)...), name).Check(t.Context(), nil))
}

// Command bench drains messages with leasegen and with its peers on Redis, side by side in
// one run on one server of its own, and prints who is how fast.
//
//	make bench-redis
//	cd bench && go run ./redis -n 100000
//	cd bench && go run ./redis -held
//
// The contenders take turns, one round each, and each one's figure is the median of its
// rounds: what else the machine does hits all of them. Handlers do nothing. Ratios travel
// from machine to machine; absolute figures do not.
//
// It is a module of its own, so that the peers are in nobody's go.mod but its own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/must"
	"github.com/leasegen/leasegen/internal/redistest"
)

func main() { os.Exit(must.Main("bench", run)) }

// options are the command's flags.
type options struct {
	messages, peers, rounds int
	asynqWorkers            int
	only                    string
	held                    bool
	streams                 string
	idle                    time.Duration
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	defer must.Catch(&err)
	var o options
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.IntVar(&o.messages, "n", 1_000_000, "messages that leasegen drains in each round")
	fs.IntVar(&o.peers, "peers", 0, "messages that each peer drains in a round; 0: as many as leasegen")
	fs.IntVar(&o.rounds, "rounds", 3, "rounds, of which the median counts")
	fs.IntVar(&o.asynqWorkers, "asynq-concurrency", 64, "how many tasks asynq handles at once")
	fs.StringVar(&o.only, "only", "", "comma-separated: leasegen, watermill, asynq; default all")
	fs.BoolVar(&o.held, "held", false, "count the commands that held streams cost, instead")
	fs.StringVar(&o.streams, "streams", "1000,10000", "with -held: how many streams one process holds")
	fs.DurationVar(&o.idle, "idle", 30*time.Second, "with -held: how long commands are counted")
	must.Do(fs.Parse(args))
	if o.messages < 1 || o.rounds < 1 || o.peers < 0 || o.asynqWorkers < 1 || o.idle < time.Second {
		return errors.New("-n, -rounds and -asynq-concurrency are at least 1, -peers at least 0, -idle at least 1s")
	}
	if o.peers == 0 {
		o.peers = o.messages
	}
	server := must.Get(redistest.Launch())
	defer server.Close()
	if o.held {
		return held(ctx, server, o, out)
	}
	return drains(ctx, server, o, out)
}

// contender is one system in one configuration.
type contender struct {
	family, what string
	messages     int
	// fill puts the round's messages there. Its time does not count.
	fill func(ctx context.Context, round int)
	// drain handles them all and returns how long that took.
	drain func(ctx context.Context, round int) time.Duration

	rates  []float64 // messages per second, one for each round
	allocs float64   // per message, of the last round
}

func (c *contender) round(ctx context.Context, round int) (took time.Duration, err error) {
	defer must.Catch(&err)
	c.fill(ctx, round)
	runtime.GC()
	before := mallocs()
	took = c.drain(ctx, round)
	c.allocs = float64(mallocs()-before) / float64(c.messages)
	c.rates = append(c.rates, float64(c.messages)/took.Seconds())
	return took, nil
}

// rate is the median of the rounds.
func (c *contender) rate() float64 {
	sorted := slices.Sorted(slices.Values(c.rates))
	if len(sorted) == 0 {
		return 0
	}
	return sorted[len(sorted)/2]
}

const topics = 8

func drains(ctx context.Context, server *redistest.Server, o options, out io.Writer) error {
	all := []*contender{
		drainLeasegen(server, "one", 1, o.messages, o.rounds),
		drainLeasegen(server, "eight", topics, o.messages, o.rounds),
		drainWatermill(server, "1 topic, 1 subscriber (in order)", 1, 1, o.peers),
		drainWatermill(server, "8 topics, 1 subscriber each (in order)", topics, 1, o.peers),
		drainWatermill(server, "1 topic, 16 subscribers (no order)", 1, 16, o.peers),
		drainAsynq(server, o.asynqWorkers, o.peers),
	}
	all = slices.DeleteFunc(all, func(c *contender) bool {
		return o.only != "" && !slices.Contains(strings.Split(o.only, ","), c.family)
	})
	if len(all) == 0 {
		return fmt.Errorf("-only %s names none of leasegen, watermill, asynq", o.only)
	}
	fmt.Fprintf(out, "%s, %d cores, %d rounds in turns; payload %d bytes, append-only file, fsync every second\n",
		serverVersion(ctx, server), runtime.NumCPU(), o.rounds, len(payload(0)))
	for round := range o.rounds {
		for _, c := range all {
			took, err := c.round(ctx, round)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", c.family, c.what, err)
			}
			fmt.Fprintf(out, "round %d: %-10s %-40s %9d messages in %8v\n", round+1, c.family, c.what, c.messages, took.Round(time.Millisecond))
		}
	}
	table(out, all)
	return nil
}

func table(out io.Writer, all []*contender) {
	fmt.Fprintf(out, "\n| system | how | messages | msg/s | allocations each |\n|---|---|---:|---:|---:|\n")
	for _, c := range all {
		fmt.Fprintf(out, "| %s | %s | %d | %.0f | %.1f |\n", c.family, c.what, c.messages, c.rate(), c.allocs)
	}
	// leasegen's slowest configuration against each peer's fastest.
	slowest, fastest := 0.0, map[string]float64{}
	for _, c := range all {
		switch {
		case c.family != ours:
			fastest[c.family] = max(fastest[c.family], c.rate())
		case slowest == 0 || c.rate() < slowest:
			slowest = c.rate()
		}
	}
	if slowest == 0 {
		return
	}
	fmt.Fprintln(out)
	for _, target := range []struct {
		family string
		ratio  float64
	}{{"watermill", 5}, {"asynq", 1}} {
		if rate := fastest[target.family]; rate > 0 {
			verdict := "reached"
			if slowest < target.ratio*rate {
				verdict = "NOT REACHED"
			}
			fmt.Fprintf(out, "leasegen at its slowest is %.1f times as fast as %s at its fastest; target %.0f: %s\n", slowest/rate, target.family, target.ratio, verdict)
		}
	}
}

// payload is what every system carries in each message.
func payload(i int) []byte { return fmt.Appendf(nil, `{"n":%d,"text":"%0100d"}`, i, i) }

// client is a client as an application has it, with connections enough for everybody's concurrency.
func client(server *redistest.Server) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: server.Addr(), PoolSize: 128})
}

func serverVersion(ctx context.Context, server *redistest.Server) string {
	c := client(server)
	defer c.Close()
	info, err := c.Info(ctx, "server").Result()
	for line := range strings.Lines(info) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "redis_version:"); ok && err == nil {
			return "Redis " + v
		}
	}
	return "Redis"
}

func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

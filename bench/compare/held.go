package compare

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/must"
	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leaseredis"
)

// mostCommands is how many commands a second held streams may cost, whatever their number.
const mostCommands = 20

// held counts what the server executes, commands inside of scripts included, while a process
// holds streams without work.
func held(ctx context.Context, server *redistest.Server, o options, out io.Writer) error {
	fmt.Fprintf(out, "%s; commands are those of INFO commandstats in %v, those inside of scripts included\n", serverVersion(ctx, server), o.idle)
	fmt.Fprintf(out, "\n| streams held | by | commands/s | target %d | of which |\n|---:|---|---:|---|---|\n", mostCommands)
	for _, field := range strings.Split(o.streams, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(field))
		if err != nil || n < 1 {
			return fmt.Errorf("-streams %q: want numbers, separated by commas", o.streams)
		}
		for _, h := range holders() {
			calls, err := h.hold(ctx, server, n, o.idle)
			if err != nil {
				return fmt.Errorf("%d streams, %s: %w", n, h.what, err)
			}
			total := 0.0
			for _, c := range calls {
				total += c
			}
			verdict := "reached"
			if total > mostCommands {
				verdict = "NOT REACHED"
			}
			fmt.Fprintf(out, "| %d | %s | %.1f | %s | %s |\n", n, h.what, total, verdict, most(calls))
		}
	}
	return nil
}

// most names the commands that are called most.
func most(calls map[string]float64) string {
	names := slices.SortedFunc(maps.Keys(calls), func(a, b string) int {
		return cmp.Or(cmp.Compare(calls[b], calls[a]), strings.Compare(a, b))
	})
	var s []string
	for _, n := range names[:min(len(names), 6)] {
		s = append(s, fmt.Sprintf("%s %.1f", n, calls[n]))
	}
	return strings.Join(s, ", ")
}

// holder is a way to hold streams.
type holder struct {
	what string
	run  func(ctx context.Context, be *leaseredis.Backend, n int, holding func(string) (release func())) (*lease.Consumer, error)
}

func holders() []holder {
	return []holder{
		{"handlers that still run", holdByMessages},
		{"Run, named by the application", holdByName},
	}
}

// holdByMessages publishes one message to each stream, whose handler does not return.
func holdByMessages(ctx context.Context, be *leaseredis.Backend, n int, holding func(string) func()) (*lease.Consumer, error) {
	events := make([]lease.Event, n)
	for i := range events {
		events[i] = lease.Event{Topic: "work", Key: fmt.Sprintf("stream-%d", i), Kind: "item", Payload: []byte("{}")}
	}
	for part := range slices.Chunk(events, 1000) {
		must.Do(be.Publish(ctx, part))
	}
	return lease.NewConsumer(be, lease.Spec{
		Name: "holder", Per: lease.PerStream, Topics: []string{"work"}, Capacity: n, Drain: time.Second,
		Handlers: []lease.Handler{lease.One("item", func(ctx context.Context, m lease.Message[[]byte]) error {
			defer holding(m.Key)()
			<-ctx.Done()
			return context.Cause(ctx)
		})},
	}, lease.WithConcurrency(n), lease.WithStuckAfter(time.Hour, false))
}

// holdByName names the streams, whose Run does not return.
func holdByName(_ context.Context, be *leaseredis.Backend, n int, holding func(string) func()) (*lease.Consumer, error) {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("stream-%d", i)
	}
	return lease.NewConsumer(be, lease.Spec{
		Name: "holder", Per: lease.PerStream, Capacity: n, Drain: time.Second,
		Streams: func(context.Context) ([]string, error) { return names, nil },
		Handlers: []lease.Handler{lease.Run(func(ctx context.Context, l lease.Lease) error {
			defer holding(l.Resource)()
			<-ctx.Done()
			return context.Cause(ctx)
		})},
	})
}

// hold returns how often each command is called in a second.
func (h holder) hold(ctx context.Context, server *redistest.Server, n int, idle time.Duration) (rates map[string]float64, err error) {
	defer must.Catch(&err)
	admin, conn := client(server), client(server)
	defer admin.Close()
	defer conn.Close()
	must.Do(admin.FlushAll(ctx).Err())
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var held atomic.Int64
	all := make(chan struct{})
	c := must.Get(h.run(ctx, leaseredis.New(conn), n, func(string) func() {
		if held.Add(1) == int64(n) {
			close(all)
		}
		return func() { held.Add(-1) }
	}))
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	must.Await(ctx, all, ended, held.Load)
	// The work that acquiring them has begun ends first.
	must.Do(wait(ctx, ended, 5*time.Second))
	before := commandCalls(ctx, admin)
	begin := time.Now()
	must.Do(wait(ctx, ended, idle))
	after := commandCalls(ctx, admin)
	took := time.Since(begin).Seconds()
	if held.Load() != int64(n) {
		return nil, fmt.Errorf("%d of %d streams were held to the end", held.Load(), n)
	}
	cancel()
	must.Do(<-ended)
	rates = map[string]float64{}
	for name, calls := range after {
		if d := calls - before[name]; d > 0 && name != "info" {
			rates[name] = float64(d) / took
		}
	}
	return rates, nil
}

// wait lets time pass, in which the consumer must not end.
func wait(ctx context.Context, ended <-chan error, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case err := <-ended:
		return errors.Join(errors.New("the consumer ended by itself"), err)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// commandCalls is how often each command has been called since the server's start.
func commandCalls(ctx context.Context, c *redis.Client) map[string]int64 {
	info := must.Get(c.Info(ctx, "commandstats").Result())
	calls := map[string]int64{}
	for line := range strings.Lines(info) {
		name, rest, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "cmdstat_"), ":calls=")
		if !ok {
			continue
		}
		digits, _, _ := strings.Cut(rest, ",")
		calls[name] = must.Get(strconv.ParseInt(digits, 10, 64))
	}
	return calls
}

// options of what is held on Redis.
type options struct {
	streams string
	idle    time.Duration
}

// client is a client as an application has it.
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

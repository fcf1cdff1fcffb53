// Command bench measures leasegen beside what else people would use, on servers of its own, and writes the page
// docs/bench.md, its charts and the raw results.
//
//	make bench
//	make bench-quick
//	cd bench && go run . -quick -docs /tmp/bench -raw /tmp/bench.json -workloads drain -contenders leasegen,pgx,river
//	cd bench && go run . -render -docs ../docs -raw results.json
//	cd bench && go run . growth
//	cd bench && go run . compare
//	cd bench && go run . held
//
// Contenders take turns in each workload, A B C, A B C: whatever else the machine does hits all of them. Each turn has a
// database of its own, the same number of messages of the same size, and is bounded in time. The bare loops pgx and
// go-redis are the limit that others are divided by.
//
// It is a module of its own, so that the peers are in no other go.mod.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"github.com/leasegen/leasegen/bench/compare"
	"github.com/leasegen/leasegen/bench/report"
	"github.com/leasegen/leasegen/internal/must"
)

func main() {
	if run, ok := children()[os.Getenv(envChild)]; ok {
		os.Exit(run())
	}
	command := run
	if len(os.Args) > 1 {
		if other, ok := commands()[os.Args[1]]; ok {
			command = func(ctx context.Context, args []string, out io.Writer) error { return other(ctx, args[1:], out) }
		}
	}
	os.Exit(must.Main("bench", command))
}

// commands are what the program does beside the page.
func commands() map[string]func(context.Context, []string, io.Writer) error {
	return map[string]func(context.Context, []string, io.Writer) error{"compare": compare.Run, "held": compare.Held, "growth": grow}
}

// options are the command's flags.
type options struct {
	quick, render         bool
	docs, raw             string
	workloads, contenders string
	profile               string
	size                  size
}

// size is how much is measured.
type size struct {
	rounds   int
	messages int           // of a backlog, the same for all
	window   time.Duration // of a turn: one that has not drained its backlog by then is measured by what it has done
	calls    time.Duration // of publishing, and of each half of a latency under load
	probes   int           // of a latency
	trials   int           // of a crash or a handover, in each round
	leases   int
	held     int // topics that are held and idle
	idle     time.Duration
	slow     int // rounds of what takes seconds whatever the machine; 0: as of all
}

// full is made for half an hour on 2 cores: 124 contenders in workloads, three turns of 2 to 3 seconds each, more where processes end or rest.
func full() size {
	return size{
		rounds: 3, messages: 100_000, window: 1500 * time.Millisecond, calls: 700 * time.Millisecond, probes: 40, trials: 5,
		leases: 40_000, held: 100, idle: 10 * time.Second,
	}
}

// quick has smaller turns, which differ more from each other, and one of what takes seconds.
func quick() size {
	return size{
		rounds: 3, messages: 40_000, window: 800 * time.Millisecond, calls: 300 * time.Millisecond, probes: 20, trials: 1,
		leases: 40_000, held: 100, idle: 3 * time.Second, slow: 1,
	}
}

func parse(args []string) (o options, err error) {
	defer must.Catch(&err)
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.BoolVar(&o.quick, "quick", false, "smaller turns")
	fs.BoolVar(&o.render, "render", false, "write the page again from the raw results, without measuring")
	fs.StringVar(&o.docs, "docs", "../docs", "the directory of bench.md and images/bench")
	fs.StringVar(&o.raw, "raw", "results.json", "the file of raw results")
	fs.StringVar(&o.workloads, "workloads", "", "comma-separated workloads, or their first words; default all")
	fs.StringVar(&o.contenders, "contenders", "", "comma-separated contenders; default all")
	fs.StringVar(&o.profile, "cpuprofile", "", "write a CPU profile of this process to a file")
	rounds := fs.Int("rounds", 0, "rounds, of which the median counts; default 3")
	messages := fs.Int("messages", 0, "messages of a backlog; default 100,000, with -quick 40,000")
	must.Do(fs.Parse(args))
	o.size = full()
	if o.quick {
		o.size = quick()
	}
	if *rounds < 0 || *messages < 0 {
		return o, errors.New("-rounds and -messages are at least 1")
	}
	if *rounds > 0 {
		o.size.rounds = *rounds
	}
	if *messages > 0 {
		o.size.messages = *messages
	}
	return o, nil
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	defer must.Catch(&err)
	o := must.Get(parse(args))
	if o.render {
		return must.Get(report.Load(o.raw)).Write(o.docs)
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})))
	if o.profile != "" {
		f := must.Get(os.Create(o.profile))
		defer f.Close()
		must.Do(pprof.StartCPUProfile(f))
		defer pprof.StopCPUProfile()
	}
	must.Do(os.MkdirAll(filepath.Dir(o.raw), 0o755)) // before hours are spent
	r := must.Get(measure(ctx, o, out))
	must.Do(r.Save(o.raw))
	must.Do(r.Write(o.docs))
	for _, g := range r.Goals() {
		verdict := "met"
		if !g.Met {
			verdict = "NOT MET"
		}
		fmt.Fprintf(out, "%-80s %8s  %-24s %s\n", g.What, g.Want, g.Got, verdict)
	}
	if failed := r.Failures(); len(failed) > 0 {
		return fmt.Errorf("not all could be measured:\n%s", strings.Join(failed, "\n"))
	}
	return ctx.Err()
}

// measure runs the workloads, and has a report even of those before an interruption.
func measure(ctx context.Context, o options, out io.Writer) (_ *report.Report, err error) {
	defer must.Catch(&err)
	begin := time.Now()
	ws, cs := chosen(workloads(o.size), o.workloads, workload.named), chosen(contenders(), o.contenders, contender.named)
	if len(ws) == 0 || len(cs) == 0 {
		return nil, errors.New("-workloads or -contenders names none")
	}
	servers := must.Get(launch(cs))
	defer servers.close()
	before := load()
	r := &report.Report{Tier: "full", Rounds: o.size.rounds, Conditions: servers.conditions(ctx, o.size)}
	if o.quick {
		r.Tier = "quick"
	}
	for _, c := range cs {
		r.Contenders = append(r.Contenders, c.Contender)
	}
	fmt.Fprintf(out, "%d workloads, %d turns; at 2 to 3 seconds each, %v and half as much again\n",
		len(ws), planned(ws, cs, o.size), time.Duration(planned(ws, cs, o.size))*2*time.Second)
	for _, w := range ws {
		from := time.Now()
		w := turns{workload: w, contenders: cs, size: o.size, servers: servers, out: out}
		r.Workloads = append(r.Workloads, w.run(ctx))
		fmt.Fprintf(out, "   %s took %v; %v so far\n", w.workload.ID, time.Since(from).Round(time.Second), time.Since(begin).Round(time.Second))
		if ctx.Err() != nil {
			value := "what comes after " + w.workload.ID + " was not measured, nor all of that"
			r.Conditions = append(r.Conditions, report.Condition{Name: "interrupted", Value: value})
			break
		}
	}
	r.Took = time.Since(begin).Round(time.Second).String()
	if before != "" {
		value := before + " before, " + load() + " after; up to 4 of the latter are this run's own"
		r.Conditions = append(r.Conditions, report.Condition{Name: "load average", Value: value})
	}
	return r, nil
}

// planned is how many turns a run has.
func planned(ws []workload, cs []contender, z size) (n int) {
	for _, w := range ws {
		ts := turns{workload: w, size: z}
		for _, c := range cs {
			if ts.refusal(c) == "" {
				n += ts.rounds()
			}
		}
	}
	return n
}

func chosen[T any](all []T, list string, named func(T, string) bool) []T {
	if list == "" {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(t T) bool {
		return !slices.ContainsFunc(strings.Split(list, ","), func(name string) bool { return named(t, name) })
	})
}

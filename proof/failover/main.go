// Command failover measures how long no process works on a resource when its owner ends:
// from the fault, or the old owner's last effect, to the new owner's first.
//
//	make failover
//	go run ./proof/failover -trials 20 -locks session -faults SIGKILL
//	go run ./proof/failover -ttl 15s -locks topic -faults SIGKILL
//	go run ./proof/failover -locks topic -raw trials.json
//
// Two replicas, real processes, stand behind each other on one resource: one owns it, one
// is its standby. Each lock is measured under every fault, on a server of its own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/leasegen/leasegen/internal/must"
	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/proof/failover/trials"
	"github.com/leasegen/leasegen/runtime/lease"
)

func main() {
	if os.Getenv(envReplica) != "" {
		os.Exit(replicaMain())
	}
	os.Exit(must.Main("failover", run))
}

// usual is the TTL unless another is asked for.
const usual = 2 * time.Second

// locks are the ways to own that are measured.
func locks() []lockKind {
	return []lockKind{
		{onPostgres, "session", "topic", lease.PerTopic, lease.LockSession},
		{onPostgres, "session", "partition", lease.PerPartition, lease.LockSession},
		{onPostgres, "row", "stream", lease.PerStream, lease.LockRow},
		{onPostgres, "advisory", "group", lease.PerGroup, lease.LockAdvisory},
		{onPostgres, "advisory", "cluster", lease.PerCluster, lease.LockAdvisory},
		{onRedis, "session", "topic", lease.PerTopic, lease.LockSession},
		{onRedis, "session", "partition", lease.PerPartition, lease.LockSession},
		{onRedis, "row", "stream", lease.PerStream, lease.LockRow},
		{onRedis, "session", "cluster", lease.PerCluster, lease.LockSession},
	}
}

const (
	onPostgres = "postgres"
	onRedis    = "redis"
)

type lockKind struct {
	on        string
	lock, per string
	asPer     lease.Per
	asLock    lease.Lock
}

func (k lockKind) String() string { return k.on + ", " + k.lock + ", per=" + k.per }

// line is one line of the table.
type line struct {
	kind  lockKind
	fault fault
	ttl   time.Duration
	took  []time.Duration // sorted
	late  int             // calls that an old owner began after the new owner's first
	bare  bare            // beside it
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	defer must.Catch(&err)
	fs := flag.NewFlagSet("failover", flag.ContinueOnError)
	n := fs.Int("trials", 100, "trials of each fault and lock")
	pairs := fs.Int("pairs", pace.AtOnce(10), "pairs of replicas that are tried side by side, where time is mostly waiting; fewer by default where a new process keeps a core for over 1 ms")
	onlyLocks := fs.String("locks", "", "comma-separated stores (postgres, redis), locks or pers; default all")
	onlyFaults := fs.String("faults", "", "comma-separated faults; default all")
	ttl := fs.Duration("ttl", usual, "the replicas' TTL")
	raw := fs.String("raw", "", "a file for what each trial took, as JSON")
	must.Do(fs.Parse(args))
	if *ttl <= 0 {
		return fmt.Errorf("-ttl %v: a TTL is above 0", *ttl)
	}
	lines, err := measure(ctx, out, *ttl, *n, *pairs, *onlyLocks, *onlyFaults)
	if len(lines) > 0 {
		table(out, lines)
	}
	if err == nil && *raw != "" {
		err = trials.Write(*raw, rawLines(lines))
	}
	return err
}

func measure(ctx context.Context, out io.Writer, ttl time.Duration, trials, pairs int, onlyLocks, onlyFaults string) (lines []line, err error) {
	wanted := func(list string, names ...string) bool {
		return list == "" || slices.ContainsFunc(strings.Split(list, ","), func(w string) bool { return slices.Contains(names, w) })
	}
	for _, k := range locks() {
		if !wanted(onlyLocks, k.on, k.lock, k.per) {
			continue
		}
		for _, f := range faults(ttl) {
			if !wanted(onlyFaults, f.name) {
				continue
			}
			begun := time.Now()
			l, err := alone(ctx, k, f, ttl, trials, min(pairs, f.pairs))
			if err != nil {
				return lines, fmt.Errorf("%v, %s: %w", k, f.name, err)
			}
			fmt.Fprintf(out, "%v, %s: %d trials in %v\n", k, f.name, len(l.took), time.Since(begun).Round(time.Second))
			lines = append(lines, l)
		}
	}
	if len(lines) == 0 {
		return nil, errors.New("no fault is left to measure")
	}
	return lines, nil
}

// alone is try on a server of its own.
func alone(ctx context.Context, k lockKind, f fault, ttl time.Duration, trials, pairs int) (line, error) {
	s, err := launch(ctx, k.on)
	if err != nil {
		return line{}, err
	}
	defer s.Close()
	return try(ctx, s, k, f, ttl, trials, pairs)
}

// try makes the trials of one fault and lock, in schemas or namespaces of their own.
func try(ctx context.Context, st store, k lockKind, f fault, ttl time.Duration, trials, pairs int) (l line, err error) {
	defer must.Catch(&err)
	s := must.Get(newSite(ctx, st, strings.ToLower(k.per+"_"+f.name), k, ttl, min(pairs, trials)))
	defer s.close()
	l = line{kind: k, fault: f, ttl: ttl}
	stop := beside(ctx, st)
	l.took, l.late, err = s.trials(ctx, f, trials)
	if l.bare = stop(); err != nil {
		return line{}, fmt.Errorf("%w\nreplicas said:\n%s", err, s.stderr.Last(40))
	}
	slices.Sort(l.took)
	return l, nil
}

func rawLines(lines []line) (raw []trials.Line) {
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	for _, l := range lines {
		r := trials.Line{On: l.kind.on, Lock: l.kind.lock, Per: l.kind.per, Fault: l.fault.name, TTL: ms(l.ttl), Late: l.late,
			BareConnection: ms(at(l.bare.connections, 0.5)), BareWrite: ms(at(l.bare.writes, 0.5))}
		for _, d := range l.took {
			r.Took = append(r.Took, ms(d))
		}
		raw = append(raw, r)
	}
	return raw
}

// at is the value that the fraction q of the sorted values does not exceed; 0 of none.
func at(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

// holds reports whether the line reaches its target.
func (l line) holds() bool { return l.goal() == 0 || at(l.took, 0.99) <= l.goal() }

// goal is the fault's target. On Redis processes ask for the end of others; on PostgreSQL they wait for it.
func (l line) goal() time.Duration {
	if l.kind.on == onRedis && l.fault.name == "SIGKILL" {
		return 500 * time.Millisecond
	}
	return l.fault.target
}

func table(out io.Writer, lines []line) {
	fmt.Fprintf(out, "\nttl %v\n\n| fault | lock | trials | p50 | p99 | max | to reach, p99 | late calls | bare connection, p50 | bare write, p50 |\n"+
		"|---|---|---:|---:|---:|---:|---|---:|---:|---:|\n", lines[0].ttl)
	ms := func(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }
	for _, l := range lines {
		want := "-"
		if l.goal() > 0 {
			want = l.goal().String() + ": yes"
			if !l.holds() {
				want = l.goal().String() + ": NO"
			}
		}
		fmt.Fprintf(out, "| %s | %v | %d | %s | %s | %s | %s | %d | %s | %s |\n", l.fault.what, l.kind, len(l.took),
			ms(at(l.took, 0.5)), ms(at(l.took, 0.99)), ms(l.took[len(l.took)-1]), want, l.late,
			ms(at(l.bare.connections, 0.5)), ms(at(l.bare.writes, 0.5)))
	}
}

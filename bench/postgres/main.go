// Command bench measures leasegen on a PostgreSQL server of its own and prints each
// figure beside a bare pgx loop that does the same SQL in the same run. Ratios travel
// from machine to machine; absolute figures do not.
//
//	make bench-local
//	cd bench && go run ./postgres -only drain,latency -messages 100000
//
// With -compare it repeats instead what other systems were measured with, and prints
// their figures beside its own:
//
//	make compare
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/must"
	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

func main() { os.Exit(must.Main("bench", run)) }

// bench is one run: a server, and what was measured on it.
type bench struct {
	server   *pgtest.Server
	messages int // of the big drain
	leases   int
	out      io.Writer
	results  []result
}

// result is one line of the closing table.
type result struct {
	what   string
	got    float64
	unit   string
	bare   float64 // the same by a bare loop; 0 when there is none
	theirs string  // the figure of another system, if there is one
	want   string  // the figure to reach, if there is one
	holds  bool
}

// measure is one measurement, on a fresh database.
type measure struct {
	name string
	what string
	run  func(context.Context, *bench, *pgxpool.Pool)
}

func measures() []measure {
	return []measure{
		{"drain", "ordered drain of one group, batch 500", drain},
		{"effects", "transaction form, one row for each message", effects},
		{"topics", "10 topics, producers with batches of 100", topics},
		{"leases", "acquire and take over many leases", leases},
		{"latency", "from commit to handler", latency},
		{"writes", "what is written and read while there is nothing to do", writes},
	}
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	defer must.Catch(&err)
	b := &bench{out: out}
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	compare := fs.Bool("compare", false, "measure what other systems were measured with")
	only := fs.String("only", "", "comma-separated measurements; default all")
	fs.IntVar(&b.messages, "messages", 500_000, "messages of the ordered drain")
	fs.IntVar(&b.leases, "leases", 40_000, "leases to acquire, hold and take over")
	profile := fs.String("cpuprofile", "", "write a CPU profile of this process to a file")
	must.Do(fs.Parse(args))
	if *profile != "" {
		f := must.Get(os.Create(*profile))
		defer f.Close()
		must.Do(pprof.StartCPUProfile(f))
		defer pprof.StopCPUProfile()
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	// The defaults of a server with 2 GB, as the figures of the design were taken.
	b.server = must.Get(pgtest.Launch(
		pgtest.Config("max_connections", "200"), pgtest.Config("shared_buffers", "512MB"), pgtest.Config("max_wal_size", "4GB")))
	defer b.server.Close()
	begin := time.Now()
	all := measures()
	if *compare {
		all = comparisons()
	}
	for _, m := range all {
		if *only != "" && !strings.Contains(","+*only+",", ","+m.name+",") {
			continue
		}
		fmt.Fprintf(out, "== %s: %s\n", m.name, m.what)
		if err := b.measure(ctx, m); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	if *compare {
		return b.compared(ctx, begin)
	}
	b.table(ctx, begin)
	return nil
}

func (b *bench) measure(ctx context.Context, m measure) (err error) {
	defer must.Catch(&err)
	pool := b.pool(ctx, b.server.DB(m.name))
	defer pool.Close()
	must.Get(leasepg.Migrate(ctx, pool))
	m.run(ctx, b, pool)
	return nil
}

func (b *bench) pool(ctx context.Context, dsn string) *pgxpool.Pool {
	cfg := must.Get(pgxpool.ParseConfig(dsn))
	cfg.MaxConns = 24
	return must.Get(pgxpool.NewWithConfig(ctx, cfg))
}

// report adds a line to the table and says it at once.
func (b *bench) report(r result) {
	b.results = append(b.results, r)
	bare := ""
	if r.bare > 0 {
		bare = fmt.Sprintf(" (bare loop %s)", amount(r.bare, r.unit))
	}
	fmt.Fprintf(b.out, "   %s: %s%s\n", r.what, amount(r.got, r.unit), bare)
}

func amount(v float64, unit string) string {
	switch {
	case v >= 100:
		return thousands(int64(v+0.5)) + " " + unit
	case v == float64(int64(v)):
		return fmt.Sprintf("%d %s", int64(v), unit)
	}
	return fmt.Sprintf("%.2f %s", v, unit)
}

func thousands(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// conditions is a line on where the figures were taken.
func (b *bench) conditions(ctx context.Context, begin time.Time) {
	pool := b.pool(ctx, b.server.DSN("postgres"))
	defer pool.Close()
	var version string
	must.Do(pool.QueryRow(ctx, "SHOW server_version").Scan(&version))
	fmt.Fprintf(b.out, "\nPostgreSQL %s, %d CPUs, %s, fsync on; %v in all\n\n", version, runtime.NumCPU(), runtime.Version(), time.Since(begin).Round(time.Second))
}

func (b *bench) table(ctx context.Context, begin time.Time) {
	b.conditions(ctx, begin)
	fmt.Fprintf(b.out, "%-67s %15s %15s %6s   %s\n", "what", "leasegen", "bare loop", "ratio", "to reach")
	for _, r := range b.results {
		bare, ratio := "-", "-"
		if r.bare > 0 {
			bare, ratio = amount(r.bare, r.unit), fmt.Sprintf("%.2f", r.got/r.bare)
		}
		verdict := ""
		switch {
		case r.want == "":
		case r.holds:
			verdict = r.want + ": yes"
		default:
			verdict = r.want + ": NO"
		}
		fmt.Fprintf(b.out, "%-67s %15s %15s %6s   %s\n", r.what, amount(r.got, r.unit), bare, ratio, verdict)
	}
}

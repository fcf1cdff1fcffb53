// Package compare repeats what other systems were measured with, beside their figures, and counts what leasegen does
// while it holds much and has no work.
package compare

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/must"
	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

// bench is one run: a server, and what was measured on it.
type bench struct {
	server  *pgtest.Server
	leases  int
	out     io.Writer
	results []result
}

// result is one line of the closing table.
type result struct {
	what   string
	got    float64
	unit   string
	theirs string // the figure of another system, if there is one
	want   string // the figure to reach, if there is one
	holds  bool
}

// measure is one measurement, on a fresh database.
type measure struct {
	name string
	what string
	run  func(context.Context, *bench, *pgxpool.Pool)
}

// Run measures what other systems were measured with.
func Run(ctx context.Context, args []string, out io.Writer) error {
	b := &bench{out: out}
	fs := flag.NewFlagSet("bench compare", flag.ContinueOnError)
	only := fs.String("only", "", "comma-separated measurements; default all")
	if err := fs.Parse(args); err != nil {
		return err
	}
	begin := time.Now()
	if err := b.all(ctx, comparisons(), *only); err != nil {
		return err
	}
	defer b.server.Close()
	return b.compared(ctx, begin)
}

// Held counts what processes that hold much do while idle: rows and reads on PostgreSQL, commands on Redis.
func Held(ctx context.Context, args []string, out io.Writer) (err error) {
	defer must.Catch(&err)
	b := &bench{out: out}
	var o options
	fs := flag.NewFlagSet("bench held", flag.ContinueOnError)
	fs.IntVar(&b.leases, "leases", 40_000, "leases that are held on PostgreSQL; 0: none")
	fs.StringVar(&o.streams, "streams", "1000,10000", "how many streams one process holds on Redis")
	fs.DurationVar(&o.idle, "idle", 30*time.Second, "how long commands are counted on Redis")
	must.Do(fs.Parse(args))
	if o.idle < time.Second || b.leases < 0 {
		return errors.New("-idle is at least 1s, -leases at least 0")
	}
	begin := time.Now()
	if b.leases > 0 {
		must.Do(b.all(ctx, []measure{{"writes", "rows written and read by idle processes", writes}}, ""))
		defer b.server.Close()
		b.table(ctx, begin)
	}
	server := must.Get(redistest.Launch())
	defer server.Close()
	return held(ctx, server, o, out)
}

// all runs measurements on a server of its own, which stays.
func (b *bench) all(ctx context.Context, ms []measure, only string) (err error) {
	// The defaults of a server with 2 GB.
	b.server, err = pgtest.Launch(pgtest.OnDisk(),
		pgtest.Config("max_connections", "200"), pgtest.Config("shared_buffers", "512MB"), pgtest.Config("max_wal_size", "4GB"))
	if err != nil {
		return err
	}
	for _, m := range ms {
		if only != "" && !strings.Contains(","+only+",", ","+m.name+",") {
			continue
		}
		fmt.Fprintf(b.out, "== %s: %s\n", m.name, m.what)
		if err := b.measure(ctx, m); err != nil {
			b.server.Close()
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
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
	fmt.Fprintf(b.out, "   %s: %s\n", r.what, amount(r.got, r.unit))
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
	fmt.Fprintf(b.out, "\nPostgreSQL %s, %d CPUs, %s, fsync on; %v in all\n\n",
		version, runtime.NumCPU(), runtime.Version(), time.Since(begin).Round(time.Second))
}

func (b *bench) table(ctx context.Context, begin time.Time) {
	b.conditions(ctx, begin)
	fmt.Fprintf(b.out, "| what | leasegen | to reach |\n|---|---:|---|\n")
	for _, r := range b.results {
		verdict := r.want + ": NO"
		if r.holds {
			verdict = r.want + ": yes"
		}
		fmt.Fprintf(b.out, "| %s | %s | %s |\n", r.what, strings.TrimSpace(amount(r.got, r.unit)), verdict)
	}
	fmt.Fprintln(b.out)
}

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
	"strings"
	"syscall"
	"time"

	"github.com/leasegen/leasegen/bench/report"
	"github.com/leasegen/leasegen/internal/must"
	"github.com/leasegen/leasegen/internal/pgtest"
)

// growthSize is how much a run of the growth measures.
type growthSize struct {
	rounds   int
	base     scene
	replicas []int // beyond the base
	consumers,
	masters []int
	window, calls, idle time.Duration // see size
	probes              int
	patience            time.Duration // of a scene
}

func fullGrowth() growthSize {
	return growthSize{
		rounds:   2,
		base:     scene{Topics: 1000, Backlog: 100_000, Parked: 10_000, Dead: 10_000, Replicas: 2, Consumers: 1},
		replicas: []int{8, 64}, consumers: []int{10, 100}, masters: []int{1, 3, 6},
		window: 2 * time.Second, calls: time.Second, idle: 3 * time.Second, probes: 40, patience: 10 * time.Minute,
	}
}

func quickGrowth() growthSize {
	return growthSize{
		rounds:   1,
		base:     scene{Topics: 100, Backlog: 10_000, Parked: 1000, Dead: 1000, Replicas: 2, Consumers: 1},
		replicas: []int{4, 8}, consumers: []int{4, 16}, masters: []int{1, 3, 6},
		window: 400 * time.Millisecond, calls: 300 * time.Millisecond, idle: time.Second, probes: 20, patience: 2 * time.Minute,
	}
}

// growing is a run.
type growing struct {
	size    growthSize
	servers *servers
	redis   string // the version of its servers, once a cluster has run
	out     io.Writer
}

// curve is one thing that grows, and the scenes in which it does.
type curve struct {
	report.Curve
	size   func(scene) int
	scenes []scene
}

// curves are what grows, each from the base on.
func (z growthSize) curves() []curve {
	tenfold := func(n int) []int { return []int{10 * n, 100 * n} }
	grow := func(id, title, of, what string, at func(*scene) *int, to []int) curve {
		c := curve{Curve: report.Curve{ID: id, Title: title, Of: of, What: what}, size: func(s scene) int { return *at(&s) }, scenes: []scene{z.base}}
		for _, n := range to {
			s := z.base
			*at(&s) = n
			c.scenes = append(c.scenes, s)
		}
		return c
	}
	b := z.base
	const shared = "All processes share the cores of one machine with the server: the chart shows what more of them cost, not what machines of their own gain."
	all := []curve{
		grow("topics", "More topics", "topics", "Each topic is a lease, and all of them are acquired.",
			func(s *scene) *int { return &s.Topics }, tenfold(b.Topics)),
		grow("backlog", "A longer backlog", "messages in the log", "After the window the cursors are set to the present. The log stays as long as it is, for another consumer.",
			func(s *scene) *int { return &s.Backlog }, tenfold(b.Backlog)),
		grow("parked", "More parked keys", "parked keys", "Each is a message that waits for its next attempt for a day, in a lane of its own.",
			func(s *scene) *int { return &s.Parked }, tenfold(b.Parked)),
		grow("dead", "More dead letters", "dead letters", "They are kept without a bound.",
			func(s *scene) *int { return &s.Dead }, tenfold(b.Dead)),
		grow("replicas", "More replicas", "replicas", shared,
			func(s *scene) *int { return &s.Replicas }, z.replicas),
		grow("consumers", "More consumers in a process", "consumers",
			"One has the topics, each other one reads all messages, as a group. The drain is what all of them handle together.",
			func(s *scene) *int { return &s.Consumers }, z.consumers),
	}
	nodes := grow("cluster", "More masters of a Redis Cluster", "masters", "Masters without replicas. "+shared,
		func(s *scene) *int { return &s.Masters }, z.masters)
	nodes.scenes = nodes.scenes[1:]
	for i := range nodes.scenes {
		nodes.scenes[i].Parked, nodes.scenes[i].Dead = 0, 0
	}
	return append(all, nodes)
}

// grow measures how the main figures change with what there is.
func grow(ctx context.Context, args []string, out io.Writer) (err error) {
	defer must.Catch(&err)
	fs := flag.NewFlagSet("bench growth", flag.ContinueOnError)
	quick := fs.Bool("quick", false, "a tenth of the sizes, and smaller turns")
	render := fs.Bool("render", false, "write the page again from the raw results, without measuring")
	docs := fs.String("docs", "../docs", "the directory of growth.md and images/growth")
	raw := fs.String("raw", "growth.json", "the file of raw results")
	only := fs.String("only", "", "comma-separated of topics, backlog, parked, dead, replicas, consumers, cluster; default all")
	must.Do(fs.Parse(args))
	if *render {
		return must.Get(report.LoadGrowth(*raw)).Write(*docs)
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})))
	must.Do(os.MkdirAll(filepath.Dir(*raw), 0o755))
	z, tier := fullGrowth(), "full"
	if *quick {
		z, tier = quickGrowth(), "quick"
	}
	r := must.Get(measureGrowth(ctx, z, *only, out))
	r.Tier = tier
	must.Do(r.Save(*raw))
	must.Do(r.Write(*docs))
	if failed := r.Failures(); len(failed) > 0 {
		return fmt.Errorf("not all could be measured:\n%s", strings.Join(failed, "\n"))
	}
	return ctx.Err()
}

func measureGrowth(ctx context.Context, z growthSize, only string, out io.Writer) (_ *report.Growth, err error) {
	defer must.Catch(&err)
	begin, before := time.Now(), load()
	curves := chosen(z.curves(), only, func(c curve, name string) bool { return c.ID == name })
	if len(curves) == 0 {
		return nil, errors.New("-only names none")
	}
	g := &growing{size: z, out: out, servers: &servers{}}
	defer g.servers.close()
	g.servers.postgres = must.Get(pgtest.Launch(pgtest.OnDisk(), pgtest.Config("max_connections", "1000"), pgtest.Config("shared_buffers", "512MB"),
		pgtest.Config("max_wal_size", "4GB"), pgtest.Config("shared_preload_libraries", "pg_stat_statements")))
	r := &report.Growth{Rounds: z.rounds, Figures: growthFigures(), Conditions: g.servers.machine(ctx)}
	played := map[scene]*report.Point{}
	for round := range z.rounds {
		for _, c := range curves {
			for _, sc := range c.scenes {
				p := played[sc]
				switch {
				case p == nil:
					p = &report.Point{Samples: map[string][]float64{}}
					played[sc] = p
				case len(p.Samples["drain"]) > round || p.Words != "":
					continue // the base of another curve has been measured, or it cannot be
				}
				if ctx.Err() == nil {
					fmt.Fprintf(out, "%d %-10s %8d", round+1, c.ID, c.size(sc))
					g.add(ctx, sc, p)
				}
			}
		}
	}
	for _, c := range curves {
		for _, sc := range c.scenes {
			p := *played[sc]
			p.Size = float64(c.size(sc))
			c.Points = append(c.Points, p)
		}
		r.Curves = append(r.Curves, c.Curve)
	}
	r.Took = time.Since(begin).Round(time.Second).String()
	if g.redis != "" {
		r.Conditions = append(r.Conditions, report.Condition{Name: "Redis", Value: g.redis + "; appendonly yes, appendfsync everysec, no replicas"})
	}
	r.Conditions = append(r.Conditions, g.base())
	if ctx.Err() != nil {
		r.Conditions = append(r.Conditions, report.Condition{Name: "interrupted", Value: "what has no figures was not measured"})
	}
	if before != "" {
		r.Conditions = append(r.Conditions, report.Condition{Name: "load average", Value: before + " before, " + load() + " after; much of the latter is this run's own"})
	}
	return r, nil
}

// add measures a scene once more. An error stops only that scene.
func (g *growing) add(ctx context.Context, sc scene, p *report.Point) {
	begin := time.Now()
	if p.Words = sc.tooLarge(); p.Words != "" {
		fmt.Fprintln(g.out, "", p.Words)
		return
	}
	got, most, err := g.play(ctx, sc)
	if err != nil {
		p.Failed, p.Words = true, "failed: "+strings.ReplaceAll(err.Error(), "\n", " ")
		fmt.Fprintln(g.out, "", p.Words)
		return
	}
	for _, f := range growthFigures() {
		if v, ok := got[f.ID]; ok && isFigure(v) {
			p.Samples[f.ID] = append(p.Samples[f.ID], v)
			fmt.Fprintf(g.out, " %s %.4g", f.ID, v)
		}
	}
	p.Statements = most
	fmt.Fprintf(g.out, " (%v)\n", time.Since(begin).Round(10*time.Millisecond))
}

func (g *growing) place(ctx context.Context, sc scene) (store, error) {
	if sc.Masters == 0 {
		return g.servers.postgresStore(ctx)
	}
	s, err := clusterStoreOf(sc.Masters)
	if err == nil {
		g.redis = redisVersion(ctx, s.Addrs()[0])
	}
	return s, err
}

// tooLarge says why a scene has no room on this machine: a message takes about 400 bytes with its indexes and in the server's WAL,
// which has 4 GB at most before that, a parked one or a dead letter 1 kB; a replica takes 40 MB of memory.
func (sc scene) tooLarge() string {
	const giga = 1 << 30
	disk := int64(sc.Backlog)*400 + int64(sc.Parked+sc.Dead)*1000 + 4*giga
	var fs syscall.Statfs_t
	if err := syscall.Statfs(os.TempDir(), &fs); err == nil && int64(fs.Bavail)*int64(fs.Bsize) < disk {
		return fmt.Sprintf("not measured: it takes up to %d GB of disk, and %d are free", disk/giga+1, int64(fs.Bavail)*int64(fs.Bsize)/giga)
	}
	if memory, free := int64(sc.Replicas)*40<<20+giga, available(); free > 0 && free < memory {
		return fmt.Sprintf("not measured: it takes %d GB of memory, and %d are free", memory/giga+1, free/giga)
	}
	return ""
}

// available is the memory that processes can have, in bytes, 0 where there is no /proc.
func available() (bytes int64) {
	b, _ := os.ReadFile("/proc/meminfo")
	for line := range strings.Lines(string(b)) {
		if _, err := fmt.Sscanf(line, "MemAvailable: %d kB", &bytes); err == nil {
			return bytes << 10
		}
	}
	return 0
}

// base is the condition that says how much there is of what does not grow.
func (g *growing) base() report.Condition {
	b := g.size.base
	return report.Condition{Name: "all else", Value: fmt.Sprintf(
		"%d topics, %d messages in the log, %d replicas with one consumer each; on PostgreSQL %d parked keys and %d dead letters, and pg_stat_statements, "+
			"whose count of statements is the idle cost", b.Topics, b.Backlog, b.Replicas, b.Parked, b.Dead)}
}

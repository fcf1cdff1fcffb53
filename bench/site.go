package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/bench/report"
	"github.com/leasegen/leasegen/internal/childproc"
	"github.com/leasegen/leasegen/internal/must"
	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/internal/redistest"
)

// connections is the size of each contender's pool.
const connections = 24

// servers are started once, for all turns.
type servers struct {
	postgres  *pgtest.Server
	redis     *redistest.Server
	nats      map[string]*childproc.Server // by how often they sync
	databases atomic.Int64
}

func launch(cs []contender) (s *servers, err error) {
	defer must.Catch(&err)
	s = &servers{nats: map[string]*childproc.Server{}}
	defer func() {
		if recover := recover(); recover != nil {
			s.close()
			panic(recover)
		}
	}()
	uses := func(backend string) bool {
		return slices.ContainsFunc(cs, func(c contender) bool { return c.Backend == backend })
	}
	// The defaults of a server with 2 GB and fsync on.
	s.postgres = must.Get(pgtest.Launch(pgtest.OnDisk(),
		pgtest.Config("max_connections", "400"), pgtest.Config("shared_buffers", "512MB"), pgtest.Config("max_wal_size", "4GB")))
	if uses("Redis") {
		s.redis = must.Get(redistest.Launch())
	}
	if uses("JetStream") {
		for _, sync := range []string{natsDefault, natsAlways} {
			s.nats[sync] = must.Get(launchNATS(sync))
		}
	}
	return s, nil
}

func (s *servers) close() {
	for _, n := range s.nats {
		n.Close()
	}
	if s.redis != nil {
		s.redis.Close()
	}
	if s.postgres != nil {
		s.postgres.Close()
	}
}

// site is what a contender has for one turn: a database of its own, an empty Redis, a JetStream server without streams.
type site struct {
	*servers // nil in a replica
	dsn      string
	name     string
	redisAt  string
	natsAt   map[string]string // by how often they sync
	replica  bool              // of a contender that has been opened by the program that starts replicas
}

func (s *servers) site(ctx context.Context) (_ *site, err error) {
	defer must.Catch(&err)
	name := fmt.Sprintf("bench_%d", s.databases.Add(1))
	if s.redis != nil {
		c := redisClient(s.redis.Addr())
		defer c.Close()
		must.Do(c.FlushAll(ctx).Err())
	}
	at := &site{servers: s, dsn: s.postgres.DB(name), name: name, natsAt: map[string]string{}}
	if s.redis != nil {
		at.redisAt = s.redis.Addr()
	}
	for sync, n := range s.nats {
		at.natsAt[sync] = n.Addr()
	}
	return at, nil
}

// close drops the turn's database, so that its dirty pages are no work of the next turn.
func (s *site) close() {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, s.postgres.DSN("postgres"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench: drop a database:", err)
		return
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "DROP DATABASE "+s.name+" WITH (FORCE)"); err != nil {
		fmt.Fprintln(os.Stderr, "bench: drop a database:", err)
	}
}

// pool is a contender's pool on the turn's database.
func pool(ctx context.Context, dsn string) *pgxpool.Pool { return poolOf(ctx, dsn, connections) }

func poolOf(ctx context.Context, dsn string, size int32) *pgxpool.Pool {
	cfg := must.Get(pgxpool.ParseConfig(dsn))
	cfg.MaxConns = size
	return must.Get(pgxpool.NewWithConfig(ctx, cfg))
}

// redisClient is a client as an application has it, with connections enough for all subscribers.
func redisClient(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: addr, PoolSize: 128})
}

// machine is what the servers run on, and their versions.
func (s *servers) machine(ctx context.Context) []report.Condition {
	all := []report.Condition{
		{Name: "machine", Value: fmt.Sprintf("%s, %d cores, shared by clients and servers; %s/%s%s", processor(), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, kernel())},
		{Name: "Go", Value: runtime.Version()},
	}
	var version string
	conn := must.Get(pgx.Connect(ctx, s.postgres.DSN("postgres")))
	defer conn.Close(ctx)
	must.Do(conn.QueryRow(ctx, "SHOW server_version").Scan(&version))
	all = append(all, report.Condition{Name: "PostgreSQL", Value: version + "; fsync=on, synchronous_commit=on, shared_buffers=512MB, max_wal_size=4GB, else defaults"})
	if s.redis != nil {
		all = append(all, report.Condition{Name: "Redis", Value: redisVersion(ctx, s.redis.Addr()) + "; appendonly yes, appendfsync everysec"})
	}
	return all
}

func redisVersion(ctx context.Context, addr string) string {
	c := redisClient(addr)
	defer c.Close()
	for line := range strings.Lines(must.Get(c.Info(ctx, "server").Result())) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "redis_version:"); ok {
			return v
		}
	}
	return "unknown"
}

func (s *servers) conditions(ctx context.Context, z size) []report.Condition {
	all := s.machine(ctx)
	if info, ok := debug.ReadBuildInfo(); ok {
		var peers []string
		for _, d := range info.Deps {
			for _, p := range peerModules() {
				if d.Path == p {
					peers = append(peers, strings.TrimPrefix(d.Path, "github.com/")+" "+d.Version)
				}
			}
		}
		all = append(all, report.Condition{Name: "modules", Value: strings.Join(peers, ", ")})
	}
	return append(all,
		report.Condition{Name: "source", Value: source(ctx)},
		report.Condition{Name: "messages", Value: fmt.Sprintf("%d bytes of JSON; a backlog has %d; at most %v of it are measured, from the first call of a handler on",
			len(payload(0)), z.messages, z.window)},
		report.Condition{Name: "pools", Value: fmt.Sprintf("%d connections to PostgreSQL for each contender, %d for watermill-sql, 128 to Redis", connections, watermillConnections)},
		report.Condition{Name: "franz-go", Value: "not measured: neither Debian nor a Go module has a Kafka broker that keeps its log on disk; kfake keeps it in memory"},
	)
}

// source is the commit that is measured.
func source(ctx context.Context) string {
	git := func(args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, "git", args...).Output()
		return strings.TrimSpace(string(out)), err
	}
	commit, err := git("rev-parse", "--short=12", "HEAD")
	if err != nil {
		return "unknown: it is no clone of git's"
	}
	if changed, err := git("status", "--porcelain", "--", ":/", ":(top,exclude)*.md", ":(top,exclude)*.svg", ":(top,exclude)*.json"); err != nil || changed != "" {
		commit += ", with changes"
	}
	return "commit " + commit
}

func peerModules() []string {
	return []string{
		"github.com/jackc/pgx/v5", "github.com/redis/go-redis/v9", "github.com/riverqueue/river", "github.com/ThreeDotsLabs/watermill",
		"github.com/ThreeDotsLabs/watermill-sql/v4", "github.com/ThreeDotsLabs/watermill-redisstream", "github.com/hibiken/asynq",
		"github.com/nats-io/nats-server/v2", "github.com/nats-io/nats.go",
	}
}

// processor is the name of the CPU.
func processor() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "CPU unknown"
	}
	for line := range strings.Lines(string(b)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "CPU unknown"
}

// kernel is the release of the operating system's, after a comma; empty where it does not say.
func kernel() string {
	b, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return ""
	}
	version, _, _ := strings.Cut(strings.TrimSpace(string(b)), "-") // what follows is the distribution's
	return ", kernel " + version
}

// load is the machine's load average of a minute: whether other work was in the way. Empty where there is no /proc.
func load() string {
	b, _ := os.ReadFile("/proc/loadavg")
	minute, _, _ := strings.Cut(string(b), " ")
	return minute
}

// errStopped ends a consumer whose turn is over.
var errStopped = errors.New("the turn is over")

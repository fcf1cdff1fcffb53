package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/internal/must"
)

// counters are what a turn has cost so far: of the servers, and of this process, which is the client.
type counters struct {
	at                        time.Time
	wal, writes               float64 // bytes; transactions that write
	serverSeconds, ownSeconds float64
	commits                   float64
	commands, requests        float64 // of Redis; commands have those of its scripts, too
}

func (t *turn) counters(ctx context.Context) (c counters) {
	c.at, c.ownSeconds = time.Now(), ownSeconds()
	s := t.site
	switch t.contender.Backend {
	case "PostgreSQL":
		conn := must.Get(pgx.Connect(ctx, s.dsn))
		defer conn.Close(ctx)
		must.Do(conn.QueryRow(ctx, `SELECT (pg_current_wal_insert_lsn() - '0/0')::float8, pg_snapshot_xmax(pg_current_snapshot())::text::float8,
			(SELECT xact_commit::float8 FROM pg_stat_database WHERE datname = current_database())`).Scan(&c.wal, &c.writes, &c.commits))
		c.serverSeconds = familySeconds(s.postgres.PID())
	case "Redis":
		if t.redis == nil { // one for all looks: what connecting asks for is not counted
			t.redis = redisClient(s.redis.Addr())
		}
		info := must.Get(t.redis.Info(ctx, "commandstats", "stats").Result())
		c.commands, c.requests = commandCalls(info), must.Get(infoNumber(info, "total_reads_processed"))
		c.serverSeconds = familySeconds(s.redis.PID())
	case "JetStream":
		for _, n := range s.nats {
			c.serverSeconds += familySeconds(n.PID())
		}
	}
	return c
}

// commandCalls is how many commands a Redis server has executed, those inside of scripts included.
func commandCalls(info string) (total float64) {
	for line := range strings.Lines(info) {
		name, rest, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "cmdstat_"), ":calls=")
		if !ok || name == "info" {
			continue
		}
		digits, _, _ := strings.Cut(rest, ",")
		total += float64(must.Get(strconv.ParseInt(digits, 10, 64)))
	}
	return total
}

// infoNumber is a number of a Redis server's INFO.
func infoNumber(info, name string) (float64, error) {
	for line := range strings.Lines(info) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), name+":"); ok {
			return strconv.ParseFloat(v, 64)
		}
	}
	return 0, fmt.Errorf("INFO of Redis lacks %s", name)
}

func (t *turn) closeCounters() {
	if t.redis != nil {
		t.redis.Close()
	}
}

func ownSeconds() float64 {
	var u syscall.Rusage
	must.Do(syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// familySeconds is the CPU time of a process, its children and those that have ended, 0 where there is no /proc.
func familySeconds(pid int) (seconds float64) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil { // it has ended
			continue
		}
		_, rest, ok := strings.Cut(string(b), ") ") // the name before may have spaces
		f := strings.Fields(rest)
		if !ok || len(f) < 15 {
			continue
		}
		own := strings.TrimPrefix(strings.TrimSuffix(path, "/stat"), "/proc/") == strconv.Itoa(pid)
		if !own && f[1] != strconv.Itoa(pid) {
			continue
		}
		for _, i := range []int{11, 12, 13, 14} { // utime, stime, cutime, cstime in hundredths
			ticks, _ := strconv.ParseFloat(f[i], 64)
			seconds += ticks / 100
		}
	}
	return seconds
}

// perThousand adds what a thousand of n messages have cost since before.
func (t *turn) perThousand(ctx context.Context, s sample, before counters, n int) {
	after := t.counters(ctx)
	k := float64(n) / 1000
	if n == 0 {
		return
	}
	s["client-cpu"] = (after.ownSeconds - before.ownSeconds) / k * 1000
	s["server-cpu"] = (after.serverSeconds - before.serverSeconds) / k * 1000
	if t.contender.Backend == "PostgreSQL" {
		s["wal"] = (after.wal - before.wal) / k / 1000
		s["writes"] = (after.writes - before.writes) / k
	}
}

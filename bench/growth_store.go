package main

import (
	"context"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/bench/report"
	"github.com/leasegen/leasegen/internal/must"
	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/leaseredis"
)

// open opens the backend of a growing system.
func (g grown) open(ctx context.Context, connections int32) (be backend.Backend, closing func()) {
	if len(g.Nodes) > 0 {
		c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: g.Nodes, PoolSize: 128})
		return leaseredis.New(c), func() { c.Close() }
	}
	p := poolOf(ctx, g.DSN, connections)
	return leasepg.New(p), p.Close
}

// store is where a scene plays: a database of its own, or a cluster.
type store interface {
	at() (dsn string, nodes []string)
	fill(ctx context.Context, be backend.Backend, sc scene) error
	spent(ctx context.Context) spent
	// watch forgets the statements so far; most are those since then that took most of the server's time.
	watch(ctx context.Context) error
	most(ctx context.Context) ([]report.Statement, error)
	close()
}

// spent is what a server, or others, have done until a time.
type spent struct {
	calls, seconds float64
	at             time.Time
}

// since is the time between two, in seconds.
func (x spent) since(before spent) float64 { return x.at.Sub(before.at).Seconds() }

// register makes a scene's consumers known, before there are messages, and its topics.
func register(ctx context.Context, be backend.Backend, sc scene) error {
	names := make([]string, sc.Topics)
	for i := range names {
		names[i] = topicName(i)
	}
	for i := range sc.Consumers {
		s := specOf(i)
		s.Handlers = []lease.Handler{plainHandler(job{})}
		c, err := lease.NewConsumer(be, s)
		if err == nil {
			err = be.Register(ctx, c.Info(), names)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// postgresStore is a database of its own.
type postgresStore struct{ *site }

func (s *servers) postgresStore(ctx context.Context) (_ store, err error) {
	defer must.Catch(&err)
	at := must.Get(s.site(ctx))
	p := poolOf(ctx, at.dsn, 2)
	defer p.Close()
	must.Get(leasepg.Migrate(ctx, p))
	must.Get(p.Exec(ctx, "CREATE EXTENSION pg_stat_statements"))
	return postgresStore{at}, nil
}

func (s postgresStore) at() (string, []string) { return s.dsn, nil }

// fill writes rows by SQL, in the shape that publishing and consuming give them. A consumer that never runs keeps the log.
func (s postgresStore) fill(ctx context.Context, be backend.Backend, sc scene) (err error) {
	defer must.Catch(&err)
	must.Do(register(ctx, be, sc))
	must.Do(be.Register(ctx, backend.ConsumerInfo{Name: "archive", Per: backend.PerGroup, Topics: []string{"bench.*"}}, nil))
	p := poolOf(ctx, s.dsn, 1)
	defer p.Close()
	const some = 1_000_000 // as many as a partition has
	for from := 0; from < sc.Backlog; from += some {
		must.Get(p.Exec(ctx, "SELECT leasegen.ensure_segments($1)", from+3*some))
		must.Get(p.Exec(ctx, `INSERT INTO leasegen.message (topic, key, kind, payload)
			SELECT 'bench.' || g % $3, 'k' || g % 100, $4, '{"n":"000000000000"}'::bytea FROM generate_series($1::int, $2::int - 1) g`,
			from, min(from+some, sc.Backlog), sc.Topics, kind))
	}
	must.Get(p.Exec(ctx, `INSERT INTO leasegen.parked
			(consumer, resource, lane, message_id, topic, key, kind, payload, published_at, attempt, next_at, error)
		SELECT 'bench', 'bench.' || g % $2, 'parked-' || g, -g, 'bench.' || g % $2, 'parked-' || g, $3, 'payload', clock_timestamp(), 1,
			clock_timestamp() + interval '1 day', 'error' FROM generate_series(1, $1::int) g`, sc.Parked, sc.Topics, kind))
	must.Get(p.Exec(ctx, `INSERT INTO leasegen.dead_letter
			(consumer, resource, message_id, topic, key, kind, payload, published_at, failed_at, attempts, reason)
		SELECT 'bench', 'bench.' || g % $2, -g, 'bench.' || g % $2, 'dead-' || g, $3, 'payload', clock_timestamp(), clock_timestamp(), 1, 'reason'
		FROM generate_series(1, $1::int) g`, sc.Dead, sc.Topics, kind))
	must.Do(analyzed(ctx, p, "leasegen.message", "leasegen.parked", "leasegen.dead_letter", "leasegen.lease"))
	must.Get(p.Exec(ctx, "CHECKPOINT"))
	return nil
}

// spent counts statements, for a session that has come to rest reports its last transactions up to ten seconds later.
func (s postgresStore) spent(ctx context.Context) (x spent) {
	must.Do(s.ask(ctx, func(c *pgx.Conn) error {
		return c.QueryRow(ctx, `SELECT coalesce(sum(calls), 0)::float8 FROM pg_stat_statements s
			JOIN pg_database d ON d.oid = s.dbid AND d.datname = current_database()`).Scan(&x.calls)
	}))
	x.seconds = familySeconds(s.postgres.PID())
	return x
}

func (s postgresStore) watch(ctx context.Context) error {
	return s.ask(ctx, func(c *pgx.Conn) error {
		_, err := c.Exec(ctx, "SELECT pg_stat_statements_reset()")
		return err
	})
}

var statementName = regexp.MustCompile(`-- name: (\w+)`)

func (s postgresStore) most(ctx context.Context) (all []report.Statement, err error) {
	err = s.ask(ctx, func(c *pgx.Conn) error {
		rows, err := c.Query(ctx, `SELECT query, calls::float8, mean_exec_time, total_exec_time / sum(total_exec_time) OVER ()
			FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid AND d.datname = current_database()
			WHERE query NOT LIKE '-- name: WaitFor%' ORDER BY total_exec_time DESC LIMIT 3`) // these wait, and do no work
		if err != nil {
			return err
		}
		var (
			text string
			one  report.Statement
		)
		_, err = pgx.ForEachRow(rows, []any{&text, &one.Calls, &one.Mean, &one.Share}, func() error {
			one.Name = text[:min(len(text), 40)]
			if name := statementName.FindStringSubmatch(text); name != nil {
				one.Name = name[1]
			}
			all = append(all, one)
			return nil
		})
		return err
	})
	return all, err
}

func (s postgresStore) ask(ctx context.Context, what func(*pgx.Conn) error) error {
	c, err := pgx.Connect(ctx, s.dsn)
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	return what(c)
}

func (s postgresStore) close() { s.site.close() }

// clusterStore is a Redis Cluster of its own.
type clusterStore struct{ *redistest.Cluster }

// clusterStoreOf has masters alone: what replicas would do beside them is no cost of a master.
func clusterStoreOf(masters int) (clusterStore, error) {
	// A busy machine is no reason to elect others.
	c, err := redistest.LaunchClusterOf(masters, 0, redistest.Config("cluster-node-timeout", "60000"))
	return clusterStore{c}, err
}

func (s clusterStore) at() (string, []string) { return "", s.Addrs() }

func (s clusterStore) fill(ctx context.Context, be backend.Backend, sc scene) error {
	if err := register(ctx, be, sc); err != nil {
		return err
	}
	return chunks(sc.Backlog, 5000, func(from, to int) error {
		return be.Publish(ctx, events(func(i int) int { return i % sc.Topics }, from, to))
	})
}

func (s clusterStore) spent(ctx context.Context) (x spent) {
	for _, n := range s.Nodes() {
		c := redisClient(n.Addr())
		x.calls += commandCalls(must.Get(c.Info(ctx, "commandstats").Result()))
		must.Do(c.Close())
		x.seconds += familySeconds(n.PID())
	}
	return x
}

// The work of the nodes is not looked at command by command.
func (s clusterStore) watch(context.Context) error { return nil }

func (s clusterStore) most(context.Context) ([]report.Statement, error) { return nil, nil }

func (s clusterStore) close() { s.Close() }

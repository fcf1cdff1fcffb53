package main

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/leaseredis"
)

// store is a server that the replicas of pairs own on. The name of a pair is that of its schema, or namespace.
type store interface {
	// Addr is where it listens; url is what replicas are given to reach it at another address.
	Addr() string
	url(addr string) string
	// bare makes a connection, and a write on it that returns when it is as durable as leasegen's.
	bare(ctx context.Context) (connection, write time.Duration, err error)
	prepare(ctx context.Context, name string) error
	publisher(name string) lease.Backend
	// endHeartbeat ends the connection that the others know the live session of a process by.
	endHeartbeat(ctx context.Context, name string, pid int) error
	Restart()
	Close()
}

// launch starts a store of a kind.
func launch(ctx context.Context, kind string) (store, error) {
	if kind == onRedis {
		s, err := redistest.Launch()
		if err != nil {
			return nil, err
		}
		return &redisStore{Server: s, client: redis.NewClient(&redis.Options{Addr: s.Addr()})}, nil
	}
	s, err := pgtest.Launch(pgtest.OnDisk(), pgtest.Config("max_connections", "400"))
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.New(ctx, s.DB("failover"))
	if err != nil {
		s.Close()
		return nil, err
	}
	return &pgStore{s, pool}, nil
}

// connect opens a store for a replica.
func connect(ctx context.Context, url, name string, log *slog.Logger) (be lease.Backend, end func(), err error) {
	if strings.HasPrefix(url, "redis://") {
		o, err := redis.ParseURL(url)
		if err != nil {
			return nil, nil, err
		}
		c := redis.NewClient(o)
		return leaseredis.New(c, leaseredis.WithNamespace(namespace(name)), leaseredis.WithLogger(log)), func() { c.Close() }, nil
	}
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, nil, err
	}
	cfg.MaxConns = 4
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	return leasepg.New(pool, leasepg.WithSchema(name), leasepg.WithLogger(log)), pool.Close, nil
}

type pgStore struct {
	*pgtest.Server
	pool *pgxpool.Pool
}

func (s *pgStore) url(addr string) string {
	return strings.Replace(s.pool.Config().ConnString(), s.Addr(), addr, 1)
}

func (s *pgStore) bare(ctx context.Context) (connection, write time.Duration, err error) {
	var c *pgx.Conn
	commit := func() error { // of a message in the server's log, which needs no table
		_, err := c.Exec(ctx, "SELECT pg_logical_emit_message(true, 'bare', '')")
		return err
	}
	defer func() {
		if c != nil {
			c.Close(context.WithoutCancel(ctx))
		}
	}()
	took, err := timed(func() (err error) {
		if c, err = pgx.ConnectConfig(ctx, s.pool.Config().ConnConfig); err != nil {
			return err
		}
		return c.Ping(ctx)
	}, commit, commit) // the first one also plans
	if err != nil {
		return 0, 0, err
	}
	return took[0], took[2], nil
}

func (s *pgStore) prepare(ctx context.Context, name string) error {
	_, err := leasepg.Migrate(ctx, s.pool, leasepg.WithSchema(name))
	return err
}

func (s *pgStore) publisher(name string) lease.Backend {
	return leasepg.New(s.pool, leasepg.WithSchema(name), leasepg.WithLogger(slog.New(slog.DiscardHandler)))
}

func (s *pgStore) endHeartbeat(ctx context.Context, name string, pid int) error {
	var ended bool
	err := s.pool.QueryRow(ctx, `SELECT coalesce(bool_and(pg_terminate_backend(backend_pid)), false)
		FROM `+name+`.session WHERE pid = $1 AND state = 'live'`, pid).Scan(&ended)
	if err == nil && !ended {
		err = fmt.Errorf("%s: no backend of the owner's heartbeat to terminate", name)
	}
	return err
}

func (s *pgStore) Restart() {
	s.Server.Restart()
	s.pool.Reset()
}

func (s *pgStore) Close() {
	s.pool.Close()
	s.Server.Close()
}

type redisStore struct {
	*redistest.Server
	client *redis.Client
}

// namespace has no character that a pair's name has and namespaces may not.
func namespace(name string) string { return strings.ReplaceAll(name, "_", "-") + "-" }

func (s *redisStore) url(addr string) string { return "redis://" + addr }

func (s *redisStore) bare(ctx context.Context) (connection, write time.Duration, err error) {
	c := redis.NewClient(&redis.Options{Addr: s.Addr(), PoolSize: 1})
	defer c.Close()
	took, err := timed(func() error { return c.Ping(ctx).Err() }, func() error { return c.Set(ctx, "bare", "", 0).Err() })
	if err != nil {
		return 0, 0, err
	}
	return took[0], took[1], nil
}

func (s *redisStore) prepare(context.Context, string) error { return nil }

func (s *redisStore) publisher(name string) lease.Backend {
	return leaseredis.New(s.client, leaseredis.WithNamespace(namespace(name)), leaseredis.WithLogger(slog.New(slog.DiscardHandler)))
}

func (s *redisStore) endHeartbeat(ctx context.Context, name string, pid int) error {
	key := "{" + namespace(name) + "0}:"
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		live, err := s.client.ZRange(ctx, key+"sessions", 0, -1).Result()
		if err != nil {
			return err
		}
		for _, session := range live {
			of, err := s.client.HMGet(ctx, key+"s:"+session, "pid", "conn").Result()
			if err != nil {
				return err
			}
			conn, noted := of[1].(string)
			if _, id, ok := strings.Cut(conn, "/"); noted && ok && of[0] == strconv.Itoa(pid) {
				return s.client.Do(ctx, "CLIENT", "KILL", "ID", id).Err()
			}
		}
	}
	return fmt.Errorf("%s: the owner has noted no connection", name)
}

func (s *redisStore) Restart() { s.Server.Restart() }

func (s *redisStore) Close() {
	s.client.Close()
	s.Server.Close()
}

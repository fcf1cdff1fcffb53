package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/internal/stage"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leaseotel"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/leaseredis"
	"github.com/leasegen/leasegen/runtime/operate"
)

// database is what all work on.
type database struct {
	name, url string

	mu     sync.Mutex
	own    server // nil when it is the user's
	paused *time.Timer
}

type server interface {
	Pause()
	Resume()
	Close()
}

// launch starts a server of the kind that on names, unless on is the URL of one that runs. Close it.
func launch(on string) (*database, error) {
	switch {
	case on == "postgres":
		s, err := pgtest.Launch(pgtest.OnDisk())
		if err != nil {
			return nil, err
		}
		return &database{name: "PostgreSQL", url: s.DSN("postgres"), own: s}, nil
	case on == "redis":
		s, err := redistest.Launch()
		if err != nil {
			return nil, err
		}
		return &database{name: "Redis", url: s.URL(), own: s}, nil
	case isRedis(on):
		return &database{name: "your Redis", url: on}, nil
	case strings.HasPrefix(on, "postgres"):
		return &database{name: "your PostgreSQL", url: on}, nil
	}
	return nil, errors.New("-on is neither postgres nor redis, nor a URL that begins so")
}

func isRedis(url string) bool { return strings.HasPrefix(url, "redis") }

// migrate makes the schema, which Redis has not.
func (d *database) migrate(ctx context.Context) error {
	if isRedis(d.url) {
		return nil
	}
	pool, err := stage.Prepare(ctx, d.url, "")
	if err == nil {
		pool.Close()
	}
	return err
}

// pause lets the server answer no call for a while.
func (d *database) pause(lasts time.Duration) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.own == nil:
		return fmt.Errorf("%s is not paused: it is yours", d.name)
	case d.paused != nil:
		return fmt.Errorf("%s is paused already", d.name)
	}
	d.own.Pause()
	d.paused = time.AfterFunc(lasts, d.resume)
	return nil
}

func (d *database) resume() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.paused != nil {
		d.paused.Stop()
		d.own.Resume()
		d.paused = nil
	}
}

func (d *database) close() {
	d.resume()
	if d.own != nil {
		d.own.Close()
	}
}

// backend is what is used of either.
type backend interface {
	lease.Backend
	lease.Publisher
	operate.Operator
}

// connect opens the backend that a URL means, watched by these. Call the function that it returns at the end.
func connect(ctx context.Context, url string, by ...*leaseotel.Telemetry) (backend, func(), error) {
	if isRedis(url) {
		o, err := redis.ParseURL(url)
		if err != nil {
			return nil, nil, err
		}
		logging.Disable() // the runtime's log has what fails
		client := redis.NewClient(o)
		var opts []leaseredis.Option
		for _, t := range by {
			opts = append(opts, leaseredis.WithPublishMiddleware(t.Publish), leaseredis.WithObserver(t))
		}
		return leaseredis.New(client, opts...), func() { client.Close() }, nil
	}
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, nil, err
	}
	var opts []leasepg.Option
	for _, t := range by {
		opts = append(opts, leasepg.WithPublishMiddleware(t.Publish), leasepg.WithObserver(t))
	}
	return leasepg.New(pool, opts...), pool.Close, nil
}

// Topics: thousands of topics, each worked on by one replica, at the price of one
// heartbeat for each replica.
//
//	go run ./examples/topics
//
// It starts a PostgreSQL server and replicas, which are processes: first one, which takes
// all topics, then two more, which get their share. It counts what they write while they
// hold the topics and wait for each other's, kills one under load, and adds up.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/stage"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

func main() {
	log.SetFlags(0)
	r := run{out: os.Stdout}
	name := flag.String("replica", "", "be the replica of this name, until SIGTERM")
	flag.IntVar(&r.topics, "topics", 4000, "how many topics")
	flag.DurationVar(&r.idle, "idle", 3*time.Second, "how long to count what idle replicas write")
	flag.Parse()

	ctx, stop := stage.Context(*name != "")
	defer stop()
	var err error
	if *name != "" {
		err = replica(ctx, os.Getenv("DATABASE_URL"), *name)
	} else {
		err = r.main(ctx)
	}
	if err != nil {
		log.Fatal("topics: ", err)
	}
}

// replica is all that a service does.
func replica(ctx context.Context, dsn, name string) error {
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	be := leasepg.New(pool, leasepg.WithLogger(quiet(name)))
	statements, err := NewStatements(be, &Statements{Replica: name}, lease.WithLogger(quiet(name)))
	if err != nil {
		return err
	}
	return statements.Run(ctx)
}

// quiet logs errors only: replicas are killed here on purpose.
func quiet(name string) *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})).With("replica", name)
}

// run is one run of the example.
type run struct {
	out    io.Writer
	topics int
	idle   time.Duration

	pool  *pgxpool.Pool
	be    *leasepg.Backend
	fleet *stage.Fleet
}

const tables = `
	CREATE TABLE invoice (tenant int, n int, cents bigint, PRIMARY KEY (tenant, n));
	CREATE TABLE statement (
		tenant   int PRIMARY KEY,
		invoices int NOT NULL DEFAULT 0,
		cents    bigint NOT NULL DEFAULT 0,
		last     int NOT NULL DEFAULT 0,
		disorder int NOT NULL DEFAULT 0
	) WITH (fillfactor = 50)`

func (r *run) main(ctx context.Context) (err error) {
	dsn, end, err := stage.Database("")
	if err != nil {
		return err
	}
	defer end()
	if r.pool, err = stage.Prepare(ctx, dsn, tables); err != nil {
		return err
	}
	defer r.pool.Close()
	r.be = leasepg.New(r.pool, leasepg.WithLogger(quiet("example")))
	r.fleet = stage.New(dsn)
	defer func() { err = errors.Join(err, r.fleet.Close()) }()
	return r.play(ctx)
}

func (r *run) start(n int) error {
	name := fmt.Sprintf("replica-%d", n)
	return r.fleet.Start(name, "-replica", name)
}

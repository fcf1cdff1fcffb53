// Drain: one replica at a time drains a log that 16 publishers fill at full speed.
//
//	go run ./examples/drain
//
// It starts a PostgreSQL server and three replicas, which are processes. Half-way through
// it kills the one that drains. One payment cannot be booked; it becomes a dead letter and
// is replayed when its reason is gone. Beside it a reader that keeps only the highest id it
// has seen reads the same log, to show what that loses.
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

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/stage"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

func main() {
	log.SetFlags(0)
	r := run{out: os.Stdout}
	name := flag.String("replica", "", "be the replica of this name, until SIGTERM")
	flag.IntVar(&r.payments, "payments", 50_000, "how many payments to publish")
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
		log.Fatal("drain: ", err)
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
	ledger, err := NewLedger(be, &Ledger{Replica: name}, lease.WithLogger(quiet(name)))
	if err != nil {
		return err
	}
	return ledger.Run(ctx)
}

// quiet logs errors only: replicas are killed here on purpose.
func quiet(name string) *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})).With("replica", name)
}

// run is one run of the example.
type run struct {
	out      io.Writer
	payments int

	pool  *pgxpool.Pool
	be    *leasepg.Backend
	fleet *stage.Fleet
}

// tables is what the handler writes. Nothing in it keeps out a payment that is booked twice.
const tables = `
	CREATE TABLE account (name text PRIMARY KEY);
	CREATE TABLE booking (
		seq       bigint GENERATED ALWAYS AS IDENTITY,
		message   text NOT NULL,
		account   text NOT NULL REFERENCES account,
		n         int NOT NULL,
		cents     bigint NOT NULL,
		epoch     bigint NOT NULL,
		replica   text NOT NULL,
		booked_at timestamptz NOT NULL DEFAULT clock_timestamp()
	)`

func (r *run) main(ctx context.Context) (err error) {
	dsn, end, err := stage.Database("")
	if err != nil {
		return err
	}
	defer end()
	if r.pool, err = stage.Prepare(ctx, dsn+"&pool_max_conns=24", tables); err != nil {
		return err
	}
	defer r.pool.Close()
	r.be = leasepg.New(r.pool, leasepg.WithLogger(quiet("example")))
	r.fleet = stage.New(dsn)
	defer func() { err = errors.Join(err, r.fleet.Close()) }()
	for i := range 3 {
		name := fmt.Sprintf("replica-%d", i+1)
		if err := r.fleet.Start(name, "-replica", name); err != nil {
			return err
		}
	}
	return r.play(ctx)
}

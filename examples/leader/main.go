// Leader: five jobs that run on one replica at a time, all on one connection.
//
//	go run ./examples/leader
//
// It starts a PostgreSQL server and three replicas, which are processes: one leads, two
// stand by. It stops the leader, kills the next with SIGKILL and freezes the one after
// that, prints for how long nobody led, and shows that a write of the frozen one, which
// arrives when others lead, is refused.
package main

import (
	"context"
	"errors"
	"flag"
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
		log.Fatal("leader: ", err)
	}
}

// replica is all that a service does.
func replica(ctx context.Context, dsn, name string) error {
	pool, err := pgxpool.New(ctx, dsn+"&application_name="+name)
	if err != nil {
		return err
	}
	defer pool.Close()
	job := Job{Replica: name, Pool: pool}
	g := lease.NewGroup()
	err = RegisterLeasegen(g, leasepg.New(pool, leasepg.WithLogger(quiet())), LeasegenHandlers{
		Mailer:   &Mailer{job},
		Sweeper:  &Sweeper{job},
		Exporter: &Exporter{job},
		Biller:   &Biller{job},
		Indexer:  &Indexer{job},
	}, lease.WithLogger(quiet()))
	if err != nil {
		return err
	}
	return g.Run(ctx)
}

// quiet logs nothing: what happens to the replicas here is in the table.
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// run is one run of the example.
type run struct {
	out io.Writer

	pool  *pgxpool.Pool
	fleet *stage.Fleet
}

// jobs is how many jobs there are.
const jobs = 5

// tables is the system outside, and its diary.
const tables = `
	CREATE TABLE outside (job text PRIMARY KEY, epoch bigint NOT NULL DEFAULT 0, steps int NOT NULL DEFAULT 0);
	INSERT INTO outside (job) VALUES ('mailer'), ('sweeper'), ('exporter'), ('biller'), ('indexer');
	CREATE TABLE step (
		seq      bigint GENERATED ALWAYS AS IDENTITY,
		job      text NOT NULL,
		replica  text NOT NULL,
		epoch    bigint NOT NULL,
		accepted bool NOT NULL,
		at       timestamptz NOT NULL DEFAULT clock_timestamp()
	);
	CREATE INDEX ON step (job, at)`

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
	r.fleet = stage.New(dsn)
	defer func() { err = errors.Join(err, r.fleet.Close()) }()
	return r.play(ctx)
}

func (r *run) start(name string) error { return r.fleet.Start(name, "-replica", name) }

// keys are the advisory locks of the jobs.
func (r *run) keys() []int64 {
	return []int64{lease.LockKey("mailer"), lease.LockKey("sweeper"), lease.LockKey("exporter"), lease.LockKey("biller"), lease.LockKey("indexer")}
}

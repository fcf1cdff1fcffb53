// Leader: five jobs that run on one replica at a time, all on one connection.
//
//	go run ./examples/leader
//
// It starts a PostgreSQL server and three replicas, which are processes: one leads, two
// stand by. It stops the leader, kills the next with SIGKILL and freezes the one after
// that, prints for how long there was no leader, and shows that a write of the frozen one, which
// arrives when others lead, is refused.
package main

import (
	"context"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/stage"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

func main() {
	var r run
	r.Main("leader", tables, replica, r.play)
}

// replica is all that a service does.
func replica(ctx context.Context, pool *pgxpool.Pool, name string) error {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // what happens to the replicas here is in the table
	job := Job{Replica: name, Pool: pool}
	g := lease.NewGroup()
	err := RegisterLeasegen(g, leasepg.New(pool), LeasegenHandlers{
		Mailer:   &Mailer{job},
		Sweeper:  &Sweeper{job},
		Exporter: &Exporter{job},
		Biller:   &Biller{job},
		Indexer:  &Indexer{job},
	})
	if err != nil {
		return err
	}
	return g.Run(ctx)
}

// run is one run of the example.
type run struct{ stage.Set }

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

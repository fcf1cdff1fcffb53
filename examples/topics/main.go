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
	"flag"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/stage"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

func main() {
	var r run
	flag.IntVar(&r.topics, "topics", 4000, "how many topics")
	flag.DurationVar(&r.idle, "idle", 3*time.Second, "how long to count what idle replicas write")
	r.Main("topics", tables, replica, r.play)
}

// replica is all that a service does.
func replica(ctx context.Context, pool *pgxpool.Pool, name string) error {
	statements, err := NewStatements(leasepg.New(pool), &Statements{Replica: name})
	if err != nil {
		return err
	}
	return statements.Run(ctx)
}

// run is one run of the example.
type run struct {
	stage.Set
	topics int
	idle   time.Duration
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

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
	"flag"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/stage"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

func main() {
	var r run
	flag.IntVar(&r.payments, "payments", 50_000, "how many payments to publish")
	r.Main("drain", tables, replica, r.play)
}

// replica is all that a service does.
func replica(ctx context.Context, pool *pgxpool.Pool, name string) error {
	ledger, err := NewLedger(leasepg.New(pool), &Ledger{Replica: name})
	if err != nil {
		return err
	}
	return ledger.Run(ctx)
}

// run is one run of the example.
type run struct {
	stage.Set
	payments int
}

// tables is what the handler writes. It does not dedupe a payment that is booked twice.
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

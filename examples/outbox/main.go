// Outbox: a shop's own outbox table as the source of messages, read without losing what
// commits late.
//
//	go run ./examples/outbox
//
// It starts a PostgreSQL server, runs the shop's migrations, and starts three replicas,
// which are processes. Eight sellers place orders at full speed, one transaction stays open
// while all others commit, and a replica is killed. An order without an address becomes a
// dead letter; its row is fixed, and it is replayed. At the end it adds up.
package main

import (
	"context"
	_ "embed"
	"flag"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/stage"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

func main() {
	var r run
	flag.IntVar(&r.orders, "orders", 5_000, "how many orders")
	r.Main("outbox", tables+shop+xid, replica, r.play)
}

// replica is all that a service does.
func replica(ctx context.Context, pool *pgxpool.Pool, name string) error {
	shipping, err := NewShipping(leasepg.New(pool), &Shipping{Replica: name})
	if err != nil {
		return err
	}
	return shipping.Run(ctx)
}

// run is one run of the example.
type run struct {
	stage.Set
	orders int
}

// The shop's own migrations, which make its outbox.
//
//go:embed migrations/1_shop.sql
var shop string

//go:embed migrations/2_xid.sql
var xid string

const tables = `
	CREATE TABLE shipment (
		seq      bigint GENERATED ALWAYS AS IDENTITY,
		order_id bigint NOT NULL,
		customer bigint NOT NULL,
		replica  text NOT NULL
	);
`

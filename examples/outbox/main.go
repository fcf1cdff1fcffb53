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
	"embed"
	"flag"
	"io"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/stage"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

func main() {
	r := run{out: os.Stdout}
	flag.IntVar(&r.orders, "orders", 5_000, "how many orders")
	stage.Main("outbox", replica, r.main)
}

// replica is all that a service does.
func replica(ctx context.Context, pool *pgxpool.Pool, name string) error {
	be := leasepg.New(pool, leasepg.WithLogger(stage.Quiet(name)))
	shipping, err := NewShipping(be, &Shipping{Replica: name}, lease.WithLogger(stage.Quiet(name)))
	if err != nil {
		return err
	}
	return shipping.Run(ctx)
}

// run is one run of the example.
type run struct {
	stage.Set
	out    io.Writer
	orders int
}

//go:embed migrations/*.sql
var migrations embed.FS

const tables = `
	CREATE TABLE shipment (
		seq      bigint GENERATED ALWAYS AS IDENTITY,
		order_id bigint NOT NULL,
		customer bigint NOT NULL,
		replica  text NOT NULL
	)`

func (r *run) main(ctx context.Context) error {
	ddl := tables
	for _, name := range []string{"1_shop", "2_xid"} {
		sql, err := migrations.ReadFile("migrations/" + name + ".sql")
		if err != nil {
			return err
		}
		ddl += ";\n" + string(sql)
	}
	return stage.Play(ctx, ddl, func(set stage.Set) error {
		r.Set = set
		for _, name := range []string{"replica-1", "replica-2", "replica-3"} {
			if err := r.Fleet.Replica(name); err != nil {
				return err
			}
		}
		return r.play(ctx)
	})
}

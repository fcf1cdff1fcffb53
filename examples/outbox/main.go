// Outbox: a shop's own outbox table as the source of messages, read without losing what
// commits late.
//
//	go run ./examples/outbox
//
// It starts a PostgreSQL server, runs the shop's migrations, and starts three replicas,
// which are processes. Eight sellers place orders at full speed, one transaction stays open
// while all others commit, and a replica is killed. An order without an address becomes a
// dead letter; its row is mended, and it is replayed. At the end it adds up.
package main

import (
	"context"
	"embed"
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
	flag.IntVar(&r.orders, "orders", 5_000, "how many orders")
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
		log.Fatal("outbox: ", err)
	}
}

// replica is all that a service does.
func replica(ctx context.Context, dsn, name string) error {
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	be := leasepg.New(pool, leasepg.WithLogger(quiet()))
	shipping, err := NewShipping(be, &Shipping{Replica: name}, lease.WithLogger(quiet()))
	if err != nil {
		return err
	}
	return shipping.Run(ctx)
}

// quiet logs nothing: replicas are killed here on purpose.
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// run is one run of the example.
type run struct {
	out    io.Writer
	orders int

	pool  *pgxpool.Pool
	be    *leasepg.Backend
	fleet *stage.Fleet
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
	dsn, end, err := stage.Database("")
	if err != nil {
		return err
	}
	defer end()
	ddl := tables
	for _, name := range []string{"1_shop", "2_xid"} {
		sql, err := migrations.ReadFile("migrations/" + name + ".sql")
		if err != nil {
			return err
		}
		ddl += ";\n" + string(sql)
	}
	if r.pool, err = stage.Prepare(ctx, dsn, ddl); err != nil {
		return err
	}
	defer r.pool.Close()
	r.be = leasepg.New(r.pool, leasepg.WithLogger(quiet()))
	r.fleet = stage.New(dsn)
	defer r.fleet.Close()
	return r.play(ctx)
}

func (r *run) start(n int) error {
	name := fmt.Sprintf("replica-%d", n)
	return r.fleet.Start(name, "-replica", name)
}

// Streamlock: streams that an HTTP API names are each worked on by one replica, with a
// lease of its own, until they are at their end.
//
//	go run ./examples/streamlock
//
// It starts a PostgreSQL server, the API, and three replicas, which are processes. There
// are more streams than the replicas have room for. It kills one replica, and freezes
// another until its streams have gone to others; what that one reports then is refused.
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
	url := flag.String("api", "", "with -replica: where the API is")
	flag.IntVar(&r.streams, "streams", 40, "how many streams")
	flag.IntVar(&r.events, "events", 100, "how many events the longest streams have")
	flag.Parse()

	ctx, stop := stage.Context(*name != "")
	defer stop()
	var err error
	if *name != "" {
		err = replica(ctx, os.Getenv("DATABASE_URL"), *name, *url)
	} else {
		err = r.main(ctx)
	}
	if err != nil {
		log.Fatal("streamlock: ", err)
	}
}

// replica is all that a service does.
func replica(ctx context.Context, dsn, name, url string) error {
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	be := leasepg.New(pool, leasepg.WithLogger(quiet()))
	worker, err := NewWorker(be, &Worker{Replica: name, API: &client{url}}, lease.WithLogger(quiet()))
	if err != nil {
		return err
	}
	return worker.Run(ctx)
}

// quiet logs nothing: what happens to the replicas here is in the table.
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// run is one run of the example.
type run struct {
	out             io.Writer
	streams, events int

	api   api
	be    *leasepg.Backend
	fleet *stage.Fleet
}

func (r *run) main(ctx context.Context) (err error) {
	dsn, end, err := stage.Database("")
	if err != nil {
		return err
	}
	defer end()
	pool, err := stage.Prepare(ctx, dsn, "")
	if err != nil {
		return err
	}
	defer pool.Close()
	r.be = leasepg.New(pool, leasepg.WithLogger(quiet()))
	lengths := make([]int, r.streams)
	for i := range lengths {
		lengths[i] = r.events/2 + i*37%(r.events/2+1)
	}
	url, closeAPI, err := r.api.open(lengths)
	if err != nil {
		return err
	}
	defer closeAPI()
	r.fleet = stage.New(dsn)
	defer func() { err = errors.Join(err, r.fleet.Close()) }()
	for i := range 3 {
		name := fmt.Sprintf("replica-%d", i+1)
		if err := r.fleet.Start(name, "-replica", name, "-api", url); err != nil {
			return err
		}
	}
	return r.play(ctx)
}

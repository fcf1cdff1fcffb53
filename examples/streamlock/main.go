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
	"flag"
	"io"
	"log/slog"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/stage"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

func main() {
	r := run{out: os.Stdout}
	url := flag.String("api", "", "with -replica: where the API is")
	flag.IntVar(&r.streams, "streams", 40, "how many streams")
	flag.IntVar(&r.events, "events", 100, "how many events the longest streams have")
	stage.Main("streamlock", func(ctx context.Context, pool *pgxpool.Pool, name string) error {
		return replica(ctx, pool, name, &client{*url})
	}, r.main)
}

// replica is all that a service does.
func replica(ctx context.Context, pool *pgxpool.Pool, name string, api *client) error {
	silent := slog.New(slog.DiscardHandler) // what happens to the replicas here is in the table
	worker, err := NewWorker(leasepg.New(pool, leasepg.WithLogger(silent)), &Worker{Replica: name, API: api}, lease.WithLogger(silent))
	if err != nil {
		return err
	}
	return worker.Run(ctx)
}

// run is one run of the example.
type run struct {
	stage.Set
	out             io.Writer
	streams, events int

	api api
}

func (r *run) main(ctx context.Context) error {
	lengths := make([]int, r.streams)
	for i := range lengths {
		lengths[i] = r.events/2 + i*37%(r.events/2+1)
	}
	url, closeAPI, err := r.api.open(lengths)
	if err != nil {
		return err
	}
	defer closeAPI()
	return stage.Play(ctx, "", func(set stage.Set) error {
		r.Set = set
		for _, name := range []string{"replica-1", "replica-2", "replica-3"} {
			if err := r.Fleet.Replica(name, "-api", url); err != nil {
				return err
			}
		}
		return r.play(ctx)
	})
}

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
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/stage"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

func main() {
	var r run
	url := flag.String("api", "", "with -replica: where the API is")
	flag.IntVar(&r.streams, "streams", 40, "how many streams")
	flag.IntVar(&r.events, "events", 100, "how many events the longest streams have")
	r.Main("streamlock", "", func(ctx context.Context, pool *pgxpool.Pool, name string) error {
		return replica(ctx, pool, name, &client{*url})
	}, r.play)
}

// replica is all that a service does.
func replica(ctx context.Context, pool *pgxpool.Pool, name string, api *client) error {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // what happens to the replicas here is in the table
	worker, err := NewWorker(leasepg.New(pool), &Worker{Replica: name, API: api})
	if err != nil {
		return err
	}
	return worker.Run(ctx)
}

// run is one run of the example.
type run struct {
	stage.Set
	streams, events int
	api             api
}

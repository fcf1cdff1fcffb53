// Balance: work items name feeds, which are Redis streams; each feed is read by one replica,
// and the replicas share them.
//
//	go run ./examples/balance
//
// It starts a Redis server and three replicas, which are processes. It kills one, whose feeds go
// on elsewhere from where they were, once its TTL of 2 s is over; and it stops one in good
// order, which hands its feeds over at once. Each has a new one in its place.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/stage"
	"github.com/leasegen/leasegen/runtime/leaseredis"
)

func main() {
	var r run
	flag.IntVar(&r.feeds, "feeds", 24, "how many feeds")
	flag.IntVar(&r.readings, "readings", 800, "how many readings the longest feeds have")
	r.Main("balance", replica, r.play)
}

// replica is all that a service does.
func replica(ctx context.Context, client *redis.Client, name string) error {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // what happens to the replicas here is in the table
	reader, err := NewReader(leaseredis.New(client), &Reader{Replica: name, Archive: &archive{client}})
	if err != nil {
		return err
	}
	return reader.Run(ctx)
}

// run is one run of the example.
type run struct {
	stage.RedisSet
	feeds, readings int
	archive         *archive
	lengths         map[string]int // how many readings each feed has
	total           int            // of them
	table           *stage.Table
}

// publish writes the feeds, and a work item for each.
func (r *run) publish(ctx context.Context) error {
	r.archive, r.lengths = &archive{r.Client}, map[string]int{}
	items := make([]FeedOpened, r.feeds)
	for i := range items {
		n := r.readings/2 + i*37%(r.readings/2+1)
		f := FeedOpened{Feed: fmt.Sprintf("feed-%02d", i+1), Site: fmt.Sprintf("site-%d", i%5+1), Readings: n}
		if err := r.archive.fill(ctx, f.Feed, n); err != nil {
			return err
		}
		items[i], r.lengths[f.Feed] = f, n
		r.total += n
	}
	return PublishFeedOpened(ctx, r.Backend, "feeds", items...)
}

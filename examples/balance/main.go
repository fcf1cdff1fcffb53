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
	"io"
	"log/slog"
	"os"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/stage"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leaseredis"
)

func main() {
	r := run{out: os.Stdout}
	flag.IntVar(&r.feeds, "feeds", 24, "how many feeds")
	flag.IntVar(&r.readings, "readings", 800, "how many readings the longest feeds have")
	stage.RedisMain("balance", replica, r.main)
}

// replica is all that a service does.
func replica(ctx context.Context, client *redis.Client, name string) error {
	silent := slog.New(slog.DiscardHandler) // what happens to the replicas here is in the table
	reader, err := NewReader(leaseredis.New(client, leaseredis.WithLogger(silent)), &Reader{Replica: name, Archive: &archive{client}},
		lease.WithLogger(silent))
	if err != nil {
		return err
	}
	return reader.Run(ctx)
}

// run is one run of the example.
type run struct {
	stage.RedisSet
	out             io.Writer
	feeds, readings int

	archive *archive
	names   []string // of the feeds
	total   int      // readings
}

func (r *run) main(ctx context.Context) error {
	return stage.PlayRedis(func(set stage.RedisSet) error {
		r.RedisSet, r.archive = set, &archive{set.Client}
		if err := r.publish(ctx); err != nil {
			return err
		}
		return r.play(ctx)
	})
}

// length is how many readings the feed of that number has.
func (r *run) length(i int) int { return r.readings/2 + i*37%(r.readings/2+1) }

// publish writes the feeds, and a work item for each.
func (r *run) publish(ctx context.Context) error {
	items := make([]FeedOpened, r.feeds)
	for i := range items {
		f := FeedOpened{Feed: fmt.Sprintf("feed-%02d", i+1), Site: fmt.Sprintf("site-%d", i%5+1), Readings: r.length(i)}
		if err := r.archive.fill(ctx, f.Feed, f.Readings); err != nil {
			return err
		}
		items[i] = f
		r.names, r.total = append(r.names, f.Feed), r.total+f.Readings
	}
	return PublishFeedOpened(ctx, r.Backend, "feeds", items...)
}

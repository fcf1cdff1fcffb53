package leasepg_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/lease"
)

// However often leases change hands, the feed goes on reading the log.
func TestFeedReadsTheLogAmidOwnershipNews(t *testing.T) {
	be, pool := migrated(t)
	feed := must[lease.Feed](t)(be.OpenFeed(t.Context(), []lease.ConsumerInfo{topical}))
	defer feed.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	defer func() { cancel(); <-ended }()
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			// Faster than the feed polls.
			_, _ = pool.Exec(ctx, "SELECT pg_notify('leasegen', 'o')")
		}
	}()
	told := 0
	for ; told < 20; told++ {
		if news := must[lease.News](t)(feed.Next(t.Context())); !news.Ownership {
			told = 0 // the notifications are not yet under way
		}
	}
	ok(t, be.Publish(t.Context(), events("x", 1)))
	for published := time.Now(); ; {
		news := must[lease.News](t)(feed.Next(t.Context()))
		if slices.Contains(news.Topics, "x") {
			return
		}
		if time.Since(published) > 5*time.Second {
			t.Fatal("the event is not told of")
		}
	}
}

package leasepg_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// However often leases change hands, the feed goes on reading the log.
func TestFeedReadsTheLogAmidOwnershipNews(t *testing.T) {
	be, pool := migrated(t)
	feed := must[backend.Feed](t)(be.OpenFeed(t.Context(), []backend.ConsumerInfo{topical}))
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
		if news := must[backend.News](t)(feed.Next(t.Context())); !news.Ownership {
			told = 0 // the notifications are not yet under way
		}
	}
	// As if the notification of it had been lost.
	exec(t, pool, "INSERT INTO leasegen.message (topic, key, kind, payload) VALUES ('x', '', 'k', '')")
	for published := time.Now(); ; {
		news := must[backend.News](t)(feed.Next(t.Context()))
		if slices.Contains(news.Topics, "x") {
			return
		}
		if time.Since(published) > time.Minute {
			t.Fatal("the event is not told of")
		}
	}
}

// The end of a session that held leases is told at once, and not found by looking.
func TestFeedIsToldOfASessionThatCloses(t *testing.T) {
	be, _ := migrated(t)
	ok(t, be.Publish(t.Context(), events("x", 1)))
	ok(t, be.Register(t.Context(), topical, nil))
	id, s := member(t, be, time.Minute, topical)
	equal(t, "acquired", len(acquire(t, be, id, topical, 9)), 1)
	feed := must[backend.Feed](t)(be.OpenFeed(t.Context(), []backend.ConsumerInfo{topical}))
	defer feed.Close()
	for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); { // what was told before
		must[backend.News](t)(feed.Next(t.Context()))
	}
	ok(t, s.Close(t.Context()))
	for closed := time.Now(); !must[backend.News](t)(feed.Next(t.Context())).Ownership; {
		if time.Since(closed) > 8*time.Second { // the feed looks by itself each ten
			t.Fatal("not told")
		}
	}
}

package leasepg_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
)

// However often leases change hands, the feed goes on reading the log.
func TestFeedReadsTheLogAmidOwnershipNews(t *testing.T) {
	be, pool := migrated(t)
	feed := kit.Must[backend.Feed](t)(be.OpenFeed(t.Context(), []backend.ConsumerInfo{topical}))
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
		if news := kit.Must[backend.News](t)(feed.Next(t.Context())); !news.Ownership {
			told = 0 // the notifications are not yet under way
		}
	}
	// As if the notification of it had been lost.
	exec(t, pool, "INSERT INTO leasegen.message (topic, key, kind, payload) VALUES ('x', '', 'k', '')")
	for published := time.Now(); ; {
		news := kit.Must[backend.News](t)(feed.Next(t.Context()))
		if slices.Contains(news.Topics, "x") {
			return
		}
		if time.Since(published) > time.Minute {
			t.Fatal("the event is not told of")
		}
	}
}

// The end of a session that held leases is reported at once, and not found by looking.
func TestFeedIsToldOfASessionThatCloses(t *testing.T) {
	be, _ := migrated(t)
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 1)))
	kit.OK(t, be.Register(t.Context(), topical, nil))
	id := kit.Join(t, be, topical, time.Minute)
	kit.Equal(t, "acquired", len(id.Acquires(9)), 1)
	feed := kit.Must[backend.Feed](t)(be.OpenFeed(t.Context(), []backend.ConsumerInfo{topical}))
	defer feed.Close()
	for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); { // earlier reports
		kit.Must[backend.News](t)(feed.Next(t.Context()))
	}
	kit.OK(t, id.Session.Close(t.Context()))
	for closed := time.Now(); !kit.Must[backend.News](t)(feed.Next(t.Context())).Ownership; {
		if time.Since(closed) > 8*time.Second { // the feed looks by itself each ten
			t.Fatal("not told")
		}
	}
}

package webtest

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/leasegen/leasegen/internal/browser"
	"github.com/leasegen/leasegen/runtime/lease"
)

var full = flag.Bool("full", false, "40,000 topics and 100,000 dead letters: the first look at a page within a second, later ones within 200 ms")

// Pages of a consumer with very many topics and dead letters come soon, on every backend.
func TestSize(t *testing.T) {
	t.Parallel()
	topics, letters, first, later := 400, 1000, browser.Patience, browser.Patience
	if *full {
		topics, letters, first, later = 40_000, 100_000, time.Second, 200*time.Millisecond
	}
	for name := range backends {
		t.Run(name, func(t *testing.T) {
			letters := letters
			w := &world{t: t, share: backends[name](t)}
			w.be = w.share()
			if name == "redis" {
				letters = min(letters, 10_000) // as many as it keeps
			}
			ctx, cancel := context.WithCancel(t.Context())
			t.Cleanup(func() { cancel(); w.ended.Wait() })
			for range 2 {
				c, err := lease.NewConsumer(w.share(), lease.Spec{Name: "many", Per: lease.PerTopic, Topics: []string{"t.*"}, Batch: 1000, Handlers: []lease.Handler{
					lease.One("order.placed", func(_ context.Context, m lease.Message[order]) error {
						return lease.DeadLetter(fmt.Sprintf("carrier: %d after %d ms", 500+m.Payload.Cents%4, m.Payload.Cents))
					})}}, lease.WithLogger(slog.New(slog.DiscardHandler)))
				if err != nil {
					t.Fatal(err)
				}
				w.ended.Go(func() { _ = c.Run(ctx) })
			}
			events := make([]lease.Event, letters)
			for i := range events {
				events[i] = lease.Event{Topic: fmt.Sprintf("t.%d", i%topics), Key: fmt.Sprint("key-", i), Kind: "order.placed", Payload: fmt.Appendf(nil, `{"cents":%d}`, i)}
			}
			for i := 0; i < len(events); i += 1000 {
				if err := w.be.Publish(t.Context(), events[i:i+1000]); err != nil {
					t.Fatal(err)
				}
			}
			for deadline := time.Now().Add(5 * time.Minute); w.status("many").DeadLetters < letters; time.Sleep(100 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%+v", w.status("many"))
				}
			}
			base := w.serve(everything)
			for _, page := range []string{"", "consumer?c=many", "dead?c=many", "dead?c=many&text=KEY-77", "dead?c=many&reason=carrier:+502*&min=10m", "dead?c=many&key=key-7",
				"parked?c=many", "cursors?c=many", "cursors?c=many&r=t.7", "replay?c=many", "purge?c=many&text=502", "move?c=many"} {
				var took [4]time.Duration
				for i := range took {
					began := time.Now()
					resp, err := http.Get(base + page)
					if err != nil {
						t.Fatal(err)
					}
					body, _ := io.ReadAll(resp.Body)
					resp.Body.Close()
					if resp.StatusCode != http.StatusOK || len(body) > 150_000 {
						t.Errorf("%s: %s, %d bytes", page, resp.Status, len(body))
					}
					took[i] = time.Since(began)
					time.Sleep(50 * time.Millisecond)
				}
				then := slices.Min(took[1:])
				t.Logf("%-45s %4d ms, then %3d ms", page, took[0].Milliseconds(), then.Milliseconds())
				if took[0] > first || then > later {
					t.Errorf("%s takes %v", page, took)
				}
			}
		})
	}
}

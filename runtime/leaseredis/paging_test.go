package leaseredis

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
)

// More resources than a page may have one score: those that were copied to a view in one step.
func TestStreamsThatWereCopiedInOneStepAreAllFound(t *testing.T) {
	const streams = 2500
	open := func(name string) *Backend {
		return New(redistest.Shared(t).Client(t), WithNamespace(name), WithLogger(slog.New(slog.DiscardHandler)))
	}
	info := backend.ConsumerInfo{Name: "c", Per: backend.PerStream, Topics: []string{"*"}, TTL: time.Hour}
	name := redistest.Namespace(t)
	be := open(name)
	var es []backend.Event
	for i := range streams {
		es = append(es, backend.Event{Topic: "x", Key: fmt.Sprint("k", i), Kind: "order", Payload: []byte("{}")})
	}
	es = append(es, es[0], es[0], es[0]) // so that steps and pages do not end together
	kit.OK(t, be.Publish(t.Context(), es[streams:]))
	kit.OK(t, be.Publish(t.Context(), es[:streams]))

	feed, err := open(name).OpenFeed(t.Context(), []backend.ConsumerInfo{info})
	kit.OK(t, err)
	defer feed.Close()
	kit.OK(t, be.Register(t.Context(), info, nil))
	s, err := be.Survey(t.Context(), []string{"c"})
	kit.OK(t, err)
	kit.Equal(t, "streams that are wanted", s[0].Resources, streams)

	told := map[string]bool{}
	for end := time.Now().Add(time.Minute); len(told) < streams && time.Now().Before(end); {
		news, err := feed.Next(t.Context())
		kit.OK(t, err)
		for _, stream := range news.Resources["c"] {
			told[stream] = true
		}
	}
	kit.Equal(t, "streams that a feed tells of", len(told), streams)
}

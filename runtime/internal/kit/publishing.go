package kit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// PublishMiddleware checks a backend's option of that name: open makes a backend with it, and joined runs f with what
// publishes in a transaction of the caller's and commits that; nil for a backend without transactions.
func PublishMiddleware(t *testing.T, open func(...backend.PublishMiddleware) backend.Backend, joined func(be backend.Backend, f func(backend.Publisher) error) error) {
	t.Helper()
	var seen []string
	mark := func(name string) backend.PublishMiddleware {
		return func(next backend.PublishFunc) backend.PublishFunc {
			return func(ctx context.Context, p backend.Publication) error {
				seen = append(seen, fmt.Sprintf("%s %d %t", name, len(p.Events), p.InTx))
				events := slices.Clone(p.Events)
				for i := range events {
					if events[i].Key == "refused" {
						return errors.New("refused by policy")
					}
					events[i].Headers = maps.Clone(events[i].Headers)
					if events[i].Headers == nil {
						events[i].Headers = map[string]string{}
					}
					events[i].Headers["by"] += name
				}
				p.Events = events
				return next(ctx, p)
			}
		}
	}
	be := open(mark("a"), mark("b"))
	c := backend.ConsumerInfo{Name: "c", Per: backend.PerTopic, Topics: []string{"*"}}
	event := func(topic, key string) []backend.Event {
		return []backend.Event{{Topic: topic, Kind: "kind", Key: key, Payload: []byte("{}")}}
	}
	sent := event("alone", "k")
	OK(t, be.Publish(t.Context(), sent))
	Equal(t, "the caller's event has so many headers", len(sent[0].Headers), 0)
	if err := be.Publish(t.Context(), event("alone", "refused")); err == nil || err.Error() != "refused by policy" {
		t.Errorf("publishing what middleware refuses: %v", err)
	}
	OK(t, be.Publish(t.Context(), nil))
	want := []string{"a 1 false", "b 1 false", "a 1 false"}
	topics := []string{"alone"}
	if joined != nil {
		OK(t, joined(be, func(p backend.Publisher) error { return p.Publish(t.Context(), event("joined", "k")) }))
		want = append(want, "a 1 true", "b 1 true")
		topics = append(topics, "joined")
	}
	if !slices.Equal(seen, want) {
		t.Errorf("middleware saw %q, want %q", seen, want)
	}
	a := Join(t, be, c, time.Minute).Registers(topics...)
	for _, topic := range topics {
		ms := a.Reads(topic, nil, 10).Messages
		if len(ms) != 1 || ms[0].Headers["by"] != "ab" {
			t.Errorf("topic %s has %+v, want one message with the header by=ab", topic, ms)
		}
	}

	for name, m := range map[string]backend.PublishMiddleware{
		"nil":         nil,
		"returns nil": func(backend.PublishFunc) backend.PublishFunc { return nil },
		"makes up a publication": func(next backend.PublishFunc) backend.PublishFunc {
			return func(ctx context.Context, _ backend.Publication) error { return next(ctx, backend.Publication{}) }
		},
	} {
		if err := open(m).Publish(t.Context(), event("alone", "k")); err == nil {
			t.Errorf("with middleware that is or does this, publishing succeeds: %s", name)
		}
	}

	callsNextOnce(t, open, joined)
}

// callsNextOnce checks that one call of next counts, while middleware has not returned, also in a caller's transaction.
func callsNextOnce(t *testing.T, open func(...backend.PublishMiddleware) backend.Backend, joined func(be backend.Backend, f func(backend.Publisher) error) error) {
	t.Helper()
	const calls = 20
	var errs []error // of the calls beyond one
	var late func() error
	be := open(func(next backend.PublishFunc) backend.PublishFunc {
		return func(ctx context.Context, p backend.Publication) error {
			ended := make(chan error, calls)
			for range calls {
				go func() { ended <- next(ctx, p) }()
			}
			errs = nil
			for range calls {
				if err := <-ended; err != nil {
					errs = append(errs, err)
				}
			}
			late = func() error { return next(context.WithoutCancel(ctx), p) }
			return nil
		}
	})
	event := []backend.Event{{Topic: "once", Kind: "kind", Payload: []byte("{}")}}
	ways := []func() error{func() error { return be.Publish(t.Context(), event) }}
	if joined != nil {
		ways = append(ways, func() error {
			return joined(be, func(p backend.Publisher) error {
				defer func() { errs = append(errs, late()) }() // the transaction is open still
				return p.Publish(t.Context(), event)
			})
		})
	}
	a := Join(t, be, backend.ConsumerInfo{Name: "once", Per: backend.PerTopic, Topics: []string{"once"}}, time.Minute).Registers("once")
	for i, publish := range ways {
		OK(t, publish())
		errs = append(errs, late())
		Equal(t, "calls that were refused", len(errs), calls+i)
		for _, err := range errs {
			if err == nil || !strings.Contains(err.Error(), "twice, or after it had returned") {
				t.Errorf("a call beyond one: %v", err)
			}
		}
		Equal(t, "messages", len(a.Reads("once", nil, 100).Messages), i+1)
	}
}

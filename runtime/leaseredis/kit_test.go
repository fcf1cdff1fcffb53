package leaseredis_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leaseredis"
)

func newID() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

func wantLost(t testing.TB, what string, err error) {
	t.Helper()
	if !errors.Is(err, backend.ErrSessionLost) {
		t.Fatalf("%s: got %v, want ErrSessionLost", what, err)
	}
}

// slack is what a bound on time allows a busy machine in addition: many times what a request
// takes there now, or what waits its turn behind others.
func slack(t testing.TB, be *leaseredis.Backend) time.Duration {
	t.Helper()
	var worst time.Duration
	for range 10 {
		began := time.Now()
		must[[]backend.Survey](t)(be.Survey(t.Context(), []string{"c"}))
		time.Sleep(time.Millisecond)
		worst = max(worst, time.Since(began)-time.Millisecond)
	}
	return 20 * worst
}

// eventually polls until done, for a minute at most.
func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

var (
	topical = backend.ConsumerInfo{Name: "topical", Per: backend.PerTopic, Topics: []string{"*"}}
	grouped = backend.ConsumerInfo{Name: "grouped", Per: backend.PerGroup, Topics: []string{"*"}}
)

// fresh returns a backend on the shared server, in a namespace of its own.
func fresh(t testing.TB, opts ...leaseredis.Option) *leaseredis.Backend {
	t.Helper()
	return on(redistest.Shared(t).Client(t), redistest.Namespace(t), opts...)
}

// on returns a backend over a client.
func on(c redis.UniversalClient, namespace string, opts ...leaseredis.Option) *leaseredis.Backend {
	return leaseredis.New(c, append([]leaseredis.Option{leaseredis.WithNamespace(namespace)}, opts...)...)
}

// member opens a session for all consumers given.
func member(t testing.TB, be *leaseredis.Backend, ttl time.Duration, consumers ...backend.ConsumerInfo) (string, backend.Session) {
	t.Helper()
	spec := backend.SessionSpec{ID: newID(), TTL: ttl, Host: "host", PID: 1}
	for _, c := range consumers {
		spec.Consumers = append(spec.Consumers, c.Name)
	}
	s := must[backend.Session](t)(be.OpenSession(context.Background(), spec))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = s.Close(ctx)
	})
	return spec.ID, s
}

func request(session string, c backend.ConsumerInfo, n int) backend.AcquireRequest {
	return backend.AcquireRequest{Session: session, Consumer: c, Max: n, Attempt: newID()}
}

func acquire(t testing.TB, be *leaseredis.Backend, session string, c backend.ConsumerInfo, n int) []backend.Grant {
	t.Helper()
	return must[[]backend.Grant](t)(be.Acquire(context.Background(), request(session, c, n)))
}

func survey(t testing.TB, be *leaseredis.Backend, c backend.ConsumerInfo) backend.Survey {
	t.Helper()
	return must[[]backend.Survey](t)(be.Survey(context.Background(), []string{c.Name}))[0]
}

func refs(gs []backend.Grant) []backend.Ref {
	out := make([]backend.Ref, len(gs))
	for i, g := range gs {
		out[i] = g.Ref
	}
	return out
}

// sole registers a consumer of one resource and takes it.
func sole(t testing.TB, be *leaseredis.Backend, c backend.ConsumerInfo, topics ...string) (session string, g backend.Grant) {
	t.Helper()
	session, _ = member(t, be, time.Hour, c)
	ok(t, be.Register(context.Background(), c, topics))
	gs := acquire(t, be, session, c, 1)
	if len(gs) != 1 {
		t.Fatalf("acquired %d leases, want 1", len(gs))
	}
	return session, gs[0]
}

func fetch(t testing.TB, be *leaseredis.Backend, c backend.ConsumerInfo, resource string, at backend.Cursor, limit int) backend.Fetched {
	t.Helper()
	return must[[]backend.Fetched](t)(be.Fetch(context.Background(), backend.FetchRequest{
		Consumer: c, MaxPayload: 1 << 20, Items: []backend.FetchItem{{Resource: resource, From: at, Limit: limit}},
	}))[0]
}

func events(topic string, n int) []backend.Event {
	es := make([]backend.Event, n)
	for i := range es {
		es[i] = backend.Event{Topic: topic, Key: fmt.Sprint("k", i%7), Kind: "kind", Payload: fmt.Appendf(nil, `{"n":%d}`, i)}
	}
	return es
}

func topicNames(n int) []string {
	ts := make([]string, n)
	for i := range ts {
		ts[i] = fmt.Sprintf("topic-%05d", i)
	}
	return ts
}

// discard logs nothing.
var discard = slog.New(slog.DiscardHandler)

// tagOf is the tag of a topic, of so many.
func tagOf(name string, tags int) int {
	h := fnv.New64a()
	h.Write([]byte(name))
	return int(h.Sum64() % uint64(tags))
}

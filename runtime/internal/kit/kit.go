// Package kit is what tests of backends say in one word: what must hold, and what a process does with its session.
package kit

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// Must is the value of a call that may not fail: Must[T](t)(call()).
func Must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// OK ends the test at an error.
func OK(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Equal ends the test unless got is what is wanted.
func Equal[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

// Lost ends the test unless err says that the session is lost.
func Lost(t testing.TB, what string, err error) {
	t.Helper()
	if !errors.Is(err, backend.ErrSessionLost) {
		t.Fatalf("%s: got %v, want ErrSessionLost", what, err)
	}
}

// Eventually polls until done, for a minute at most.
func Eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// Slack is what a bound on time allows a busy machine in addition: many times what a small request takes there now, or
// what waits its turn behind others.
func Slack(request func()) time.Duration {
	var worst time.Duration
	for range 10 {
		began := time.Now()
		request()
		time.Sleep(time.Millisecond)
		worst = max(worst, time.Since(began)-time.Millisecond)
	}
	return 20 * worst
}

// ID is a name that no other call returns, of a session or an attempt.
func ID() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// Member opens a session for all consumers given, which is closed with the test.
func Member(t testing.TB, be backend.Backend, ttl time.Duration, consumers ...backend.ConsumerInfo) (string, backend.Session) {
	t.Helper()
	spec := backend.SessionSpec{ID: ID(), TTL: ttl, Host: "host", PID: 1}
	for _, c := range consumers {
		spec.Consumers = append(spec.Consumers, c.Name)
	}
	s := Must[backend.Session](t)(be.OpenSession(context.Background(), spec))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = s.Close(ctx)
	})
	return spec.ID, s
}

// Request asks for up to n leases.
func Request(session string, c backend.ConsumerInfo, n int) backend.AcquireRequest {
	return backend.AcquireRequest{Session: session, Consumer: c, Max: n, Attempt: ID()}
}

// Acquire takes up to n leases.
func Acquire(t testing.TB, be backend.Backend, session string, c backend.ConsumerInfo, n int) []backend.Grant {
	t.Helper()
	return Must[[]backend.Grant](t)(be.Acquire(context.Background(), Request(session, c, n)))
}

// Sole registers a consumer of one resource and takes it.
func Sole(t testing.TB, be backend.Backend, c backend.ConsumerInfo, topics ...string) (session string, g backend.Grant) {
	t.Helper()
	session, _ = Member(t, be, time.Hour, c)
	OK(t, be.Register(context.Background(), c, topics))
	gs := Acquire(t, be, session, c, 1)
	if len(gs) != 1 {
		t.Fatalf("acquired %d leases, want 1", len(gs))
	}
	return session, gs[0]
}

// Fetch reads messages of a resource.
func Fetch(t testing.TB, be backend.Backend, c backend.ConsumerInfo, resource string, at backend.Cursor, limit int) backend.Fetched {
	t.Helper()
	return Must[[]backend.Fetched](t)(be.Fetch(context.Background(), backend.FetchRequest{
		Consumer: c, MaxPayload: 1 << 20, Items: []backend.FetchItem{{Resource: resource, From: at, Limit: limit}},
	}))[0]
}

// Refs are the leases of grants.
func Refs(gs []backend.Grant) []backend.Ref {
	out := make([]backend.Ref, len(gs))
	for i, g := range gs {
		out[i] = g.Ref
	}
	return out
}

// Events are n events of a topic with seven keys in turn.
func Events(topic string, n int) []backend.Event {
	es := make([]backend.Event, n)
	for i := range es {
		es[i] = backend.Event{Topic: topic, Key: fmt.Sprint("k", i%7), Kind: "kind", Payload: fmt.Appendf(nil, `{"n":%d}`, i)}
	}
	return es
}

// Topics are n names.
func Topics(n int) []string {
	ts := make([]string, n)
	for i := range ts {
		ts[i] = fmt.Sprintf("topic-%05d", i)
	}
	return ts
}

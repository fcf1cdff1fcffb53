// Package kit is what tests of backends say in one word: what must hold, and what a process does with its session
// (Actor).
package kit

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
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

// Patience is within which everything that is awaited happens.
func Patience(t testing.TB) time.Duration {
	if v, ok := t.(interface{ Patience() time.Duration }); ok {
		return v.Patience() // a mutant is not worth a long wait
	}
	return 3 * time.Minute
}

// Bubble runs a test on a clock of its own, which moves only when everything waits: times are exact, and a TTL is free. It fails when a
// goroutine is left at the end, but for the one that tells an observer, in batches of a millisecond, of a handler that outlived its consumer.
func Bubble(t *testing.T, run func(t *testing.T)) {
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(10 * time.Millisecond) }) // the last of all
		run(t)
	})
}

// Eventually polls until done, less and less often: a server that is asked all the time does less of what is awaited.
func Eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	limit, began := Patience(t), time.Now()
	for !done() {
		waited := time.Since(began)
		if waited > limit {
			t.Fatalf("after %v still not: %s", limit, what)
		}
		time.Sleep(min(max(waited/16, 2*time.Millisecond), 100*time.Millisecond))
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

// Fetch reads messages of a resource.
func Fetch(t testing.TB, be backend.Backend, c backend.ConsumerInfo, resource string, at backend.Cursor, limit int) backend.Fetched {
	t.Helper()
	fs := Must[[]backend.Fetched](t)(be.Fetch(context.Background(), backend.FetchRequest{
		Consumer: c, MaxPayload: Roomy, Items: []backend.FetchItem{{Resource: resource, From: at, Limit: limit}},
	}))
	if len(fs) != 1 || fs[0].Resource != resource {
		t.Fatalf("fetch of %s returned %d items", resource, len(fs))
	}
	return fs[0]
}

// Roomy is a MaxPayload that what tests publish keeps to.
const Roomy = 1 << 20

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

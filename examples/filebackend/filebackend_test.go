package filebackend

import (
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasetest"
	"github.com/leasegen/leasegen/runtime/operate"
)

func TestMain(m *testing.M) {
	flag.Parse()
	flag.Set("test.parallel", "32") // the checks mostly wait
	os.Exit(m.Run())
}

// The backend has no state of any caller, so that one value is a handle of every process. Each check ends by opening
// the file again: reading it has to bring back all that the suite did to the store.
func TestConformance(t *testing.T) {
	leasetest.Run(t, leasetest.Factory{
		Simulated: true,
		New: func(t testing.TB) backend.Backend {
			path := filepath.Join(t.TempDir(), "journal")
			b := must(Open(path))(t)
			t.Cleanup(func() { same(t, b, reopen(t, b, path)) })
			return b
		},
		Again: func(t testing.TB, be backend.Backend) backend.Backend { return be },
	})
}

func must[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func reopen(t testing.TB, b *Backend, path string) *Backend {
	t.Helper()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	again := must(Open(path))(t)
	t.Cleanup(func() { again.Close() })
	return again
}

// same checks that two stores are in the same state. The present is no part of that.
func same(t testing.TB, b, again *Backend) {
	t.Helper()
	want, got := b.store, again.store
	got.advance(want.At)
	want.advance(got.At)
	got.line, got.Changed, got.Handovers, got.Replays = want.line, want.Changed, want.Handovers, want.Replays // these end with the process
	if !reflect.DeepEqual(want, got) {
		t.Errorf("the state that was read back differs:\n got %+v\nwant %+v", got, want)
	}
}

var orders = backend.ConsumerInfo{Name: "orders", Per: backend.PerTopic, Topics: []string{"o.*"}}

// fill publishes three messages and one for later, and has a session park the first, give up the second, and stay.
func fill(t *testing.T, b *Backend) (backend.Session, backend.Grant) {
	t.Helper()
	ctx := t.Context()
	events := []backend.Event{
		{Topic: "o.1", Key: "k", Kind: "order", Payload: []byte("1"), Headers: map[string]string{"h": "v"}, ID: "one"},
		{Topic: "o.1", Key: "l", Payload: []byte("2")},
		{Topic: "o.1", Payload: []byte{}},
		{Topic: "o.1", After: time.Hour},
	}
	if err := b.Publish(ctx, events); err != nil {
		t.Fatal(err)
	}
	if err := b.Register(ctx, orders, nil); err != nil {
		t.Fatal(err)
	}
	s := must(b.OpenSession(ctx, backend.SessionSpec{ID: "s", TTL: time.Hour, Consumers: []string{"orders"}}))(t)
	grants := must(b.Acquire(ctx, backend.AcquireRequest{Session: "s", Consumer: orders, Max: 9, Attempt: "a"}))(t)
	if len(grants) != 1 {
		t.Fatalf("%d grants, want 1", len(grants))
	}
	fetched := must(b.Fetch(ctx, backend.FetchRequest{Consumer: orders, MaxPayload: 9,
		Items: []backend.FetchItem{{Resource: "o.1", From: grants[0].Cursor, Limit: 2}}}))(t)
	m := fetched[0].Messages
	fenced := must(b.Commit(ctx, "s", "orders", []backend.Progress{{Ref: grants[0].Ref, Seq: 1, Cursor: fetched[0].Next,
		Park: []backend.Park{{ID: m[0].ID, Lane: "k", Attempt: 1, Error: "no stock"}},
		Dead: []backend.Dead{{ID: m[1].ID, Attempt: 1, Reason: "no price"}}}}))(t)
	if len(fenced) > 0 {
		t.Fatalf("fenced: %v", fenced)
	}
	return s, grants[0]
}

func TestOpensWhatWasClosed(t *testing.T) {
	ctx, path := t.Context(), filepath.Join(t.TempDir(), "journal")
	b := must(Open(path))(t)
	closed, granted := fill(t, b)
	again := reopen(t, b, path)
	same(t, b, again)
	if err := closed.Heartbeat(ctx); err == nil {
		t.Error("a closed backend answers")
	}

	// The session lives: it repeats its last calls, and goes on.
	grants := must(again.Acquire(ctx, backend.AcquireRequest{Session: "s", Consumer: orders, Max: 9, Attempt: "a"}))(t)
	if len(grants) != 1 || grants[0].Ref != granted.Ref || !reflect.DeepEqual(grants[0].Lanes, []string{"k"}) {
		t.Fatalf("granted %+v, want %+v with the lane k", grants, granted)
	}
	fetched := must(again.Fetch(ctx, backend.FetchRequest{Consumer: orders, MaxPayload: 9,
		Items: []backend.FetchItem{{Resource: "o.1", From: grants[0].Cursor, Limit: 9}}}))(t)
	if m := fetched[0].Messages; len(m) != 1 || m[0].ID != "3" {
		t.Errorf("unread: %+v, want the third message alone", m)
	}
	set := must(again.FetchParked(ctx, backend.ParkedRequest{Session: "s", Consumer: orders, Limit: 9, MaxPayload: 9}))(t)
	if m := set.Messages; len(m) != 1 || string(m[0].Payload) != "1" || m[0].Headers["h"] != "v" || m[0].Attempt != 1 || m[0].Error != "no stock" {
		t.Errorf("parked: %+v", m)
	}
	op := again.Capabilities().Operator
	if dead := must(op.DeadLetters(ctx, operate.DeadLetterFilter{}))(t); len(dead) != 1 || dead[0].Key != "l" || dead[0].Reason != "no price" {
		t.Errorf("dead letters: %+v", dead)
	}
	// The next epoch is higher, and events are still deduped by their ID.
	if err := again.Release(ctx, "s", "orders", []backend.Ref{granted.Ref}); err != nil {
		t.Fatal(err)
	}
	grants = must(again.Acquire(ctx, backend.AcquireRequest{Session: "s", Consumer: orders, Max: 9, Attempt: "b"}))(t)
	if len(grants) != 1 || grants[0].Epoch <= granted.Epoch {
		t.Errorf("granted %+v, want an epoch above %d", grants, granted.Epoch)
	}
	if err := again.Publish(ctx, []backend.Event{{Topic: "o.1", ID: "one"}}); err != nil || len(again.store.log) != 3 {
		t.Errorf("%d messages, want 3; %v", len(again.store.log), err)
	}
}

func TestAPauseOutlivesTheProcess(t *testing.T) {
	ctx, path := t.Context(), filepath.Join(t.TempDir(), "journal")
	b := must(Open(path))(t)
	_, granted := fill(t, b)
	if err := b.Capabilities().Operator.Pause(ctx, "orders"); err != nil {
		t.Fatal(err)
	}
	again := reopen(t, b, path)
	same(t, b, again)
	if err := again.Release(ctx, "s", "orders", []backend.Ref{granted.Ref}); err != nil {
		t.Fatal(err)
	}
	acquire := func(attempt string) int {
		return len(must(again.Acquire(ctx, backend.AcquireRequest{Session: "s", Consumer: orders, Max: 9, Attempt: attempt}))(t))
	}
	if n := acquire("b"); n != 0 {
		t.Errorf("%d leases were granted while the consumer was paused", n)
	}
	if err := again.Capabilities().Operator.Resume(ctx, "orders"); err != nil || acquire("c") != 1 {
		t.Errorf("the lease was not granted after the pause: %v", err)
	}
}

func TestCutsOffATornRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	b := must(Open(path))(t)
	fill(t, b)
	whole := must(os.ReadFile(path))(t)
	for _, torn := range []string{`{"At":"2026-`, "\x00\x00\x00", `{"At":"2026-01-01T00:00:00Z","Dead":{}}`} {
		if err := os.WriteFile(path, append(whole[:len(whole):len(whole)], torn...), 0o600); err != nil {
			t.Fatal(err)
		}
		again := must(Open(path))(t)
		same(t, b, again)
		if err := again.Publish(t.Context(), []backend.Event{{Topic: "o.2"}}); err != nil {
			t.Fatal(err)
		}
		same(t, again, reopen(t, again, path))
	}
}

func TestNamesWhatDoesNotDecode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	b := must(Open(path))(t)
	fill(t, b)
	first, rest, _ := strings.Cut(string(must(os.ReadFile(path))(t)), "\n")
	for _, bad := range []string{"", "{}", "\x00", `{"At":"2026-01-01T00:00:00Z","Sessions":[]}`} {
		if err := os.WriteFile(path, []byte(first+"\n"+bad+"\n"+rest), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Open(path)
		if want := "offset " + strconv.Itoa(len(first)+1); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "journal") {
			t.Errorf("%q: %v, want an error that names the file and %s", bad, err, want)
		}
	}
}

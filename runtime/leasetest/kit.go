package leasetest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

const (
	long  = time.Hour       // a TTL that does not end within a test
	short = 3 * time.Second // a TTL that does, and that a machine which stalls for a moment does not end
	roomy = 1 << 20         // a MaxPayload that all payloads of the suite keep to
)

// patience is within which everything that is awaited happens.
func patience(t testing.TB) time.Duration {
	if v, ok := t.(interface{ patience() time.Duration }); ok {
		return v.patience() // a mutant is not worth a long wait
	}
	return time.Minute
}

// slack is what a bound on time allows a busy machine in addition: many times what a request
// takes there now, or what waits its turn behind others.
func slack(t testing.TB, be backend.Backend) time.Duration {
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

// tries is how often a bound on time may be missed before that counts, on a machine that does other things, too.
func tries(t testing.TB) int {
	if patience(t) < time.Minute {
		return 5
	}
	return 15
}

// eventually waits for ok.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	limit := patience(t)
	for deadline := time.Now().Add(limit); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("after %v still not: %s", limit, what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func must[T any](t testing.TB) func(v T, err error) T {
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

func equalSlices[T comparable](t testing.TB, what string, got, want []T) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("%s:\n got %v\nwant %v", what, got, want)
	}
}

func newID() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// perTopic is the consumer that most contract checks use.
func perTopic(patterns ...string) backend.ConsumerInfo {
	if len(patterns) == 0 {
		patterns = []string{"*"}
	}
	return backend.ConsumerInfo{Name: "c", Per: backend.PerTopic, Topics: patterns}
}

func perGroup(patterns ...string) backend.ConsumerInfo {
	return backend.ConsumerInfo{Name: "g", Per: backend.PerGroup, Topics: patterns}
}

// holder is a session on one handle, as a process has it.
type holder struct {
	t    testing.TB
	be   backend.Backend
	id   string
	sess backend.Session
	info backend.ConsumerInfo
	seq  int64 // of the last results told, see tells
}

// join opens a session for the consumer.
func join(t testing.TB, be backend.Backend, info backend.ConsumerInfo, ttl time.Duration) *holder {
	t.Helper()
	h := &holder{t: t, be: be, id: newID(), info: info}
	sess, err := be.OpenSession(t.Context(), backend.SessionSpec{
		ID: h.id, TTL: ttl, Consumers: []string{info.Name}, Topics: map[string][]string{info.Name: info.Topics}, Host: "host", PID: 7,
	})
	if err != nil {
		t.Fatal(err)
	}
	h.sess = sess
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		sess.Close(ctx)
	})
	return h
}

func (h *holder) register(topics ...string) *holder {
	h.t.Helper()
	switch h.info.Per {
	case backend.PerTopic:
	case backend.PerStream:
		topics = append([]string{}, topics...) // none, and not all
	default:
		topics = []string{backend.Whole}
	}
	ok(h.t, h.be.Register(h.t.Context(), h.info, topics))
	return h
}

func (h *holder) request(n int) backend.AcquireRequest {
	return backend.AcquireRequest{Session: h.id, Consumer: h.info, Max: n, Attempt: newID()}
}

func (h *holder) acquire(n int) []backend.Grant {
	h.t.Helper()
	return must[[]backend.Grant](h.t)(h.be.Acquire(h.t.Context(), h.request(n)))
}

// acquireOne takes the one resource that is free.
func (h *holder) acquireOne() backend.Grant {
	h.t.Helper()
	gs := h.acquire(1)
	if len(gs) != 1 {
		h.t.Fatalf("acquired %d leases, want 1", len(gs))
	}
	return gs[0]
}

// takeOver waits until a resource becomes free, and takes it.
func (h *holder) takeOver() backend.Grant {
	h.t.Helper()
	var g []backend.Grant
	eventually(h.t, "a lease to take over", func() bool {
		g = h.acquire(1)
		return len(g) == 1
	})
	return g[0]
}

func (h *holder) release(refs ...backend.Ref) {
	h.t.Helper()
	ok(h.t, h.be.Release(h.t.Context(), h.id, h.info.Name, refs))
}

func (h *holder) tryCommit(p ...backend.Progress) []string {
	h.t.Helper()
	return must[[]string](h.t)(h.be.Commit(h.t.Context(), h.id, h.info.Name, p))
}

// commit stores progress that must not be fenced.
func (h *holder) commit(p ...backend.Progress) {
	h.t.Helper()
	if fenced := h.tryCommit(p...); len(fenced) > 0 {
		h.t.Fatalf("fenced: %v", fenced)
	}
}

func (h *holder) fetch(resource string, from backend.Cursor, limit int) backend.Fetched {
	h.t.Helper()
	fs := must[[]backend.Fetched](h.t)(h.be.Fetch(h.t.Context(), backend.FetchRequest{
		Consumer: h.info, MaxPayload: roomy, Items: []backend.FetchItem{{Resource: resource, From: from, Limit: limit}},
	}))
	if len(fs) != 1 || fs[0].Resource != resource {
		h.t.Fatalf("fetch of %s returned %d items", resource, len(fs))
	}
	return fs[0]
}

func (h *holder) parked() backend.Parked {
	h.t.Helper()
	return must[backend.Parked](h.t)(h.be.FetchParked(h.t.Context(), backend.ParkedRequest{
		Session: h.id, Consumer: h.info, Limit: 1000, MaxPayload: roomy,
	}))
}

func (h *holder) survey() backend.Survey {
	h.t.Helper()
	s := must[[]backend.Survey](h.t)(h.be.Survey(h.t.Context(), []string{h.info.Name}))
	if len(s) != 1 || s[0].Consumer != h.info.Name {
		h.t.Fatalf("survey of %s: %+v", h.info.Name, s)
	}
	return s[0]
}

func (h *holder) deadLetters() []operate.DeadLetterInfo {
	h.t.Helper()
	return must[[]operate.DeadLetterInfo](h.t)(h.operator().DeadLetters(h.t.Context(), operate.DeadLetterFilter{Consumer: h.info.Name}))
}

func (h *holder) operator() operate.Operator {
	h.t.Helper()
	return operator(h.t, h.be)
}

// needs skips what a backend without streams cannot own.
func needs(t testing.TB, be backend.Backend, per backend.Per) {
	t.Helper()
	if per == backend.PerStream && be.Capabilities().Streams == nil {
		t.Skip("the backend has no streams")
	}
}

// operator skips what a backend without an operator cannot show.
func operator(t testing.TB, be backend.Backend) operate.Operator {
	t.Helper()
	op := be.Capabilities().Operator
	if op == nil {
		t.Skip("the backend has no operator")
	}
	return op
}

// event returns one with a JSON payload that numbers it.
func event(topic, key string, n int) backend.Event {
	return backend.Event{Topic: topic, Key: key, Kind: "order", Payload: fmt.Appendf(nil, `{"n":%d,"key":%q}`, n, key)}
}

// events returns n of them, numbered from 1, on one topic, with keys in turn.
func events(topic string, n int, keys ...string) []backend.Event {
	if len(keys) == 0 {
		keys = []string{"k"}
	}
	out := make([]backend.Event, n)
	for i := range out {
		out[i] = event(topic, keys[i%len(keys)], i+1)
	}
	return out
}

func publish(t testing.TB, be backend.Publisher, es ...backend.Event) {
	t.Helper()
	ok(t, be.Publish(t.Context(), es))
}

func ids(ms []backend.Raw) []string {
	out := make([]string, len(ms))
	for i, m := range ms {
		out[i] = m.ID
	}
	return out
}

func parkedIDs(ms []backend.ParkedMessage) []string {
	out := make([]string, len(ms))
	for i, m := range ms {
		out[i] = m.ID
	}
	return out
}

func resources(gs []backend.Grant) []string {
	out := make([]string, len(gs))
	for i, g := range gs {
		out[i] = g.Resource
	}
	slices.Sort(out)
	return out
}

func refs(gs []backend.Grant) []backend.Ref {
	out := make([]backend.Ref, len(gs))
	for i, g := range gs {
		out[i] = g.Ref
	}
	return out
}

func cmpString(a, b string) int { return strings.Compare(a, b) }

func wantLost(t testing.TB, what string, err error) {
	t.Helper()
	if !errors.Is(err, backend.ErrSessionLost) {
		t.Fatalf("%s: got error %v, want ErrSessionLost", what, err)
	}
}

// arrive waits until a handler says that it was entered.
func arrive(t testing.TB, entered <-chan struct{}) {
	t.Helper()
	select {
	case <-entered:
	case <-time.After(patience(t)):
		t.Fatalf("the handler was not entered within %v", patience(t))
	}
}

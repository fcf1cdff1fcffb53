package leasetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
)

const (
	long  = time.Hour       // a TTL that does not end within a test
	short = 3 * time.Second // a TTL that does, and that a machine which stalls for a moment does not end
)

// slack is kit.Slack for a small request.
func slack(t testing.TB, be backend.Backend) time.Duration {
	t.Helper()
	return kit.Slack(func() { kit.Must[[]backend.Survey](t)(be.Survey(t.Context(), []string{"c"})) })
}

// tries is how often a bound on time may be missed before that counts, on a machine that does other things, too.
func tries(t testing.TB) int {
	if kit.Patience(t) < time.Minute {
		return 5
	}
	return 15
}

func equalSlices[T comparable](t testing.TB, what string, got, want []T) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("%s:\n got %v\nwant %v", what, got, want)
	}
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

// join opens a session as processes do, which say what topics they know.
func join(t testing.TB, be backend.Backend, info backend.ConsumerInfo, ttl time.Duration) *kit.Actor {
	t.Helper()
	return kit.Open(t, be, backend.SessionSpec{TTL: ttl, Topics: map[string][]string{info.Name: info.Topics}}, info)
}

// owner is a session that registers a resource of a consumer and owns it.
func owner(t testing.TB, be backend.Backend, info backend.ConsumerInfo, resource string) (*kit.Actor, backend.Grant) {
	t.Helper()
	a := join(t, be, info, long).Registers(resource)
	return a, a.Takes()
}

// sole is a session that owns topic x.
func sole(t testing.TB, be backend.Backend) (*kit.Actor, backend.Grant) {
	t.Helper()
	return owner(t, be, perTopic(), "x")
}

// fresh makes a check on a backend with an empty storage.
func fresh(run func(t testing.TB, f Factory, be backend.Backend)) func(testing.TB, Factory) {
	return func(t testing.TB, f Factory) { run(t, f, f.New(t)) }
}

// reading publishes n messages on topic x, and takes and reads it.
func reading(t testing.TB, be backend.Backend, n int, keys ...string) (*kit.Actor, backend.Grant, backend.Fetched) {
	t.Helper()
	publish(t, be, events("x", n, keys...)...)
	a, g := sole(t, be)
	return a, g, a.Reads("x", g.Cursor, n+1)
}

// readAll reads messages of several resources in one call.
func readAll(h *kit.Actor, gs []backend.Grant) []backend.Fetched {
	h.T.Helper()
	fs := kit.Must[[]backend.Fetched](h.T)(h.Be.Fetch(h.T.Context(), backend.FetchRequest{
		Consumer: h.Info, MaxPayload: kit.Roomy,
		Items: each(gs, func(g backend.Grant) backend.FetchItem {
			return backend.FetchItem{Resource: g.Resource, From: g.Cursor, Limit: 1000}
		}),
	}))
	equalSlices(h.T, "resources, in the order asked", each(fs, func(f backend.Fetched) string { return f.Resource }),
		each(gs, func(g backend.Grant) string { return g.Resource }))
	return fs
}

// readOut reads a resource to its end, by so many messages.
func readOut(h *kit.Actor, resource string, at backend.Cursor, limit int) (all []backend.Raw) {
	h.T.Helper()
	for {
		part := h.Reads(resource, at, limit)
		if len(part.Messages) == 0 {
			return all
		}
		all, at = append(all, part.Messages...), part.Next
	}
}

// needs skips what a backend cannot do.
func needs(t testing.TB, can bool, why string) {
	t.Helper()
	if !can {
		t.Skip(why)
	}
}

// needsPer skips what a backend without streams cannot own.
func needsPer(t testing.TB, be backend.Backend, per backend.Per) {
	t.Helper()
	needs(t, per != backend.PerStream || be.Capabilities().Streams != nil, "the backend has no streams")
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

// onEach is events on several topics.
func onEach(topics []string, n int, keys ...string) (all []backend.Event) {
	for _, topic := range topics {
		all = append(all, events(topic, n, keys...)...)
	}
	return all
}

func publish(t testing.TB, be backend.Publisher, es ...backend.Event) {
	t.Helper()
	kit.OK(t, be.Publish(t.Context(), es))
}

// each is what f makes of the members of a list.
func each[T, V any](l []T, f func(T) V) []V {
	out := make([]V, len(l))
	for i, v := range l {
		out[i] = f(v)
	}
	return out
}

func ids(ms []backend.Raw) []string {
	return each(ms, func(m backend.Raw) string { return m.ID })
}

func parkedIDs(ms []backend.ParkedMessage) []string {
	return each(ms, func(m backend.ParkedMessage) string { return m.ID })
}

func resources(gs []backend.Grant) []string {
	return slices.Sorted(slices.Values(each(gs, func(g backend.Grant) string { return g.Resource })))
}

// sessions are the ids of the members that a survey counts.
func sessions(s backend.Survey) []string {
	return each(s.Members, func(m backend.Member) string { return m.Session })
}

// rises checks that a lease was granted anew since.
func rises(t testing.TB, later, g backend.Grant) {
	t.Helper()
	if later.Epoch <= g.Epoch {
		t.Fatalf("epoch %d after %d", later.Epoch, g.Epoch)
	}
}

// allOnce checks that so many were counted, each of them once.
func allOnce[K comparable](t testing.TB, what string, counted map[K]int, want int) {
	t.Helper()
	kit.Equal(t, what, len(counted), want)
	for k, n := range counted {
		kit.Equal(t, fmt.Sprintf("times of %v, of %s", k, what), n, 1)
	}
}

// repeat calls f again and again until stop is called, at the latest when the test ends.
func repeat(t testing.TB, f func()) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for ctx.Err() == nil {
			f()
		}
	}()
	stop = func() {
		cancel()
		<-stopped
	}
	t.Cleanup(stop)
	return stop
}

// publishers publish from handles of their own at once: each of them makes so many calls.
func publishers(t testing.TB, f Factory, be backend.Backend, n, calls int, events func(p, i int) []backend.Event) (wait func()) {
	t.Helper()
	var wg sync.WaitGroup
	for p := range n {
		from := f.Again(t, be)
		wg.Go(func() {
			for i := range calls {
				if err := from.Publish(t.Context(), events(p, i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	return wg.Wait
}

// counts how often each is there.
func counts(l []string) map[string]int {
	n := map[string]int{}
	for _, s := range l {
		n[s]++
	}
	return n
}

// arrive waits until a handler says that it was entered.
func arrive(t testing.TB, entered <-chan struct{}) {
	t.Helper()
	select {
	case <-entered:
	case <-time.After(kit.Patience(t)):
		t.Fatalf("the handler was not entered within %v", kit.Patience(t))
	}
}

package leaseredis_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leaseredis"
	"github.com/leasegen/leasegen/runtime/operate"
)

// ofStreams is a consumer of streams that others write to.
func ofStreams(per backend.Per, names ...string) backend.ConsumerInfo {
	return backend.ConsumerInfo{Name: "c", Per: per, Source: leaseredis.StreamSource{Names: names}}
}

// xadd writes as another program does.
func xadd(t testing.TB, c redis.UniversalClient, stream string, fields ...any) string {
	t.Helper()
	return kit.Must[string](t)(c.XAdd(t.Context(), &redis.XAddArgs{Stream: stream, Values: fields}).Result())
}

// eachServer runs a test on one server and on a cluster.
func eachServer(t *testing.T, test func(t *testing.T, c redis.UniversalClient, prefix string)) {
	t.Run("server", func(t *testing.T) { test(t, redistest.Shared(t).Client(t), redistest.Namespace(t)) })
	t.Run("cluster", func(t *testing.T) {
		if testing.Short() {
			t.Skip("it starts six servers")
		}
		test(t, redistest.SharedCluster(t).Client(t), redistest.Namespace(t))
	})
}

// Streams of others are read as messages: their fields by name, or all of them as JSON.
func TestStreamsOfOthersAreRead(t *testing.T) {
	eachServer(t, func(t *testing.T, c redis.UniversalClient, ns string) {
		a, b := ns+" {a}:orders", ns+"}b{"
		be := on(c, ns, leaseredis.WithLogger(discard))
		id := xadd(t, c, a, "kind", "placed", "key", "k1", "payload", `{"n":1}`)
		xadd(t, c, a, "order", "7", "cents", "5")
		info := ofStreams(backend.PerTopic, a, b)
		info.Source = leaseredis.StreamSource{Names: []string{a, b}, DefaultKind: "row", Key: "order"}
		session := kit.Join(t, be, info, time.Hour)
		kit.OK(t, be.Register(t.Context(), info, nil))
		gs := session.Acquires(9)
		kit.Equal(t, "leases", len(gs), 2) // the one that is not there yet too
		f := kit.Fetch(t, be, info, a, nil, 9)
		kit.Equal(t, "messages", len(f.Messages), 2)
		m := f.Messages[0]
		if m.Topic != a || m.Kind != "placed" || m.Key != "" || string(m.Payload) != `{"n":1}` || !strings.HasPrefix(m.ID, id) {
			t.Errorf("read %+v", m)
		}
		if age := time.Since(m.PublishedAt).Abs(); age > time.Minute {
			t.Errorf("published %v ago", age)
		}
		m = f.Messages[1]
		if m.Kind != "row" || m.Key != "7" || string(m.Payload) != `{"cents":"5","order":"7"}` {
			t.Errorf("read %+v", m)
		}
		kit.Equal(t, "cursor", fmt.Sprint(f.Cut(1)), id)
		kit.Equal(t, "left after the first", len(kit.Fetch(t, be, info, a, f.Cut(1), 9).Messages), 1)
		g := gs[slices.IndexFunc(gs, func(g backend.Grant) bool { return g.Resource == a })]
		fenced := kit.Must[[]string](t)(be.Commit(t.Context(), session.ID, info.Name, []backend.Progress{{Ref: g.Ref, Seq: 1, Cursor: f.Next,
			Dead: []backend.Dead{{ID: f.Messages[1].ID, Attempt: 1, Reason: "why"}}, Park: []backend.Park{{ID: f.Messages[0].ID, Lane: "k", Attempt: 1, Error: "e"}}}}))
		kit.Equal(t, "fenced", len(fenced), 0)
		parked := kit.Must[backend.Parked](t)(be.FetchParked(t.Context(), backend.ParkedRequest{Session: session.ID, Consumer: info, Limit: 9, MaxPayload: 99}))
		kit.Equal(t, "parked", len(parked.Messages), 1)
		kit.Equal(t, "payload of the parked one", string(parked.Messages[0].Payload), `{"n":1}`)
		kit.Must[operate.MaintainReport](t)(be.Maintain(t.Context(), []backend.ConsumerInfo{info}))
		kit.Equal(t, "entries, of which none is trimmed", kit.Must[int64](t)(c.XLen(t.Context(), a).Result()), 2)
	})
}

// All streams are one resource of a group; its cursor counts each by name, whatever the order.
func TestStreamsOfOthersAreReadAsAGroup(t *testing.T) {
	eachServer(t, func(t *testing.T, c redis.UniversalClient, ns string) {
		names := []string{ns + "z", ns + "a", ns + "m"}
		be := on(c, ns, leaseredis.WithLogger(discard))
		for i := range 9 {
			xadd(t, c, names[i%3], "payload", i)
			time.Sleep(2 * time.Millisecond) // ids are milliseconds
		}
		info := ofStreams(backend.PerGroup, names...)
		kit.OK(t, be.Register(t.Context(), info, nil))
		var got []string
		var at backend.Cursor
		for {
			f := kit.Fetch(t, be, info, backend.Whole, at, 2)
			for _, m := range f.Messages {
				got = append(got, string(m.Payload))
			}
			if at = f.Next; len(f.Messages) == 0 {
				break
			}
		}
		kit.Equal(t, "read", strings.Join(got, ""), "012345678")
		slices.Reverse(names)
		xadd(t, c, names[0], "payload", "new")
		f := kit.Fetch(t, be, ofStreams(backend.PerGroup, append(names, ns+"later")...), backend.Whole, at, 9)
		kit.Equal(t, "new messages for a version with the names in another order", len(f.Messages), 1)
	})
}

// Entries are handled as they come, by who stands by for them, though no process reports them.
func TestStreamsOfOthersWakeTheirConsumer(t *testing.T) {
	eachServer(t, func(t *testing.T, c redis.UniversalClient, ns string) {
		names := []string{ns + "a", ns + "b"}
		be := on(c, ns, leaseredis.WithLogger(discard))
		for _, per := range []backend.Per{backend.PerTopic, backend.PerGroup} {
			var n atomic.Int64
			run(t, be, lease.Spec{Name: per.String(), Per: per, Source: leaseredis.StreamSource{Names: names, DefaultKind: "kind"}, Handlers: []lease.Handler{noop("kind", &n)}})
			before := kit.Must[int64](t)(c.XLen(t.Context(), names[0]).Result()) + kit.Must[int64](t)(c.XLen(t.Context(), names[1]).Result())
			kit.Eventually(t, "those that were there", func() bool { return n.Load() == before })
			for i := range 5 {
				for _, name := range names {
					xadd(t, c, name, "i", i)
				}
				kit.Eventually(t, "those that came", func() bool { return n.Load() == before+int64(2*i)+2 })
			}
		}
	})
}

// A stream that was deleted and has begun again with smaller ids is read from its beginning.
func TestAStreamThatBeginsAgainIsReadFromItsBeginning(t *testing.T) {
	c := redistest.Shared(t).Client(t)
	ns := redistest.Namespace(t)
	var log logBook
	be := on(c, ns, log.option())
	stream := ns + "orders"
	var n atomic.Int64
	xadd(t, c, stream, "i", "1")
	run(t, be, lease.Spec{Name: "c", Per: backend.PerTopic, Source: leaseredis.StreamSource{Names: []string{stream}, DefaultKind: "kind"}, Handlers: []lease.Handler{noop("kind", &n)}})
	kit.Eventually(t, "the first", func() bool { return n.Load() == 1 })
	kit.OK(t, c.Del(t.Context(), stream).Err())
	kit.OK(t, c.XAdd(t.Context(), &redis.XAddArgs{Stream: stream, ID: "5-1", Values: []any{"i", "2"}}).Err())
	kit.OK(t, c.XAdd(t.Context(), &redis.XAddArgs{Stream: stream, ID: "6-0", Values: []any{"i", "3"}}).Err())
	kit.Eventually(t, "those of the new stream", func() bool { return n.Load() == 3 })
	kit.Equal(t, "warnings", log.count("begun again"), 1)
	// Emptied, it is not a new one.
	kit.OK(t, c.XTrimMaxLen(t.Context(), stream, 0).Err())
	kit.OK(t, c.XAdd(t.Context(), &redis.XAddArgs{Stream: stream, ID: "7-0", Values: []any{"i", "4"}}).Err())
	kit.Eventually(t, "what came then", func() bool { return n.Load() == 4 })
	// Of another type, it is waited for.
	kit.OK(t, c.Rename(t.Context(), stream, stream+"-old").Err())
	kit.OK(t, c.Set(t.Context(), stream, "mine", 0).Err())
	kit.Eventually(t, "a warning", func() bool { return log.count("holds something else") > 0 })
	kit.OK(t, c.Del(t.Context(), stream).Err())
	xadd(t, c, stream, "i", "5")
	kit.Eventually(t, "what came when it was a stream again", func() bool { return n.Load() == 5 })
}

// From now passes over what streams hold when the consumer is registered for the first time.
func TestStreamsOfOthersFromNow(t *testing.T) {
	c := redistest.Shared(t).Client(t)
	for _, per := range []backend.Per{backend.PerTopic, backend.PerGroup} {
		ns := redistest.Namespace(t)
		names := []string{ns + "a", ns + "b"}
		be := on(c, ns, leaseredis.WithTags(3), leaseredis.WithLogger(discard))
		xadd(t, c, names[0], "i", "1")
		info := ofStreams(per, names...)
		info.From = backend.FromNow
		session := kit.Join(t, be, info, time.Hour)
		kit.OK(t, be.Register(t.Context(), info, nil))
		xadd(t, c, names[0], "i", "2")
		xadd(t, c, names[1], "i", "3")
		kit.OK(t, on(c, ns).Register(t.Context(), info, nil))
		n := 0
		for _, g := range session.Acquires(9) {
			n += len(kit.Fetch(t, be, info, g.Resource, g.Cursor, 9).Messages)
		}
		kit.Equal(t, per.String(), n, 2)
		st := kit.Must[[]operate.ConsumerStatus](t)(be.Status(t.Context()))
		kit.Equal(t, "lag", st[0].LagTotal, 2)
	}
}

// A stream that cannot be read is refused when it is registered.
func TestStreamSourcesThatCannotBe(t *testing.T) {
	be := fresh(t)
	register := func(info backend.ConsumerInfo) error { return be.Register(t.Context(), info, nil) }
	refused(t, register(ofStreams(backend.PerPartition, "s")), `"c"`, "per partition", "per topic or per group")
	refused(t, register(ofStreams(backend.PerStream, "s")), "per stream")
	refused(t, register(ofStreams(backend.PerTopic)), "names no stream")
	refused(t, register(ofStreams(backend.PerTopic, "a", "")), "empty name")
	refused(t, register(ofStreams(backend.PerTopic, "a", "b", "a")), `"a" twice`)
	refused(t, register(backend.ConsumerInfo{Name: "c", Per: backend.PerTopic, Source: "table"}), "string", "StreamSource")
}

// The least that a user must be allowed is enough for streams of others too, which it cannot write to.
func TestStreamsOfOthersWithLeastRights(t *testing.T) {
	s := redistest.Shared(t)
	ns := redistest.Namespace(t)
	stream := ns + ":orders"
	xadd(t, s.Client(t), stream, "i", "1")
	be := on(s.User(t, ns, leaseredis.ACL(ns, stream)...), ns, leaseredis.WithLogger(discard))
	var n atomic.Int64
	spec := lease.Spec{Name: "c", Per: backend.PerTopic, Source: leaseredis.StreamSource{Names: []string{stream}, DefaultKind: "kind"}, Handlers: []lease.Handler{noop("kind", &n)}}
	run(t, be, spec)
	kit.Eventually(t, "what was there", func() bool { return n.Load() == 1 })
	xadd(t, s.Client(t), stream, "i", "2")
	kit.Eventually(t, "what came", func() bool { return n.Load() == 2 })
	kit.Eventually(t, "that is stored", func() bool {
		return kit.Must[[]operate.CursorStatus](t)(be.Cursors(context.Background(), "c", "", 0))[0].Lag == 0
	})
}

package leaseredis_test

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leaseredis"
	"github.com/leasegen/leasegen/runtime/operate"
)

// A server is emptied, and another process creates the namespace again before this one has noticed: its
// consumers have to be registered again anyway.
func TestANamespaceThatOthersHaveCreatedAgain(t *testing.T) {
	for name, spec := range map[string]lease.Spec{
		"topics": {Per: backend.PerTopic, Topics: []string{"*"}},
		"group":  {Per: backend.PerGroup, Topics: []string{"*"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			be, other := on(server.Client(t), "x"), on(server.Client(t), "x")
			var n atomic.Int64
			spec.Name, spec.Handlers = "c", []lease.Handler{noop("kind", &n)}
			run(t, be, spec)
			publish := func() {
				kit.OK(t, other.Publish(t.Context(), []backend.Event{{Topic: "x", Kind: "kind", Payload: []byte("{}")}}))
			}
			publish()
			kit.Eventually(t, "the first message is handled", func() bool { return n.Load() == 1 })

			// In one step, so that no script of the running process finds it empty.
			meta := kit.Must[map[string]string](t)(server.Client(t).HGetAll(t.Context(), "{x0}:meta").Result())
			kit.OK(t, server.Client(t).Eval(t.Context(), `redis.call('FLUSHALL')
				redis.call('HSET', KEYS[1], 'layout', '1', 'tags', ARGV[1], 'slots', ARGV[2], 'namespace', ARGV[3], 'last', '0')
				return 1`, []string{"{x0}:meta"}, meta["tags"], meta["slots"], meta["namespace"]).Err())
			publish()
			kit.Eventually(t, "the message after that is handled", func() bool { return n.Load() == 2 })
			kit.Eventually(t, "the consumer is registered", func() bool { // a read that was under way may have found the message before
				records := kit.Must[[]string](t)(server.Client(t).HKeys(t.Context(), "{x0}:consumers").Result())
				return fmt.Sprint(records) == "[c]"
			})
		})
	}
}

// A server that crashed, or a replica that was promoted, lacks what was stored last: a message is there, the
// registration of its resource is not. The count of changes tells it, or else the lease that is lost with it: the next
// write under it is refused, and a survey finds that the server does not know of it.
func TestARegistrationThatWasLost(t *testing.T) {
	for _, per := range []backend.Per{backend.PerTopic, backend.PerStream, backend.PerPartition, backend.PerGroup} {
		for _, found := range []string{"by the count", "by a message", "by a survey"} {
			t.Run(fmt.Sprintf("%v/%s", per, found), func(t *testing.T) {
				t.Parallel() // most of it is waiting
				c := redistest.Shared(t).Client(t)
				name := redistest.Namespace(t)
				be := on(c, name, leaseredis.WithTags(1), leaseredis.WithSlots(1), leaseredis.WithLogger(discard))
				var n atomic.Int64
				run(t, be, lease.Spec{Name: "c", Per: per, Topics: []string{"*"}, Idle: time.Hour, Handlers: []lease.Handler{noop("kind", &n)}})
				publish := func() {
					kit.OK(t, be.Publish(t.Context(), []backend.Event{{Topic: "x", Kind: "kind", Key: "x", Payload: []byte("{}")}}))
				}
				tag := "{" + name + "0}:"
				ownership := func() string { return c.HGet(t.Context(), tag+"meta", "ownership").Val() }
				kit.Eventually(t, "the session is open", func() bool { return ownership() != "" })
				before := ""
				for before != ownership() { // until the start is over
					before = ownership()
					time.Sleep(500 * time.Millisecond)
				}
				publish()
				kit.Eventually(t, "the first message is handled", func() bool { return n.Load() == 1 })

				if found != "by the count" {
					before = "-"
				}
				kit.OK(t, c.Eval(t.Context(), `
					for _, r in ipairs(redis.call('SMEMBERS', ARGV[1] .. 'res:c')) do redis.call('DEL', ARGV[1] .. 'l:c:' .. r) end
					for _, key in ipairs({'res:c', 'free:c', 'want:c'}) do redis.call('DEL', ARGV[1] .. key) end
					for _, session in ipairs(redis.call('ZRANGE', ARGV[1] .. 'sessions', 0, -1)) do redis.call('DEL', ARGV[1] .. 'held:c:' .. session) end
					return ARGV[2] == '-' or redis.call('HSET', ARGV[1] .. 'meta', 'ownership', ARGV[2] - 1) -- fewer than any feed has seen`, []string{tag + "meta"}, tag, before).Err())
				// The first is handled once more where it was not trimmed before.
				handled := func() bool {
					leases, err := be.Leases(t.Context(), "c", 99)
					return err == nil && len(leases) == 1 && leases[0].Session != "" && leases[0].Lag == 0
				}
				if found == "by a survey" {
					kit.Eventually(t, "the resource is owned again", handled)
				}
				publish()
				kit.Eventually(t, "the second message is handled under a lease that the server knows of", func() bool {
					return n.Load() >= 2 && handled()
				})
			})
		}
	}
}

// The feed has not looked since a registration that the server then loses: the count is as it was.
func TestALossBeforeTheFeedLooked(t *testing.T) {
	c := redistest.Shared(t).Client(t)
	name := redistest.Namespace(t)
	be := on(c, name, leaseredis.WithTags(1), leaseredis.WithLogger(discard))
	infos := []backend.ConsumerInfo{topical}
	kit.OK(t, be.Register(t.Context(), topical, []string{"before"}))
	feed := kit.Must[backend.Feed](t)(be.OpenFeed(t.Context(), infos))
	other := kit.Must[backend.Feed](t)(be.OpenFeed(t.Context(), infos))
	ownership := kit.Must[string](t)(c.HGet(t.Context(), "{"+name+"0}:meta", "ownership").Result())
	kit.OK(t, be.Register(t.Context(), topical, []string{"x"}))
	kit.OK(t, c.HSet(t.Context(), "{"+name+"0}:meta", "ownership", ownership).Err())
	_, err := feed.Next(t.Context())
	if err == nil || !strings.Contains(err.Error(), "has lost what was stored last") {
		t.Fatalf("the feed returned %v, want an error that says that the server has lost something", err)
	}
	feed.Close()

	if _, err := other.Next(t.Context()); err == nil || !strings.Contains(err.Error(), "has lost what was stored last") {
		t.Fatalf("the feed of another session returned %v, want the same error", err)
	}
	other.Close()

	feed = kit.Must[backend.Feed](t)(be.OpenFeed(t.Context(), infos))
	defer feed.Close()
	kit.OK(t, be.Register(t.Context(), topical, []string{"x", "y"}))
	if news := kit.Must[backend.News](t)(feed.Next(t.Context())); !news.Ownership {
		t.Fatalf("the feed after that returned %+v, want news of ownership", news)
	}
}

// A replica that was promoted may not know of a session that lives under all other tags: what it holds there
// need not wait until it expires.
func TestASessionThatWasLostInPart(t *testing.T) {
	c := redistest.Shared(t).Client(t)
	name := redistest.Namespace(t)
	be := on(c, name, leaseredis.WithTags(4), leaseredis.WithLogger(discard))
	var events []backend.Event
	for _, topic := range kit.Topics(40) {
		events = append(events, backend.Event{Topic: topic, Kind: "kind", Payload: []byte("{}")})
	}
	var n atomic.Int64
	spec := lease.Spec{Name: "c", Per: backend.PerTopic, Topics: []string{"*"}, TTL: 30 * time.Second, Handlers: []lease.Handler{noop("kind", &n)}}
	run(t, be, spec)
	kit.OK(t, be.Publish(t.Context(), events))
	kit.Eventually(t, "all are handled", func() bool { return n.Load() == 40 })

	kit.OK(t, c.Eval(t.Context(), `
		for _, session in ipairs(redis.call('ZRANGE', ARGV[1] .. 'sessions', 0, -1)) do
			for _, topic in ipairs(redis.call('SMEMBERS', ARGV[1] .. 'held:c:' .. session)) do
				redis.call('HSET', ARGV[1] .. 'l:c:' .. topic, 'o', '')
				redis.call('ZADD', ARGV[1] .. 'free:c', 0, topic)
			end
			redis.call('DEL', ARGV[1] .. 's:' .. session, ARGV[1] .. 'held:c:' .. session)
		end
		return redis.call('DEL', ARGV[1] .. 'sessions', ARGV[1] .. 'members:c')`, []string{"{" + name + "2}:meta"}, "{"+name+"2}:").Err())
	kit.OK(t, be.Publish(t.Context(), events))
	kit.Eventually(t, "nothing is left to read", func() bool { // the TTL is longer than its patience
		leases, err := be.Leases(t.Context(), "c", 99)
		return err == nil && !slices.ContainsFunc(leases, func(l operate.LeaseStatus) bool { return l.Session == "" || l.Lag > 0 })
	})
}

// A lease that was given back and another that was taken were both lost: the process holds as many as the server
// counts, but not the same.
func TestOtherLeasesThanTheServerCounts(t *testing.T) {
	c := redistest.Shared(t).Client(t)
	name := redistest.Namespace(t)
	be := on(c, name, leaseredis.WithTags(1), leaseredis.WithLogger(discard))
	tag := "{" + name + "0}:"
	publish := func(topics ...string) {
		for _, topic := range topics {
			kit.OK(t, be.Publish(t.Context(), []backend.Event{{Topic: topic, Kind: "kind", Payload: []byte("{}")}}))
		}
	}
	leases := func() map[string]operate.LeaseStatus {
		out := map[string]operate.LeaseStatus{}
		for _, l := range kit.Must[[]operate.LeaseStatus](t)(be.Leases(t.Context(), "c", 9)) {
			out[l.Resource] = l
		}
		return out
	}
	var n atomic.Int64
	spec := lease.Spec{Name: "c", Per: backend.PerTopic, Topics: []string{"*"}, TTL: time.Minute, Capacity: 1, Handlers: []lease.Handler{noop("kind", &n)}}
	run(t, be, spec)
	publish("x", "y")
	kit.Eventually(t, "one is handled", func() bool { return n.Load() == 1 })
	held, free := "x", "y"
	if leases()["x"].Session == "" {
		held, free = "y", "x"
	}
	time.Sleep(500 * time.Millisecond) // feeds have seen all
	kit.OK(t, c.Eval(t.Context(), `
		local T, held, free = ARGV[1], ARGV[2], ARGV[3]
		local session = redis.call('HGET', T .. 'l:c:' .. held, 'o')
		redis.call('HSET', T .. 'l:c:' .. held, 'o', '', 'e', 1)
		redis.call('HSET', T .. 'l:c:' .. free, 'o', session, 'e', 1)
		redis.call('SREM', T .. 'held:c:' .. session, held)
		redis.call('SADD', T .. 'held:c:' .. session, free)
		redis.call('ZREM', T .. 'free:c', free)
		redis.call('ZADD', T .. 'free:c', 0, held)
		return redis.call('HINCRBY', T .. 'meta', 'ownership', -1)`, []string{tag + "meta"}, tag, held, free).Err())
	run(t, be, spec)
	publish(free)
	kit.Eventually(t, "both are owned, and nothing is left to read", func() bool {
		l := leases()
		return l["x"].Session != "" && l["y"].Session != "" && l["x"].Lag+l["y"].Lag == 0
	})
}

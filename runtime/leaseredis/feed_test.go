package leaseredis_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
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
)

// commandsRun is how many commands a server has carried out, those in scripts included.
func commandsRun(t testing.TB, c *redis.Client) (n int) {
	t.Helper()
	for _, line := range strings.Split(kit.Must[string](t)(c.Info(t.Context(), "commandstats").Result()), "\r\n") {
		if _, calls, found := strings.Cut(line, ":calls="); found {
			calls, _, _ = strings.Cut(calls, ",")
			n += kit.Must[int](t)(strconv.Atoi(calls))
		}
	}
	return n
}

// run starts a process and stops it when the test ends.
func run(t testing.TB, be backend.Backend, spec lease.Spec, opts ...lease.Option) {
	t.Helper()
	c := kit.Must[*lease.Consumer](t)(lease.NewConsumer(be, spec, append(opts, lease.WithLogger(discard))...))
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- kit.Run(ctx, c) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// noop handles messages of a kind and counts them.
func noop(kind string, n *atomic.Int64) lease.Handler {
	return lease.Batch(kind, func(_ context.Context, ms []lease.Message[[]byte]) error {
		n.Add(int64(len(ms)))
		return nil
	})
}

// A process that has no work asks little, whatever it watches.
func TestAnIdleProcessAsksLittle(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it watches for seconds")
	}
	for name, spec := range map[string]lease.Spec{
		"topics":     {Per: backend.PerTopic, Topics: []string{"*"}},
		"group":      {Per: backend.PerGroup, Topics: []string{"*"}},
		"partitions": {Per: backend.PerPartition, Topics: []string{"*"}},
		"streams":    {Per: backend.PerStream, Topics: []string{"*"}, Idle: time.Hour, Capacity: 1000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			be := leaseredis.New(server.Client(t), leaseredis.WithLogger(discard))
			var n atomic.Int64
			spec.Name, spec.Handlers = "c", []lease.Handler{noop("kind", &n)}
			for i := range 1000 {
				kit.OK(t, be.Publish(t.Context(), []backend.Event{{Topic: fmt.Sprint("t", i), Key: fmt.Sprint("k", i), Kind: "kind", Payload: []byte("{}")}}))
			}
			run(t, be, spec)
			kit.Eventually(t, "all is handled", func() bool { return n.Load() == 1000 })
			var rate float64
			for tries := 0; (tries == 0 || rate > 20) && tries < 20; tries++ {
				time.Sleep(5 * time.Second) // until what was read is trimmed, and the feed is at rest
				before, began := commandsRun(t, server.Client(t)), time.Now()
				time.Sleep(6 * time.Second)
				rate = float64(commandsRun(t, server.Client(t))-before) / time.Since(began).Seconds()
				t.Logf("%.1f commands a second", rate)
			}
			if rate > 20 {
				t.Errorf("an idle process makes the server carry out %.1f commands a second, want at most 20", rate)
			}
		})
	}
}

// From publish to handler it takes about a millisecond on an idle system.
func TestAHintWakesAtOnce(t *testing.T) {
	be := fresh(t)
	handled := make(chan time.Time, 1)
	run(t, be, lease.Spec{Name: "c", Per: backend.PerTopic, Topics: []string{"*"}, Handlers: []lease.Handler{
		lease.One("kind", func(context.Context, lease.Message[[]byte]) error { handled <- time.Now(); return nil }),
	}})
	publish := func() time.Duration {
		kit.OK(t, be.Publish(t.Context(), []backend.Event{{Topic: "x", Kind: "kind", Payload: []byte("{}")}}))
		began := time.Now()
		select {
		case at := <-handled:
			return at.Sub(began)
		case <-time.After(time.Minute):
			t.Fatal("the message was not handled")
			return 0
		}
	}
	publish() // the topic is registered
	var took []time.Duration
	for range 30 {
		time.Sleep(10 * time.Millisecond) // the feed comes to rest
		took = append(took, publish())
	}
	slices.Sort(took)
	t.Log("p50", took[15], "max", took[29])
	if limit := 50*time.Millisecond + slack(t, be); took[15] > limit {
		t.Errorf("half of the messages took more than %v to their handler, want %v", took[15], limit)
	}
}

// A replica that was promoted without the last messages, and whose clock is behind, gives no
// id that a feed has seen: readers would have passed it.
func TestIdsDoNotGoBack(t *testing.T) {
	client := redistest.Shared(t).Client(t)
	namespace := redistest.Namespace(t)
	be := on(client, namespace, leaseredis.WithLogger(discard))
	kit.OK(t, be.Register(t.Context(), topical, []string{"x"}))
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 1)))
	meta := "{" + namespace + "0}:meta"
	ahead := time.Now().Add(time.Hour).UnixMicro() // as seen from the clock that is behind
	kit.OK(t, client.HSet(t.Context(), meta, "last", ahead).Err())
	feed := kit.Must[backend.Feed](t)(be.OpenFeed(t.Context(), []backend.ConsumerInfo{topical}))
	defer func() { feed.Close() }()
	kit.OK(t, client.HSet(t.Context(), meta, "last", 1).Err())
	kit.Eventually(t, "the feed has told the server what it knows", func() bool {
		if _, err := feed.Next(t.Context()); err != nil { // it was set back
			feed.Close()
			feed = kit.Must[backend.Feed](t)(be.OpenFeed(t.Context(), []backend.ConsumerInfo{topical}))
		}
		return kit.Must[int64](t)(client.HGet(t.Context(), meta, "last").Int64()) >= ahead
	})
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 1)))
	ms := all(t, be, topical, "x")
	if at := ms[1].PublishedAt.UnixMicro(); at <= ahead {
		t.Errorf("an id of %d was given after %d was seen", at, ahead)
	}
}

// A group, like slots and streams, hears of messages that are copied for it after feeds have passed their ids: when the
// namespace was created again, and one replica fills the view while another has begun to read.
func TestWhatIsCopiedLaterIsNews(t *testing.T) {
	t.Parallel()
	for _, per := range []backend.Per{backend.PerGroup, backend.PerPartition, backend.PerStream} {
		t.Run(per.String(), func(t *testing.T) {
			c, name := redistest.Shared(t).Client(t), redistest.Namespace(t)
			be, other := on(c, name, leaseredis.WithTags(1)), on(c, name, leaseredis.WithTags(1))
			info := backend.ConsumerInfo{Name: "c", Per: per, Topics: []string{"x"}}
			kit.OK(t, other.Publish(t.Context(), []backend.Event{{Topic: "x", Key: "key", Kind: "kind", Payload: []byte("{}")}}))
			feed := kit.Must[backend.Feed](t)(be.OpenFeed(t.Context(), []backend.ConsumerInfo{info}))
			defer feed.Close()
			kit.OK(t, other.Register(t.Context(), info, nil))
			kit.Eventually(t, "the feed tells it", func() bool {
				return len(kit.Must[backend.News](t)(feed.Next(t.Context())).Resources[info.Name]) > 0
			})
		})
	}
}

package leaseredis_test

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leaseredis"
	"github.com/leasegen/leasegen/runtime/operate"
)

// infoNumber is a number that the server reports of itself.
func infoNumber(t testing.TB, c *redis.Client, section, name string) int64 {
	t.Helper()
	for line := range strings.Lines(kit.Must[string](t)(c.Info(t.Context(), section).Result())) {
		if v, found := strings.CutPrefix(strings.TrimSpace(line), name+":"); found {
			return kit.Must[int64](t)(strconv.ParseInt(v, 10, 64))
		}
	}
	t.Fatalf("the server does not tell its %s", name)
	return 0
}

// sent is how many bytes the server has sent while f ran.
func sent(t testing.TB, c *redis.Client, f func()) int64 {
	t.Helper()
	before := infoNumber(t, c, "stats", "total_net_output_bytes")
	f()
	return infoNumber(t, c, "stats", "total_net_output_bytes") - before
}

// asked is how many commands the server has carried out while f ran, those of scripts among them.
func asked(t testing.TB, c *redis.Client, f func()) int64 {
	t.Helper()
	before := infoNumber(t, c, "stats", "total_commands_processed")
	f()
	return infoNumber(t, c, "stats", "total_commands_processed") - before
}

const mega = 1 << 20

// A first read of many streams and topics with large messages is bounded in bytes, and so are those after it: what is not
// reached is said to be left. All of it comes in the end.
func TestReadsAreBoundedInBytesFromTheFirstOn(t *testing.T) {
	// Its own: it counts what it sends. A gigabyte that is written to its file, again and again, would keep it from answering on a slow disk.
	s := redistest.Start(t, redistest.Config("appendonly", "no"))
	c := s.Client(t)
	be := on(c, "lg", leaseredis.WithLogger(discard))
	n := pace.Rounds(120, 1000)
	body := bytes.Repeat([]byte("x"), mega/2)
	var names []string
	for i := range n {
		names = append(names, fmt.Sprint("other", i))
		xadd(t, c, names[i], "payload", body)
		if i < n/4 {
			xadd(t, c, names[i], "payload", body)
			for range 4 {
				kit.OK(t, be.Publish(t.Context(), []backend.Event{{Topic: names[i], Kind: "k", Payload: body}}))
			}
		}
	}
	streams := ofStreams(backend.PerTopic, names...)
	group := ofStreams(backend.PerGroup, names...)
	group.Name = "group"
	whole := grouped
	whole.Name = "whole"
	kit.OK(t, be.Register(t.Context(), whole, nil))
	for _, info := range []backend.ConsumerInfo{streams, group, topical, whole} {
		resources := names
		if info.Per == backend.PerGroup {
			resources = []string{backend.Whole}
		}
		want := n + n/4
		if info.Source == nil {
			want = n / 4 * 4
		}
		at := map[string]backend.Cursor{}
		left := resources
		for got, calls := 0, 0; got < want || len(left) > 0; calls++ {
			req := backend.FetchRequest{Consumer: info, MaxPayload: 2 * mega}
			for _, r := range left {
				req.Items = append(req.Items, backend.FetchItem{Resource: r, From: at[r], Limit: 100})
			}
			var fs []backend.Fetched
			size := sent(t, c, func() { fs = kit.Must[[]backend.Fetched](t)(be.Fetch(t.Context(), req)) })
			if size > 48*mega {
				t.Fatalf("%s: one Fetch had the server send %d MB", info.Name, size/mega)
			}
			left = nil
			for _, f := range fs {
				at[f.Resource] = f.Next
				got += len(f.Messages)
				if f.More {
					left = append(left, f.Resource)
				}
			}
			if calls > 10*want {
				t.Fatalf("%s: %d of %d messages were read", info.Name, got, want)
			}
		}
	}
	size := sent(t, c, func() {
		kit.Must[[]operate.ConsumerStatus](t)(be.Status(t.Context()))
		kit.Must[[]operate.CursorStatus](t)(be.Cursors(t.Context(), "whole", "", 0))
	})
	if size > mega {
		t.Errorf("status and cursors had the server send %d bytes: it counts what it does not read", size)
	}
}

// Counting what is unread looks at few entries in one script, however large they are, and however many.
func TestLagIsCountedInSmallSteps(t *testing.T) {
	s := redistest.Start(t)
	c := s.Client(t)
	be := on(c, "lg", leaseredis.WithTags(1), leaseredis.WithLogger(discard))
	info := ofStreams(backend.PerTopic, "large", "many")
	session := kit.Join(t, be, info, time.Hour)
	kit.OK(t, be.Register(t.Context(), info, nil))
	gs := session.Acquires(2)
	add := func(stream string, n int, body []byte) {
		pipe := c.Pipeline()
		for range n {
			pipe.XAdd(t.Context(), &redis.XAddArgs{Stream: stream, Values: []any{"payload", body}})
		}
		_ = kit.Must[[]redis.Cmder](t)(pipe.Exec(t.Context()))
	}
	add("large", 30, bytes.Repeat([]byte("x"), mega))
	add("many", 5000, []byte("x"))
	for _, g := range gs {
		f := kit.Fetch(t, be, info, g.Resource, nil, 3)
		kit.Must[[]string](t)(be.Commit(t.Context(), session.ID, info.Name, []backend.Progress{{Ref: g.Ref, Seq: 1, Cursor: f.Cut(3)}}))
	}
	add("many", 500, []byte("x"))
	var cs []operate.CursorStatus
	if size := sent(t, c, func() { cs = kit.Must[[]operate.CursorStatus](t)(be.Cursors(t.Context(), info.Name, "", 0)) }); size > mega {
		t.Errorf("the server sent %d bytes to count entries", size)
	}
	lag := map[string]int64{}
	for _, l := range cs {
		lag[l.Resource] = l.Lag
	}
	kit.Equal(t, "lag of large", lag["large"], 27)
	kit.Equal(t, "lag of many", lag["many"], 5497)
}

// feedRuns is how often the feed's script ran: of what runs here it alone asks for the first of a sorted set.
func feedRuns(t testing.TB, c *redis.Client) int64 {
	t.Helper()
	return commandCalls(t, c, "zrange")
}

// commandCalls is how often commands were carried out, in scripts too.
func commandCalls(t testing.TB, c *redis.Client, commands ...string) (calls int64) {
	t.Helper()
	for line := range strings.Lines(kit.Must[string](t)(c.Info(t.Context(), "commandstats").Result())) {
		for _, name := range commands {
			if v, found := strings.CutPrefix(line, "cmdstat_"+name+":calls="); found {
				n, _, _ := strings.Cut(v, ",")
				calls += kit.Must[int64](t)(strconv.ParseInt(n, 10, 64))
			}
		}
	}
	return calls
}

// Many streams of others without entries cost little, and standbys are free of cost for messages that
// others work on.
func TestIdleStreamsAndStandbysAskLittle(t *testing.T) {
	s := redistest.Start(t)
	c := s.Client(t)
	t.Run("streams", func(t *testing.T) {
		be := on(c, "a", leaseredis.WithLogger(discard))
		var names []string
		for i := range 1000 {
			names = append(names, fmt.Sprint("s", i))
			xadd(t, c, names[i], "i", i)
		}
		var n atomic.Int64
		spec := lease.Spec{Name: "c", Per: backend.PerTopic, Source: leaseredis.StreamSource{Names: names, DefaultKind: "k"}, Handlers: []lease.Handler{noop("k", &n)}}
		run(t, be, spec)
		kit.Eventually(t, "all that was there", func() bool { return n.Load() == 1000 })
		kit.Eventually(t, "1,000 idle streams cost less than 100 commands a second", func() bool { // 240, before
			return asked(t, c, func() { time.Sleep(2 * time.Second) }) <= 2*100
		})
		xadd(t, c, names[7], "i", 1)
		kit.Eventually(t, "what came", func() bool { return n.Load() == 1001 })
	})
	t.Run("standbys", func(t *testing.T) {
		const processes, published = 20, 200
		var n atomic.Int64
		for range processes {
			be := on(s.Client(t), "b", leaseredis.WithLogger(discard))
			run(t, be, lease.Spec{Name: "g", Per: backend.PerGroup, Topics: []string{"*"}, Handlers: []lease.Handler{noop("k", &n)}})
		}
		be := on(c, "b", leaseredis.WithLogger(discard))
		publish := func() {
			kit.OK(t, be.Publish(t.Context(), []backend.Event{{Topic: "t", Kind: "k", Payload: []byte("1")}}))
		}
		publish()
		kit.Eventually(t, "it is handled", func() bool { return n.Load() == 1 })
		kit.Eventually(t, "all stand by", func() bool {
			return survey(t, be, backend.ConsumerInfo{Name: "g"}).Members != nil && len(survey(t, be, backend.ConsumerInfo{Name: "g"}).Members) == processes
		})
		before := feedRuns(t, c)
		began := time.Now()
		for range published {
			publish()
			time.Sleep(5 * time.Millisecond)
		}
		took := time.Since(began)
		kit.Eventually(t, "all are handled", func() bool { return n.Load() == 1+published })
		runs := feedRuns(t, c) - before
		// Its owner looks for each, and the others every two seconds. Before: each of them for each.
		if most := int64(2*published) + processes*(2+int64(took/time.Second)); runs > most {
			t.Errorf("%d processes, of which one works, looked for news %d times in %v; want %d at most", processes, runs, took, most)
		}
	})
}

// The data that the server keeps so that a repeated publication is carried out once does not grow with what is published.
func TestPublishingLeavesNoKeyForEach(t *testing.T) {
	c, ns := redistest.Shared(t).Client(t), redistest.Namespace(t)
	publishers := []*leaseredis.Backend{on(c, ns, leaseredis.WithTags(1)), on(c, ns, leaseredis.WithTags(1))}
	var wg sync.WaitGroup
	for _, be := range publishers {
		for range 4 {
			wg.Go(func() {
				for range 50 {
					if err := be.Publish(t.Context(), kit.Events("x", 1)); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	kit.Equal(t, "published", c.XLen(t.Context(), "{"+ns+"0}:t:x").Val(), 400)
	keys := kit.Must[[]string](t)(c.Keys(t.Context(), "{"+ns+"0}:pub:*").Result())
	kit.Equal(t, "keys", len(keys), len(publishers))
	for _, key := range keys {
		if n := c.HLen(t.Context(), key).Val(); n > 40 { // four at once, and up to 31 that are forgotten together
			t.Errorf("%d attempts are kept", n)
		}
		if ttl := c.TTL(t.Context(), key).Val(); ttl <= time.Minute || ttl > 2*time.Minute {
			t.Errorf("they are kept for %v", ttl)
		}
	}
}

// Each command in a script is one more that the server carries out, and most of them one more in its append-only file.
func TestOneMessageIsPublishedWithFewCommands(t *testing.T) {
	s := redistest.Start(t)
	c := s.Client(t)
	be := on(c, "lg", leaseredis.WithTags(1), leaseredis.WithLogger(discard))
	publish := func(n int) {
		for range n {
			kit.OK(t, be.Publish(t.Context(), kit.Events("x", 1)))
		}
	}
	publish(10)
	const messages = 200
	before := commandsRun(t, c)
	publish(messages)
	// EVALSHA, what is known of the namespace, the time, the attempt, the views, the entry, the attempt, the topic, the last id, the hint.
	if per := float64(commandsRun(t, c)-before) / messages; per > 10.5 {
		t.Errorf("a message costs %.1f commands, want 10", per)
	}
}

// observed keeps the observations of an observer.
type observed struct {
	mu  sync.Mutex
	all []operate.Observation
}

func (o *observed) Observe(v operate.Observation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, v)
}

func (o *observed) missed() (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, v := range o.all {
		if m, ok := v.(operate.ObservedMissed); ok {
			n += m.Messages
		}
	}
	return n
}

// Entries trimmed before they were read are counted, also while no process ran; entries trimmed after that are not. A stream that
// was deleted and made again, up to beyond the cursor, is read from its beginning.
func TestLossesOnStreamsOfOthersAreTold(t *testing.T) {
	c := redistest.Shared(t).Client(t)
	for _, per := range []backend.Per{backend.PerTopic, backend.PerGroup} {
		t.Run(per.String(), func(t *testing.T) {
			t.Parallel()
			ns := redistest.Namespace(t)
			stream := ns + "s"
			add := func(n int, id string) {
				for range n {
					kit.OK(t, c.XAdd(t.Context(), &redis.XAddArgs{Stream: stream, ID: id, Values: []any{"payload", "1"}}).Err())
				}
			}
			var log logBook
			var o observed
			var handled atomic.Int64
			hold := make(chan struct{})
			start := func() (stop func()) {
				be := on(redistest.Shared(t).Client(t), ns, log.option(), leaseredis.WithObserver(&o))
				consumer := kit.Must[*lease.Consumer](t)(lease.NewConsumer(be, lease.Spec{Name: "c", Per: per, Batch: 10, Source: leaseredis.StreamSource{Names: []string{stream, ns + "other"}, DefaultKind: "k"},
					Handlers: []lease.Handler{lease.Batch("k", func(ctx context.Context, ms []lease.Message[[]byte]) error {
						handled.Add(int64(len(ms)))
						select {
						case <-hold:
						case <-ctx.Done():
						}
						return nil
					})}}, lease.WithLogger(discard)))
				ctx, cancel := context.WithCancel(context.Background())
				done := make(chan error, 1)
				go func() { done <- kit.Run(ctx, consumer) }()
				return func() { cancel(); kit.OK(t, <-done) }
			}
			close(hold)
			stop := start()
			add(200, "*")
			kit.Eventually(t, "the first are handled", func() bool { return handled.Load() == 200 })
			key := kit.Must[[]string](t)(c.Keys(t.Context(), "{"+ns+"*}:reads:c").Result())
			kit.Eventually(t, "it is stored what was read", func() bool {
				key = kit.Must[[]string](t)(c.Keys(t.Context(), "{"+ns+"*}:reads:c").Result())
				return len(key) == 1 && strings.HasSuffix(c.HGet(t.Context(), key[0], stream).Val(), " 200")
			})
			kit.OK(t, c.XTrimMaxLen(t.Context(), stream, 5).Err()) // of what was read
			stop()
			add(300, "*")
			kit.OK(t, c.XTrimMaxLen(t.Context(), stream, 50).Err())
			stop = start()
			kit.Eventually(t, "what is left is handled", func() bool { return handled.Load() == 250 })
			kit.Eventually(t, "the rest is told", func() bool { return o.missed() == 250 })
			kit.Equal(t, "warnings", log.count("before they were read"), 1)
			// Another one under that name.
			last := c.XInfoStream(t.Context(), stream).Val().LastGeneratedID
			ms, _, _ := strings.Cut(last, "-")
			pipe := c.TxPipeline()
			pipe.Del(t.Context(), stream)
			for i := range 20 {
				pipe.XAdd(t.Context(), &redis.XAddArgs{Stream: stream, ID: fmt.Sprint("5-", i+1), Values: []any{"payload", "2"}})
			}
			pipe.XAdd(t.Context(), &redis.XAddArgs{Stream: stream, ID: ms + "9-0", Values: []any{"payload", "2"}})
			_ = kit.Must[[]redis.Cmder](t)(pipe.Exec(t.Context()))
			kit.Eventually(t, "the new ones are handled", func() bool { return handled.Load() >= 250+21 })
			stop()
		})
	}
}

package streamtest

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leaseredis"
	"github.com/leasegen/leasegen/runtime/leasetest"
	"github.com/leasegen/leasegen/runtime/operate"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// world is a server or a cluster that the application writes to.
type world struct {
	t      *testing.T
	client redis.UniversalClient
	be     *leaseredis.Backend

	mu   sync.Mutex
	seen map[string][]string // what was handled, by stream
}

// everywhere runs a test on a server and on a cluster, each of its own: the streams' names are
// fixed in the annotations.
func everywhere(t *testing.T, run func(w *world)) {
	world := func(t *testing.T, client redis.UniversalClient) *world {
		return &world{t: t, client: client, be: leaseredis.New(client, leaseredis.WithLogger(slog.New(slog.DiscardHandler))), seen: map[string][]string{}}
	}
	t.Run("server", func(t *testing.T) { run(world(t, redistest.Start(t).Client(t))) })
	t.Run("cluster", func(t *testing.T) { run(world(t, redistest.StartCluster(t).Client(t))) })
}

func (w *world) add(stream string, fields ...any) {
	w.t.Helper()
	if err := w.client.XAdd(w.t.Context(), &redis.XAddArgs{Stream: stream, Values: fields}).Err(); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) saw(stream, what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen[stream] = append(w.seen[stream], what)
}

func (w *world) all() map[string][]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[string][]string{}
	for s, list := range w.seen {
		out[s] = slices.Clone(list)
	}
	return out
}

func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("not within 20 s: %s; seen %v", what, w.all())
		}
	}
}

// quiet logs no line.
func quiet() lease.Option { return lease.WithLogger(slog.New(slog.DiscardHandler)) }

// run runs a consumer until the function returned is called.
func (w *world) run(c *lease.Consumer, err error) (stop func()) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Error(err)
		}
	})
	w.t.Cleanup(stop)
	return stop
}

// Entries go to the method of their kind, whatever the streams are called, those that were
// there before and those that come later; the streams themselves are not touched.
func TestStreamsOfOthers(t *testing.T) {
	streams := []string{"shop:orders", "{shop}:more", "odd {}*?[x]"}
	everywhere(t, func(w *world) {
		h := &Orders{
			Placed: func(_ context.Context, m lease.Message[OrderPlaced]) error {
				if m.Payload.Cents < 0 {
					return fmt.Errorf("no such price")
				}
				w.saw(m.Topic, fmt.Sprint("placed ", m.Payload.Order, " by ", m.Key))
				return nil
			},
			Cancelled: func(_ context.Context, ms []lease.Message[OrderCancelled]) error {
				for _, m := range ms {
					w.saw(m.Topic, "cancelled "+m.Payload.Order)
				}
				return nil
			},
			Other: func(_ context.Context, m lease.Message[json.RawMessage]) error {
				w.saw(m.Topic, m.Kind+" "+string(m.Payload))
				return nil
			},
		}
		want := map[string][]string{}
		write := func(n int) {
			for i, s := range streams {
				if n == 0 && i == 2 {
					continue // it does not exist yet
				}
				id := fmt.Sprint(n, i)
				w.add(s, "event", "shop.placed", "customer", "ann", "body", `{"order":"`+id+`","cents":5}`)
				w.add(s, "event", "shop.cancelled", "body", `{"order":"`+id+`"}`)
				w.add(s, "event", "shop.lost", "customer", "ann", "body", `[1]`)
				w.add(s, "hello", "world")
				want[s] = append(want[s], "placed "+id+" by ann", "cancelled "+id, "shop.lost [1]", ` {"hello":"world"}`)
			}
		}
		write(0)
		w.add(streams[0], "event", "shop.placed", "customer", "bob", "body", `{"order":"bad","cents":-1}`)
		w.add(streams[1], "event", "shop.placed", "body", `{"order":7}`)
		stop := w.run(NewOrders(w.be, h, quiet()))
		handled := func() bool { return maps.EqualFunc(w.all(), want, slices.Equal) }
		w.eventually("what was there is handled in order", handled)
		write(1)
		w.eventually("what came later, too", handled)
		stop()
		write(2)
		w.run(NewOrders(w.be, h, quiet()))
		w.eventually("it goes on where it was", handled)

		letters, err := w.be.DeadLetters(t.Context(), operate.DeadLetterFilter{Consumer: "orders"})
		if err != nil || len(letters) != 2 {
			t.Fatalf("dead letters %+v, %v; want two", letters, err)
		}
		reasons := letters[0].Topic + ": " + letters[0].Reason + "; " + letters[1].Topic + ": " + letters[1].Reason
		if !strings.Contains(reasons, streams[0]+": ") || !strings.Contains(reasons, "no such price") || !strings.Contains(reasons, streams[1]+": order: want string, got number") {
			t.Errorf("dead letters: %s", reasons)
		}
		for _, s := range streams {
			if groups := w.client.XInfoGroups(t.Context(), s).Val(); len(groups) > 0 {
				t.Errorf("%s has consumer groups: %v", s, groups)
			}
		}
		if n := w.client.XLen(t.Context(), streams[2]).Val(); n != 8 {
			t.Errorf("%s has %d entries, want all 8", streams[2], n)
		}
	})
}

// All streams are one resource; a single method takes whatever its kind is.
func TestStreamsAsOneResource(t *testing.T) {
	everywhere(t, func(w *world) {
		for i := range 30 {
			w.add(fmt.Sprint("sensor:", i%3+1), "sensor", fmt.Sprint(i), "celsius", "21.5")
		}
		w.run(NewReadings(w.be, &Readings{Take: func(_ context.Context, m lease.Message[Reading]) error {
			if m.Payload.Celsius != 21.5 || m.Key != "" || m.PublishedAt.Before(time.Now().Add(-time.Hour)) {
				t.Errorf("%+v", m)
			}
			w.saw(m.Topic, m.Payload.Sensor)
			return nil
		}}, quiet()))
		w.eventually("all readings are taken", func() bool {
			all := w.all()
			return len(all["sensor:1"])+len(all["sensor:2"])+len(all["sensor:3"]) == 30
		})
		for s, got := range w.all() {
			for i, n := range got {
				if want := fmt.Sprint(i*3 + int(s[len(s)-1]-'1')); n != want {
					t.Errorf("%s: reading %d is %s, want %s", s, i, n, want)
				}
			}
		}
		status, err := w.be.Status(t.Context())
		if err != nil || len(status) != 1 || status[0].Per != "group" || status[0].Resources != 1 {
			t.Errorf("status %+v, %v; want one group with one resource", status, err)
		}
	})
}

// A test of an application drains streams as it drains the log.
func TestDrain(t *testing.T) {
	everywhere(t, func(w *world) {
		for i := range 20 {
			w.add(fmt.Sprint("sensor:", i%2+1), "sensor", fmt.Sprint(i), "celsius", "20")
		}
		c, err := NewReadings(w.be, &Readings{Take: func(_ context.Context, m lease.Message[Reading]) error {
			w.saw(m.Topic, m.Payload.Sensor)
			return nil
		}}, lease.WithLogger(slog.New(slog.DiscardHandler)))
		if err != nil {
			t.Fatal(err)
		}
		leasetest.Drain(t, w.be, c)
		if all := w.all(); len(all["sensor:1"]) != 10 || len(all["sensor:2"]) != 10 {
			t.Errorf("drained %v, want ten of each", all)
		}
	})
}

package lease_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/operate"
)

// keyed publishes notes from..to-1 to a topic, in turn to streams "0" to "n-1".
func keyed(t *testing.T, be lease.Publisher, from, to, n int) {
	t.Helper()
	publish(t, be, "x", from, to, func(v *note) string { return fmt.Sprint(v.N % n) })
}

// byKey collects notes by key.
func byKey(got *seen) []lease.Handler {
	return one(func(_ context.Context, m lease.Message[note]) error { got.add(m.Key, m.Payload.N); return nil })
}

func streamSpec(hs []lease.Handler) lease.Spec { return lease.Spec{Per: lease.PerStream, Handlers: hs} }

// A stream is taken at once when it has messages, stays for Idle, and is given up then.
func TestStreamsComeAndGo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		var got seen
		var rec recorder
		start(t, newConsumer(t, be, streamSpec(byKey(&got)), lease.WithObserver(&rec)))
		pass(time.Second)
		for round := range 3 {
			keyed(t, be, 30*round, 30*round+30, 10)
			pass(50 * time.Millisecond)
			if n := got.count(); n != 30*round+30 {
				t.Fatalf("%d handled after 50 ms, want %d", n, 30*round+30)
			}
			pass(4900 * time.Millisecond)
			if s := status(t, be); s.Resources != 10 || s.Unowned != 0 {
				t.Errorf("before Idle is over: %+v", s)
			}
			pass(700 * time.Millisecond)
			if s := status(t, be); s.Resources != 0 {
				t.Errorf("after Idle: %+v", s)
			}
		}
		for i := range 10 {
			if ns := got.of(fmt.Sprint(i)); len(ns) != 9 || !slices.IsSorted(ns) {
				t.Errorf("stream %d: %v", i, ns)
			}
		}
		for _, r := range observed[operate.ObservedRelease](&rec) {
			if !r.Retired {
				t.Errorf("released without being retired: %+v", r)
			}
		}
		if n := len(observed[operate.ObservedLoss](&rec)); n > 0 {
			t.Errorf("%d losses", n)
		}
	})
}

// Messages without a key are a stream of their own, whose name is empty.
func TestMessagesWithoutKeyAreOneStream(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		var got seen
		publish(t, be, "x", 0, 20, nil)
		publish(t, be, "y", 20, 25, nil)
		start(t, newConsumer(t, be, streamSpec(byKey(&got))))
		pass(time.Second)
		got.ordered(t, "", 25)
	})
}

// No process owns more than its capacity; what is left over waits, and is taken as soon
// as there is room, long before Idle.
func TestStreamsKeepToTheCapacity(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		var got seen
		var holds atomic.Int32
		s := streamSpec(one(func(_ context.Context, m lease.Message[note]) error {
			holds.Add(1)
			defer holds.Add(-1)
			time.Sleep(100 * time.Millisecond)
			got.add(m.Key, m.Payload.N)
			return nil
		}))
		s.Capacity, s.Idle = 2, time.Hour
		keyed(t, be, 0, 40, 20)
		for range 3 {
			start(t, newConsumer(t, be, s))
		}
		for range 100 {
			pass(10 * time.Millisecond)
			if n := holds.Load(); n > 6 {
				t.Fatalf("%d streams are worked on by 3 processes with room for 2 each", n)
			}
		}
		pass(3 * time.Second)
		if n := got.count(); n != 40 {
			t.Errorf("%d of 40 handled", n)
		}
		if s := status(t, be); s.Resources > 6 || s.Unowned > 0 {
			t.Errorf("at the end: %+v", s)
		}
	})
}

// Every stream that a process owns is worked on: handlers that last for hours keep none of
// them waiting, where others might have taken it.
func TestStreamsThatAreOwnedAreAllWorkedOn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		var holds atomic.Int32
		s := streamSpec(one(func(ctx context.Context, m lease.Message[note]) error {
			holds.Add(1)
			defer holds.Add(-1)
			<-ctx.Done()
			return context.Cause(ctx)
		}))
		s.Capacity, s.Drain = 50, time.Millisecond
		keyed(t, be, 0, 100, 100)
		start(t, newConsumer(t, be, s))
		pass(time.Second)
		if n := holds.Load(); n != 50 {
			t.Errorf("%d streams are worked on by a process with room for 50", n)
		}
		start(t, newConsumer(t, be, s, lease.WithCapacity(20), lease.WithConcurrency(5)))
		pass(time.Second)
		if n := holds.Load(); n != 55 {
			t.Errorf("%d streams are worked on, want 50, and the 5 that an option allows", n)
		}
	})
}

// A message that arrives while its stream is being retired is not left lying, at whatever
// moment it comes.
func TestMessageDuringRetirement(t *testing.T) {
	for _, phase := range []leasemem.Phase{leasemem.Before, leasemem.After} {
		bubble(t, func(t *testing.T) {
			be := leasemem.New()
			var got seen
			var f faults
			keyed(t, be, 0, 1, 1)
			retired := false
			f.on("Retire", func(_ context.Context, p leasemem.Phase) error {
				if p == phase && !retired {
					retired = true
					keyed(t, be, 1, 2, 1)
					time.Sleep(20 * time.Millisecond) // the feed tells it in between
				}
				return nil
			})
			start(t, newConsumer(t, f.share(be), streamSpec(byKey(&got))))
			pass(5800 * time.Millisecond)
			if !retired {
				t.Error("not retired")
			}
			got.ordered(t, "0", 2)
		})
	}
}

// A retirement whose reply was lost is repeated; a stream whose messages were forgotten by
// everyone is found by the sweep.
func TestForgottenStreamsAreFound(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		var got seen
		var f faults
		lost := 0
		f.on("Retire", func(_ context.Context, p leasemem.Phase) error {
			if p == leasemem.After && lost < 3 {
				lost++
				return errLink
			}
			return nil
		})
		keyed(t, be, 0, 1, 1)
		start(t, newConsumer(t, f.share(be), streamSpec(byKey(&got))))
		pass(10 * time.Second)
		if s := status(t, be); lost != 3 || s.Resources != 0 {
			t.Errorf("after %d lost replies: %+v", lost, s)
		}
		f.on("FeedNext", before(func(ctx context.Context) error { // deaf from now on
			<-ctx.Done()
			return ctx.Err()
		}))
		pass(time.Second)
		keyed(t, be, 1, 2, 1)
		pass(35 * time.Second)
		got.ordered(t, "0", 2)
	})
}

// A replayed dead letter is handled though its stream was retired.
func TestReplayWakesAStream(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		var handled atomic.Int32
		var good atomic.Bool
		start(t, newConsumer(t, be, streamSpec(one(func(context.Context, lease.Message[note]) error {
			if !good.Load() {
				return lease.DeadLetter("no")
			}
			handled.Add(1)
			return nil
		}))))
		keyed(t, be, 0, 1, 1)
		pass(10 * time.Second)
		if s := status(t, be); s.Resources != 0 || s.DeadLetters != 1 {
			t.Fatalf("%+v", s)
		}
		good.Store(true)
		if _, err := be.Replay(t.Context(), operate.DeadLetterFilter{}); err != nil {
			t.Fatal(err)
		}
		pass(100 * time.Millisecond)
		if handled.Load() != 1 {
			t.Error("the replayed message was not handled")
		}
	})
}

// announcer is an application that names streams.
type announcer struct {
	mu    sync.Mutex
	names []string
}

func (a *announcer) say(names ...string) { a.mu.Lock(); defer a.mu.Unlock(); a.names = names }

func (a *announcer) done(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.names = slices.DeleteFunc(a.names, func(n string) bool { return n == name })
}

func (a *announcer) streams(context.Context) ([]string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.names), nil
}

func (a *announcer) spec(run func(ctx context.Context, l lease.Lease) error) lease.Spec {
	return lease.Spec{Per: lease.PerStream, Topics: []string{}, Streams: a.streams, Handlers: []lease.Handler{lease.Run(run)},
		Retry: lease.Retry{Max: 3, Min: time.Second, Cap: time.Minute, Jitter: -1}}
}

// Each stream that is announced runs on one replica at a time until its Run returns nil, and
// again when it is announced again.
func TestAnnouncedStreams(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		app := &announcer{}
		var mu sync.Mutex
		running, runs := map[string]int{}, map[string]int{}
		run := func(ctx context.Context, l lease.Lease) error {
			mu.Lock()
			running[l.Resource]++
			runs[l.Resource]++
			if running[l.Resource] > 1 {
				t.Errorf("%s runs twice at once", l.Resource)
			}
			mu.Unlock()
			time.Sleep(2 * time.Second)
			mu.Lock()
			defer mu.Unlock()
			running[l.Resource]--
			app.done(l.Resource)
			return nil
		}
		for range 3 {
			start(t, newConsumer(t, be, app.spec(run)))
		}
		pass(time.Second)
		for round := 1; round <= 2; round++ {
			app.say("a", "b", "", "b", "c\x00", "d")
			pass(15 * time.Second)
			mu.Lock()
			if fmt.Sprint(runs) != fmt.Sprint(map[string]int{"a": round, "b": round, "d": round}) {
				t.Errorf("round %d: runs %v", round, runs)
			}
			mu.Unlock()
			if s := status(t, be); s.Resources != 0 {
				t.Errorf("round %d: %+v", round, s)
			}
		}
	})
}

// A Run that fails is called again after a wait; after Max failures the stream is left
// alone for Cap, and another replica may try.
func TestAnnouncedStreamThatFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		app := &announcer{names: []string{"bad"}}
		var began []time.Time
		s := app.spec(func(context.Context, lease.Lease) error {
			began = append(began, time.Now())
			return errLink
		})
		s.Poll = time.Second
		at := time.Now()
		start(t, newConsumer(t, be, s))
		pass(70 * time.Second)
		var offsets []time.Duration
		for _, b := range began {
			offsets = append(offsets, b.Sub(at).Round(time.Second))
		}
		if len(began) != 6 || !slices.Equal(offsets[:3], []time.Duration{0, time.Second, 3 * time.Second}) ||
			offsets[3] < 63*time.Second || offsets[3] > 65*time.Second {
			t.Errorf("runs began at %v", offsets)
		}
		healthy := make(chan lease.Lease, 10)
		s.Handlers = []lease.Handler{lease.Run(func(_ context.Context, l lease.Lease) error { healthy <- l; return nil })}
		start(t, newConsumer(t, be, s))
		select {
		case <-healthy:
		case <-time.After(5 * time.Second):
			t.Error("no other replica tries")
		}
	})
}

// If the application's Streams fails in any way, the process goes on and asks again.
func TestStreamsThatFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		ran := make(chan struct{}, 1)
		calls := 0
		s := (&announcer{}).spec(func(context.Context, lease.Lease) error { ran <- struct{}{}; return nil })
		s.Streams = func(ctx context.Context) ([]string, error) {
			switch calls++; calls {
			case 1:
				panic("boom")
			case 2:
				return nil, errLink
			case 3:
				<-ctx.Done() // it is bounded
				return nil, ctx.Err()
			case 4:
				return []string{"a"}, nil
			}
			return nil, nil
		}
		start(t, newConsumer(t, be, s))
		select {
		case <-ran:
		case <-time.After(time.Minute):
			t.Errorf("after %d calls nothing runs", calls)
		}
	})
}

// When the process stops, Run is asked to return, and another replica goes on at once.
func TestAnnouncedStreamIsHandedOver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		app := &announcer{names: []string{"a"}}
		var running atomic.Int32
		var last atomic.Int64
		run := func(ctx context.Context, l lease.Lease) error {
			if running.Add(1) > 1 {
				t.Error("two run at once")
			}
			defer running.Add(-1)
			if l.Epoch <= last.Swap(l.Epoch) {
				t.Errorf("epoch %d came twice or late", l.Epoch)
			}
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), lease.ErrHandover) {
				t.Errorf("cause %v, want ErrHandover", context.Cause(ctx))
			}
			return nil
		}
		stop := start(t, newConsumer(t, be, app.spec(run)))
		pass(time.Second)
		start(t, newConsumer(t, be, app.spec(run)))
		pass(time.Second)
		before := last.Load()
		stop()
		pass(100 * time.Millisecond)
		if running.Load() != 1 || last.Load() == before {
			t.Errorf("%d run after the handover", running.Load())
		}
	})
}

// A stream that is done is retired, and not just released, though its process stops before
// the backend has heard of that: no process runs it again.
func TestStopRetiresWhatIsDone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		app := &announcer{}
		app.say("a")
		var link faults
		tried := make(chan struct{}, 1)
		tries := 0
		link.on("Retire", before(func(context.Context) error {
			if tries++; tries == 1 {
				tried <- struct{}{}
			}
			if tries < 5 {
				return errLink
			}
			return nil
		}))
		var rec recorder
		stop := start(t, newConsumer(t, link.share(be), app.spec(func(_ context.Context, l lease.Lease) error {
			app.done(l.Resource)
			return nil
		}), lease.WithObserver(&rec)))
		<-tried
		stop()
		if s := status(t, be); s.Resources != 0 {
			t.Errorf("the stream is still wanted: %+v", s)
		}
		if r := observed[operate.ObservedRelease](&rec); len(r) != 1 || !r[0].Retired {
			t.Errorf("told of %+v, want one stream retired", r)
		}
	})
}

// Streams that have no more work at about the same time are given back in one call.
func TestStreamsAreRetiredTogether(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		var got seen
		var f faults
		var calls atomic.Int32
		f.on("Retire", before(func(context.Context) error { calls.Add(1); return nil }))
		start(t, newConsumer(t, f.share(be), streamSpec(byKey(&got))))
		pass(time.Second)
		for n := range 20 {
			publish(t, be, "x", n, n+1, func(v *note) string { return fmt.Sprint(v.N) })
			pass(10 * time.Millisecond)
		}
		pass(6 * time.Second)
		if s := status(t, be); got.count() != 20 || s.Resources != 0 {
			t.Errorf("%d handled, %+v", got.count(), s)
		}
		if n := calls.Load(); n > 2 {
			t.Errorf("%d calls gave back what came to rest within 200 ms", n)
		}
	})
}

// surveyed counts the surveys of each consumer.
type surveyed struct {
	*leasemem.Backend
	mu sync.Mutex
	n  map[string]int
}

func (s *surveyed) Survey(ctx context.Context, consumers []string) ([]backend.Survey, error) {
	s.mu.Lock()
	for _, c := range consumers {
		s.n[c]++
	}
	s.mu.Unlock()
	return s.Backend.Survey(ctx, consumers)
}

// Streams that come and go cost no surveys, neither of their consumer nor of those beside it.
func TestStreamsCostNoSurveys(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := &surveyed{Backend: leasemem.New(), n: map[string]int{}}
		var got, beside seen
		g := lease.NewGroup()
		streams, topics := streamSpec(byKey(&got)), lease.Spec{Name: "topics", Per: lease.PerTopic, Topics: []string{"*"}, Handlers: byKey(&beside)}
		streams.Name, streams.Topics, streams.Idle = "streams", []string{"*"}, 50*time.Millisecond
		for _, s := range []lease.Spec{streams, topics} {
			if err := g.Add(newConsumer(t, be, s)); err != nil {
				t.Fatal(err)
			}
		}
		start(t, g)
		pass(time.Second)
		be.mu.Lock()
		clear(be.n)
		be.mu.Unlock()
		const rounds = 100
		for n := range rounds {
			publish(t, be, "x", n, n+1, func(v *note) string { return fmt.Sprint(v.N) })
			pass(100 * time.Millisecond)
		}
		be.mu.Lock()
		defer be.mu.Unlock()
		if got.count() != rounds || beside.count() != rounds {
			t.Errorf("%d and %d handled, want %d", got.count(), beside.count(), rounds)
		}
		if max(be.n["streams"], be.n["topics"]) > rounds/5 {
			t.Errorf("%v surveys in %d rounds", be.n, rounds)
		}
	})
}

package leaseredis_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
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

// In these tests several processes share work items: a stream is one process's while its item is handled.

// Two consumers share the items, and the figures say exactly who had what.
func TestItemsAreShared(t *testing.T) {
	f := newFleet(t, redistest.Shared(t))
	f.publish(1, names(40)...) // before anybody has ever run
	release := make(chan struct{})
	a, b := f.start("a", 20, until(release)), f.start("b", 20, until(release))
	f.eventually("each has all it has room for", func() bool { return maps.Equal(f.running(), map[string]int{"a": 20, "b": 20}) })
	members, err := f.be.Members(t.Context(), "reader")
	if err != nil || len(members) != 2 || members[0].Owned != 20 || members[1].Owned != 20 {
		t.Errorf("members %+v, %v; want two that own 20 each", members, err)
	}
	f.eventually("it is told that 20 each were acquired", func() bool { return a.observed(acquired) == 20 && b.observed(acquired) == 20 })
	close(release)
	f.eventually("all are handled", func() bool { return f.done() == 40 })
	handled := func(o operate.Observation) bool { h, ok := o.(operate.ObservedHandle); return ok && h.Err == nil }
	f.eventually("it is told that 20 each were handled", func() bool { return a.observed(handled) == 20 && b.observed(handled) == 20 })
	f.exclusive()
}

// A process that runs again does the work that was left when it stopped.
func TestARestartDoesWhatWasLeft(t *testing.T) {
	f := newFleet(t, redistest.Shared(t))
	f.publish(1, names(6)...)
	never := make(chan struct{})
	a := f.start("a", 6, until(never))
	f.eventually("a has them", func() bool { return f.running()["a"] == 6 })
	a.stop()
	if s := f.status(); s.LagTotal != 6 || s.DeadLetters != 0 || s.Members != 0 {
		t.Errorf("%+v, want all six unread, and nobody there", s)
	}
	f.start("a", 6, instantly)
	f.eventually("all are done", func() bool { return f.done() == 6 })
	f.exclusive()
}

// Of the items that a lost process had, those that it had not done, and no
// others, are handled by another one, wherever they lie between the others.
func TestWhatALostProcessHadNotDone(t *testing.T) {
	t.Parallel()
	f := newFleet(t, redistest.Shared(t))
	all := names(9)
	f.publish(1, all...)
	odd := func(stream string) bool { return (stream[len(stream)-1]-'0')%2 == 1 }
	never := make(chan struct{})
	a := f.start("a", 9, func(ctx context.Context, m lease.Message[item]) error {
		if odd(m.Key) {
			return nil
		}
		return until(never)(ctx, m)
	}, mortal)
	f.eventually("the odd ones are done", func() bool { return f.done() == 4 && f.running()["a"] == 5 })
	f.eventually("that is stored", func() bool { return f.status().LagTotal == 5 })
	a.kill()
	var attempts atomic.Int64
	f.start("b", 9, func(_ context.Context, m lease.Message[item]) error {
		if odd(m.Key) {
			t.Errorf("%s is handled again", m.Key)
		}
		attempts.Add(int64(m.Attempt))
		return nil
	})
	f.eventually("the others are done", func() bool { return f.done() == 9 })
	if n := attempts.Load(); n != 5 {
		t.Errorf("attempts add up to %d, want 5: a crash is none", n)
	}
	f.exclusive()
}

// Processes are not woken by keyspace notifications, and no setting of the
// server's configuration is changed.
func TestNoKeyspaceNotifications(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	f := newFleet(t, server)
	client := server.Client(t)
	before := client.ConfigGet(t.Context(), "*").Val()
	never := make(chan struct{})
	a := f.start("a", 5, until(never), mortal)
	f.eventually("a has joined", func() bool { return f.status().Members == 1 })
	f.publish(1, names(5)...)
	f.eventually("a has them", func() bool { return f.running()["a"] == 5 })
	f.start("b", 5, instantly)
	f.eventually("b has joined", func() bool { return f.status().Members == 2 })
	a.kill()
	f.eventually("b has done what a had", func() bool { return f.done() == 5 })
	after := client.ConfigGet(t.Context(), "*").Val()
	if len(before) < 50 || before["notify-keyspace-events"] != "" {
		t.Fatalf("%d parameters, notify-keyspace-events=%q", len(before), before["notify-keyspace-events"])
	}
	if !maps.Equal(before, after) {
		t.Error("the server's configuration was changed")
	}
	f.exclusive()
}

// 2,000 streams over 10 processes, of which 2 are lost: all go on elsewhere.
func TestStreamsOfLostProcessesGoOn(t *testing.T) {
	t.Parallel()
	const streams, processes, room = 2000, 10, 250
	f := newFleet(t, redistest.Shared(t))
	f.publish(1, names(streams)...)
	release := make(chan struct{})
	var all []*proc
	for i := range processes {
		all = append(all, f.start(fmt.Sprintf("p%d", i), room, until(release), func(s *lease.Spec) { s.TTL = 10 * time.Second }))
	}
	sum := func() (n int) {
		for _, c := range f.running() {
			n += c
		}
		return n
	}
	f.eventually("all streams run", func() bool { return sum() == streams })
	lost := map[string]bool{}
	had := 0
	running := f.running() // eight have room for all, so two may have none
	slices.SortFunc(all, func(a, b *proc) int { return running[b.name] - running[a.name] })
	for _, p := range all[:2] {
		had += running[p.name]
		lost[p.name] = true
		p.kill()
	}
	if had < 2*streams/processes {
		t.Fatalf("the two processes that are lost had %d streams", had)
	}
	f.eventually("all streams run on the others", func() bool {
		f.mu.Lock()
		working := 0
		for name := range lost {
			working += f.calls[name]
		}
		f.mu.Unlock()
		return working == 0 && sum() == min(streams, (processes-2)*room)
	})
	close(release)
	f.eventually("all are done", func() bool { return f.done() >= streams })
	f.eventually("nothing is left", func() bool { s := f.status(); return s.LagTotal == 0 && s.DeadLetters == 0 })
	// A process that a busy machine kept from its heartbeats has lost its session too, and others handle its streams again.
	again := 0
	for _, p := range all[2:] {
		again += p.observed(func(o operate.Observation) bool { _, ok := o.(operate.ObservedLoss); return ok })
	}
	if done := f.done(); done > streams+again {
		t.Errorf("%d streams are done, of %d and %d that were lost", done, streams, again)
	}
	f.exclusive()
	t.Logf("%d streams of 2 lost processes went to the others", had)
}

// Finished work is gone from the server, of one stream and of several.
func TestDoneIsGone(t *testing.T) {
	f := newFleet(t, redistest.Shared(t))
	client := f.server.Client(t)
	f.start("a", 10, instantly)
	f.publish(1, "one")
	f.eventually("one is done", func() bool { return f.done() == 1 && f.status().LagTotal == 0 })
	f.publish(2, names(20)...)
	f.eventually("all are done", func() bool { return f.done() == 21 && f.status().LagTotal == 0 })
	info := backend.ConsumerInfo{Name: "reader", Per: backend.PerStream, Topics: []string{"work"}}
	f.eventually("nothing of it is kept", func() bool {
		if _, err := f.be.Maintain(t.Context(), []backend.ConsumerInfo{info}); err != nil {
			t.Fatal(err)
		}
		left := int64(0)
		for _, key := range client.Keys(t.Context(), "{"+f.namespace+"0}:*").Val() {
			if client.Type(t.Context(), key).Val() == "stream" {
				left += client.XLen(t.Context(), key).Val()
			}
		}
		return left == 0
	})
}

// A lost process's stream is taken over and its handler told so; a normal end is
// no loss, and hands over at once.
func TestLossAndNormalEnd(t *testing.T) {
	t.Parallel()
	f := newFleet(t, redistest.Shared(t))
	causes := make(chan error, 2)
	told := func(ctx context.Context, _ lease.Message[item]) error {
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return context.Cause(ctx)
	}
	lost := func(o operate.Observation) bool { _, ok := o.(operate.ObservedLoss); return ok }
	f.publish(1, "s")
	a := f.start("a", 1, told, mortal)
	f.eventually("a has it", func() bool { return f.running()["a"] == 1 })
	a.kill()
	immortal := func(s *lease.Spec) { s.TTL = time.Hour }
	b := f.start("b", 1, told, immortal)
	f.eventually("b has it", func() bool { return f.running()["b"] == 1 })
	if err := <-causes; !errors.Is(err, lease.ErrLost) {
		t.Errorf("a was told %v, want ErrLost", err)
	}
	f.eventually("a's loss is told once", func() bool { return a.observed(lost) == 1 })

	f.start("c", 1, instantly, immortal)
	f.eventually("c has joined", func() bool { return f.status().Members >= 2 })
	b.stop()
	if err := <-causes; !errors.Is(err, lease.ErrHandover) {
		t.Errorf("b was told %v, want ErrHandover", err)
	}
	f.eventually("c has done it, at once and not after a TTL", func() bool { return f.done() == 1 })
	if n := b.observed(lost); n != 0 {
		t.Errorf("b's normal end was told as %d losses", n)
	}
	f.exclusive()
}

// Events go to the logger that was given, and no payload with it.
func TestLogger(t *testing.T) {
	f := newFleet(t, redistest.Shared(t))
	var out lines
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	be := leaseredis.New(f.server.Client(t), leaseredis.WithNamespace(f.namespace), leaseredis.WithLogger(log))
	c, err := lease.NewConsumer(be, lease.Spec{Name: "reader", Per: backend.PerStream, Topics: []string{"work"}, Handlers: []lease.Handler{
		lease.One("item", func(context.Context, lease.Message[item]) error { return lease.DeadLetter("no use") })}}, lease.WithLogger(log))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- kit.Run(ctx, c) }()
	const secret = "4242424242"
	if err := lease.Publish(t.Context(), f.be, "work", itemType, []item{{"s", 4242424242}}); err != nil {
		t.Fatal(err)
	}
	f.eventually("it is a dead letter", func() bool { return f.status().DeadLetters == 1 })
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if got := out.String(); !strings.Contains(got, "no use") || strings.Contains(got, secret) {
		t.Errorf("the log has no dead letter's reason, or has the payload:\n%s", got)
	}
}

type lines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A stream that cannot be read at the start does not keep a process from the rest.
func TestStartsBesideWhatIsBroken(t *testing.T) {
	f := newFleet(t, redistest.Shared(t))
	client := f.server.Client(t)
	f.publish(1, "before")
	// Somebody has put something else in the place of a topic.
	if err := client.Set(t.Context(), "{"+f.namespace+"0}:t:work.broken", "x", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := client.ZAdd(t.Context(), "{"+f.namespace+"0}:topics", redis.Z{Score: 1, Member: "work.broken"}).Err(); err != nil {
		t.Fatal(err)
	}
	f.start("a", 5, instantly, func(s *lease.Spec) { s.Per, s.Topics = backend.PerTopic, []string{"work*"} })
	f.eventually("what was there is done", func() bool { return f.done() == 1 })
	f.publish(2, "after")
	f.eventually("what came later, too", func() bool { return f.done() == 2 && f.status().Resources == 2 })
}

// An owner that takes ten times the time after which a dead one is replaced keeps
// what it has, for any member that joins, and however the others look for work. A machine that stands still for longer than that time ends
// sessions, which takes leases from their owners as well: then the time is doubled.
func TestSlowIsNotDead(t *testing.T) {
	t.Parallel() // it mostly waits
	for ttl := 3 * time.Second; ; ttl *= 2 {
		lost := slowIsNotDead(t, ttl)
		if lost == 0 {
			return
		}
		t.Logf("%d leases were lost at a TTL of %v", lost, ttl)
		if ttl > 10*time.Second {
			t.Fatal("no time is long enough for slow owners to keep what they have")
		}
	}
}

// slowIsNotDead returns how many leases were lost. If there are none, each item was handled by one call.
func slowIsNotDead(t *testing.T, ttl time.Duration) (lost int) {
	// On a server of its own, heartbeats do not wait behind the commands of other tests.
	f := newFleet(t, redistest.Start(t))
	const slow = 10 // streams
	f.publish(1, names(slow)...)
	brief := func(s *lease.Spec) { s.TTL = ttl }
	var calls atomic.Int64
	work := func(ctx context.Context, _ lease.Message[item]) error {
		calls.Add(1)
		select {
		case <-time.After(10 * ttl):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	all := []*proc{f.start("a", slow, work, brief)}
	f.eventually("a has them", func() bool { return f.running()["a"] == slow })
	for i := range 3 { // they sweep when they start, and when one goes
		p := f.start(fmt.Sprint("b", i), slow, work, brief)
		f.eventually("it has joined", func() bool { return f.status().Members == 2 })
		p.stop()
		f.eventually("it has left", func() bool { return f.status().Members == 1 })
		all = append(all, p)
	}
	all = append(all, f.start("c", slow, work, brief))
	reasons := map[string]int{}
	losses := func() (n int) {
		clear(reasons)
		for _, p := range all {
			n += p.observed(func(o operate.Observation) bool {
				loss, ok := o.(operate.ObservedLoss)
				if ok {
					reasons[p.name+": "+loss.Reason]++
				}
				return ok
			})
		}
		return n
	}
	f.eventually("all are done, or a lease is lost", func() bool { return f.done() == slow || losses() > 0 })
	if lost = losses(); lost == 0 && calls.Load() != slow {
		t.Errorf("%d calls for %d items", calls.Load(), slow)
	}
	if lost > 0 {
		t.Logf("leases were lost, by process and reason: %v", reasons)
	}
	f.exclusive()
	return lost
}

// An item that fails too often is a dead letter, and the stream goes on.
func TestDeadLetterAfterMax(t *testing.T) {
	f := newFleet(t, redistest.Shared(t))
	var calls atomic.Int64
	f.start("a", 5, func(_ context.Context, m lease.Message[item]) error {
		if m.Payload.N == 1 {
			calls.Add(1)
			return errors.New("no luck")
		}
		return nil
	}, func(s *lease.Spec) { s.Retry = lease.Retry{Max: 3, Min: time.Millisecond} })
	f.publish(1, "s")
	f.publish(2, "s")
	f.eventually("the second is done", func() bool { return f.done() == 1 })
	var letters []operate.DeadLetterInfo
	var err error
	f.eventually("there is a dead letter", func() bool { // its commit may come after the call for the second
		letters, err = f.be.DeadLetters(t.Context(), operate.DeadLetterFilter{Consumer: "reader"})
		return err != nil || len(letters) > 0
	})
	if err != nil || len(letters) != 1 || letters[0].Attempts != 3 || letters[0].Key != "s" || !strings.Contains(letters[0].Reason, "no luck") {
		t.Errorf("dead letters %+v, %v; want the first item after 3 attempts", letters, err)
	}
	if n := calls.Load(); n != 3 {
		t.Errorf("%d calls, want 3", n)
	}
}

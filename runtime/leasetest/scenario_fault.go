package leasetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/operate"
)

// toldLossesOnce checks that the loss of at least so many leases was reported: more if the machine was too slow for
// a session.
func (p *process) toldLossesOnce(least int) {
	p.w.t.Helper()
	lost := map[string]int{}
	for _, o := range observations[operate.ObservedLoss](p) {
		lost[fmt.Sprint(o.Resource, "@", o.Epoch)]++
		if o.Reason == "" {
			p.w.t.Fatal("a loss without a reason")
		}
	}
	if len(lost) < least {
		p.w.t.Fatalf("the loss of %d leases was reported, want %d", len(lost), least)
	}
	allOnce(p.w.t, "losses told", lost, len(lost))
}

var faultScenarios = []check{
	{"A_crashed_process_is_taken_over_from_after_the_TTL", inWorld(func(t testing.TB, w *world) {
		w.publish(events("x", 20)...)
		// #6 hangs when the process crashes; #7 to #20 were delivered to it and never started.
		p := w.start(mortal(), on(6, dies))
		kit.Eventually(t, "the crash", p.crashed)
		crashed := time.Now()
		q := w.start(mortal(), fine)
		w.handled(20)
		mine := q.calls()
		took := mine[0].began.Sub(crashed)
		if limit := short + 2*time.Second + slack(t, w.be); took > limit {
			t.Errorf("taken over %v after the crash, want at most %v: TTL %v and a little", took, limit, short)
		}
		inOrder(t, w.successes(), byTopic)
		firstAttempts(t, mine)
		if first := p.calls(); mine[0].epoch <= first[0].epoch {
			t.Fatalf("epoch %d after %d", mine[0].epoch, first[0].epoch)
		}
		w.apart()
	})},
	{"A_partitioned_handler_is_cancelled_before_the_TTL", inWorld(func(t testing.TB, w *world) {
		w.publish(events("x", 3)...)
		entered := make(chan struct{}, 9)
		var cut atomic.Bool
		spec := mortal()
		spec.Margin = short / 3 // room for a busy machine between the cancellation and the TTL
		p := w.start(spec, on(2, stays(entered)))
		arrive(t, entered)
		q := w.start(mortal(), func(_ context.Context, _ *process, m lease.Message[payload]) error {
			if !cut.Load() {
				return errors.New("the lease moved without a reason")
			}
			return nil
		})
		cut.Store(true)
		p.link.cut()
		at := time.Now()
		w.handled(3)
		var hung []call
		kit.Eventually(t, "the call that hung has returned", func() bool {
			hung = w.history(func(c call) bool { return c.proc == p.name && c.n == 2 })
			return len(hung) == 1
		})
		if !errors.Is(hung[0].cancelledCause, lease.ErrLost) {
			t.Fatalf("the cause of the cancellation is %v, want ErrLost", hung[0].cancelledCause)
		}
		if after := hung[0].cancelled.Sub(at); after >= short {
			t.Fatalf("cancelled %v after the partition began, want less than the TTL %v", after, short)
		}
		next := q.calls()[0]
		if !next.began.After(hung[0].cancelled) {
			t.Fatal("the next owner began before the handler was cancelled")
		}
		kit.Equal(t, "attempt", next.attempt, 1)
		p.link.mend() // it comes back as a new incarnation
		kit.Eventually(t, "it is a member again", func() bool { return len(w.owners()) == 2 })
	})},
	{"Loss_is_told_once_for_each_lease", inWorld(func(t testing.TB, w *world) {
		w.publish(onEach(names("t", 5), 1)...)
		p := w.start(mortal(), fine)
		w.owning(5)
		w.handled(5)
		p.link.cut()
		q := w.start(mortal(), fine)
		w.owning(5)
		kit.Eventually(t, "losses", func() bool { return len(observations[operate.ObservedLoss](p)) >= 5 })
		p.link.mend()
		kit.Eventually(t, "both are members", func() bool { return len(w.owners()) == 2 })
		q.stop()
		w.owning(5)
		p.toldLossesOnce(5)
	})},
	{"A_zombie_commits_nothing", inWorld(func(t testing.TB, w *world) {
		w.publish(events("x", 5)...)
		entered := make(chan struct{}, 9)
		opened, wake := w.gate()
		p := w.start(mortal(), on(2, func(ctx context.Context, p *process, m lease.Message[payload]) error {
			entered <- struct{}{}
			<-opened // deaf to its context, as a frozen process is
			return errHandler
		}))
		arrive(t, entered)
		p.link.cut()
		w.start(mortal(), fine)
		w.finished(5)
		p.link.mend()
		wake() // its verdict on #2 comes far too late
		kit.Eventually(t, "it is a member again", func() bool { return len(w.owners()) == 2 })
		w.publish(event("x", "k", 6), event("y", "k", 1))
		w.finished(7)
		kit.Equal(t, "dead letters", len(w.dead()), 0)
		firstAttempts(t, w.successes())
		inOrder(t, w.successes(), byTopic)
	})},
	{"Heartbeats_alone_fail", func(t testing.TB, f Factory) {
		w := busyWorld(t, f, 4)
		p := w.start(mortal(), slowly)
		w.start(mortal(), slowly)
		w.owning(2, 2)
		p.link.refuse("Heartbeat", true)
		kit.Eventually(t, "it loses its leases", func() bool { return len(observations[operate.ObservedLoss](p)) >= 2 })
		p.link.refuse("Heartbeat", false)
		w.owning(2, 2)
		w.apart()
		inOrder(t, w.successes(), byTopic)
	}},
	{"Lost_replies_lose_nothing", inWorld(func(t testing.TB, w *world) {
		w.publish(onEach(names("t", 4), 25, "a", "b")...)
		h := func(_ context.Context, _ *process, m lease.Message[payload]) error {
			switch {
			case m.Payload.N == 7 && m.Attempt < 3:
				return errHandler
			case m.Payload.N == 13:
				return lease.DeadLetter("13")
			}
			return nil
		}
		ops := []string{"OpenSession", "Register", "Survey", "Acquire", "OpenFeed", "Feed.Next", "Fetch", "FetchParked", "Commit", "Heartbeat", "Release", "Close"}
		var ps []*process
		for range 2 {
			p := w.start(mortal(), h, lease.WithBatch(5))
			for _, op := range ops {
				p.link.loseReplies(op, 2)
			}
			ps = append(ps, p)
		}
		w.finished(4 * 24)
		kit.Eventually(t, "heartbeats were lost", func() bool { return ps[0].link.left("Heartbeat")+ps[1].link.left("Heartbeat") == 0 })
		for _, op := range []string{"Acquire", "Commit"} {
			if ps[0].link.left(op)+ps[1].link.left(op) == 4 {
				t.Fatalf("no reply of %s was lost: the scenario tests no loss", op)
			}
		}
		kit.Equal(t, "dead letters", len(w.dead()), 4)
		for _, d := range w.dead() {
			kit.Equal(t, "reason", d.Reason, "13")
		}
		inOrder(t, w.successes(), byKey)
		w.apart()
		for _, p := range ps {
			p.stop()
		}
	})},
	{"Failed_acquires_and_releases_strand_nothing", inWorld(func(t testing.TB, w *world) {
		topics := names("t", 4)
		w.publish(onEach(topics, 5)...)
		p := w.start(mortal(), fine)
		w.handled(20)
		p.link.refuse("Release", true)
		q := w.start(mortal(), fine)
		q.link.refuse("Acquire", true)
		kit.Eventually(t, "q is a member", func() bool { return len(w.owners()) == 2 })
		time.Sleep(100 * time.Millisecond) // both try in vain
		p.link.refuse("Release", false)
		q.link.refuse("Acquire", false)
		w.owning(2, 2)
		for _, topic := range topics {
			w.publish(event(topic, "k", 6))
		}
		w.handled(24)
		kit.Equal(t, "handled twice", twice(w), 0)
	})},
	{"Stopping_over_a_broken_link_ends_soon_and_loses_nothing", inWorld(func(t testing.TB, w *world) {
		w.publish(events("x", 5)...)
		s := mortal()
		s.Drain = long // it ends with the belief in its leases, not with this
		p := w.start(s, fine)
		w.handled(5)
		p.link.cut()
		p.stop()
		w.publish(event("x", "k", 6))
		w.start(mortal(), fine)
		w.handled(6)
	})},
	{"A_handler_that_ignores_its_context_keeps_only_its_own_process_from_the_resource", inWorld(func(t testing.TB, w *world) {
		w.publish(append(events("x", 3), events("y", 3)...)...)
		entered := make(chan struct{}, 9)
		opened, _ := w.gate()
		p := w.start(mortal(), func(_ context.Context, _ *process, m lease.Message[payload]) error {
			if m.Topic == "x" && m.Payload.N == 2 {
				entered <- struct{}{}
				<-opened
			}
			return nil
		})
		arrive(t, entered)
		p.link.cut()
		kit.Eventually(t, "it lost its leases", func() bool { return len(observations[operate.ObservedLoss](p)) >= 2 })
		w.start(mortal(), fine)
		w.handled(6)
		p.link.mend()
		w.publish(event("x", "k", 4))
		w.handled(7)
		for _, c := range w.history(func(c call) bool { return c.topic == "x" && c.n > 2 }) {
			if c.proc == p.name {
				t.Fatal("the process handles the resource on which an old handler of its own still runs")
			}
		}
	})},
}

var killScenarios = []check{
	{"A_message_that_kills_its_process_becomes_a_dead_letter_and_its_neighbours_survive", inWorld(func(t testing.TB, w *world) {
		w.publish(events("x", 20, "a", "b")...)
		var crashes atomic.Int32
		killer := on(7, func(ctx context.Context, p *process, m lease.Message[payload]) error {
			crashes.Add(1)
			p.crash()
			return p.hang(ctx)
		})
		p := w.start(mortal(), killer)
		for deadline := time.Now().Add(3 * kit.Patience(t)); ; time.Sleep(5 * time.Millisecond) {
			if p.crashed() {
				p = w.start(mortal(), killer)
			}
			if s := w.status(); s.LagTotal == 0 && s.ParkedKeys == 0 && s.DeadLetters == 1 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("after %d crashes: %+v", crashes.Load(), w.status())
			}
		}
		if n := crashes.Load(); n < 2 || n > 6 {
			t.Errorf("%d crashes, want 2 to 6", n)
		}
		w.handled(19)
		d := w.dead()
		bad := w.of(7)
		kit.Equal(t, "its dead letter", d[0].MessageID, bad[len(bad)-1].id)
		seen := numbers(w.successes())
		slices.Sort(seen)
		kit.Equal(t, "neighbours", len(slices.Compact(seen)), 19)
		for _, l := range kit.Must[[]operate.LeaseStatus](t)(w.operator().Leases(t.Context(), "c", 9)) {
			if l.Suspicion > int(crashes.Load()) {
				t.Fatalf("suspicion %d after %d crashes", l.Suspicion, crashes.Load())
			}
		}
	})},
}

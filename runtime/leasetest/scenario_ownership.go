package leasetest

import (
	"context"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/operate"
)

// busyWorld publishes n topics and goes on publishing to them until the test ends.
func busyWorld(t testing.TB, f Factory, topics int) *world {
	t.Helper()
	w := newWorld(t, f)
	w.publish(onEach(names("t", topics), 1)...)
	n := 1
	repeat(t, func() {
		n++
		for _, topic := range names("t", topics) {
			time.Sleep(time.Millisecond)
			if err := w.be.Publish(context.Background(), []backend.Event{event(topic, "k", n)}); err != nil {
				t.Error(err)
			}
		}
	})
	return w
}

func slowly(context.Context, *process, lease.Message[payload]) error {
	time.Sleep(2 * time.Millisecond)
	return nil
}

var ownershipScenarios = []check{
	{"A_process_that_joins_gets_its_fair_share_and_the_minimum_moves", func(t testing.TB, f Factory) {
		w := busyWorld(t, f, 12)
		s := spec()
		s.TTL = long // no handover waits for it
		a := w.start(s, slowly)
		w.owning(12)
		b := w.start(s, slowly)
		w.owning(6, 6)
		c := w.start(s, slowly)
		w.owning(4, 4, 4)
		// The backend knows of a lease before its owner has the answer.
		taken := func(p *process) int { return len(observations[operate.ObservedAcquire](p)) }
		given := func() int {
			return len(observations[operate.ObservedRelease](a)) + len(observations[operate.ObservedRelease](b))
		}
		kit.Eventually(t, "the processes know what moved", func() bool { return taken(a) >= 12 && taken(b) >= 6 && taken(c) >= 4 && given() >= 10 })
		kit.Equal(t, "moved to b", taken(b), 6)
		kit.Equal(t, "moved to c", taken(c), 4)
		kit.Equal(t, "taken by a", taken(a), 12)
		kit.Equal(t, "given by a and b", given(), 10)
		kit.Equal(t, "lost", len(observations[operate.ObservedLoss](a))+len(observations[operate.ObservedLoss](b)), 0)
		c.stop()
		w.owning(6, 6)
		b.stop()
		w.owning(12)
		w.apart()
		inOrder(t, w.successes(), byTopic)
		kit.Equal(t, "failed", len(w.history(func(c call) bool { return c.err != nil })), 0)
		kit.Equal(t, "handled twice", twice(w), 0)
	}},
	{"A_graceful_stop_hands_over_in_100_ms_uncounted", inWorld(func(t testing.TB, w *world) {
		s := spec()
		s.Per = backend.PerGroup
		s.TTL = long // a takeover would take that long
		published := 500
		w.publish(events("x", published)...)
		limit := 100 * time.Millisecond
		if w.f.Polls {
			limit += 2 * time.Second
		}
		late := time.Hour // beyond what the machine is allowed at that moment
		p := w.start(s, slowly, lease.WithBatch(20))
		for n := 0; n < 3 || late > 0 && n < tries(t); n++ {
			next := w.start(s, slowly, lease.WithBatch(20))
			kit.Eventually(t, "the standby is a member", func() bool { return len(w.owners()) == 2 })
			for published-len(w.successes()) < 1000 { // so that there is work when the owner stops
				w.publish(events("x", published+500)[published:]...)
				published += 500
			}
			before := len(w.successes())
			kit.Eventually(t, "the owner is at work", func() bool { return len(w.successes()) > before })
			stopped := time.Now()
			p.stop()
			kit.Eventually(t, "the standby is at work", func() bool { return len(next.calls()) > 0 })
			last := stopped
			for _, c := range p.calls() {
				last = c.ended
			}
			took := next.calls()[0].began.Sub(last)
			late = min(late, took-limit-slack(t, w.be))
			p = next
		}
		if late > 0 {
			t.Errorf("the best of %d handovers was %v later than %v and what the machine is allowed", tries(t), late, limit)
		}
		firstAttempts(t, w.history(func(call) bool { return true }))
		kit.Equal(t, "handled twice", twice(w), 0)
		inOrder(t, w.successes(), byTopic)
	})},
	{"Capacity_caps_a_process", inWorld(func(t testing.TB, w *world) {
		w.publish(onEach(names("t", 6), 1)...)
		a := w.start(spec(), fine, lease.WithCapacity(2))
		w.owning(2)
		w.start(spec(), fine, lease.WithCapacity(3))
		w.owning(2, 3)
		a.stop() // its place becomes free, but the other has no room
		w.owning(3)
	})},
	{"A_lease_that_its_owner_does_not_know_of_is_given_back", inWorld(func(t testing.TB, w *world) {
		w.publish(event("x", "k", 1), event("y", "k", 2))
		a := w.start(spec(), fine, lease.WithCapacity(1))
		w.owning(1)
		w.handled(1)
		kit.Eventually(t, "the session is reported", func() bool { return len(observations[operate.ObservedSession](a)) > 0 })
		// As after a failover that lost a release, or when an old request arrives late.
		req := backend.AcquireRequest{Session: observations[operate.ObservedSession](a)[0].Session, Consumer: perTopic(), Max: 1, Attempt: kit.ID()}
		kit.Equal(t, "granted behind its back", len(kit.Must[[]backend.Grant](t)(w.be.Acquire(t.Context(), req))), 1)
		w.start(spec(), fine)
		w.owning(1, 1)
		w.handled(2)
		kit.Equal(t, "lost", len(observations[operate.ObservedLoss](a)), 0)
		kit.Equal(t, "handled twice", twice(w), 0)
	})},
	{"A_stopped_consumer_leaves_nothing_behind", inWorld(func(t testing.TB, w *world) {
		w.publish(events("x", 5)...)
		p := w.start(spec(), fine)
		w.handled(5)
		p.stop()
		kit.Equal(t, "members", len(w.owners()), 0)
		for _, l := range kit.Must[[]operate.LeaseStatus](t)(w.operator().Leases(t.Context(), "c", 9)) {
			kit.Equal(t, "owner of "+l.Resource, l.Session, "")
			kit.Equal(t, "suspicion of "+l.Resource, l.Suspicion, 0)
			kit.Equal(t, "lag of "+l.Resource, l.Lag, 0)
		}
		w.publish(event("x", "k", 6))
		w.start(spec(), fine)
		w.handled(6)
		kit.Equal(t, "handled twice", twice(w), 0)
	})},
	{"A_cluster_consumer_runs_on_one_process_and_moves", inWorld(func(t testing.TB, w *world) {
		s := lease.Spec{Name: "c", Per: backend.PerCluster, TTL: short}
		j := &jobs{w: w, running: map[string]string{}} // handlers complains of two at once
		procs := map[string]*process{}
		for range 3 {
			p := w.startWith(s, j.handlers(until))
			procs[p.name] = p
		}
		for range 3 {
			by := ""
			kit.Eventually(t, "one runs", func() bool { by = j.at()[backend.Whole]; return by != "" })
			procs[by].stop()
		}
		j.ranWithRisingEpochs()
	})},
	{"An_observer_sees_what_happened", inWorld(func(t testing.TB, w *world) {
		es := events("x", 10, "a", "b")
		es[2].Kind = "mystery"
		w.publish(es...)
		s := spec()
		s.UnknownWait = -1
		p := w.start(s, failing(5, 99))
		w.finished(8)
		p.stop()
		var handled, parked, dead, skipped int
		for _, c := range observations[operate.ObservedCommit](p) {
			handled, parked, dead, skipped = handled+c.Handled, parked+c.Parked, dead+c.Dead, skipped+c.Skipped
		}
		kit.Equal(t, "handled", handled, 8)
		kit.Equal(t, "dead", dead, 2)
		kit.Equal(t, "skipped", skipped, 0)
		if parked < 2 {
			t.Fatalf("parked %d times, want one for each retry", parked)
		}
		kit.Equal(t, "dead letters", len(observations[operate.ObservedDeadLetter](p)), 2)
		kit.Equal(t, "handler calls", len(observations[operate.ObservedHandle](p)), len(w.history(func(call) bool { return true })))
		acquired, released := observations[operate.ObservedAcquire](p), observations[operate.ObservedRelease](p)
		kit.Equal(t, "acquired", len(acquired), 1)
		kit.Equal(t, "released", len(released), 1)
		kit.Equal(t, "epoch", acquired[0].Epoch, released[0].Epoch)
		kit.Equal(t, "lost", len(observations[operate.ObservedLoss](p)), 0)
		sessions := observations[operate.ObservedSession](p)
		kit.Equal(t, "session events", len(sessions), 2)
		kit.Equal(t, "opened first", sessions[0].Open && !sessions[1].Open, true)
	})},
}

// twice counts the messages that were handled more than once.
func twice(w *world) int {
	n := 0
	for _, times := range counts(each(w.successes(), func(c call) string { return c.id })) {
		if times > 1 {
			n++
		}
	}
	return n
}

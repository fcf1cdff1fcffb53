package leasetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/operate"
)

// rollingKeys are the keys of a rolling deploy's messages.
var rollingKeys = []string{"k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"}

// rolling is a consumer of which two versions run side by side.
type rolling struct {
	*world
	old, fresh *process
}

// startRolling starts an older version, which owns everything, and then a newer one beside it.
func startRolling(t testing.TB, f Factory, per backend.Per, older, newer func(s *lease.Spec), kinds []string) *rolling {
	t.Helper()
	w := newWorld(t, f)
	needsPer(t, w.be, per)
	s := spec()
	s.Per, s.Idle = per, long // streams stay where they are
	s.Topics = []string{"a.*"}
	first := events("a.x", len(rollingKeys), rollingKeys...)
	w.publish(first...)
	was, is := s, s
	older(&was)
	newer(&is)
	r := &rolling{world: w}
	r.old = w.start(was, fine)
	w.handled(len(first))
	w.allOwned()
	r.fresh = w.startWith(is, func(p *process) []lease.Handler {
		return each(kinds, func(kind string) lease.Handler { return lease.One(kind, p.wrap(fine)) })
	})
	kit.Eventually(t, "the newer version is registered", func() bool { return r.fresh.link.answered("Register") > 0 })
	kit.Eventually(t, "it is a member", func() bool { return len(w.owners()) == 2 })
	return r
}

// interleaved are 40 messages made by change, each followed by one of its key that both versions know.
func interleaved(change func(e *backend.Event)) []backend.Event {
	var es []backend.Event
	for i := range 40 {
		k := rollingKeys[i%len(rollingKeys)]
		e := event("a.x", k, 100+2*i)
		change(&e)
		es = append(es, e, event("a.x", k, 101+2*i))
	}
	return es
}

// replaced stops the older version and checks that the newer one has missed no message.
func (r *rolling) replaced(order func(call) string) {
	r.t.Helper()
	r.old.stop()
	r.handled(len(rollingKeys) + 80)
	r.drained()
	kit.Equal(r.t, "dead letters", len(r.dead()), 0)
	firstAttempts(r.t, r.history(func(call) bool { return true }))
	inOrder(r.t, r.successes(), order)
}

// passed waits until everything published was passed, whether it was handled or not.
func (r *rolling) passed() {
	r.t.Helper()
	kit.Eventually(r.t, "everything was passed", func() bool { return r.status().LagTotal == 0 })
}

var rollingPers = []backend.Per{backend.PerGroup, backend.PerStream, backend.PerPartition, backend.PerTopic}

var rollingScenarios = func() (all []check) {
	for _, per := range rollingPers {
		all = append(all, check{"Rolling_deploy_that_widens_topics_loses_nothing_per=" + per.String(), func(t testing.TB, f Factory) {
			r := startRolling(t, f, per, func(*lease.Spec) {}, func(s *lease.Spec) { s.Topics = []string{"a.*", "b.*"} }, []string{"order"})
			r.publish(interleaved(func(e *backend.Event) { e.Topic = "b.x" })...)
			order := func(c call) string { return c.key }
			if per == backend.PerTopic { // each topic has its own order, and who owns the new one handles it
				order = byTopic
			} else {
				r.passed()
				for _, c := range r.history(func(c call) bool { return c.topic == "b.x" }) {
					kit.Equal(t, fmt.Sprintf("#%d was handled by", c.n), c.proc, r.fresh.name)
				}
			}
			r.replaced(order)
		}}, check{"Rolling_deploy_that_adds_a_kind_loses_nothing_per=" + per.String(), func(t testing.TB, f Factory) {
			r := startRolling(t, f, per, func(*lease.Spec) {}, func(*lease.Spec) {}, []string{"order", "refund"})
			r.publish(interleaved(func(e *backend.Event) { e.Kind = "refund" })...)
			r.passed()
			r.replaced(byKey)
		}})
	}
	return append(all,
		check{"Rolling_deploy_with_order=block_waits_in_total_order", func(t testing.TB, f Factory) {
			block := func(s *lease.Spec) { s.Retry.Order = lease.OrderBlock }
			r := startRolling(t, f, backend.PerGroup, block, block, []string{"order", "refund"})
			r.publish(interleaved(func(e *backend.Event) { e.Kind = "refund" })...)
			kit.Eventually(t, "the first one waits", func() bool { return r.status().ParkedKeys == 1 })
			kit.Equal(t, "messages handled", len(r.successes()), len(rollingKeys))
			r.replaced(byTopic)
		}},
		check{"Rolling_deploy_with_order=none_lets_the_others_pass", func(t testing.TB, f Factory) {
			none := func(s *lease.Spec) { s.Retry.Order = lease.OrderNone }
			r := startRolling(t, f, backend.PerGroup, none, none, []string{"order", "refund"})
			r.publish(interleaved(func(e *backend.Event) { e.Kind = "refund" })...)
			r.handled(len(rollingKeys) + 40)
			r.replaced(func(c call) string { return fmt.Sprint(c.n) })
		}},
		check{"Unknown_kind_becomes_a_dead_letter_when_its_wait_is_over", inWorld(func(t testing.TB, w *world) {
			es := events("x", 3)
			es[1].Kind = "mystery"
			w.publish(es...)
			s := spec()
			s.UnknownWait = time.Hour
			p := w.start(s, fine)
			kit.Eventually(t, "it is set aside", func() bool { return w.status().ParkedKeys == 1 && w.status().LagTotal == 0 })
			kit.Equal(t, "dead letters while it waits", len(w.dead()), 0)
			p.stop()
			set := time.Now() // at the latest
			s.UnknownWait = 2 * time.Second
			w.start(s, fine)
			w.handled(2)
			kit.Eventually(t, "it is a dead letter", func() bool { return len(w.dead()) == 1 })
			if waited := time.Since(set); waited > s.UnknownWait {
				w.t.Logf("it waited %v from when it was set aside, at least", waited)
			}
			d := w.dead()[0]
			kit.Equal(t, "attempts", d.Attempts, 0)
			inOrder(t, w.successes(), byKey)
		})},
		check{"Unknown_kind_is_told_of_once", inWorld(func(t testing.TB, w *world) {
			es := events("x", 20, rollingKeys...)
			for i := range es[:10] {
				es[i].Kind = "mystery"
			}
			w.publish(es...)
			p := w.start(spec(), fine)
			kit.Eventually(t, "all are passed", func() bool { return w.status().LagTotal == 0 })
			p.stop() // it hands over what its observer has yet to get
			told := observations[operate.ObservedUnknown](p)
			kit.Equal(t, "times told", len(told), 1)
			kit.Equal(t, "kind told", told[0].Kind, "mystery")
		})},
	)
}()

package leasetest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
)

// RunHistory runs the part of the suite that needs Factory.SetBack, for backends that have it
// only at a price.
func RunHistory(t *testing.T, f Factory) {
	for _, c := range slices.Concat(historyChecks, historyScenarios) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(t, f)
		})
	}
}

// sinceSetBack waits until all numbers from first to last have been handled since the storage was
// set back, on every topic, and checks that they came in order.
func (w *world) sinceSetBack(calls, topics, first, last int) {
	w.t.Helper()
	since := func() []call { return w.successes()[calls:] }
	kit.Eventually(w.t, fmt.Sprintf("messages %d to %d of %d topics are handled", first, last, topics), func() bool {
		seen := map[string]bool{}
		for _, c := range since() {
			if c.n >= first && c.n <= last {
				seen[fmt.Sprint(c.topic, " ", c.n)] = true
			}
		}
		return len(seen) == topics*(last-first+1)
	})
}

// historyScenarios set the storage back under living processes: positions, ids and progress that
// they have in memory are of a history that is gone.
var historyScenarios = func() (all []check) {
	for _, per := range []backend.Per{backend.PerTopic, backend.PerGroup, backend.PerPartition, backend.PerStream} {
		all = append(all, check{"What_is_published_after_the_storage_was_set_back_is_handled_by_" + per.String(), func(t testing.TB, f Factory) {
			needs(t, f.SetBack != nil, "this backend is not set back here")
			w := newWorld(t, f)
			s := spec()
			s.Per = per
			const topics = 3
			each := func(first, last int) {
				for i := range topics {
					for n := first; n <= last; n++ {
						w.publish(event(fmt.Sprint("t", i), fmt.Sprint("k", i), n))
					}
				}
			}
			each(1, 10)
			w.start(s, fine)
			w.start(s, fine)
			w.finished(topics * 10)
			restore := f.SetBack(t, w.be)
			each(11, 40) // which the storage will not know of
			w.handled(topics * 40)
			calls := len(w.successes())
			restore()
			each(41, 50) // fewer than were lost: their ids lie behind
			w.sinceSetBack(calls, topics, 41, 50)
			each(51, 120) // and beyond
			w.sinceSetBack(calls, topics, 51, 120)
			w.drained()
			for _, c := range w.successes()[calls:] {
				if c.n <= 10 {
					t.Fatalf("message %d of %s was handled before the storage was copied, and again", c.n, c.topic)
				}
			}
			kit.Equal(t, "dead letters", len(w.dead()), 0)
			inOrder(t, w.history(func(c call) bool { return c.err == nil && c.n > 40 }), byTopic)
		}})
	}
	return all
}()

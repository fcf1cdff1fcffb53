package leasetest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/operate"
)

// partitioned is the consumer of the scenarios here.
func partitioned() lease.Spec {
	s := spec()
	s.Per = backend.PerPartition
	s.TTL = time.Minute // 8 processes on a busy machine
	return s
}

// keysPublished publishes numbered messages with 100 keys until the test ends or stop is
// called, which returns how many there are.
func (w *world) keysPublished() (stop func() int) {
	n := 0
	end := repeat(w.t, func() {
		es := make([]backend.Event, 5)
		for i := range es {
			n++
			es[i] = event("x", fmt.Sprint("k", n%100), n)
		}
		if err := w.be.Publish(context.Background(), es); err != nil {
			w.t.Error(err)
		}
		time.Sleep(10 * time.Millisecond)
	})
	return func() int {
		end()
		return n
	}
}

// shares is how n resources are divided among members.
func shares(n, members int) []int {
	out := make([]int, members)
	for i := range out {
		out[i] = (n + i) / members
	}
	return out
}

var partitionScenarios = []check{
	{"Partitions_rebalance_from_1_to_4_to_8_to_3_processes", inWorld(func(t testing.TB, w *world) {
		stop := w.keysPublished()
		all := []*process{w.start(partitioned(), fine)}
		live := slices.Clone(all)
		w.allOwned()
		slots := w.status().Resources
		acquired := func() (n int) {
			for _, p := range all {
				n += len(observations[operate.ObservedAcquire](p))
			}
			return n
		}
		had, least := slots, 0
		kit.Eventually(t, "it knows", func() bool { return acquired() == had })
		// A process that joins one by one gets a share, and gives some of it to the next. A process that joins at once
		// does not, however long the processes take to start: none looks until all are there.
		to := func(members int) {
			was := len(live)
			least += slots - slots*min(was, members)/max(was, members)
			w.refused = "Survey"
			for len(live) < members {
				p := w.start(partitioned(), fine)
				all, live = append(all, p), append(live, p)
			}
			kit.Eventually(t, "all are members", func() bool { return len(w.owners()) == len(live) })
			for _, p := range live {
				p.link.refuse("Survey", false)
			}
			leaving := live[members:]
			live = live[:members]
			for _, p := range leaving { // all at once: none takes what another has left
				p.link.refuse("Acquire", true)
			}
			for _, p := range leaving {
				p.stopIt()
			}
			for _, p := range leaving {
				p.stop()
			}
			w.owning(shares(slots, members)...)
		}
		to(4)
		to(8)
		to(3)
		kit.Eventually(t, "the processes know what moved", func() bool { return acquired()-had >= least })
		if moved := acquired() - had; moved*10 > least*11 {
			t.Errorf("%d leases moved, the least is %d", moved, least)
		}
		n := stop()
		w.handled(n)
		kit.Equal(t, "handled", len(w.successes()), n) // none twice
		inOrder(t, w.successes(), byKey)
		w.apart()
		for _, p := range all {
			kit.Equal(t, "lost", len(observations[operate.ObservedLoss](p)), 0)
		}
	})},
	{"Partition_keys_retry_and_wait_in_their_order", inWorld(func(t testing.TB, w *world) {
		w.publish(events("x", 60, "a", "b", "c")...)
		s := partitioned()
		s.Retry.Max = 5
		for range 2 {
			w.start(s, failing(7, 3))
		}
		w.finished(60)
		inOrder(t, w.successes(), byKey)
		kit.Equal(t, "calls of the failing one", len(w.of(7)), 4)
		kit.Equal(t, "handled twice", twice(w), 0)
	})},
	{"Partitions_of_a_crashed_process_are_taken_over", inWorld(func(t testing.TB, w *world) {
		s := partitioned()
		s.TTL = short
		stop := w.keysPublished()
		a := w.start(s, fine)
		w.handled(100)
		b := w.start(s, fine)
		slots := w.status().Resources
		w.owning(shares(slots, 2)...)
		a.crash()
		w.owning(slots)
		n := stop()
		w.handled(n)
		inOrder(t, w.successes(), byKey)
		w.apart()
		if len(b.calls()) == 0 {
			t.Fatal("the other handled no message")
		}
	})},
}

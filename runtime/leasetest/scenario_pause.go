package leasetest

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/operate"
)

// pause pauses the consumer, and waits until no process owns anything of it.
func (w *world) pause() {
	w.t.Helper()
	kit.OK(w.t, w.operator().Pause(w.t.Context(), "c"))
	kit.Eventually(w.t, "all leases are given back", func() bool {
		st := w.status()
		return st.Paused && st.Unowned == st.Resources
	})
}

func (w *world) resume() {
	w.t.Helper()
	kit.OK(w.t, w.operator().Resume(w.t.Context(), "c"))
}

// rests checks that no message is handled for a while.
func (w *world) rests() {
	w.t.Helper()
	all := func() int { return len(w.history(func(call) bool { return true })) }
	before := all()
	time.Sleep(300 * time.Millisecond)
	kit.Equal(w.t, "calls while it is paused", all()-before, 0)
	st := w.status()
	kit.Equal(w.t, "owned while it is paused", st.Resources-st.Unowned, 0)
}

// told checks how often a process heard that the consumer is paused, and that it is not.
func (p *process) toldPaused(paused, resumed int) {
	p.w.t.Helper()
	count := func(of bool) (n int) {
		for _, o := range observations[operate.ObservedPaused](p) {
			if o.Consumer == "c" && o.Paused == of {
				n++
			}
		}
		return n
	}
	kit.Eventually(p.w.t, fmt.Sprintf("%s hears %d times that it is paused, and %d times that it is not", p.name, paused, resumed),
		func() bool { return count(true) == paused && count(false) == resumed })
	kit.Equal(p.w.t, "sessions lost or leases lost", len(observations[operate.ObservedLoss](p)), 0)
	kit.Equal(p.w.t, "standing still", len(observations[operate.ObservedStalled](p)), 0)
}

// underLoad publishes all the time, on four topics of four keys each, until stop is called, which returns how many it were.
func (w *world) underLoad() (stop func() int) {
	var n atomic.Int64
	end := repeat(w.t, func() {
		var es []backend.Event
		for i := range 16 {
			es = append(es, event(fmt.Sprint("t", i%4), fmt.Sprint("k", i/4), int(n.Load())/16+1))
		}
		w.publish(es...)
		n.Add(16)
		time.Sleep(5 * time.Millisecond)
	})
	return func() int { end(); return int(n.Load()) }
}

// pausedUnderLoad pauses and resumes what three processes do. One is replaced in between.
func pausedUnderLoad(w *world, s lease.Spec, start func() *process) {
	t := w.t
	stop := w.underLoad()
	all := []*process{start(), start(), start()}
	w.handled(50)
	w.pause()
	w.rests()
	kit.Equal(t, "members", len(w.owners()), 3)
	for _, p := range all {
		p.toldPaused(1, 0)
	}
	stopping := time.Now()
	all[0].stop()
	if took := time.Since(stopping); took > s.Drain {
		t.Fatalf("a process without leases took %v to stop", took)
	}
	all[0] = start()
	all[0].toldPaused(1, 0) // one that begins while it is paused
	kit.Equal(t, "members", len(w.owners()), 3)
	w.rests()
	published := stop()
	w.resume()
	w.finished(published)
	for _, p := range all {
		p.toldPaused(1, 1)
	}
	w.apart()
	kit.Equal(t, "handled twice", twice(w), 0)
	firstAttempts(t, w.history(func(call) bool { return true }))
	inOrder(t, w.successes(), byKey)
	kit.Equal(t, "dead letters", len(w.dead()), 0)
}

var pauseScenarios = func() (all []check) {
	for _, per := range []backend.Per{backend.PerTopic, backend.PerGroup, backend.PerPartition, backend.PerStream} {
		for _, lock := range []backend.Lock{backend.LockSession, backend.LockRow} {
			if lock == backend.LockRow && per != backend.PerStream {
				continue
			}
			all = append(all, check{fmt.Sprintf("Pause_under_load_loses_nothing_per=%s_lock=%s", per, lock), inWorld(func(t testing.TB, w *world) {
				w.operator()
				needsPer(t, w.be, per)
				needs(t, lock != backend.LockRow || w.be.Capabilities().Rows != nil, "the backend has no leases that expire one by one")
				s := spec()
				s.Per, s.Lock, s.Idle = per, lock, 200*time.Millisecond
				pausedUnderLoad(w, s, func() *process { return w.start(s, fine) })
			})})
		}
	}
	return append(all,
		check{"Pause_under_load_of_transactions_loses_nothing", inEffectsWorld(func(t testing.TB, w *world) {
			w.operator()
			s := spec()
			pausedUnderLoad(w, s, func() *process { return w.startWith(s, w.inTx(fine), lease.WithBatch(10)) })
			effects := w.f.Effects(t, w.be)
			allOnce(t, "effects", counts(effects), len(w.successes()))
		})},
		check{"Pause_lets_a_call_end_and_keeps_its_lease_until_then", inWorld(func(t testing.TB, w *world) {
			w.operator()
			opened, open := w.gate()
			entered := make(chan struct{}, 1)
			w.publish(onEach([]string{"x", "y"}, 3)...)
			p := w.start(spec(), func(ctx context.Context, _ *process, m lease.Message[payload]) error {
				if m.Topic != "x" || m.Payload.N != 1 {
					return nil
				}
				entered <- struct{}{}
				select {
				case <-opened:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
			arrive(t, entered)
			kit.OK(t, w.operator().Pause(t.Context(), "c"))
			kit.Eventually(t, "the other lease is given back", func() bool { st := w.status(); return st.Resources == 2 && st.Unowned == 1 })
			p.toldPaused(1, 0)
			time.Sleep(100 * time.Millisecond)
			ls := kit.Must[[]operate.LeaseStatus](t)(w.operator().Leases(t.Context(), "c", 9))
			for _, l := range ls {
				kit.Equal(t, l.Resource+" is owned", l.Session != "", l.Resource == "x")
			}
			open()
			w.pause()
			kit.Equal(t, "calls of x", len(w.history(func(c call) bool { return c.topic == "x" })), 1)
			w.resume()
			w.finished(6)
			kit.Equal(t, "handled twice", twice(w), 0)
			firstAttempts(t, w.history(func(call) bool { return true }))
		})},
		check{"Pause_of_one_that_waits_for_retries_keeps_them", inWorld(func(t testing.TB, w *world) {
			w.operator()
			w.publish(events("x", 10, "a", "b")...)
			s := spec()
			s.Retry.Max, s.Retry.Min, s.Retry.Cap = 1000, 5*time.Millisecond, 20*time.Millisecond
			var well atomic.Bool
			w.start(s, func(_ context.Context, _ *process, m lease.Message[payload]) error {
				if m.Payload.N == 3 && !well.Load() {
					return errHandler
				}
				return nil
			})
			kit.Eventually(t, "it has failed twice", func() bool { return len(w.of(3)) > 1 })
			w.pause()
			w.rests()
			kit.Equal(t, "parked keys", w.status().ParkedKeys, 1)
			well.Store(true)
			w.resume()
			w.finished(10)
			kit.Equal(t, "handled twice", twice(w), 0)
			inOrder(t, w.successes(), byKey)
		})},
		check{"Pause_stops_a_singleton_and_resume_starts_it", inWorld(func(t testing.TB, w *world) {
			w.operator()
			for _, lock := range []backend.Lock{backend.LockSession, backend.LockAdvisory} {
				s := lease.Spec{Name: "c", Per: backend.PerCluster, TTL: spec().TTL, Lock: lock}
				info := backend.ConsumerInfo{Name: "c", Per: backend.PerCluster, Lock: lock}
				if err := w.be.Check(t.Context(), []backend.ConsumerInfo{info}); err != nil {
					continue // no advisory locks through a pooler
				}
				w := newWorld(t, w.f)
				j := &jobs{w: w, running: map[string]string{}}
				for range 2 {
					w.startWith(s, j.handlers(until))
				}
				runs := func() bool { return len(j.at()) == 1 }
				kit.Eventually(t, "one runs, the other one stands by", func() bool { return runs() && len(w.owners()) == 2 })
				for range 2 {
					w.pause()
					kit.Equal(t, "running while paused", len(j.at()), 0)
					time.Sleep(100 * time.Millisecond)
					kit.Equal(t, "running while paused", len(j.at()), 0)
					kit.Equal(t, "members", len(w.owners()), 2)
					w.resume()
					kit.Eventually(t, "one runs", runs)
				}
				j.ranWithRisingEpochs()
			}
		})},
		check{"Pause_stops_announced_streams_and_resume_starts_them", streamed(func(t testing.TB, w *world, s lease.Spec) {
			w.operator()
			names := names("s", 6)
			j := announcing(w, &s, names...)
			opened, open := w.gate()
			for range 2 {
				w.startWith(s, j.handlers(untilOpen(opened)), lease.WithCapacity(4))
			}
			run := func(n int) func() bool { return func() bool { return len(j.at()) == n } }
			kit.Eventually(t, "all run", run(len(names)))
			w.pause()
			j.announce("late")
			time.Sleep(5 * s.Poll)
			kit.Equal(t, "running while paused", len(j.at()), 0)
			w.resume()
			kit.Eventually(t, "all run", run(len(names)+1))
			open()
			kit.Eventually(t, "all are done", func() bool { return len(j.finished()) == len(names)+1 })
			for _, n := range slices.Sorted(slices.Values(names)) {
				kit.Equal(t, "runs of "+n+" that ended well", j.finished()[n], 1)
			}
		})},
	)
}()

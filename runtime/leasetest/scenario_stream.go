package leasetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/operate"
)

// streamed skips scenarios that need what a backend may lack, and runs the others with both
// ways to hold streams, where there are two.
func streamed(run func(t testing.TB, w *world, s lease.Spec)) func(testing.TB, Factory) {
	return inWorld(func(t testing.TB, w *world) {
		needs(t, w.be.Capabilities().Streams != nil, "the backend has no streams")
		s := spec()
		s.Per, s.Poll, s.Idle = backend.PerStream, 50*time.Millisecond, 200*time.Millisecond
		run(t, w, s)
		if w.be.Capabilities().Rows != nil {
			s.Lock = backend.LockRow
			run(t, newWorld(t, w.f), s)
		}
	})
}

// jobs is an application that announces streams, and the runs of them.
type jobs struct {
	w  *world
	mu sync.Mutex

	named   []string
	running map[string]string // the process
	runs    []run
}

type run struct {
	stream, proc string
	epoch        int64
	err          error
}

// announcing makes s a consumer of the streams that an application announces.
func announcing(w *world, s *lease.Spec, names ...string) *jobs {
	j := &jobs{w: w, named: names, running: map[string]string{}}
	s.Topics, s.Streams = nil, func(context.Context) ([]string, error) {
		j.mu.Lock()
		defer j.mu.Unlock()
		return slices.Clone(j.named), nil
	}
	return j
}

func (j *jobs) announce(names ...string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.named = append(j.named, names...)
}

// handlers runs work for each stream, which is announced until that returns nil. A run
// whose context has ended counts as over: its process knows that it lost.
func (j *jobs) handlers(work func(ctx context.Context, p *process, l lease.Lease) error) func(p *process) []lease.Handler {
	return func(p *process) []lease.Handler {
		return []lease.Handler{lease.Run(func(ctx context.Context, l lease.Lease) error {
			j.mu.Lock()
			if by := j.running[l.Resource]; by != "" {
				j.w.t.Errorf("%s runs %s, which runs on %s", p.name, l.Resource, by)
			}
			j.running[l.Resource] = p.name
			j.mu.Unlock()
			over := sync.OnceFunc(func() {
				j.mu.Lock()
				defer j.mu.Unlock()
				delete(j.running, l.Resource)
			})
			stop := context.AfterFunc(ctx, over)
			defer stop()
			err := work(ctx, p, l)
			j.mu.Lock()
			if err == nil && ctx.Err() == nil {
				j.named = slices.DeleteFunc(j.named, func(n string) bool { return n == l.Resource })
			}
			j.runs = append(j.runs, run{l.Resource, p.name, l.Epoch, err})
			j.mu.Unlock()
			over()
			return err
		})}
	}
}

// finished returns the runs that ended well, by stream.
func (j *jobs) finished() map[string]int {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := map[string]int{}
	for _, r := range j.runs {
		if r.err == nil {
			out[r.stream]++
		}
	}
	return out
}

func (j *jobs) at() map[string]string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return maps.Clone(j.running)
}

// ranWithRisingEpochs checks the runs that have ended, of one resource.
func (j *jobs) ranWithRisingEpochs() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i := range j.runs[1:] {
		if j.runs[i+1].epoch <= j.runs[i].epoch {
			j.w.t.Fatalf("epochs do not rise: %+v", j.runs)
		}
	}
}

// withStandby starts a process that runs all n streams until they end, and one beside it.
func (j *jobs) withStandby(s lease.Spec, n int) (a, b *process) {
	j.w.t.Helper()
	a = j.w.startWith(s, j.handlers(until))
	kit.Eventually(j.w.t, "they run", func() bool { return len(j.at()) == n })
	b = j.w.startWith(s, j.handlers(until))
	kit.Eventually(j.w.t, "there is a standby", func() bool { return len(j.w.owners()) == 2 })
	return a, b
}

func names(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s%02d", prefix, i)
	}
	return out
}

// until runs until its context ends.
func until(ctx context.Context, _ *process, _ lease.Lease) error {
	<-ctx.Done()
	return ctx.Err()
}

// untilOpen runs until its context ends, or well until a gate is open.
func untilOpen(opened <-chan struct{}) func(context.Context, *process, lease.Lease) error {
	return func(ctx context.Context, _ *process, _ lease.Lease) error {
		select {
		case <-opened:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

var streamScenarios = []check{
	{"Streams_are_owned_while_they_have_messages_and_handled_in_order", streamed(func(t testing.TB, w *world, s lease.Spec) {
		for range 3 {
			w.start(s, slowly)
		}
		for round := range 3 {
			es := events("x", 120, names("k", 20)...)
			for i := range es {
				es[i] = event("x", es[i].Key, 1000*round+i+1)
			}
			w.publish(es...)
			w.handled(120 * (round + 1))
			kit.Eventually(t, "they are given up", func() bool { return w.status().Resources == 0 })
		}
		w.apart()
		inOrder(t, w.successes(), byKey)
		kit.Equal(t, "handled twice", twice(w), 0)
	})},
	{"A_stream_is_kept_while_there_is_work", streamed(func(t testing.TB, w *world, s lease.Spec) {
		s.Idle = 20 * time.Second
		p := w.start(s, fine)
		for n := range 20 {
			w.publish(event("x", "a", n+1))
			w.handled(n + 1)
		}
		kit.Eventually(t, "the lease is reported", func() bool { return len(observations[operate.ObservedAcquire](p)) > 0 })
		kit.Equal(t, "acquired", len(observations[operate.ObservedAcquire](p)), 1)
	})},
	{"Capacity_caps_streams_and_giving_up_frees_it", streamed(func(t testing.TB, w *world, s lease.Spec) {
		s.Idle = time.Hour // others wait, so no process stays idle
		j := announcing(w, &s, names("s", 9)...)
		opened, open := w.gate()
		w.startWith(s, j.handlers(untilOpen(opened)), lease.WithCapacity(2))
		w.owning(2)
		w.startWith(s, j.handlers(untilOpen(opened)), lease.WithCapacity(3))
		w.owning(2, 3)
		kit.Eventually(t, "the other four are wanted", func() bool { st := w.status(); return st.Resources == 9 && st.Unowned == 4 })
		kit.Eventually(t, "five run", func() bool { return len(j.at()) == 5 })
		open()
		kit.Eventually(t, "all are done", func() bool { return len(j.finished()) == 9 })
		kit.Eventually(t, "all are given up", func() bool { return w.status().Resources == 0 })
	})},
	{"Idle_streams_make_room_for_those_that_wait", streamed(func(t testing.TB, w *world, s lease.Spec) {
		s.Idle = time.Hour
		w.publish(events("x", 60, names("k", 12)...)...)
		w.start(s, fine, lease.WithCapacity(3))
		w.handled(60)
		inOrder(t, w.successes(), byKey)
	})},
	{"A_stream_owned_elsewhere_does_not_run", streamed(func(t testing.TB, w *world, s lease.Spec) {
		j := announcing(w, &s, "a")
		_, b := j.withStandby(s, 1)
		time.Sleep(10 * s.Poll) // it announces the same
		kit.Equal(t, "acquired by the other", len(observations[operate.ObservedAcquire](b)), 0)
	})},
	{"Concurrent_announcements_share_one_acquire", streamed(func(t testing.TB, w *world, s lease.Spec) {
		all := names("s", 20)
		j := announcing(w, &s, append(slices.Clone(all), all...)...) // each twice
		opened, open := w.gate()
		for range 3 {
			w.startWith(s, j.handlers(untilOpen(opened)))
		}
		kit.Eventually(t, "all run", func() bool { return len(j.at()) == 20 })
		time.Sleep(10 * s.Poll) // announced again and again
		st := w.status()
		kit.Equal(t, "wanted", st.Resources, 20)
		kit.Equal(t, "unowned", st.Unowned, 0)
		open()
		kit.Eventually(t, "all are done", func() bool { return len(j.finished()) == 20 })
	})},
	{"A_stream_runs_again_when_it_is_announced_again", streamed(func(t testing.TB, w *world, s lease.Spec) {
		j := announcing(w, &s)
		s.Poll = time.Second
		w.startWith(s, j.handlers(func(context.Context, *process, lease.Lease) error { return nil }))
		for n := 1; n <= 3; n++ {
			j.announce("a")
			kit.Eventually(t, "it ran", func() bool { return j.finished()["a"] >= n })
			kit.Eventually(t, "it is given up", func() bool { return w.status().Resources == 0 })
		}
		j.ranWithRisingEpochs()
	})},
	{"Streams_of_a_crashed_process_run_elsewhere", streamed(func(t testing.TB, w *world, s lease.Spec) {
		s.TTL = short
		j := announcing(w, &s, names("s", 6)...)
		a, b := j.withStandby(s, 6)
		a.crash()
		kit.Eventually(t, "they run elsewhere", func() bool {
			at := j.at()
			for _, by := range at {
				if by != b.name {
					return false
				}
			}
			return len(at) == 6
		})
		j.mu.Lock()
		defer j.mu.Unlock()
		for _, r := range j.runs {
			if !errors.Is(r.err, context.Canceled) {
				t.Fatalf("a run ended with %v", r.err)
			}
		}
	})},
	{"Streams_of_a_stopping_process_run_elsewhere_at_once", streamed(func(t testing.TB, w *world, s lease.Spec) {
		s.TTL = long // a takeover would take that long
		j := announcing(w, &s, names("s", 6)...)
		a, b := j.withStandby(s, 6)
		a.stop()
		kit.Eventually(t, "they run elsewhere", func() bool { return len(j.at()) == 6 })
		kit.Equal(t, "lost", len(observations[operate.ObservedLoss](a)), 0)
		kit.Eventually(t, "acquired by the other", func() bool { return len(observations[operate.ObservedAcquire](b)) >= 6 })
		kit.Equal(t, "acquired by the other", len(observations[operate.ObservedAcquire](b)), 6)
	})},
	{"Streams_of_a_partitioned_process_end_before_others_run_them", streamed(func(t testing.TB, w *world, s lease.Spec) {
		s.TTL = short
		j := announcing(w, &s, names("s", 4)...) // handlers complains of two at once
		a, b := j.withStandby(s, 4)
		a.link.cut()
		kit.Eventually(t, "they run elsewhere", func() bool { return len(observations[operate.ObservedAcquire](b)) >= 4 && len(j.at()) == 4 })
		kit.Eventually(t, "losses are reported", func() bool { return len(observations[operate.ObservedLoss](a)) >= 4 })
		a.toldLossesOnce(4)
		a.link.mend()
	})},
	{"A_stream_survives_failures_of_its_messages", streamed(func(t testing.TB, w *world, s lease.Spec) {
		w.publish(events("x", 40, "a", "b")...)
		for range 2 {
			w.start(s, func(ctx context.Context, p *process, m lease.Message[payload]) error {
				if m.Payload.N == 9 {
					return errHandler
				}
				return failing(5, 1)(ctx, p, m)
			})
		}
		w.finished(39)
		kit.Eventually(t, "they are given up", func() bool { return w.status().Resources == 0 })
		kit.Equal(t, "dead letters", len(w.dead()), 1)
		inOrder(t, w.successes(), byKey)
		kit.Equal(t, "handled twice", twice(w), 0)
	})},
}

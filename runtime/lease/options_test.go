package lease_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/operate"
)

// bare is a backend without optional roles.
type bare struct{ lease.Backend }

func (bare) Capabilities() backend.Capabilities { return backend.Capabilities{} }

func TestNewConsumerRefuses(t *testing.T) {
	h := one(func(context.Context, lease.Message[note]) error { return nil })
	run := lease.Run(func(context.Context, lease.Lease) error { return nil })
	tx := oneTx(func(context.Context, *leasemem.Tx, lease.Message[note]) error { return nil })
	names := func(context.Context) ([]string, error) { return nil, nil }
	good := lease.Spec{Name: "a", Per: lease.PerTopic, Topics: []string{"*"}, Handlers: h}
	with := func(f func(s *lease.Spec)) lease.Spec { s := good; f(&s); return s }
	for _, c := range []struct {
		spec lease.Spec
		opts []lease.Option
		want []string // all of them in one error
	}{
		{lease.Spec{}, nil, []string{"the name is empty", "Per 0 is unknown", "Topics are empty", "there are no handlers"}},
		{with(func(s *lease.Spec) { s.Name = strings.Repeat("x", 64) }), nil, []string{"64 bytes long"}},
		{good, []lease.Option{lease.WithTTL(time.Millisecond)}, []string{"TTL 1ms is below 1s"}},
		{good, []lease.Option{lease.WithTTL(25 * time.Hour)}, []string{"above 24h"}},
		{with(func(s *lease.Spec) { s.Margin = 8 * time.Second }), nil, []string{"Margin 8s is not within 0 and TTL/2 = 7.5s"}},
		{with(func(s *lease.Spec) { s.Grace = -1 }), nil, []string{"Grace"}},
		{good, []lease.Option{lease.WithBatch(10_001), lease.WithWorkers(1025), lease.WithDrain(-1)}, []string{"Batch 10001", "Workers 1025", "Drain -1ns"}},
		{good, []lease.Option{lease.WithRetry(lease.Retry{Max: -1, Min: time.Hour, Cap: time.Minute, Jitter: 2, Order: 7})}, []string{"Retry.Max -1", "Retry.Cap 1m0s is below", "Retry.Jitter 2", "Retry.Order"}},
		{good, []lease.Option{lease.WithRetry(lease.Retry{Jitter: math.NaN()})}, []string{"Retry.Jitter NaN"}},
		{good, []lease.Option{lease.WithDeadLetters(lease.DeadLetters{Keep: -1, Max: -1})}, []string{"Keep", "Max"}},
		{good, []lease.Option{lease.WithLogger(nil), lease.WithConcurrency(0), lease.WithCapacity(-1), lease.WithMaxPayload(0), lease.WithStuckAfter(0, true)},
			[]string{"WithLogger", "WithConcurrency 0", "Capacity -1", "WithMaxPayload 0", "WithStuckAfter 0s"}},
		{with(func(s *lease.Spec) { s.Handlers = append(h[:1:1], h[0], run, lease.Handler{}) }), nil, []string{`two handlers for kind "note"`, "a Run handler needs PerCluster or Streams", "a handler is empty"}},
		{with(func(s *lease.Spec) { s.Handlers, s.Workers = tx, 2 }), nil, []string{"Workers 2 does not go with transaction handlers"}},
		{with(func(s *lease.Spec) { s.Per = lease.PerCluster }), nil, []string{"PerCluster and Topics are given", "PerCluster takes exactly one Run handler"}},
		{with(func(s *lease.Spec) { s.Topics = []string{""} }), nil, []string{"a topic pattern is empty"}},
		{with(func(s *lease.Spec) { s.Lock = lease.LockAdvisory }), nil, []string{"LockAdvisory goes with PerCluster and PerGroup only"}},
		{with(func(s *lease.Spec) { s.Lock = lease.LockRow }), nil, []string{"LockRow goes with PerStream only"}},
		{with(func(s *lease.Spec) { s.Lock, s.From = 9, 9 }), nil, []string{"Lock 9 is unknown", "From 9 is unknown"}},
		{with(func(s *lease.Spec) { s.Poll, s.Idle, s.OnceKeep = -1, -1, -1 }), nil, []string{"Poll -1ns", "Idle -1ns", "OnceKeep -1ns"}},
		{with(func(s *lease.Spec) { s.Source = 1 }), nil, []string{"Topics and a Source are given"}},
		{with(func(s *lease.Spec) { s.Streams = names }), nil, []string{"Streams go with PerStream only", "Streams and Topics are given", "Streams takes exactly one Run handler"}},
		{with(func(s *lease.Spec) { s.Per, s.Topics, s.Source, s.Streams = lease.PerStream, nil, 1, names }), nil, []string{"Streams and a Source are given"}},
	} {
		_, err := lease.NewConsumer(leasemem.New(), c.spec, c.opts...)
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: error %v, want one with %q", c.spec, err, want)
			}
		}
	}
	if _, err := lease.NewConsumer(nil, good); err == nil || !strings.Contains(err.Error(), "the backend is nil") {
		t.Errorf("no backend: %v", err)
	}
	plain := bare{leasemem.New()}
	if _, err := lease.NewConsumer(plain, with(func(s *lease.Spec) { s.Handlers = tx })); err == nil || !strings.Contains(err.Error(), "has no transactions") {
		t.Errorf("a backend without transactions: %v", err)
	}
	streams := with(func(s *lease.Spec) { s.Per = lease.PerStream })
	if _, err := lease.NewConsumer(plain, streams); err == nil || !strings.Contains(err.Error(), "has no streams") {
		t.Errorf("a backend without streams: %v", err)
	}
	streams.Lock = lease.LockRow
	if _, err := lease.NewConsumer(plain, streams); err == nil || !strings.Contains(err.Error(), "has no leases that expire one by one") {
		t.Errorf("a backend without row leases: %v", err)
	}
	if _, err := lease.NewConsumer(leasemem.New(), lease.Spec{Name: "c", Per: lease.PerCluster, Handlers: []lease.Handler{run}}); err != nil {
		t.Error(err)
	}
}

// Leases beyond the room of a process are left to others, and taken when there is room.
func TestCapacity(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		for i := range 9 {
			publish(t, be, fmt.Sprint(i), 0, 1, nil)
		}
		var small, large seen
		start(t, newConsumer(t, be, lease.Spec{TTL: 2 * time.Second, Handlers: handleAll(&small)}, lease.WithCapacity(2)))
		pass(10 * time.Second)
		if s := status(t, be); s.Unowned != 7 || s.LagTotal != 7 || small.count() != 2 {
			t.Errorf("%+v, %d handled", s, small.count())
		}
		stop := start(t, newConsumer(t, be, lease.Spec{TTL: 2 * time.Second, Handlers: handleAll(&large)}))
		drained(t, be)
		if n := large.count(); n != 7 {
			t.Errorf("the other handled %d, want 7", n)
		}
		for range 60 { // and there they stay
			pass(time.Second)
			if s := status(t, be); s.Unowned > 0 {
				t.Fatalf("%d are unowned", s.Unowned)
			}
		}
		stop()
		pass(time.Second)
		if s := status(t, be); s.Unowned != 7 {
			t.Errorf("%d are unowned, want 7 again", s.Unowned)
		}
	})
}

// Messages without a handler in any process, or that are too large, are dead letters or skipped;
// those around them are handled.
func TestWhatNeedsNoHandler(t *testing.T) {
	for _, unknown := range []lease.Unknown{lease.UnknownDeadLetter, lease.UnknownSkip} {
		bubble(t, func(t *testing.T) {
			be := leasemem.New()
			var rec recorder
			var got seen
			err := be.Publish(t.Context(), []lease.Event{
				{Topic: "x", Kind: "note", Payload: []byte(`{"N":0}`)},
				{Topic: "x", Kind: "strange\n", Payload: []byte(`{}`)},
				{Topic: "x", Kind: "note", Payload: []byte(`{"N":1,"Pad":"` + strings.Repeat("x", 100) + `"}`)},
				{Topic: "x", Kind: "note", Payload: []byte(`{"N":1}`)},
			})
			if err != nil {
				t.Fatal(err)
			}
			start(t, newConsumer(t, be, lease.Spec{Unknown: unknown, UnknownWait: -1, Handlers: handleAll(&got)}, lease.WithMaxPayload(100), lease.WithObserver(&rec)))
			drained(t, be)
			pass(time.Second)
			got.ordered(t, "x", 2)
			want := []string{`consumer a has no handler for kind "strange\n"`, "payload of 116 bytes is over the limit of 100 bytes"}
			if unknown == lease.UnknownSkip {
				want = want[1:]
			}
			ds := deadLetters(t, be)
			if len(ds) != len(want) {
				t.Fatalf("dead letters %+v", ds)
			}
			for i, d := range ds {
				if d.Reason != want[i] {
					t.Errorf("reason %q, want %q", d.Reason, want[i])
				}
			}
			var sum operate.ObservedCommit
			for _, o := range observed[operate.ObservedCommit](&rec) {
				sum.Handled, sum.Dead, sum.Skipped = sum.Handled+o.Handled, sum.Dead+o.Dead, sum.Skipped+o.Skipped
			}
			if sum.Handled != 2 || sum.Dead != len(want) || sum.Skipped != 2-len(want) {
				t.Errorf("told of %+v", sum)
			}
		})
	}
}

func TestWords(t *testing.T) {
	for want, got := range map[string]string{
		"topic": lease.PerTopic.String(), "group": lease.PerGroup.String(), "cluster": lease.PerCluster.String(),
		"partition": lease.PerPartition.String(), "stream": lease.PerStream.String(),
		"session": lease.LockSession.String(), "advisory": lease.LockAdvisory.String(), "row": lease.LockRow.String(),
		"beginning": lease.FromBeginning.String(), "now": lease.FromNow.String(),
		"key": lease.OrderKey.String(), "block": lease.OrderBlock.String(), "none": lease.OrderNone.String(),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if lease.Per(9).String() != "unknown" || lease.Order(9).String() != "unknown" {
		t.Error("values that do not exist have names")
	}
}

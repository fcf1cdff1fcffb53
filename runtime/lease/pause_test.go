package lease_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/operate"
)

// A consumer that is paused for hours is ready, does not stand still, and says once an hour that it is paused.
func TestPausedConsumerIsReadyAndSaysSo(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		be, got, told := leasemem.New(), &seen{}, &recorder{}
		var log bytes.Buffer
		c := newConsumer(t, be, lease.Spec{Handlers: one(func(_ context.Context, m lease.Message[note]) error {
			got.add(m.Topic, m.Payload.N)
			return nil
		})}, lease.WithLogger(slog.New(slog.NewTextHandler(&log, nil))), lease.WithObserver(told))
		publish(t, be, "x", 0, 3, nil)
		stop := start(t, c)
		drained(t, be)
		kit.Equal(t, "paused", c.Health().Paused, false)

		kit.OK(t, be.Pause(t.Context(), "a"))
		pass(time.Second)
		publish(t, be, "x", 3, 6, nil)
		for range 6 {
			pass(30*time.Minute + time.Second)
			kit.OK(t, c.Ready())
			h := c.Health()
			kit.Equal(t, "health", fmt.Sprint(h.Paused, h.Leases, h.Trouble), "true 0")
		}
		kit.Equal(t, "handled", got.count(), 3)
		kit.Equal(t, "members", status(t, be).Members, 1)
		kit.Equal(t, "stalls told", len(observed[operate.ObservedStalled](told)), 0)
		kit.Equal(t, "sessions told", len(observed[operate.ObservedSession](told)), 1)
		kit.Equal(t, "pauses told", fmt.Sprint(observed[operate.ObservedPaused](told)), "[{a true}]")
		const line = `level=WARN msg="the consumer is paused`
		kit.Equal(t, "lines in three hours", strings.Count(log.String(), line), 4)

		kit.OK(t, be.Resume(t.Context(), "a"))
		pass(time.Second)
		got.ordered(t, "x", 6)
		kit.Equal(t, "paused", c.Health().Paused, false)
		kit.Equal(t, "pauses told", fmt.Sprint(observed[operate.ObservedPaused](told)), "[{a true} {a false}]")
		kit.Equal(t, "lines that it is resumed", strings.Count(log.String(), `level=INFO msg="the consumer is resumed"`), 1)

		kit.OK(t, be.Pause(t.Context(), "a"))
		pass(time.Second)
		began := time.Now()
		stop()
		kit.Equal(t, "stopping took more than a second", time.Since(began) > time.Second, false)
	})
}

// A session that is lost while its consumer is paused is followed by another one, which gets no leases either. That it is
// paused is observed once.
func TestSessionLostWhilePaused(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		be, got, told, f := leasemem.New(), &seen{}, &recorder{}, &faults{}
		c := newConsumer(t, f.share(be), lease.Spec{TTL: 3 * time.Second, Handlers: one(func(_ context.Context, m lease.Message[note]) error {
			got.add(m.Topic, m.Payload.N)
			return nil
		})}, lease.WithObserver(told))
		publish(t, be, "x", 0, 3, nil)
		start(t, c)
		drained(t, be)
		kit.OK(t, be.Pause(t.Context(), "a"))
		pass(time.Second)
		publish(t, be, "x", 3, 6, nil)
		f.on("SessionHeartbeat", before(func(context.Context) error { return errLink }))
		pass(10 * time.Second)
		f.on("SessionHeartbeat", nil)
		pass(10 * time.Second)
		kit.OK(t, c.Ready())
		if n := len(observed[operate.ObservedSession](told)); n < 3 {
			t.Fatalf("%d sessions began or ended, want the first one's end and another one", n)
		}
		kit.Equal(t, "leases lost", len(observed[operate.ObservedLoss](told)), 0)
		kit.Equal(t, "acquired", len(observed[operate.ObservedAcquire](told)), 1)
		kit.Equal(t, "handled", got.count(), 3)
		kit.Equal(t, "pauses told", fmt.Sprint(observed[operate.ObservedPaused](told)), "[{a true}]")
		kit.OK(t, be.Resume(t.Context(), "a"))
		pass(time.Second)
		got.ordered(t, "x", 6)
	})
}

// A handler that does not return keeps its lease: no other process works on its resource, and its message is not counted as
// handled until it does.
func TestHandlerThatOutlastsAPause(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		be, told := leasemem.New(), &recorder{}
		hang := make(chan struct{})
		c := newConsumer(t, be, lease.Spec{Handlers: one(func(context.Context, lease.Message[note]) error {
			<-hang
			return nil
		})}, lease.WithObserver(told), lease.WithStuckAfter(time.Minute, false))
		publish(t, be, "x", 0, 3, nil)
		start(t, c)
		pass(time.Second)
		kit.OK(t, be.Pause(t.Context(), "a"))
		pass(time.Hour)
		kit.Equal(t, "unowned", status(t, be).Unowned, 0)
		kit.Equal(t, "unread", status(t, be).LagTotal, int64(3))
		kit.Equal(t, "stuck", len(c.Health().Stuck), 1)
		close(hang)
		pass(time.Second)
		kit.Equal(t, "unowned", status(t, be).Unowned, 1)
		kit.Equal(t, "calls", len(observed[operate.ObservedHandle](told)), 1)
		kit.Equal(t, "unread", status(t, be).LagTotal, int64(2))
		kit.OK(t, be.Resume(t.Context(), "a"))
		pass(time.Second)
		kit.Equal(t, "calls", len(observed[operate.ObservedHandle](told)), 3)
	})
}

// A consumer of streams hears of a pause though it acquires all the time, so that each survey is out of date when it comes.
func TestPauseIsHeardBesideAcquisitions(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		be, got, f := leasemem.New(), &seen{}, &faults{}
		f.on("Survey", before(func(context.Context) error { time.Sleep(300 * time.Millisecond); return nil }))
		s := streamSpec(byKey(got))
		s.Idle = 10 * time.Millisecond
		c := newConsumer(t, f.share(be), s)
		start(t, c)
		pass(5 * time.Second)
		for i := range 2000 {
			if i == 500 {
				kit.OK(t, be.Pause(t.Context(), "a"))
			}
			keyed(t, be, i, i+1, 1000)
			pass(10 * time.Millisecond)
		}
		kit.Equal(t, "paused", c.Health().Paused, true)
		kit.Equal(t, "leases", c.Health().Leases, 0)
	})
}

// While it is paused, a consumer of streams asks for none, whatever messages come.
func TestPausedStreamsAreNotAskedFor(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		be, got, f := leasemem.New(), &seen{}, &faults{}
		asked := 0
		f.on("Acquire", before(func(context.Context) error { asked++; return nil }))
		start(t, newConsumer(t, f.share(be), lease.Spec{Per: lease.PerStream, Handlers: one(func(_ context.Context, m lease.Message[note]) error {
			got.add(m.Topic, m.Payload.N)
			return nil
		})}))
		byNumber := func(n *note) string { return fmt.Sprint(n.N) }
		publish(t, be, "x", 0, 3, byNumber)
		pass(time.Second)
		kit.Equal(t, "handled", got.count(), 3)
		kit.OK(t, be.Pause(t.Context(), "a"))
		pass(time.Second)
		asked = 0
		for n := range 100 {
			publish(t, be, "x", 3+n, 4+n, byNumber)
			pass(50 * time.Millisecond)
		}
		kit.Equal(t, "acquisitions while paused", asked, 0)
		kit.Equal(t, "handled", got.count(), 3)
		kit.OK(t, be.Resume(t.Context(), "a"))
		pass(time.Second)
		kit.Equal(t, "handled", got.count(), 103)
	})
}

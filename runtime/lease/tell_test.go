package lease_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/operate"
)

// An observer that is slow, blocks, panics or ends its goroutine loses what it would have got.
func TestObserversCostNoLeases(t *testing.T) {
	for name, observe := range map[string]func(ctx context.Context){
		"slow":   func(context.Context) { time.Sleep(12 * time.Second) },
		"blocks": func(ctx context.Context) { <-ctx.Done() },
		"panics": func(context.Context) { panic("no") },
		"exits":  func(context.Context) { runtime.Goexit() },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				ctx, release := context.WithCancel(t.Context())
				be := &opened{Backend: leasemem.New()}
				var got seen
				publish(t, be, "x", 0, 100, nil)
				stop := start(t, newConsumer(t, be, lease.Spec{Handlers: handleAll(&got)}, lease.WithObserver(operate.ObserverFunc(func(operate.Observation) { observe(ctx) }))))
				pass(10 * time.Minute)
				be.mu.Lock()
				if n := len(be.specs); n != 1 {
					t.Errorf("%d sessions were opened, want 1", n)
				}
				be.mu.Unlock()
				got.ordered(t, "x", 100)
				took := stopping(stop)()
				if took > 5*time.Second {
					t.Errorf("stopping took %v", took)
				}
				release()
				time.Sleep(time.Hour) // until the slow one has got all
			})
		})
	}
}

// stubborn is a handler of log lines that does not return, or panics.
type stubborn struct {
	slog.Handler
	handle func()
}

func (h stubborn) Handle(context.Context, slog.Record) error { h.handle(); return nil }

func (h stubborn) WithAttrs([]slog.Attr) slog.Handler { return h }

// So it is with loggers, though everything fails that is logged.
func TestLoggersCostNoLeases(t *testing.T) {
	for name, handle := range map[string]func(ctx context.Context){
		"blocks": func(ctx context.Context) { <-ctx.Done() },
		"panics": func(context.Context) { panic("no") },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				ctx, release := context.WithCancel(t.Context())
				var link faults
				be := &opened{Backend: link.share(leasemem.New())}
				var got seen
				publish(t, be, "x", 0, 10, nil)
				fails := 0
				link.on("SessionHeartbeat", before(func(context.Context) error {
					if fails++; fails%2 == 1 {
						return errLink // and the log says so
					}
					return nil
				}))
				log := slog.New(stubborn{slog.DiscardHandler, func() { handle(ctx) }})
				log = slog.New(enabled{log.Handler()})
				stop := start(t, newConsumer(t, be, lease.Spec{Handlers: handleAll(&got)}, lease.WithLogger(log)))
				pass(10 * time.Minute)
				be.mu.Lock()
				if n := len(be.specs); n != 1 || fails < 10 {
					t.Errorf("%d sessions were opened, want 1; %d heartbeats", n, fails)
				}
				be.mu.Unlock()
				got.ordered(t, "x", 10)
				took := stopping(stop)
				pass(5 * time.Second)
				release()
				if d := took(); d > 5*time.Second {
					t.Errorf("stopping took %v", d)
				}
			})
		})
	}
}

// enabled lets every line through.
type enabled struct{ slog.Handler }

func (enabled) Enabled(context.Context, slog.Level) bool { return true }

func (h enabled) WithAttrs(as []slog.Attr) slog.Handler { return enabled{h.Handler.WithAttrs(as)} }

// A message in the log or an observation that a loop waits for is handed over before Run returns, in order.
func TestAllIsToldBeforeRunReturns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		publish(t, be, "x", 0, 500, nil)
		var got seen
		var rec recorder
		var log logged
		stop := start(t, newConsumer(t, be, lease.Spec{Batch: 7, Handlers: handleAll(&got)}, log.option(), lease.WithObserver(operate.ObserverFunc(func(o operate.Observation) {
			time.Sleep(100 * time.Microsecond)
			rec.Observe(o)
		}))))
		drained(t, be)
		stop()
		if n := len(observed[operate.ObservedHandle](&rec)); n != 500 {
			t.Errorf("%d calls were told, want 500", n)
		}
		so := observed[operate.ObservedSession](&rec)
		if len(so) != 2 || !so[0].Open || so[1].Open {
			t.Errorf("%+v", so)
		}
		if !log.has("acquired leases", "consumer=a") || strings.Contains(log.buf.String(), "dropped") {
			t.Errorf("log %s", log.buf.String())
		}
	})
}

// A flood of calls pushes out no other observation; what it loses is counted.
func TestAFloodOfCallsLeavesRoom(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const topics, each = 20, 1000
		be := leasemem.New()
		for i := range topics {
			publish(t, be, fmt.Sprint("x", i), 0, each, nil)
		}
		publish(t, be, "dead", 0, 1, nil)
		blocked, unblock := context.WithCancel(t.Context())
		var got seen
		var rec recorder
		handle := one(func(_ context.Context, m lease.Message[note]) error {
			got.add(m.Topic, m.Payload.N)
			if m.Topic == "dead" {
				for got.count() < topics*each { // the flood comes first
					time.Sleep(time.Second)
				}
				return lease.DeadLetter("bad")
			}
			return nil
		})
		stop := start(t, newConsumer(t, be, lease.Spec{Batch: 10, Handlers: handle}, lease.WithObserver(operate.ObserverFunc(func(o operate.Observation) {
			<-blocked.Done()
			rec.Observe(o)
		}))))
		pass(10 * time.Minute)
		stop()
		unblock()
		time.Sleep(time.Second)
		calls, dropped := len(observed[operate.ObservedHandle](&rec)), 0
		var became operate.Outcomes
		kinds := map[string]int{}
		for _, c := range observed[operate.ObservedCommit](&rec) {
			became.Add(c.Outcomes)
			for _, k := range c.Kinds {
				kinds[k.Kind] += k.Handled + k.Dead
			}
		}
		for _, d := range observed[operate.ObservedDropped](&rec) {
			dropped += d.Dropped
			became.Add(d.Outcomes)
			for _, k := range d.Kinds {
				kinds[k.Kind] += k.Handled + k.Dead
			}
		}
		if want := (operate.Outcomes{Handled: topics * each, Dead: 1}); became != want || len(kinds) != 1 || kinds["note"] != topics*each+1 {
			t.Errorf("the outcomes are %+v, by kind %v; want %+v", became, kinds, want)
		}
		if calls == 0 || calls+dropped <= topics*each {
			t.Errorf("%d calls were told and %d observations dropped of %d calls and their commits", calls, dropped, topics*each+1)
		}
		if n := len(observed[operate.ObservedRelease](&rec)); n != topics+1 {
			t.Errorf("%d leases given back were told, want %d", n, topics+1)
		}
		if n := len(observed[operate.ObservedDeadLetter](&rec)); n != 1 {
			t.Errorf("%d dead letters were told, want 1", n)
		}
	})
}

// A flood of failures leaves room for what becomes of messages in the end, and for leases.
func TestAFloodOfFailuresLeavesRoom(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const topics, each = 4, 4000
		be := leasemem.New()
		for i := range topics {
			publish(t, be, fmt.Sprint("x", i), 0, each, func(n *note) string { return fmt.Sprint(n.N) })
		}
		publish(t, be, "last", 0, 2000, nil)
		blocked, unblock := context.WithCancel(t.Context())
		var failed atomic.Int64
		var rec recorder
		handle := one(func(_ context.Context, m lease.Message[note]) error {
			if m.Topic != "last" {
				failed.Add(1)
				return errors.New("not yet")
			}
			for failed.Load() < topics*each { // the flood comes first
				time.Sleep(time.Second)
			}
			return lease.DeadLetter("bad")
		})
		stop := start(t, newConsumer(t, be, lease.Spec{Retry: lease.Retry{Min: time.Hour, Cap: time.Hour}, Handlers: handle},
			lease.WithObserver(operate.ObserverFunc(func(o operate.Observation) {
				<-blocked.Done()
				rec.Observe(o)
			}))))
		pass(20 * time.Second)
		if n, err := be.SetCursor(t.Context(), "a", "last", operate.CursorTarget{Now: true}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		pass(2 * time.Second)
		stop()
		unblock()
		time.Sleep(time.Second)
		for what, n := range map[string][2]int{
			"retries":      {len(observed[operate.ObservedRetry](&rec)), 2048},
			"dead letters": {len(observed[operate.ObservedDeadLetter](&rec)), 1000},
			"lost leases":  {len(observed[operate.ObservedLoss](&rec)) - 1, 0},
			"given back":   {len(observed[operate.ObservedRelease](&rec)), topics + 1},
		} {
			if n[0] < n[1] {
				t.Errorf("%d %s were told, want at least %d", n[0], what, n[1])
			}
		}
	})
}

package lease_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/operate"
)

func TestStuckIsReportedOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		publish(t, be, "x", 0, 3, nil)
		var rec recorder
		var got seen
		start(t, newConsumer(t, be, lease.Spec{Handlers: one(func(ctx context.Context, m lease.Message[note]) error {
			if m.Payload.N == 1 {
				time.Sleep(time.Minute)
			}
			got.add(m.Topic, m.Payload.N)
			return ctx.Err()
		})}, lease.WithStuckAfter(10*time.Second, false), lease.WithObserver(&rec)))
		time.Sleep(9 * time.Second)
		if o := observed[operate.ObservedStuck](&rec); len(o) > 0 {
			t.Errorf("reported too early: %+v", o)
		}
		time.Sleep(4 * time.Second)
		if o := observed[operate.ObservedStuck](&rec); len(o) != 1 || o[0].ID != "2" || o[0].Consumer != "a" || o[0].Resource != "x" || o[0].Kind != "note" {
			t.Errorf("reported %+v", o)
		}
		time.Sleep(time.Hour)
		drained(t, be)
		if o := observed[operate.ObservedStuck](&rec); len(o) != 1 {
			t.Errorf("reported %d times", len(o))
		}
		got.ordered(t, "x", 3)
	})
}

func TestStuckIsCancelled(t *testing.T) {
	for _, form := range []string{"one", "tx"} {
		t.Run(form, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				be := leasemem.New()
				publish(t, be, "x", 0, 5, nil)
				var got seen
				do := func(ctx context.Context, m lease.Message[note]) error {
					if m.Payload.N == 1 && m.Attempt <= 2 {
						<-ctx.Done()
						if !errors.Is(context.Cause(ctx), lease.ErrStuck) {
							t.Errorf("cause %v, want ErrStuck", context.Cause(ctx))
						}
						return ctx.Err()
					}
					time.Sleep(9 * time.Second) // not stuck
					if ctx.Err() != nil {
						t.Errorf("#%d was cancelled: %v", m.Payload.N, context.Cause(ctx))
					}
					got.add(m.Topic, m.Payload.N*10+m.Attempt)
					return nil
				}
				h := one(do)
				if form == "tx" {
					h = oneTx(func(ctx context.Context, _ *leasemem.Tx, m lease.Message[note]) error { return do(ctx, m) })
				}
				start(t, newConsumer(t, be, lease.Spec{Handlers: h, Retry: lease.Retry{Order: lease.OrderBlock}}, lease.WithStuckAfter(10*time.Second, true)))
				time.Sleep(5 * time.Minute)
				drained(t, be)
				want := []int{1, 13, 21, 31, 41}
				all := got.of("x")
				if form == "tx" {
					all = all[1:] // #0 was called again, with its effects undone
				}
				for i := range want {
					if i >= len(all) || all[i] != want[i] {
						t.Fatalf("handled %v, want %v", all, want)
					}
				}
			})
		})
	}
}

// A call that outlives its session, or Run, is among those that are stuck until it returns, however early the session ended.
func TestStuckCallsOutliveTheirSession(t *testing.T) {
	for name, early := range map[string]bool{"was stuck before": true, "began just before": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				var link faults
				be := leasemem.New()
				hang := make(chan struct{})
				c := newConsumer(t, link.share(be), lease.Spec{Handlers: one(func(_ context.Context, m lease.Message[note]) error {
					if m.Topic == "x" && m.Attempt == 1 {
						<-hang
					}
					return nil
				})}, lease.WithStuckAfter(20*time.Second, false))
				stuck := func(when string, want int) {
					t.Helper()
					all := c.Health().Stuck
					if len(all) != want || want > 0 && (all[0].Resource != "x" || all[0].Kind != "note" || all[0].ID == "" || all[0].Running < 20*time.Second) {
						t.Errorf("%s: stuck are %+v, want %d", when, all, want)
					}
				}
				stop := start(t, c)
				pass(time.Second)
				fail := func(context.Context, leasemem.Phase) error { return errLink }
				link.on("OpenSession", fail)
				if early {
					publish(t, be, "x", 0, 1, nil)
					pass(time.Minute)
				}
				link.on("SessionHeartbeat", fail)
				pass(12 * time.Second) // of the 13.5 of the belief
				if !early {
					publish(t, be, "x", 0, 1, nil)
				}
				pass(time.Minute)
				if h := c.Health(); h.Session != "" {
					t.Fatalf("there is session %s", h.Session)
				}
				stuck("without a session", 1)
				link.on("SessionHeartbeat", nil)
				link.on("OpenSession", nil)
				pass(time.Minute)
				publish(t, be, "y", 0, 1, nil)
				pass(time.Minute)
				if h := c.Health(); h.Session == "" {
					t.Fatal("there is no session")
				}
				stuck("under the next session", 1)
				stop()
				stuck("when Run has returned", 1)
				close(hang)
				pass(time.Second)
				stuck("when it has returned", 0)
			})
		})
	}
}

package lease_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/operate"
)

// notReady checks that the consumer is not ready, for a reason that names all of the words.
func notReady(t *testing.T, c *lease.Consumer, words ...string) {
	t.Helper()
	err := c.Ready()
	if err == nil {
		t.Fatalf("the consumer is ready, want an error with %q", words)
	}
	for _, w := range append(words, `consumer "a"`) {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %v, want one with %q", err, w)
		}
	}
}

// A consumer that has work and does not get on with it says so, once, and says for what it waits;
// and says so when it goes on. Its heartbeats go on all the time.
func TestStandingStillIsTold(t *testing.T) {
	for _, c := range []struct {
		op   string // that is not answered
		want string
	}{
		{"Register", "its resources to be registered"},
		{"Survey", "a survey of its leases"},
		{"Acquire", "leases to be acquired"},
		{"FeedNext", "news: the feed does not answer"},
		{"Fetch", "a read of x"},
		{"FetchParked", "a read of parked messages"},
		{"Commit", "progress to be stored of x"},
		{"Begin", "a transaction for x: the backend begins none"},
		{"handler", "a handler on x; 1 of at most 16 run"},
	} {
		t.Run(c.op, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				be := leasemem.New()
				var link faults
				var rec recorder
				var log logged
				gate := make(chan struct{})
				publish(t, be, "x", 0, 3, nil)
				stuck := func(ctx context.Context) error {
					select {
					case <-gate:
						return nil
					case <-ctx.Done():
						return ctx.Err()
					}
				}
				link.on(c.op, before(stuck))
				handlers := one(func(ctx context.Context, m lease.Message[note]) error {
					if c.op == "handler" {
						return stuck(ctx)
					}
					return nil
				})
				if c.op == "Begin" {
					handlers = oneTx(func(context.Context, *leasemem.Tx, lease.Message[note]) error { return nil })
				}
				a := newConsumer(t, link.share(be), lease.Spec{Handlers: handlers}, log.option(), lease.WithObserver(&rec), lease.WithStallAfter(40*time.Second), lease.WithStuckAfter(40*time.Second, false))
				notReady(t, a, "does not run")
				stop := start(t, a)
				pass(30 * time.Second)
				if n := len(observed[operate.ObservedStalled](&rec)); n > 0 {
					t.Errorf("told too early: %+v", observed[operate.ObservedStalled](&rec))
				}
				pass(5 * time.Minute)
				told := observed[operate.ObservedStalled](&rec)
				if len(told) == 0 || told[0].Over || told[0].Consumer != "a" || !strings.Contains(told[0].Waits, c.want) || !strings.Contains(told[0].Waits, "since ") {
					t.Fatalf("told %+v, want %q", told, c.want)
				}
				if !log.has("stands still", "consumer=a", c.want) {
					t.Errorf("the log does not say %q", c.want)
				}
				if c.op == "Register" || c.op == "FeedNext" {
					notReady(t, a)
				} else {
					notReady(t, a, c.want)
				}
				close(gate)
				pass(2 * time.Minute)
				drained(t, be)
				told = observed[operate.ObservedStalled](&rec)
				over := 0
				for _, o := range told {
					if o.Over {
						over++
					}
				}
				if over == 0 || over*2 != len(told) || !log.has("goes on") {
					t.Errorf("of %d that were told, %d say that it goes on", len(told), over)
				}
				if err := a.Ready(); err != nil {
					t.Errorf("it is not ready when it goes on: %v", err)
				}
				if n := len(observed[operate.ObservedSession](&rec)); n != 1 {
					t.Errorf("the session was told of %d times: it should live", n)
				}
				stop()
				notReady(t, a, "does not run")
			})
		})
	}
}

// A consumer that gets on, or has no work, is silent; so is one whose Run runs.
func TestGettingOnIsNotTold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		var rec recorder
		slow := newConsumer(t, be, lease.Spec{Handlers: one(func(context.Context, lease.Message[note]) error {
			time.Sleep(9 * time.Second)
			return nil
		})}, lease.WithObserver(&rec), lease.WithStallAfter(10*time.Second), lease.WithStuckAfter(10*time.Second, false), lease.WithConcurrency(1))
		s := singleton(func(ctx context.Context, _ lease.Lease) error { <-ctx.Done(); return nil })
		s.Name = "leader"
		leader := newConsumer(t, be, s, lease.WithObserver(&rec), lease.WithStallAfter(10*time.Second))
		g := lease.NewGroup()
		if g.Ready() == nil {
			t.Error("an empty group is ready")
		}
		if err := errors.Join(g.Add(slow), g.Add(leader)); err != nil {
			t.Fatal(err)
		}
		start(t, g)
		for topic := range 5 {
			publish(t, be, string(rune('p'+topic)), 0, 20, nil)
		}
		pass(10 * time.Minute)
		if err := g.Ready(); err != nil {
			t.Error(err)
		}
		time.Sleep(20 * time.Minute)
		drained(t, be)
		if o := observed[operate.ObservedStalled](&rec); len(o) > 0 {
			t.Errorf("told %+v", o)
		}
		if err := g.Ready(); err != nil {
			t.Error(err)
		}
	})
}

// Without a session the cause is named.
func TestReadyNamesWhyThereIsNoSession(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		var link faults
		link.on("OpenSession", before(func(context.Context) error { return errLink }))
		a := newConsumer(t, link.share(be), lease.Spec{Handlers: handleAll(&seen{})})
		start(t, a)
		pass(time.Minute)
		notReady(t, a, "has no session", errLink.Error())
		link.on("OpenSession", nil)
		link.on("OpenFeed", before(func(context.Context) error { return errLink }))
		pass(time.Minute)
		notReady(t, a, "feed is not open", errLink.Error())
		link.on("OpenFeed", nil)
		pass(time.Minute)
		if err := a.Ready(); err != nil {
			t.Error(err)
		}
	})
}

// A handler that ignores that its lease was lost keeps its resource from this process: that stands still, until it returns.
func TestStandsStillBehindAHandlerThatLostItsLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		var f faults
		release := make(chan struct{})
		c := newConsumer(t, f.share(be), lease.Spec{TTL: 5 * time.Second, Handlers: one(func(context.Context, lease.Message[note]) error { <-release; return nil })},
			lease.WithStallAfter(2*time.Second))
		publish(t, be, "x", 0, 3, nil)
		stop := start(t, c)
		pass(time.Second)
		f.on("SessionHeartbeat", before(func(context.Context) error { return backend.ErrSessionLost }))
		pass(3 * time.Second)
		f.on("SessionHeartbeat", nil)
		pass(time.Minute)
		if err := c.Ready(); err == nil || !strings.Contains(err.Error(), "whose leases were lost: x") {
			t.Errorf("while the handler runs on: %v", err)
		}
		close(release)
		pass(10 * time.Second)
		if err := c.Ready(); err != nil || status(t, be).LagTotal != 0 {
			t.Errorf("when it has returned: %v, %+v", err, status(t, be))
		}
		stop()
	})
}

// Commits of transactions that are refused for ever, or of unknown outcome, are no progress, though handlers are called. One
// that is refused once is no standstill.
func TestStandsStillWhileCommitsFail(t *testing.T) {
	for name, broken := range map[string]error{"unknown": errLink, "fenced": backend.ErrFenced} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				be := leasemem.New()
				var f faults
				fails := func(context.Context) error { return broken }
				f.on("TxCommit", before(fails))
				c := newConsumer(t, f.share(be), lease.Spec{Handlers: oneTx(func(context.Context, *leasemem.Tx, lease.Message[note]) error { return nil })})
				publish(t, be, "x", 0, 3, nil)
				stop := start(t, c)
				pass(2 * time.Minute)
				if err := c.Ready(); err == nil || !strings.Contains(err.Error(), "progress to be stored") {
					t.Errorf("while commits fail: %v", err)
				}
				f.on("TxCommit", nil)
				pass(20 * time.Second)
				if err := c.Ready(); err != nil || status(t, be).LagTotal != 0 {
					t.Errorf("when they do not any more: %v, %+v", err, status(t, be))
				}
				left := 1
				f.on("TxCommit", before(func(context.Context) error {
					if left--; left == 0 {
						return broken
					}
					return nil
				}))
				publish(t, be, "x", 3, 4, nil)
				for range 120 {
					pass(time.Second)
					if err := c.Ready(); err != nil {
						t.Fatalf("after one commit that failed: %v", err)
					}
				}
				stop()
			})
		})
	}
}

package lease_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/operate"
)

type mark struct{}

// Middleware is around the calls of every form, knows what they are about, and what it puts into the context is there.
func TestMiddlewareIsAroundEveryForm(t *testing.T) {
	handled := make(chan string, 10)
	say := func(ctx context.Context) error { handled <- fmt.Sprint(ctx.Value(mark{})); return nil }
	for name, tc := range map[string]struct {
		handler   lease.Handler
		batch, tx bool
	}{
		"one":      {lease.One("note", func(ctx context.Context, _ lease.Message[note]) error { return say(ctx) }), false, false},
		"batch":    {lease.Batch("note", func(ctx context.Context, _ []lease.Message[note]) error { return say(ctx) }), true, false},
		"one tx":   {lease.OneTx("note", func(ctx context.Context, _ *leasemem.Tx, _ lease.Message[note]) error { return say(ctx) }), false, true},
		"batch tx": {lease.BatchTx("note", func(ctx context.Context, _ *leasemem.Tx, _ []lease.Message[note]) error { return say(ctx) }), true, true},
		"run":      {lease.Run(func(ctx context.Context, _ lease.Lease) error { say(ctx); <-ctx.Done(); return nil }), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			be := leasemem.New()
			var calls []lease.Call
			outer := func(next lease.CallFunc) lease.CallFunc {
				return func(ctx context.Context, c lease.Call) error {
					calls = append(calls, c)
					return next(context.WithValue(ctx, mark{}, "outer"), c)
				}
			}
			inner := func(next lease.CallFunc) lease.CallFunc {
				return func(ctx context.Context, c lease.Call) error {
					return next(context.WithValue(ctx, mark{}, fmt.Sprint(ctx.Value(mark{}), ", inner")), c)
				}
			}
			spec := lease.Spec{Handlers: []lease.Handler{tc.handler}}
			if name == "run" {
				spec.Per = lease.PerCluster
			}
			c := newConsumer(t, be, spec, lease.WithMiddleware(outer), lease.WithMiddleware(inner))
			err := be.Publish(t.Context(), []lease.Event{{Topic: "x", Kind: "note", Key: "k", Payload: []byte("{}"), Headers: map[string]string{"h": "v"}}})
			if err != nil {
				t.Fatal(err)
			}
			stop := start(t, c)
			if got := <-handled; got != "outer, inner" {
				t.Errorf("the handler's context has %q", got)
			}
			stop()
			if len(calls) != 1 {
				t.Fatalf("%d calls, want 1", len(calls))
			}
			call := calls[0]
			if call.Consumer != "a" || call.Resource == "" || call.Epoch == 0 || call.Batch != tc.batch || call.Tx != tc.tx {
				t.Errorf("the call is %+v", call)
			}
			if name == "run" {
				if call.Kind != "" || call.Messages != nil {
					t.Errorf("the call of a Run handler is %+v", call)
				}
				return
			}
			if len(call.Messages) != 1 || call.Kind != "note" {
				t.Fatalf("the call is %+v", call)
			}
			if m := call.Messages[0]; m.ID == "" || m.Topic != "x" || m.Key != "k" || m.Headers["h"] != "v" || m.Attempt != 1 || m.PublishedAt.IsZero() {
				t.Errorf("the message is %+v", m)
			}
		})
	}
}

// The error of middleware is the call's: it refuses, swallows and replaces, its panics are a handler's, and its changes of
// headers reach neither the handler nor the next attempt.
func TestMiddlewareDecides(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		var mu sync.Mutex
		var log []string
		mw := func(next lease.CallFunc) lease.CallFunc {
			return func(ctx context.Context, c lease.Call) error {
				m := c.Messages[0]
				m.Headers["own"] = "changed"
				first := m.Attempt == 1
				switch {
				case m.Key == "refused" && first:
					return errors.New("not now")
				case m.Key == "swallowed":
					return nil
				case m.Key == "replaced":
					_ = next(ctx, c)
					return lease.DeadLetter("by policy")
				case m.Key == "panic" && first:
					panic("of middleware")
				case m.Key == "foreign" && first:
					return next(ctx, lease.Call{Kind: c.Kind})
				}
				return next(ctx, c)
			}
		}
		var retries []operate.ObservedRetry
		var handles []operate.ObservedHandle
		observer := operate.ObserverFunc(func(o operate.Observation) {
			mu.Lock()
			defer mu.Unlock()
			switch o := o.(type) {
			case operate.ObservedRetry:
				retries = append(retries, o)
			case operate.ObservedHandle:
				handles = append(handles, o)
			}
		})
		c := newConsumer(t, be, lease.Spec{Retry: lease.Retry{Min: time.Second}, Handlers: one(func(_ context.Context, m lease.Message[note]) error {
			mu.Lock()
			defer mu.Unlock()
			log = append(log, fmt.Sprintf("%s %d %s", m.Key, m.Attempt, m.Headers["own"]))
			return nil
		})}, lease.WithMiddleware(mw), lease.WithObserver(observer))
		var events []lease.Event
		for _, key := range []string{"refused", "swallowed", "replaced", "panic", "foreign", "plain"} {
			events = append(events, lease.Event{Topic: "x", Kind: "note", Key: key, Payload: []byte("{}"), Headers: map[string]string{"own": "as sent"}})
		}
		if err := be.Publish(t.Context(), events); err != nil {
			t.Fatal(err)
		}
		stop := start(t, c)
		pass(time.Minute)
		stop()
		synctest.Wait()
		slices.Sort(log)
		want := []string{"foreign 2 as sent", "panic 2 as sent", "plain 1 as sent", "refused 2 as sent", "replaced 1 as sent"}
		if !slices.Equal(log, want) {
			t.Errorf("handled %q, want %q", log, want)
		}
		dead, err := be.DeadLetters(context.Background(), operate.DeadLetterFilter{Consumer: "a", Limit: 10})
		if err != nil || len(dead) != 1 || dead[0].Key != "replaced" || !strings.Contains(dead[0].Reason, "by policy") {
			t.Errorf("dead letters: %+v, %v", dead, err)
		}
		var reasons []string
		for _, r := range retries {
			if r.Consumer != "a" || r.Resource != "x" || r.Kind != "note" || r.ID == "" || r.Attempt != 1 || r.After <= 0 {
				t.Errorf("observed %+v", r)
			}
			reasons = append(reasons, r.Reason)
		}
		all := strings.Join(reasons, "; ")
		if len(retries) != 3 || !strings.Contains(all, "not now") || !strings.Contains(all, "of middleware") || !strings.Contains(all, "was not given") {
			t.Errorf("observed retries for %q", reasons)
		}
		attempts := 0
		for _, h := range handles {
			attempts = max(attempts, h.Attempt)
			if h.PublishedAt.IsZero() {
				t.Errorf("observed %+v", h)
			}
		}
		if len(handles) != 9 || attempts != 2 {
			t.Errorf("%d calls were observed, the highest attempt is %d; want 9 and 2", len(handles), attempts)
		}
	})
}

// Middleware calls next once, while it has not returned; other calls do not come to the handler.
func TestMiddlewareCallsNextOnce(t *testing.T) {
	for _, form := range []string{"one", "batch", "tx", "run"} {
		t.Run(form, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				var late func() error
				mw := func(next lease.CallFunc) lease.CallFunc {
					return func(ctx context.Context, c lease.Call) error {
						late = func() error { return next(context.WithoutCancel(ctx), c) }
						if err := next(ctx, c); err != nil {
							return err
						}
						if err := next(ctx, c); err == nil || !strings.Contains(err.Error(), "twice") {
							t.Errorf("the second call of next: %v", err)
						}
						return nil
					}
				}
				calls := 0
				spec := lease.Spec{Handlers: one(func(context.Context, lease.Message[note]) error { calls++; return nil })}
				switch form {
				case "batch":
					spec.Handlers = []lease.Handler{lease.Batch("note", func(context.Context, []lease.Message[note]) error { calls++; return nil })}
				case "tx":
					spec.Handlers = oneTx(func(context.Context, *leasemem.Tx, lease.Message[note]) error { calls++; return nil })
				case "run":
					spec.Per = lease.PerCluster
					spec.Handlers = []lease.Handler{lease.Run(func(ctx context.Context, _ lease.Lease) error { calls++; <-ctx.Done(); return nil })}
				}
				be := leasemem.New()
				publish(t, be, "x", 0, 1, nil)
				stop := start(t, newConsumer(t, be, spec, lease.WithMiddleware(mw)))
				pass(time.Second)
				stop()
				if err := late(); err == nil || !strings.Contains(err.Error(), "had returned") {
					t.Errorf("the late call of next: %v", err)
				}
				if calls != 1 {
					t.Errorf("the handler was called %d times, want 1", calls)
				}
			})
		})
	}
}

// Middleware that returns before a handler that it called in another goroutine: the lease is not given back, nor the message
// tried again, until that has returned.
func TestMiddlewareThatDoesNotWait(t *testing.T) {
	bubble(t, func(t *testing.T) {
		impatient := func(next lease.CallFunc) lease.CallFunc {
			return func(ctx context.Context, c lease.Call) error {
				done := make(chan error, 1)
				go func() { done <- next(ctx, c) }()
				select {
				case err := <-done:
					return err
				case <-time.After(time.Second):
					return errors.New("took too long")
				}
			}
		}
		var running, most, calls atomic.Int64
		be := leasemem.New()
		c := newConsumer(t, be, lease.Spec{Drain: time.Minute, Retry: lease.Retry{Min: 100 * time.Millisecond},
			Handlers: one(func(context.Context, lease.Message[note]) error {
				most.Store(max(most.Load(), running.Add(1)))
				defer running.Add(-1)
				calls.Add(1)
				time.Sleep(10 * time.Second)
				return nil
			})}, lease.WithMiddleware(impatient))
		publish(t, be, "x", 0, 1, nil)
		stop := start(t, c)
		pass(15 * time.Second)
		stop()
		if most.Load() != 1 || running.Load() != 0 || calls.Load() < 2 {
			t.Errorf("%d calls, %d at once, %d when Run had returned; want at least 2, 1 and none", calls.Load(), most.Load(), running.Load())
		}
	})
}

// A commit is observed with how long it took.
func TestCommitsAreTimed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New(leasemem.WithFaults(func(_ context.Context, op string, phase leasemem.Phase) error {
			if op == "Commit" && phase == leasemem.Before {
				time.Sleep(30 * time.Millisecond)
			}
			return nil
		}))
		var took []time.Duration
		c := newConsumer(t, be, lease.Spec{Handlers: one(func(context.Context, lease.Message[note]) error { return nil })},
			lease.WithObserver(operate.ObserverFunc(func(o operate.Observation) {
				if o, ok := o.(operate.ObservedCommit); ok {
					took = append(took, o.Duration)
				}
			})))
		publish(t, be, "x", 0, 1, nil)
		stop := start(t, c)
		pass(time.Second)
		stop()
		if len(took) != 1 || took[0] != 30*time.Millisecond {
			t.Errorf("commits took %v, want 30ms", took)
		}
	})
}

func TestMiddlewareThatIsNil(t *testing.T) {
	for name, m := range map[string]lease.Middleware{
		"nil":         nil,
		"returns nil": func(lease.CallFunc) lease.CallFunc { return nil },
	} {
		_, err := lease.NewConsumer(leasemem.New(), lease.Spec{Name: "a", Per: lease.PerTopic, Topics: []string{"*"},
			Handlers: one(func(context.Context, lease.Message[note]) error { return nil })}, lease.WithMiddleware(m))
		if err == nil || !strings.Contains(err.Error(), `consumer "a"`) || !strings.Contains(strings.ToLower(err.Error()), "middleware") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

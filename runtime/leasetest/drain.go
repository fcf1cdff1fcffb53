package leasetest

import (
	"context"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/operate"
)

// Drain runs consumer until it has dealt with every message that was published to be
// before: handled it, skipped it, or made a dead letter of it. Then it stops the
// consumer and waits for it. The test fails at once when that takes longer than 30
// seconds; retries count, so give the consumer a short backoff. Events that are published
// for later are waited for on the memory backend only.
// It may be called inside t.Cleanup. The backend needs an operator, which all of leasegen's have.
//
//	be := leasemem.New()
//	h := &Billing{}
//	consumer, err := NewBilling(be, h, lease.WithRetry(lease.Retry{Min: time.Millisecond}))
//	// ...
//	err = PublishOrderPlaced(ctx, be, "orders.eu", OrderPlaced{OrderID: "1", Cents: 990})
//	// ...
//	leasetest.Drain(t, be, consumer)
//	// now look at what h did, and at be.DeadLetters
func Drain(t testing.TB, be lease.Backend, consumer *lease.Consumer) {
	t.Helper()
	operator := be.Capabilities().Operator
	if operator == nil {
		t.Fatalf("drain consumer %s: the backend %T has no operator to ask what is left", consumer.Name(), be)
	}
	parent := context.WithoutCancel(t.Context())                      // which ends before the functions of t.Cleanup are called
	if err := be.Register(parent, consumer.Info(), nil); err != nil { // from now on status counts all messages
		t.Fatalf("register consumer %s: %v", consumer.Name(), err)
	}
	ctx, cancel := context.WithCancel(parent)
	done := make(chan error, 1)
	go func() { done <- consumer.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("consumer %s: %v", consumer.Name(), err)
		}
	}()
	const limit = 30 * time.Second
	again := true // registered since the log was last seen with something in it
	for began := time.Now(); ; {
		st, err := statusOf(ctx, operator, consumer.Name())
		if err != nil {
			t.Fatalf("status of consumer %s: %v", consumer.Name(), err)
		}
		switch {
		case st.Paused:
			t.Fatalf("drain consumer %s: it is paused; resume it first", consumer.Name())
		case st.LagTotal > 0 || st.ParkedKeys > 0 || st.Delayed > 0:
			again = false
		case again:
			return
		default: // what was published for later may be on topics that no process knows yet
			if err := be.Register(ctx, consumer.Info(), nil); err != nil {
				t.Fatalf("register consumer %s: %v", consumer.Name(), err)
			}
			again = true
			continue
		}
		select {
		case err := <-done:
			done <- err
			t.Fatalf("consumer %s ended before the log was drained: %v", consumer.Name(), err)
		case <-time.After(2 * time.Millisecond):
		}
		if time.Since(began) > limit {
			t.Fatalf("consumer %s did not drain the log within %v: %d messages behind, %d published for later, %d parked keys, %d of %d resources unowned",
				consumer.Name(), limit, st.LagTotal, st.Delayed, st.ParkedKeys, st.Unowned, st.Resources)
		}
	}
}

// statusOf returns the consumer's line of status. The lag of one that is not there yet is -1: it is not drained.
func statusOf(ctx context.Context, op operate.Operator, name string) (operate.ConsumerStatus, error) {
	all, err := op.Status(ctx)
	for _, st := range all {
		if st.Consumer == name {
			return st, err
		}
	}
	return operate.ConsumerStatus{LagTotal: -1}, err
}

package leasetest

import (
	"context"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/operate"
)

// crowded is a consumer with more handlers in transactions at work than a pool has connections:
// in each of 20 topics one key fails twice, another for good, and others wait behind them.
func crowded(t testing.TB, w *world, order lease.Order) {
	const topics, each = 20, 8
	w.publish(onEach(names("t", topics), each, "a", "b", "c")...)
	s := spec()
	s.Retry.Order = order
	p := w.startWith(s, w.inTx(func(_ context.Context, _ *process, m lease.Message[payload]) error {
		switch {
		case m.Payload.N == 1 && m.Attempt <= 2, m.Payload.N == 2, m.Payload.N == 4 && m.Attempt == 1:
			return errHandler
		}
		time.Sleep(time.Millisecond) // so that all are at work at once
		return nil
	}), lease.WithBatch(5), lease.WithConcurrency(16))
	w.finished(topics * (each - 1))
	kit.Equal(t, "dead letters", len(w.dead()), topics)
	allOnce(t, "effects", counts(w.f.Effects(t, w.be)), topics*(each-1))
	if order == lease.OrderBlock {
		inOrder(t, w.successes(), byTopic)
	}
	kit.Equal(t, "leases lost", len(observations[operate.ObservedLoss](p)), 0)
}

var poolScenarios = []check{
	{"Pool_Failing_keys_in_transactions_leave_connections_for_the_rest_order=key", inEffectsWorld(func(t testing.TB, w *world) {
		crowded(t, w, lease.OrderKey)
	})},
	{"Pool_Failing_keys_in_transactions_leave_connections_for_the_rest_order=block", inEffectsWorld(func(t testing.TB, w *world) {
		crowded(t, w, lease.OrderBlock)
	})},
	{"Pool_Failing_keys_in_transactions_leave_connections_for_the_rest_order=none", inEffectsWorld(func(t testing.TB, w *world) {
		crowded(t, w, lease.OrderNone)
	})},
	{"Pool_Once_in_transactions_with_many_at_work", inEffectsWorld(func(t testing.TB, w *world) {
		needs(t, w.be.Capabilities().Ledger != nil, "the backend keeps no ledger")
		const topics, items = 24, 8
		w.publish(onEach(names("t", topics), items, "a", "b")...)
		s := spec()
		s.Retry.Max = 20
		w.startWith(s, func(*process) []lease.Handler {
			return []lease.Handler{lease.Once(lease.OneTx("order", func(ctx context.Context, tx any, m lease.Message[payload]) error {
				if err := w.f.Effect(ctx, w.be, tx, itemOf(&m.Payload)); err != nil {
					return err
				}
				if m.Payload.N == 3 && m.Attempt == 1 {
					return errHandler
				}
				return nil
			}), itemOf, lease.OnUnknownRetry)}
		}, lease.WithBatch(1), lease.WithConcurrency(16))
		w.drained()
		kit.Equal(t, "effects", len(w.f.Effects(t, w.be)), items) // all topics have the same items
		kit.Equal(t, "dead letters", len(w.dead()), 0)
	})},
}

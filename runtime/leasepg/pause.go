package leasepg

import (
	"context"
	"errors"

	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
)

// Pause stops the work on a consumer until Resume. It waits for acquisitions of leases that are under way, two seconds at most.
func (op *operator) Pause(ctx context.Context, consumer string) error {
	return op.fail("pause "+consumer, op.pause(ctx, consumer, true))
}

// Resume ends a pause, as Pause begins it.
func (op *operator) Resume(ctx context.Context, consumer string) error {
	return op.fail("resume "+consumer, op.pause(ctx, consumer, false))
}

func (op *operator) pause(ctx context.Context, consumer string, paused bool) error {
	known := false
	err := op.pipeline(ctx, op.pool, durable(ctx),
		func(q *leasedb.Queries) (err error) {
			known, err = q.PauseConsumer(ctx, leasedb.PauseConsumerParams{Consumer: consumer, Paused: paused})
			return err
		},
		op.notify(ctx, wakeOwnership))
	if err == nil && !known {
		err = errors.New("there is no such consumer; the status lists those there are")
	}
	return err
}

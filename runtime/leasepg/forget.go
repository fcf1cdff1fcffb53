package leasepg

import (
	"context"
	"fmt"
)

// Forget deletes a consumer that no live process is a member of, with its leases, cursors,
// parked messages and executed items, so that the log need not be kept for it any longer: one
// that was renamed, for example. It refuses while there are dead letters; replay or purge them first.
// It takes the role that migrated, and no program of the consumer may start in between. One that
// runs later begins again.
func (op *operator) Forget(ctx context.Context, consumer string) error {
	n, err := op.queries(op.pool).ForgetConsumer(ctx, consumer)
	if err != nil {
		return op.fail("forget consumer "+consumer, err)
	}
	if n == 0 {
		return fmt.Errorf("leasepg: forget consumer %q: it has live members or dead letters, or there is none; see leasegen status", consumer)
	}
	return nil
}

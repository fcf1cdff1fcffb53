package leasepg

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
)

// forgetAfter is how long ended sessions are kept, for people who look; restedFor how long
// streams without work are.
const (
	forgetAfter = time.Hour
	restedFor   = 24 * time.Hour
)

// forgetRows bounds how many items and ids are forgotten in one go.
const forgetRows = 20_000

// Maintain does the housekeeping. Replicas that race leave it to one.
func (b *Backend) Maintain(ctx context.Context, consumers []lease.ConsumerInfo) (lease.MaintainReport, error) {
	var r lease.MaintainReport
	err := pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error {
		q := b.queries(tx)
		mine, err := q.TryMaintain(ctx)
		if err != nil || !mine {
			return err
		}
		for _, c := range consumers {
			if c.Keep > 0 {
				n, err := q.ExpireDeadLetters(ctx, leasedb.ExpireDeadLettersParams{Consumer: c.Name, Keep: c.Keep})
				if err != nil {
					return err
				}
				r.DeadLettersExpired += int(n)
			}
			if c.Max > 0 {
				n, err := q.BoundDeadLetters(ctx, leasedb.BoundDeadLettersParams{Consumer: c.Name, Max: int64(c.Max)})
				if err != nil {
					return err
				}
				r.DeadLettersDropped += int(n)
			}
			if c.OnceKeep > 0 {
				n, err := q.ForgetOnce(ctx, leasedb.ForgetOnceParams{Consumer: c.Name, Keep: c.OnceKeep, Max: forgetRows})
				if err != nil {
					return err
				}
				r.OnceForgotten += int(n)
			}
		}
		buried, err := q.BuryExpired(ctx) // those that owned nothing: nobody else looks at them
		if err != nil {
			return err
		}
		if buried > 0 {
			if err := b.notify(ctx, wakeOwnership)(q); err != nil {
				return err
			}
		}
		ids, err := q.ForgetIDs(ctx, forgetRows)
		if err != nil {
			return err
		}
		r.IDsForgotten = int(ids)
		forgotten, err := q.ForgetSessions(ctx, forgetAfter)
		if err != nil {
			return err
		}
		r.SessionsForgotten = int(forgotten)
		end, err := q.LogEnd(ctx)
		if err != nil {
			return err
		}
		ahead, err := q.EnsureSegments(ctx, end.LastDrawn+segmentsAhead)
		if err != nil {
			return err
		}
		b.logEnd.Store(ahead)
		return nil
	})
	if err != nil {
		return r, b.fail("maintain", err)
	}
	for _, c := range consumers {
		if err := b.narrow(ctx, c); err != nil {
			return r, b.fail("drop patterns of "+c.Name, err)
		}
	}
	// By themselves: who registers streams, or reads the log, is not to wait for the rest.
	forgotten, err := b.queries(b.pool).ForgetStreams(ctx, restedFor)
	if err != nil {
		return r, b.fail("maintain", err)
	}
	r.StreamsForgotten = int(forgotten)
	dropped, err := b.queries(b.pool).DropSegments(ctx)
	r.SegmentsDropped = int(dropped)
	return r, b.fail("maintain", err)
}

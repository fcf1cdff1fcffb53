package leasepg

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
)

const (
	releaseRows = 1000        // delayed events moved in one transaction
	releaseFail = time.Second // before the next try
)

// nextDelayed is a step that tells how long until a delayed event is due: never below
// that, and negative when there is none. It probes an index once, and writes no rows.
func nextDelayed(ctx context.Context, next *time.Duration) step {
	return func(q *leasedb.Queries) error {
		micros, err := q.NextDelayed(ctx)
		*next = time.Duration(micros) * time.Microsecond
		return err
	}
}

// releaseDelayed moves delayed events that are due into the log, in the order of their
// time and then of their publication. Of processes that race, one moves them.
func (p *publisher) releaseDelayed(ctx context.Context, on database) error {
	if err := p.makeRoom(ctx, on, releaseRows); err != nil {
		return err
	}
	for moved := int64(releaseRows); moved == releaseRows; {
		var last int64
		err := pgx.BeginFunc(ctx, on.(beginner), func(tx pgx.Tx) error {
			q := p.queries(tx)
			r, err := q.ReleaseDelayed(ctx, releaseRows)
			if err != nil || r.Moved == 0 {
				moved = 0
				return err
			}
			moved, last = r.Moved, r.Last
			return p.notify(ctx, wakeMessages)(q)
		})
		if err != nil {
			return err
		}
		p.keepAhead(ctx, last)
	}
	return nil
}

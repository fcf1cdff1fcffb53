package leasepg

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
	"github.com/leasegen/leasegen/runtime/leasepg/pgtable"
)

// everything is a snapshot that shows what any transaction has written.
const everything = "9223372036854775806:9223372036854775806:"

// missedPage is how many rows mendTable reads at once.
const missedPage = 1000

// mendTable makes a consumer's cursors usable after the schema was restored into another
// cluster and restamped: what they had not passed, because it was committed late, is parked,
// due at once; everything else up to their positions counts as passed. The first replica
// does it, the others wait.
func (ts *tables) mendTable(ctx context.Context, t *tableSource, consumer string) error {
	err := pgx.BeginFunc(ctx, ts.pool, func(tx pgx.Tx) error {
		q := ts.queries(tx)
		foreign, err := q.ForeignCursors(ctx, consumer)
		if err != nil || !foreign {
			if errors.Is(err, pgx.ErrNoRows) {
				return nil
			}
			return err
		}
		if foreign, err = q.LockForeignCursors(ctx, consumer); err != nil || !foreign {
			return err
		}
		if _, err := tx.Exec(ctx, boundedLocks); err != nil {
			return err
		}
		if t.Topics != nil { // topics without a lease have begun at a start that is foreign, too
			topics, err := t.Topics(ctx, ts.catalogued(tx))
			if err != nil {
				return err
			}
			if _, err := q.RegisterResources(ctx, leasedb.RegisterResourcesParams{Consumer: consumer, Resources: append([]string{}, topics...)}); err != nil {
				return err
			}
		}
		cursors, err := q.CursorsToMend(ctx, consumer)
		if err != nil {
			return err
		}
		for _, c := range cursors {
			missed, err := t.between(ctx, ts.catalogued(tx), c.Resource, 0, c.Pos, c.Snap, everything)
			if err != nil {
				return err
			}
			read := map[int64]bool{} // page by page, when the copy was made
			if c.LateSnap != "" {
				rows, err := t.between(ctx, ts.catalogued(tx), c.Resource, 0, c.LatePos, c.Snap, c.LateSnap)
				if err != nil {
					return err
				}
				for _, id := range rows {
					read[id] = true
				}
			}
			p := leasedb.ParkMissedParams{Consumer: consumer, Resource: c.Resource}
			for _, id := range missed {
				if !read[id] {
					p.Ids = append(p.Ids, id)
				}
			}
			if len(p.Ids) == 0 {
				continue
			}
			copies, err := ts.copyRows(ctx, t, tx, p.Ids)
			if err != nil {
				return err
			}
			p.Topics, p.Keys, p.Kinds, p.Payloads = copies.topics, copies.keys, copies.kinds, copies.payloads
			if err := q.ParkMissed(ctx, p); err != nil {
				return err
			}
		}
		if err := q.MendCursors(ctx, consumer); err != nil {
			return err
		}
		return q.MendStart(ctx, consumer)
	})
	return ts.blameTable(t, err)
}

// between returns the positions of a resource's rows beyond after and up to upto that snap
// did not show and lateSnap does.
func (t *tableSource) between(ctx context.Context, db pgtable.Querier, resource string, after, upto int64, snap, lateSnap string) ([]int64, error) {
	var out []int64
	for {
		rows, err := t.Read(ctx, db, pgtable.ReadParams{
			PagedItems: []int32{0}, PagedResources: []string{resource}, PagedAfter: []int64{after}, PagedUpto: []int64{upto},
			PagedSnaps: []string{snap}, PagedLateSnaps: []string{lateSnap}, PagedLimits: []int64{missedPage}, Scan: 1,
		})
		if err != nil {
			return nil, err
		}
		for _, r := range rows {
			out = append(out, r.Position)
		}
		if len(rows) < missedPage {
			return out, nil
		}
		after = rows[len(rows)-1].Position
	}
}

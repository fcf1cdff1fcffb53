package leasepg

import (
	"context"
	"math"
	"slices"
	"strconv"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
	"github.com/leasegen/leasegen/runtime/operate"
)

// eachParked calls do with parked messages that a filter selects, some at a time, in the order of the index.
func (op *operator) eachParked(ctx context.Context, f operate.ParkedFilter, do func([]leasedb.FindParkedRow) error) error {
	p := leasedb.FindParkedParams{Consumer: f.Consumer, Resource: f.Resource, Key: f.Key, Ids: []int64{}}
	if f.After != "" {
		after, err := backend.DecodePlace(f.After, 3)
		if err != nil {
			return err
		}
		if p.AfterResource, p.AfterLane = after[0], after[1]; f.Resource != "" && p.AfterResource != f.Resource {
			if p.AfterLane = ""; p.AfterResource > f.Resource {
				return nil
			}
		} else if p.AfterSeq, err = strconv.ParseInt(after[2], 10, 64); err != nil {
			return backend.NoPlace(f.After)
		}
	}
	ids, err := numbers("message", f.IDs)
	if err != nil || !storable(f.Consumer, f.Resource, f.Key, p.AfterResource, p.AfterLane) {
		return err
	}
	if slices.Sort(ids); len(ids) > 0 {
		p.Ids = slices.Compact(ids)
	}
	left := int64(f.Limit)
	if left == 0 {
		left = math.MaxInt64
	}
	for left > 0 {
		p.Scan = operatorScan
		if f.Key == "" && len(p.Ids) == 0 {
			p.Scan = min(left, operatorRows)
		}
		p.Max = min(left, operatorScan)
		var rows []leasedb.FindParkedRow
		if err := op.pipeline(ctx, op.pool,
			func(q *leasedb.Queries) error { return q.Steady(ctx) },
			func(q *leasedb.Queries) (err error) { rows, err = q.FindParked(ctx, p); return err }); err != nil || len(rows) == 0 {
			return err
		}
		found, end := rows[:len(rows)-1], rows[len(rows)-1]
		for some := range slices.Chunk(found, operatorRows) {
			if err := do(some); err != nil {
				return err
			}
		}
		left -= int64(len(found))
		if end.Looked < p.Scan || f.Resource != "" && len(p.Ids) > 0 {
			return nil
		}
		p.AfterResource, p.AfterLane, p.AfterSeq = end.Resource, end.Lane, end.Seq
	}
	return nil
}

func seqs(rows []leasedb.FindParkedRow) []int64 {
	out := make([]int64, len(rows))
	for i, r := range rows {
		out[i] = r.Seq
	}
	return out
}

// Parked lists parked messages.
func (op *operator) Parked(ctx context.Context, f operate.ParkedFilter) (out []operate.ParkedInfo, err error) {
	err = op.eachParked(ctx, f, func(found []leasedb.FindParkedRow) error {
		rows, err := op.queries(op.pool).ListParked(ctx, seqs(found))
		for _, r := range rows {
			out = append(out, operate.ParkedInfo{
				Place:    backend.EncodePlace(r.Resource, r.Lane, strconv.FormatInt(r.Seq, 10)),
				Resource: r.Resource, MessageID: strconv.FormatInt(r.MessageID, 10), Topic: r.Topic, Key: r.Key, Kind: r.Kind,
				Size: int(r.Size), Attempts: int(r.Attempt), Due: r.NextAt, FirstFailed: r.FailedAt.Time, Behind: r.Behind, Error: r.Error,
			})
		}
		return err
	})
	return out, op.fail("parked messages of "+f.Consumer, err)
}

// RetryParked makes parked messages due now.
func (op *operator) RetryParked(ctx context.Context, f operate.ParkedFilter) (int, error) {
	retried := 0
	err := op.eachParked(ctx, f, func(found []leasedb.FindParkedRow) error {
		p := leasedb.RetryParkedParams{Consumer: f.Consumer, Seqs: seqs(found)}
		for _, r := range found {
			p.Resources = append(p.Resources, r.Resource)
		}
		p.Resources = slices.Compact(p.Resources)
		var n int64
		err := op.pipeline(ctx, op.pool, durable(ctx),
			func(q *leasedb.Queries) (err error) { n, err = q.RetryParked(ctx, p); return err },
			op.notify(ctx, wakeParked))
		retried += int(n)
		return err
	})
	return retried, op.fail("retry parked messages of "+f.Consumer, err)
}

package leasepg

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
	"github.com/leasegen/leasegen/runtime/operate"
)

// Cursors shows how far a consumer has got. Messages behind are counted up to 100,000 for
// each resource, fewer when there are many.
func (op *operator) Cursors(ctx context.Context, consumer, resource string, limit int) ([]operate.CursorStatus, error) {
	if err := op.hasCursors(ctx, consumer); err != nil {
		return nil, op.fail("cursors of "+consumer, err)
	}
	if !storable(resource) {
		return nil, nil
	}
	rows, err := op.lags(ctx, leasedb.LeaseLagsParams{Consumer: consumer, Resource: resource, Idle: true, Max: int64(limit)})
	if err != nil {
		return nil, op.fail("cursors of "+consumer, err)
	}
	gone, err := op.gone(ctx, consumer)
	if err != nil {
		return nil, op.fail("cursors of "+consumer, err)
	}
	out := make([]operate.CursorStatus, len(rows))
	for i, r := range rows {
		out[i] = operate.CursorStatus{
			Resource: r.Resource, Session: r.Session, Epoch: r.Epoch, Lag: r.Lag, OldestUnread: seconds(r.Oldest),
		}
		if r.Pos > 0 {
			out[i].Position = strconv.FormatInt(r.Pos, 10)
		}
		out[i].Gone = gone
	}
	return out, nil
}

// gone is operate.CursorStatus.Gone, which is the same for all resources of a log. It costs one small read.
func (op *operator) gone(ctx context.Context, consumer string) (string, error) {
	q := op.queries(op.pool)
	c, err := q.ConsumerKind(ctx, consumer)
	if errors.Is(err, pgx.ErrNoRows) { // it has not run yet
		return "", nil
	}
	if err != nil || c.Source != "" {
		return "", err
	}
	begins, err := q.LogBegins(ctx)
	if err != nil || begins <= 1 {
		return "", err
	}
	return strconv.FormatInt(begins-1, 10), nil
}

// SetCursor moves cursors, and with them, when all are moved, the start of resources that
// appear later. Messages that retention has dropped do not come back: the beginning is what
// the log still has.
func (op *operator) SetCursor(ctx context.Context, consumer, resource string, to operate.CursorTarget) (int, error) {
	p := leasedb.SetCursorsParams{Consumer: consumer, Resource: resource, Beginning: to.Beginning, Now: to.Now}
	if err := to.Check(); err != nil {
		return 0, fmt.Errorf("leasepg: set cursor of %s: %w", consumer, err)
	}
	if err := op.hasCursors(ctx, consumer); err != nil {
		return 0, op.fail("set cursor of "+consumer, err)
	}
	if !storable(resource) {
		return 0, nil
	}
	if to.After != "" {
		id, err := strconv.ParseInt(to.After, 10, 64)
		if err != nil || id <= 0 {
			return 0, op.fail("set cursor of "+consumer, operate.Invalid("%q is not the id of a message, which is a number", to.After))
		}
		last, err := op.lastMessage(ctx, consumer)
		if err != nil {
			return 0, op.fail("set cursor of "+consumer, err)
		}
		if id > last {
			return 0, op.fail("set cursor of "+consumer, operate.Invalid("there is no message %d yet, the last one has id %d", id, last))
		}
		p.After = id
	}
	var moved int64
	steps := []step{durable(ctx), func(q *leasedb.Queries) (err error) {
		moved, err = q.SetCursors(ctx, p)
		return err
	}}
	if to.Beginning {
		steps = append(steps,
			func(q *leasedb.Queries) error {
				return q.DropParked(ctx, leasedb.DropParkedParams{Consumer: consumer, Resource: resource})
			},
			func(q *leasedb.Queries) error {
				return q.DropDeadLetters(ctx, leasedb.DropDeadLettersParams{Consumer: consumer, Resource: resource})
			})
	}
	err := op.pipeline(ctx, op.pool, append(steps, op.notify(ctx, wakeOwnership))...)
	return int(moved), op.fail("set cursor of "+consumer, err)
}

// hasCursors is an error for a consumer that reads no messages.
func (op *operator) hasCursors(ctx context.Context, consumer string) error {
	has, err := op.queries(op.pool).HasCursors(ctx, consumer)
	if errors.Is(err, pgx.ErrNoRows) { // it has not run yet
		return nil
	}
	if err == nil && !has {
		err = operate.ErrNoCursor
	}
	return err
}

// lastMessage is the greatest id that a consumer can have passed, in the log or in its table.
func (op *operator) lastMessage(ctx context.Context, consumer string) (int64, error) {
	q := op.queries(op.pool)
	s, err := q.SourceTop(ctx, consumer)
	if err == nil && s.Source != "" {
		return s.Top, nil
	}
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return 0, err
	}
	end, err := q.LogEnd(ctx)
	return end.LastDrawn, err
}

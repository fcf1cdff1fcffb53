package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/runtime/lease"
)

// Activity counts what happens in each repository: one replica works on a repository
// at a time, and each delivery has exactly one row in the table effect.
//
//leasegen:consumer per=topic topics=* batch=20
//leasegen:lease ttl=2s
//leasegen:retry max=5 min=100ms cap=5s
//leasegen:dlq keep=720h
type Activity struct {
	Replica string
	Work    time.Duration // how long a delivery takes
}

// HandlePush handles a push.
func (a *Activity) HandlePush(ctx context.Context, tx pgx.Tx, m lease.Message[Push]) error {
	return record(ctx, tx, a, m, "typed", fmt.Sprintf("%d commits to %s", len(m.Payload.Commits), m.Payload.Ref))
}

// HandleIssues handles a change of an issue.
func (a *Activity) HandleIssues(ctx context.Context, tx pgx.Tx, m lease.Message[Issues]) error {
	return record(ctx, tx, a, m, "typed", fmt.Sprintf("issue %d %s", m.Payload.Issue.Number, m.Payload.Action))
}

// HandlePullRequest handles a change of a pull request.
func (a *Activity) HandlePullRequest(ctx context.Context, tx pgx.Tx, m lease.Message[PullRequest]) error {
	return record(ctx, tx, a, m, "typed", fmt.Sprintf("pull request %d %s", m.Payload.Number, m.Payload.Action))
}

// HandleInstallation handles a change of an app's installation.
func (a *Activity) HandleInstallation(ctx context.Context, tx pgx.Tx, m lease.Message[Installation]) error {
	return record(ctx, tx, a, m, "typed", fmt.Sprintf("installation %d %s", m.Payload.Installation.ID, m.Payload.Action))
}

// HandleOther handles every other kind.
func (a *Activity) HandleOther(ctx context.Context, tx pgx.Tx, m lease.Message[json.RawMessage]) error {
	return record(ctx, tx, a, m, "raw", fmt.Sprintf("%d bytes", len(m.Payload)))
}

func record[T any](ctx context.Context, tx pgx.Tx, a *Activity, m lease.Message[T], form, what string) error {
	select {
	case <-time.After(a.Work):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	_, err := tx.Exec(ctx, `INSERT INTO effect (consumer, message, delivery, form, what, epoch, replica) VALUES ('activity', $1, $2, $3, $4, $5, $6)`,
		m.ID, m.Headers["delivery"], form, what, m.Epoch, a.Replica)
	return err
}

// Archive keeps every delivery, in one order, written by one replica at a time.
//
//leasegen:consumer per=group topics=* batch=50
//leasegen:lease ttl=2s
type Archive struct {
	Replica string
}

// HandleAny archives many deliveries at once.
func (a *Archive) HandleAny(ctx context.Context, tx pgx.Tx, ms []lease.Message[json.RawMessage]) error {
	var batch pgx.Batch
	for _, m := range ms {
		batch.Queue(`INSERT INTO effect (consumer, message, delivery, form, what, epoch, replica) VALUES ('archive', $1, $2, 'raw', $3, $4, $5)`,
			m.ID, m.Headers["delivery"], fmt.Sprintf("%s, %d bytes", m.Kind, len(m.Payload)), m.Epoch, a.Replica)
	}
	return tx.SendBatch(ctx, &batch).Close()
}

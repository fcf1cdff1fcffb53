//leasegen:defaults lease_ttl=2s
package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/runtime/lease"
)

// Five jobs, each of which runs on one replica at a time. They are led by name, and one
// replica may lead any number of them on one connection.

// Mailer sends what waits to be sent.
//
//leasegen:consumer per=cluster
type Mailer struct{ Job }

// Sweeper deletes what has expired.
//
//leasegen:consumer per=cluster
type Sweeper struct{ Job }

// Exporter writes reports.
//
//leasegen:consumer per=cluster
type Exporter struct{ Job }

// Biller closes the day.
//
//leasegen:consumer per=cluster
type Biller struct{ Job }

// Indexer keeps the search index up to date.
//
//leasegen:consumer per=cluster
type Indexer struct{ Job }

// Job is what they have in common here: a step every few milliseconds.
type Job struct {
	Replica string
	Pool    *pgxpool.Pool
}

// Run works until it no longer leads.
func (j *Job) Run(ctx context.Context, l lease.Lease) error {
	for {
		if err := j.step(ctx, l); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-time.After(step):
		case <-ctx.Done():
			// A write that was on its way when the leadership ended arrives now. When it was
			// handed over that is in time; when it was lost it is too late, and refused.
			return j.step(context.WithoutCancel(ctx), l)
		}
	}
}

const step = 5 * time.Millisecond

// step writes to a system that has no notion of leases, but refuses epochs that are older
// than one it has seen: that is all it takes to be safe from leaders of the past.
func (j *Job) step(ctx context.Context, l lease.Lease) error {
	_, err := j.Pool.Exec(ctx, `
		WITH done AS (
			UPDATE outside SET epoch = $3, steps = steps + 1 WHERE job = $1 AND epoch <= $3 RETURNING job
		)
		INSERT INTO step (job, replica, epoch, accepted) SELECT $1, $2, $3, EXISTS (SELECT FROM done)`,
		l.Consumer, j.Replica, l.Epoch)
	return err
}

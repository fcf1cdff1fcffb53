package leasepg

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
)

// sender is a pool, a connection or a transaction.
type sender interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// step runs exactly one query. Steps of a pipeline are called twice: first to collect
// the statements, then, after all have been sent, to read the answers.
type step func(q *leasedb.Queries) error

// pipeline runs steps in one round trip. Outside a transaction they form one: they all
// take effect, or none. A step's answer must not decide what a later step sends.
func (sv *server) pipeline(ctx context.Context, on sender, steps ...step) (err error) {
	var batch pgx.Batch
	q := sv.queries(collector{&batch})
	for _, s := range steps {
		if err := s(q); err != nil && !errors.Is(err, errCollected) {
			return err
		}
	}
	results := on.SendBatch(ctx, &batch)
	defer func() {
		// Only a pipeline that was read to its end is known to be committed.
		if e := results.Close(); err == nil {
			err = e
		}
	}()
	q = leasedb.New(answers{results})
	for _, s := range steps {
		if err := s(q); err != nil {
			return estranged(err)
		}
	}
	return nil
}

// run is pipeline where there can be one. Steps on a transaction of another library are a round trip each.
func (sv *server) run(ctx context.Context, on leasedb.DBTX, steps ...step) error {
	if s, ok := on.(sender); ok {
		return sv.pipeline(ctx, s, steps...)
	}
	q := sv.queries(on)
	for _, s := range steps {
		if err := s(q); err != nil {
			return err
		}
	}
	return nil
}

var errCollected = errors.New("leasepg: collected")

// collector queues statements instead of running them.
type collector struct{ batch *pgx.Batch }

func (c collector) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	c.batch.Queue(sql, args...)
	return pgconn.CommandTag{}, nil
}

func (c collector) Query(_ context.Context, sql string, args ...any) (pgx.Rows, error) {
	c.batch.Queue(sql, args...)
	return nil, errCollected
}

func (c collector) QueryRow(_ context.Context, sql string, args ...any) pgx.Row {
	c.batch.Queue(sql, args...)
	return collectedRow{}
}

type collectedRow struct{}

func (collectedRow) Scan(...any) error { return errCollected }

// answers are the results of a batch, given to queries in turn.
type answers struct{ results pgx.BatchResults }

func (r answers) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	return r.results.Exec()
}

func (r answers) Query(context.Context, string, ...any) (pgx.Rows, error) {
	return r.results.Query()
}

func (r answers) QueryRow(context.Context, string, ...any) pgx.Row {
	return r.results.QueryRow()
}

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/bench/report"
	"github.com/leasegen/leasegen/internal/must"
)

func rowsOneByOne() workload {
	return rows("rows-one", "How fast is one row written for each message, exactly once?", oneByOne,
		"The handler is called for each message and writes a row in the transaction that also stores the progress. No message may have two rows.")
}

func rowsInBatches() workload {
	return rows("rows-batch", "How fast in batches?", manyAtOnce, "The same, with one statement for a batch.")
}

func rows(id, title string, effect effect, what string) workload {
	return workload{
		Workload: report.Workload{ID: id, Title: title, What: what, Metrics: append([]report.Metric{rate("messages")}, costs()...)},
		run: func(ctx context.Context, t *turn) sample {
			conn := must.Get(pgx.Connect(ctx, t.site.dsn))
			defer conn.Close(context.WithoutCancel(ctx))
			must.Get(conn.Exec(ctx, effectTable))
			s, done := t.drain(ctx, 1, t.size.messages/2, effect)
			var rows, messages int
			must.Do(conn.QueryRow(ctx, `SELECT count(*), count(DISTINCT message_id) FROM effect`).Scan(&rows, &messages))
			switch {
			case rows != messages:
				must.Do(fmt.Errorf("%d rows were written for %d messages", rows, messages))
			case rows == 0 || done == 0:
				must.Do(errors.New("no row was written"))
			}
			return s
		},
	}
}

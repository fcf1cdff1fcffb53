package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/internal/stage"
)

// play starts replicas, counts what they cost, and kills one.
func (r *run) play(ctx context.Context) error {
	_, err := r.Pool.Exec(ctx, `INSERT INTO statement (tenant) SELECT generate_series(1, $1)`, r.topics)
	if err != nil {
		return err
	}
	if err := r.invoice(ctx, 1, 1); err != nil {
		return err
	}
	fmt.Fprintf(r.Out, "%d topics\n\n%-26s %9s   %s\n", r.topics, "", "after", "topics owned")
	if err := r.begin(ctx, "replica-1 starts", "replica-1"); err != nil {
		return err
	}
	alone, err := r.count(ctx)
	if err != nil {
		return err
	}
	if err := r.begin(ctx, "two more join", "replica-2", "replica-3"); err != nil {
		return err
	}
	together, err := r.count(ctx)
	for try := 0; err == nil && together.xids > idleIDs && try < 5; try++ { // the server's own housekeeping has its ids, too
		together, err = r.count(ctx)
	}
	if err != nil {
		return err
	}

	// Under load, one dies. Its topics go to the others.
	load := make(chan error, 1)
	go func() { load <- r.invoice(ctx, 2, rounds) }()
	if err := r.Fleet.Kill("replica-2"); err != nil {
		return err
	}
	if err := r.settle(ctx, "replica-2 is killed", time.Now()); err != nil {
		return err
	}
	if err := <-load; err != nil {
		return err
	}
	want, got, disorder, err := r.handled(ctx)
	if err != nil {
		return err
	}

	fmt.Fprintf(r.Out, "\n%-47s %15s %10s\n", "idle, each second", "transaction ids", "WAL")
	for _, c := range []struct {
		what string
		cost
	}{
		{fmt.Sprintf("1 replica that holds %d topics", r.topics), alone},
		{"3 that hold a third each, and wait for the rest", together},
	} {
		fmt.Fprintf(r.Out, "%-47s %15.1f %7.1f kB\n", c.what, c.xids, c.wal/1000)
	}
	fmt.Fprintf(r.Out, "\n%d invoices of %d cents = on the statements %d of %d cents, %d out of order\n\n",
		want.invoices, want.cents, got.invoices, got.cents, disorder)
	fmt.Fprint(r.Out, "pgoutbox v0.4.0, measured apart from this run on 2 cores: one standby that waits for 2,000\n"+
		"topics costs 1,976 transactions and 499 kB of WAL a second, 1,000 idle topics 190 transaction ids.\n")
	if want != got || disorder > 0 {
		return fmt.Errorf("that does not add up: made %+v, on the statements %+v, %d out of order", want, got, disorder)
	}
	if together.xids > idleIDs {
		return fmt.Errorf("three idle replicas used %.1f transaction ids a second", together.xids)
	}
	return nil
}

const (
	rounds  = 5  // invoices for each tenant
	idleIDs = 20 // transaction ids that three idle replicas may use in a second
)

// invoice makes the invoices from one number to another of every tenant, and publishes each
// in the transaction that makes it.
func (r *run) invoice(ctx context.Context, from, to int) error {
	const together = 500
	for n := from; n <= to; n++ {
		for first := 1; first <= r.topics; first += together {
			last := min(first+together-1, r.topics)
			err := pgx.BeginFunc(ctx, r.Pool, func(tx pgx.Tx) error { return r.invoiceIn(ctx, tx, n, first, last) })
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// invoiceIn makes invoice n of some tenants in one transaction.
func (r *run) invoiceIn(ctx context.Context, tx pgx.Tx, n, first, last int) error {
	_, err := tx.Exec(ctx, `INSERT INTO invoice SELECT tenant, $3, tenant + $3 FROM generate_series($1::int, $2) tenant`, first, last, n)
	if err != nil {
		return err
	}
	for tenant := first; tenant <= last; tenant++ {
		inv := Invoice{Tenant: tenant, N: n, Cents: int64(tenant + n)}
		if err := PublishInvoice(ctx, r.Backend.In(tx), fmt.Sprintf("tenant.%d", tenant), inv); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) begin(ctx context.Context, what string, replicas ...string) error {
	began := time.Now()
	if err := r.Fleet.Start(replicas...); err != nil {
		return err
	}
	return r.settle(ctx, what, began)
}

// settle waits until every topic is owned, by replicas that own the same number but for
// one, and prints who owns how many.
func (r *run) settle(ctx context.Context, what string, began time.Time) error {
	var owned map[string]int
	err := stage.Until(ctx, "the topics are shared out", func() (_ bool, err error) {
		owned, err = r.Owned(ctx, "statements")
		least, most, all := r.topics, 0, 0
		for _, n := range owned {
			least, most, all = min(least, n), max(most, n), all+n
		}
		return len(owned) == len(r.Fleet.Running()) && all == r.topics && most-least <= 1, err
	})
	fmt.Fprintf(r.Out, "%-26s %6d ms   %s\n", what, time.Since(began).Milliseconds(), stage.Shares(owned))
	return err
}

// cost is what the server does in a second.
type cost struct{ xids, wal float64 }

// count waits until the replicas are idle, and counts for a while.
func (r *run) count(ctx context.Context) (cost, error) {
	if _, _, _, err := r.handled(ctx); err != nil {
		return cost{}, err
	}
	time.Sleep(100 * time.Millisecond) // the cursors of the last ones are stored
	read := func() (c cost, err error) {
		err = r.Pool.QueryRow(ctx, `SELECT pg_snapshot_xmax(pg_current_snapshot())::text::float8, pg_current_wal_lsn() - '0/0'`).
			Scan(&c.xids, &c.wal)
		return c, err
	}
	before, err := read()
	if err != nil {
		return cost{}, err
	}
	began := time.Now()
	time.Sleep(r.idle)
	after, err := read()
	s := time.Since(began).Seconds()
	return cost{(after.xids - before.xids) / s, (after.wal - before.wal) / s}, err
}

type sum struct{ invoices, cents int64 }

// handled waits until as many invoices are on the statements as were made.
func (r *run) handled(ctx context.Context) (want, got sum, disorder int, err error) {
	err = stage.Until(ctx, "all invoices are on the statements", func() (bool, error) {
		err := r.Pool.QueryRow(ctx, `
			SELECT (SELECT count(*) FROM invoice), (SELECT coalesce(sum(cents), 0) FROM invoice)::bigint,
			       sum(invoices), sum(cents)::bigint, sum(disorder) FROM statement`).
			Scan(&want.invoices, &want.cents, &got.invoices, &got.cents, &disorder)
		return got.invoices >= want.invoices, err
	})
	return want, got, disorder, err
}

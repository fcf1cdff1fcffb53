package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
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
	if err := r.invoice(ctx, 1); err != nil {
		return err
	}
	fmt.Fprintf(r.out, "%d topics\n\n%-26s %9s   %s\n", r.topics, "", "after", "topics owned")
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
	if err != nil {
		return err
	}

	// Under load, one dies. What it owned goes to the others.
	load := make(chan error, 1)
	go func() {
		load <- func() error {
			for n := 2; n <= rounds; n++ {
				if err := r.invoice(ctx, n); err != nil {
					return err
				}
			}
			return nil
		}()
	}()
	if err := r.Fleet.Kill("replica-2"); err != nil {
		return err
	}
	if err := r.settle(ctx, "replica-2 is killed", time.Now(), 2); err != nil {
		return err
	}
	if err := <-load; err != nil {
		return err
	}
	want, got, disorder, err := r.handled(ctx)
	if err != nil {
		return err
	}

	fmt.Fprintf(r.out, "\n%-47s %15s %10s\n", "idle, each second", "transaction ids", "WAL")
	for _, c := range []struct {
		what string
		cost
	}{
		{fmt.Sprintf("1 replica that holds %d topics", r.topics), alone},
		{"3 that hold a third each, and wait for the rest", together},
	} {
		fmt.Fprintf(r.out, "%-47s %15.1f %7.1f kB\n", c.what, c.xids, c.wal/1000)
	}
	fmt.Fprintf(r.out, "\n%d invoices of %d cents = on the statements %d of %d cents, %d out of order\n\n",
		want.invoices, want.cents, got.invoices, got.cents, disorder)
	fmt.Fprint(r.out, "pgoutbox v0.4.0, measured apart from this run on 2 cores: one standby that waits for 2,000\n"+
		"topics costs 1,976 transactions and 499 kB of WAL a second, 1,000 idle topics 190 transaction ids.\n")
	if want != got || disorder > 0 {
		return fmt.Errorf("that does not add up: made %+v, on the statements %+v, %d out of order", want, got, disorder)
	}
	if together.xids > 20 {
		return fmt.Errorf("three idle replicas used %.1f transaction ids a second", together.xids)
	}
	return nil
}

const rounds = 5 // invoices for each tenant

// invoice makes invoice n of every tenant, and publishes it in the same transaction.
func (r *run) invoice(ctx context.Context, n int) error {
	const together = 500
	for first := 1; first <= r.topics; first += together {
		err := pgx.BeginFunc(ctx, r.Pool, func(tx pgx.Tx) error {
			last := min(first+together-1, r.topics)
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
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *run) begin(ctx context.Context, what string, replicas ...string) error {
	began := time.Now()
	for _, name := range replicas {
		if err := r.Fleet.Replica(name); err != nil {
			return err
		}
	}
	return r.settle(ctx, what, began, len(r.Fleet.Running()))
}

// settle waits until every topic is owned, by members that own the same number but for
// one, and prints who owns how many.
func (r *run) settle(ctx context.Context, what string, began time.Time, members int) error {
	var owns []string
	err := stage.Until(ctx, "the topics are shared out", func() (bool, error) {
		ms, err := r.Backend.Members(ctx, "statements")
		if err != nil || len(ms) != members {
			return false, err
		}
		owns = nil
		least, most, all := r.topics, 0, 0
		for _, m := range ms {
			least, most, all = min(least, m.Owned), max(most, m.Owned), all+m.Owned
			owns = append(owns, fmt.Sprintf("%s %d", r.Fleet.Name(m.PID), m.Owned))
		}
		return all == r.topics && most-least <= 1, nil
	})
	slices.Sort(owns)
	fmt.Fprintf(r.out, "%-26s %6d ms   %s\n", what, time.Since(began).Milliseconds(), strings.Join(owns, ", "))
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
	err = stage.Until(ctx, "all invoices are on the statements", func() (_ bool, err error) {
		want, got, disorder, err = r.sums(ctx)
		return got.invoices >= want.invoices, err
	})
	return want, got, disorder, err
}

// sums is what was made so far, and what is on the statements.
func (r *run) sums(ctx context.Context) (want, got sum, disorder int, err error) {
	err = r.Pool.QueryRow(ctx, `
		SELECT (SELECT count(*) FROM invoice), (SELECT coalesce(sum(cents), 0) FROM invoice)::bigint,
		       sum(invoices), sum(cents)::bigint, sum(disorder) FROM statement`).
		Scan(&want.invoices, &want.cents, &got.invoices, &got.cents, &disorder)
	return want, got, disorder, err
}

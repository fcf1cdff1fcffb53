package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/internal/stage"
	"github.com/leasegen/leasegen/runtime/operate"
)

const (
	sellers   = 8
	customers = 400
)

// play sells, holds one sale back, kills a replica, and fixes an order.
func (r *run) play(ctx context.Context) error {
	if err := r.Fleet.Start("replica-1", "replica-2", "replica-3"); err != nil {
		return err
	}
	// The first to draw a position is the last to commit.
	late, err := r.Pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer late.Rollback(context.WithoutCancel(ctx))
	if err := order(ctx, late, customers+1, "12 Late Lane"); err != nil {
		return err
	}
	fmt.Fprintf(r.Out, "an order is placed, and its transaction stays open\n")
	began := time.Now()
	if err := r.sell(ctx); err != nil {
		return err
	}
	fmt.Fprintf(r.Out, "%d more are placed and committed behind it, in %.1f s; replica-2 is killed on the way\n", r.orders, time.Since(began).Seconds())
	if err := r.shipped(ctx, r.orders); err != nil {
		return err
	}
	fmt.Fprintf(r.Out, "all of them are shipped, %.1f s after the first\n", time.Since(began).Seconds())
	if err := late.Commit(ctx); err != nil {
		return err
	}
	committed := time.Now()
	if err := r.shipped(ctx, r.orders+1); err != nil {
		return err
	}
	fmt.Fprintf(r.Out, "the open transaction commits; its order is shipped %d ms later\n", time.Since(committed).Milliseconds())
	if err := r.fix(ctx); err != nil {
		return err
	}
	return r.total(ctx)
}

// order places an order and writes it to the outbox, in the caller's transaction.
func order(ctx context.Context, tx pgx.Tx, customer int, address string) error {
	var id int64
	err := tx.QueryRow(ctx, "INSERT INTO shop.orders (customer, cents) VALUES ($1, 100) RETURNING id", customer).Scan(&id)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `INSERT INTO shop.outbox (event, customer, order_id, address)
		VALUES ('viewed', $1, NULL, NULL), ('ordered', $1, $2, nullif($3, ''))`, customer, id, address)
	return err
}

// sell places all orders, many transactions at once, and kills a replica halfway.
func (r *run) sell(ctx context.Context) error {
	var next atomic.Int64
	return stage.AtOnce(sellers, func(s int) error {
		for n := next.Add(1); n <= int64(r.orders); n = next.Add(1) {
			// The sellers share the customers out, so that each has its orders in turn.
			customer := s + sellers*int(n/sellers%(customers/sellers))
			err := pgx.BeginFunc(ctx, r.Pool, func(tx pgx.Tx) error { return order(ctx, tx, customer, "1 Main Street") })
			if err == nil && n == int64(r.orders/2) {
				err = r.Fleet.Kill("replica-2")
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// shipped waits until so many orders are shipped.
func (r *run) shipped(ctx context.Context, want int) error {
	return stage.Until(ctx, fmt.Sprintf("%d orders are shipped", want), func() (bool, error) {
		var n int
		err := r.Pool.QueryRow(ctx, "SELECT count(*) FROM shipment").Scan(&n)
		return n >= want, err
	})
}

// fix places an order that cannot be shipped, and replays it once its row is right.
func (r *run) fix(ctx context.Context) error {
	err := pgx.BeginFunc(ctx, r.Pool, func(tx pgx.Tx) error { return order(ctx, tx, customers+2, "") })
	if err != nil {
		return err
	}
	var dead []operate.DeadLetterInfo
	err = stage.Until(ctx, "the order is a dead letter", func() (done bool, err error) {
		dead, err = r.Backend.DeadLetters(ctx, operate.DeadLetterFilter{Consumer: "shipping"})
		return len(dead) > 0, err
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(r.Out, "dead letter: row %s of customer %s, after %d attempts: %s\n", dead[0].MessageID, dead[0].Key, dead[0].Attempts, dead[0].Reason)
	if _, err := r.Pool.Exec(ctx, "UPDATE shop.outbox SET address = '7 New Road' WHERE id = $1::text::bigint", dead[0].MessageID); err != nil {
		return err
	}
	if _, err := r.Backend.Replay(ctx, operate.DeadLetterFilter{Consumer: "shipping"}); err != nil {
		return err
	}
	if err := r.shipped(ctx, r.orders+2); err != nil {
		return err
	}
	fmt.Fprintln(r.Out, "its row gets an address, it is replayed and shipped")
	return nil
}

// total compares what was ordered with what was shipped.
func (r *run) total(ctx context.Context) error {
	var ordered, shipped, twice, missing, disorder int
	err := r.Pool.QueryRow(ctx, `
		SELECT (SELECT count(*) FROM shop.orders), count(*), count(*) - count(DISTINCT order_id),
		       (SELECT count(*) FROM shop.orders o WHERE NOT EXISTS (SELECT FROM shipment s WHERE s.order_id = o.id)),
		       count(*) FILTER (WHERE order_id < before)
		FROM (SELECT order_id, lag(order_id) OVER (PARTITION BY customer ORDER BY seq) AS before FROM shipment) s`).
		Scan(&ordered, &shipped, &twice, &missing, &disorder)
	if err != nil {
		return err
	}
	fmt.Fprintf(r.Out, "\n%d orders = %d shipped; %d lost, %d twice, %d out of a customer's order\n", ordered, shipped, missing, twice, disorder)
	if missing+twice+disorder > 0 {
		return errors.New("the sums differ")
	}
	return nil
}

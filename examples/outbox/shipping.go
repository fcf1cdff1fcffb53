package main

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/examples/outbox/leasedb"
	"github.com/leasegen/leasegen/runtime/lease"
)

// Shipping ships what is ordered: the orders of one customer in turn, those of different
// customers on all replicas. It reads the shop's outbox, and takes sqlc's type for its rows.
//
//leasegen:consumer per=partition
//leasegen:table name=shop.outbox key=customer kind=event slots=16 "where=event = 'ordered'" schema=examples/outbox/migrations
//leasegen:retry max=3 min=10ms
type Shipping struct{ Replica string }

// Handle writes a shipment in the transaction that also moves the cursor.
func (s *Shipping) Handle(ctx context.Context, tx pgx.Tx, m lease.Message[leasedb.OutboxRow]) error {
	row := m.Payload
	if row.Address == nil || row.OrderID == nil {
		return errors.New("there is no address to ship to")
	}
	_, err := tx.Exec(ctx, "INSERT INTO shipment (order_id, customer, replica) VALUES ($1, $2, $3)", *row.OrderID, row.Customer, s.Replica)
	return err
}

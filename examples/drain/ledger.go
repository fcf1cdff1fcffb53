package main

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/runtime/lease"
)

// Payment is published by 16 publishers at once, each payment in a transaction of its own.
//
//leasegen:event key=Account
type Payment struct {
	Account string `json:"account"`
	N       int    `json:"n"` // of this account
	Cents   int64  `json:"cents"`
}

// Ledger books payments, in one order. One replica at a time drains them; the others
// stand by.
//
//leasegen:consumer per=group topics=payments batch=500
//leasegen:lease ttl=2s
//leasegen:retry max=3 min=20ms cap=100ms
type Ledger struct {
	Replica string
}

// HandlePayment books many payments in the transaction that moves the cursor past them.
// A payment to an account that does not exist cannot be booked.
func (l *Ledger) HandlePayment(ctx context.Context, tx pgx.Tx, ms []lease.Message[Payment]) error {
	var batch pgx.Batch
	for _, m := range ms {
		batch.Queue(`INSERT INTO booking (message, account, n, cents, epoch, replica) VALUES ($1, $2, $3, $4, $5, $6)`,
			m.ID, m.Payload.Account, m.Payload.N, m.Payload.Cents, m.Epoch, l.Replica)
	}
	return tx.SendBatch(ctx, &batch).Close()
}

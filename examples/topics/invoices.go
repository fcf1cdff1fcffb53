package main

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/runtime/lease"
)

// Invoice is published in the transaction that makes it, on the topic of its tenant.
//
//leasegen:event
type Invoice struct {
	Tenant int   `json:"tenant"`
	N      int   `json:"n"` // of this tenant
	Cents  int64 `json:"cents"`
}

// Statements keeps each tenant's sum. There are thousands of topics, one for each tenant;
// each is worked on by one replica, in order.
//
//leasegen:consumer per=topic topics=tenant.*
//leasegen:lease ttl=3s
type Statements struct {
	Replica string
}

// HandleInvoice adds an invoice to its tenant's sum, exactly once: in the transaction that
// moves the cursor.
func (s *Statements) HandleInvoice(ctx context.Context, tx pgx.Tx, m lease.Message[Invoice]) error {
	_, err := tx.Exec(ctx, `
		UPDATE statement SET cents = cents + $2, invoices = invoices + 1, last = $3,
		       disorder = disorder + CASE WHEN $3 = last + 1 THEN 0 ELSE 1 END
		WHERE tenant = $1`, m.Payload.Tenant, m.Payload.Cents, m.Payload.N)
	return err
}

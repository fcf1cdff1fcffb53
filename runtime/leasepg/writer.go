package leasepg

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
)

// SingleWriter makes tx the only transaction that goes on for key: it waits for those that
// called it with the same key before, in any process, until they have committed or rolled
// back. Call it first in the transaction of a command handler that decides by what it
// reads:
//
//	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		if err := leasepg.SingleWriter(ctx, tx, "account/"+id); err != nil {
//			return err
//		}
//		// read, decide, write, publish with backend.In(tx)
//	})
//
// The transaction's reads after it include all that the ones before it committed, at
// the isolation level read committed, the default; at the others the snapshot may be older
// than the wait. Only transactions that call SingleWriter wait. A transaction that
// asks for several keys asks for them in a fixed order, lest it deadlocks with another.
// Keys are hashed to 64 bits: two that collide, which is unlikely, merely wait for each other.
//
// The wait ends with ctx, which breaks the connection, or with the server's lock_timeout:
// SET LOCAL lock_timeout bounds it without that. There is no lock to release, none is
// left behind by a crash, and no session is needed: it works through poolers in
// transaction mode.
func SingleWriter(ctx context.Context, tx pgx.Tx, key string) error {
	if key == "" {
		return errors.New("leasepg: single writer: the key is empty; all that have none would wait for each other")
	}
	sum := sha256.Sum256([]byte("leasegen/writer/" + key))
	if err := leasedb.New(tx).SingleWriter(ctx, int64(binary.BigEndian.Uint64(sum[:]))); err != nil {
		return fmt.Errorf("leasepg: single writer: %w", err)
	}
	return nil
}

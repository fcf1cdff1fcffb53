package leasepg_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

func TestSingleWriter(t *testing.T) {
	_, pool := migrated(t)
	begin := func() pgx.Tx {
		tx := kit.Must[pgx.Tx](t)(pool.Begin(t.Context()))
		t.Cleanup(func() { _ = tx.Rollback(t.Context()) })
		return tx
	}
	for _, end := range []struct {
		name string
		end  func(pgx.Tx) error
	}{
		{"commit", func(tx pgx.Tx) error { return tx.Commit(t.Context()) }},
		{"rollback", func(tx pgx.Tx) error { return tx.Rollback(t.Context()) }},
	} {
		first, second, apart := begin(), begin(), begin()
		kit.OK(t, leasepg.SingleWriter(t.Context(), first, "account/1"))
		kit.OK(t, leasepg.SingleWriter(t.Context(), first, "account/1")) // once more is the same
		kit.OK(t, leasepg.SingleWriter(t.Context(), apart, "account/2")) // does not wait
		went := make(chan error, 1)
		go func() { went <- leasepg.SingleWriter(t.Context(), second, "account/1") }()
		kit.Eventually(t, "the second waits", func() bool {
			return query[int64](t, pool, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())") == 1
		})
		select {
		case err := <-went:
			t.Fatalf("%s: the second did not wait: %v", end.name, err)
		default:
		}
		kit.OK(t, end.end(first))
		kit.OK(t, <-went)
		kit.OK(t, second.Rollback(t.Context()))
		kit.OK(t, apart.Rollback(t.Context()))
	}
}

func TestSingleWriterKeepsToLockTimeout(t *testing.T) {
	_, pool := migrated(t)
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		kit.OK(t, leasepg.SingleWriter(t.Context(), tx, "k"))
		return pgx.BeginFunc(t.Context(), pool, func(other pgx.Tx) error {
			if _, err := other.Exec(t.Context(), "SET LOCAL lock_timeout = '50ms'"); err != nil {
				return err
			}
			began := time.Now()
			err := leasepg.SingleWriter(t.Context(), other, "k")
			if pg, is := errors.AsType[*pgconn.PgError](err); !is || pg.Code != "55P03" || time.Since(began) < 50*time.Millisecond {
				t.Errorf("got %v after %v, want lock_not_available", err, time.Since(began))
			}
			return nil
		})
	})
	if err != nil && !errors.Is(err, pgx.ErrTxCommitRollback) {
		t.Fatal(err)
	}
}

func TestSingleWriterNeedsAKey(t *testing.T) {
	if err := leasepg.SingleWriter(t.Context(), nil, ""); err == nil || !strings.Contains(err.Error(), "key is empty") {
		t.Fatalf("got %v", err)
	}
}

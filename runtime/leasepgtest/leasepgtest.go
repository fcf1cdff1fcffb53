// Package leasepgtest gives each test of an application a place of its own on a PostgreSQL server that tests share: a
// development server, a container of the CI.
//
//	func TestBilling(t *testing.T) {
//		t.Parallel()
//		be, pool := leasepgtest.New(t, os.Getenv("TEST_DATABASE_URL"))
//		// migrate the application's tables with pool, publish to be, leasetest.Drain, look with pool
//	}
package leasepgtest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/runtime/leasepg"
)

// patience is how long the end of a test waits for its connections and for locks on its schemas.
const patience = 10 * time.Second

// New makes two schemas for the test alone in the database of dsn: one with leasegen's tables, which the backend uses, and
// an empty one for the application's, which is the search_path of the pool. When the test ends the pool is closed and these
// two schemas are dropped, with all that is in them, and no others. They are called leasetest_, a part of the test's name and
// a random number, so that any number of tests, processes and machines may use one database at once; a process that is
// killed leaves its two behind.
//
// The test fails when that cannot be done. The role needs the right to create schemas. It takes about a tenth of a second,
// and the server one or more connections: pgx's default for a pool is 4 or the number of CPUs, which pool_max_conns
// in the DSN changes. Options are those of leasepg.New and of leasepg.Migrate, but for WithSchema, which is set already.
//
// Apart are tables that the application names without their schema. Objects of a whole database are shared: tables named with
// their schema, as in //leasegen:table, roles, and the keys of advisory locks. So two tests that run a consumer of one name
// with lock=advisory at once may find the other's lock, and its lease's row decides.
func New(t testing.TB, dsn string, opts ...leasepg.Option) (*leasepg.Backend, *pgxpool.Pool) {
	t.Helper()
	name := "leasetest_" + letters(t.Name()) + "_" + random()
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatalf("leasepgtest: %v", err)
	}
	cfg.ConnConfig.RuntimeParams["search_path"] = name
	ctx := context.WithoutCancel(t.Context())
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		t.Fatalf("leasepgtest: %v", err)
	}
	t.Cleanup(func() { end(t, pool, name) })
	if _, err := pool.Exec(ctx, "CREATE SCHEMA "+name); err != nil {
		t.Fatalf("leasepgtest: make a schema for the test: %v; the DSN names a server for tests, whose role may create schemas", err)
	}
	opts = append(opts[:len(opts):len(opts)], leasepg.WithSchema(name+"_leasegen"))
	if _, err := leasepg.Migrate(ctx, pool, opts...); err != nil {
		t.Fatalf("leasepgtest: %v", err)
	}
	return leasepg.New(pool, opts...), pool
}

// end closes the pool and drops what New has made.
func end(t testing.TB, pool *pgxpool.Pool, name string) {
	t.Helper()
	closed := make(chan struct{})
	go func() { pool.Close(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(patience):
		t.Errorf("leasepgtest: a connection of the pool is still in use %v after the test; end its consumers, transactions and rows before", patience)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, pool.Config().ConnConfig)
	if err != nil {
		t.Errorf("leasepgtest: drop schemas %s and %[1]s_leasegen: %v; drop them by hand", name, err)
		return
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, "SET lock_timeout = '"+patience.String()+"'; DROP SCHEMA IF EXISTS "+name+", "+name+"_leasegen CASCADE")
	if err != nil {
		t.Errorf("leasepgtest: drop schemas %s and %[1]s_leasegen: %v; drop them by hand, and end the test's consumers and transactions before it ends", name, err)
	}
}

// letters are the first of a test's name, to tell schemas apart by.
func letters(name string) string {
	kept := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return -1
	}, strings.TrimPrefix(name, "Test"))
	return kept[:min(len(kept), 20)]
}

func random() string {
	var b [8]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

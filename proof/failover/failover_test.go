package main

import (
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/lease"
)

// The replicas are this test binary, started again.
func TestMain(m *testing.M) {
	if os.Getenv(envReplica) != "" {
		os.Exit(replicaMain())
	}
	os.Exit(m.Run())
}

// A few trials of each fault and lock: somebody takes over, and no old owner works on. How long it
// takes is what make failover measures.
func TestFailover(t *testing.T) {
	shared := pgtest.Start(t, pgtest.Config("max_connections", "400"))
	for i, k := range locks() {
		for _, f := range faults() {
			if i > 0 && f.pairs < 10 && f.name != "SIGKILL" {
				continue // as with the first
			}
			t.Run(k.String()+"/"+f.name, func(t *testing.T) {
				t.Parallel()
				s := shared
				if f.once == nil { // it restarts its server
					s = pgtest.Start(t)
				}
				var bare *pace.Bare
				if f.target > 0 {
					pool, err := pgxpool.New(t.Context(), s.DSN("postgres"))
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(pool.Close)
					bare = pace.Beside(t, pool.Ping)
				}
				l, err := try(t.Context(), s, k, f, 3, 3)
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("%v, late calls: %d", l.took, l.late)
				// A Run handler that was frozen hears a moment later that it has lost its lease.
				if l.late > 0 && k.asPer != lease.PerCluster {
					t.Errorf("an old owner began %d calls after the new owner's first", l.late)
				}
				if f.target == 0 {
					return
				}
				bare.Within(t, "the best of the takeovers", l.took[0], f.target+time.Second)
			})
		}
	}
}

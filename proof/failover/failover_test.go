package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/leasegen/leasegen/internal/must"
	"github.com/leasegen/leasegen/proof/failover/trials"
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
	shared := map[string]store{}
	start := func(t *testing.T, on string) store {
		s := must.Get(launch(context.Background(), on))
		t.Cleanup(s.Close)
		return s
	}
	for _, k := range locks() {
		first := shared[k.on] == nil
		if first {
			shared[k.on] = start(t, k.on)
		}
		for _, f := range faults(usual) {
			if !first && (f.pairs < 10 || k.asPer == lease.PerPartition) && f.name != "SIGKILL" {
				continue // as with the first
			}
			t.Run(k.String()+"/"+f.name, func(t *testing.T) {
				t.Parallel()
				s := shared[k.on]
				if f.once == nil { // it restarts its server
					s = start(t, k.on)
				}
				l, err := try(t.Context(), s, k, f, usual, 3, 3)
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("%v, late calls: %d; bare connections: %v", l.took, l.late, l.bare.connections)
				// A Run handler that was frozen hears a moment later that it has lost its lease. One of another kind may have
				// been frozen between the look at its lease and its call: one call in all trials.
				most := 0
				if f.name == "SIGSTOP" {
					most = 1
				}
				if l.late > most && k.asPer != lease.PerCluster {
					t.Errorf("an old owner began %d calls after the new owner's first", l.late)
				}
				if f.target == 0 {
					return
				}
				// On PostgreSQL a takeover waits as long as others may take to come back, which is up to ten tries to connect.
				connection := at(l.bare.connections, 1)
				if most := f.target + time.Second + 10*connection; l.took[0] > most {
					t.Errorf("the best of the takeovers took %v, want at most %v: ten times as long as the slowest bare connection, %v, and %v",
						l.took[0], most, connection, f.target+time.Second)
				}
			})
		}
	}
}

func TestATTLIsAboveZero(t *testing.T) {
	for _, ttl := range []string{"0s", "-2s"} {
		if err := run(t.Context(), []string{"-ttl", ttl, "-trials", "1"}, io.Discard); err == nil {
			t.Errorf("-ttl %s: no error", ttl)
		}
	}
}

// The command writes what each trial took into a file, for those that draw it.
func TestRawResults(t *testing.T) {
	path := filepath.Join(t.TempDir(), "raw.json")
	if err := run(t.Context(), []string{"-trials", "2", "-locks", "topic", "-faults", "SIGKILL", "-raw", path}, io.Discard); err != nil {
		t.Fatal(err)
	}
	lines := must.Get(trials.Read(path))
	if len(lines) != 2 {
		t.Fatalf("%d lines, want those of two stores: %+v", len(lines), lines)
	}
	for i, l := range lines {
		if l.On != []string{onPostgres, onRedis}[i] || l.Per != "topic" || l.Fault != "SIGKILL" || l.TTL != 2000 || len(l.Took) != 2 || l.Took[0] <= 0 || l.BareConnection <= 0 || l.BareWrite <= 0 {
			t.Errorf("%+v", l)
		}
	}
}

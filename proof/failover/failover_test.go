package main

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/lease"
)

// The replicas are this test binary, started again.
func TestMain(m *testing.M) {
	if os.Getenv(envReplica) != "" {
		os.Exit(replicaMain())
	}
	os.Exit(m.Run())
}

// A few trials of each fault and lock. The goals are for p99 on a quiet machine; here,
// with the race detector and other tests around, only takeovers that wait for what they
// should not wait for are noticed.
func TestFailover(t *testing.T) {
	for i, k := range locks() {
		for _, f := range faults() {
			if i > 0 && f.fleets < 10 && f.name != "SIGKILL" {
				continue // as with the first
			}
			t.Run(k.String()+"/"+f.name, func(t *testing.T) {
				t.Parallel()
				late := lateness()
				l, err := try(t.Context(), k, f, 3, 3)
				slack := 20 * late()
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
				// The best shows what is waited for, whatever else the machine has to do.
				if limit := f.target + time.Second + slack; l.took[0] > limit {
					t.Errorf("the best of %d took %v, want at most %v", len(l.took), l.took[0], limit)
				}
			})
		}
	}
}

// lateness watches how late this process is woken, by as much as other work keeps the machine
// busy, until the returned function is called. That returns the one that it exceeded once in twenty times.
func lateness() (stop func() time.Duration) {
	end, done := make(chan struct{}), make(chan []time.Duration)
	go func() {
		var late []time.Duration
		for {
			began := time.Now()
			select {
			case <-end:
				done <- late
				return
			case <-time.After(5 * time.Millisecond):
				late = append(late, time.Since(began)-5*time.Millisecond)
			}
		}
	}()
	return func() time.Duration {
		close(end)
		late := append(<-done, 0)
		slices.Sort(late)
		return late[len(late)*19/20]
	}
}

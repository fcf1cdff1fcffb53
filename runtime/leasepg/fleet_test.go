package leasepg_test

import (
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// What each process asks once a second, and at each handover, takes milliseconds with 40,000
// leases: no statement is compiled by the server, which takes longer than all of them.
func TestFleetOf40000(t *testing.T) {
	const leases = 40_000
	be, pool := migrated(t)
	streams := backend.ConsumerInfo{Name: "streams", Per: backend.PerStream, Lock: backend.LockRow, TTL: time.Hour, Announced: true}
	for _, c := range []backend.ConsumerInfo{topical, streams} {
		id, _ := member(t, be, time.Hour, c)
		other, _ := member(t, be, time.Hour, c)
		ok(t, be.Register(t.Context(), c, topicNames(leases)))
		gs := acquire(t, be, id, c, leases)
		equal(t, "acquired", len(gs), leases)
		exec(t, pool, "VACUUM ANALYZE leasegen.lease")
		var surveys, acquires, yardstick time.Duration = time.Hour, time.Hour, time.Hour
		for i := range 6 {
			at := time.Now()
			exec(t, pool, "SELECT count(*) FROM generate_series(1, 100000)") // about 10 ms on a quiet machine
			yardstick = min(yardstick, time.Since(at))
			at = time.Now()
			s := surveyed(t, be, c)
			surveys = min(surveys, time.Since(at))
			equal(t, "resources", s.Resources, leases)
			ok(t, be.Release(t.Context(), id, c.Name, refs(gs[i:i+1])))
			at = time.Now()
			equal(t, "moved", len(acquire(t, be, other, c, 1)), 1)
			acquires = min(acquires, time.Since(at))
		}
		bound := 10 * yardstick
		t.Logf("%s: a survey takes %v, an acquire %v, the yardstick %v", c.Name, surveys, acquires, yardstick)
		if surveys > bound || acquires > bound {
			t.Errorf("%s: a survey takes %v, an acquire %v, want less than %v", c.Name, surveys, acquires, bound)
		}
	}
}

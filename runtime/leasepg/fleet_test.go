package leasepg_test

import (
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
)

// What each process asks once a second, and at each handover, takes milliseconds with 40,000
// leases: no statement is compiled by the server, which takes longer than all of them.
func TestFleetOf40000(t *testing.T) {
	const leases = 40_000
	be, pool := migrated(t)
	streams := backend.ConsumerInfo{Name: "streams", Per: backend.PerStream, Lock: backend.LockRow, TTL: time.Hour, Announced: true}
	for _, c := range []backend.ConsumerInfo{topical, streams} {
		id := kit.Join(t, be, c, time.Hour)
		other := kit.Join(t, be, c, time.Hour)
		kit.OK(t, be.Register(t.Context(), c, kit.Topics(leases)))
		gs := id.Acquires(leases)
		kit.Equal(t, "acquired", len(gs), leases)
		exec(t, pool, "VACUUM ANALYZE leasegen.lease")
		var surveys, acquires, yardstick time.Duration = time.Hour, time.Hour, time.Hour
		for i := range 6 {
			at := time.Now()
			exec(t, pool, "SELECT count(*) FROM generate_series(1, 100000)") // about 10 ms on a quiet machine
			yardstick = min(yardstick, time.Since(at))
			at = time.Now()
			s := surveyed(t, be, c)
			surveys = min(surveys, time.Since(at))
			kit.Equal(t, "resources", s.Resources, leases)
			kit.OK(t, be.Release(t.Context(), id.ID, c.Name, kit.Refs(gs[i:i+1])))
			at = time.Now()
			kit.Equal(t, "moved", len(other.Acquires(1)), 1)
			acquires = min(acquires, time.Since(at))
		}
		bound := 10 * yardstick
		t.Logf("%s: a survey takes %v, an acquire %v, the yardstick %v", c.Name, surveys, acquires, yardstick)
		if surveys > bound || acquires > bound {
			t.Errorf("%s: a survey takes %v, an acquire %v, want less than %v", c.Name, surveys, acquires, bound)
		}
	}
}

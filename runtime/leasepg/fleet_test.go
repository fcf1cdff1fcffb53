package leasepg_test

import (
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
)

// A consumer that is new since the last ANALYZE has no rows for the planner: what it asks for costs what it costs with them.
func TestANewConsumerInOldStatistics(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	const leases, most = 20_000, 500
	old := kit.Join(t, be, topical, time.Hour)
	kit.OK(t, be.Register(t.Context(), topical, kit.Topics(leases)))
	for owned := 0; owned < leases; owned += 2000 {
		kit.Equal(t, "acquired", len(old.Acquires(2000)), 2000)
	}
	exec(t, pool, "VACUUM ANALYZE leasegen.lease")
	streams := backend.ConsumerInfo{Name: "streams", Per: backend.PerStream, Lock: backend.LockRow, TTL: time.Hour, Announced: true}
	a := kit.Join(t, be, streams, time.Hour)
	kit.OK(t, be.Register(t.Context(), streams, kit.Topics(leases)))
	round := func() (took time.Duration) {
		took = time.Hour
		for range 3 {
			at := time.Now()
			gs := a.Acquires(most)
			kit.Equal(t, "acquired", len(gs), most)
			kit.Equal(t, "lost", len(kit.Must[[]string](t)(be.Capabilities().Rows.Renew(t.Context(), a.ID, streams, kit.Refs(gs)))), 0)
			a.Releases(kit.Refs(gs)...)
			took = min(took, time.Since(at))
		}
		return took
	}
	before := round()
	exec(t, pool, "ANALYZE leasegen.lease")
	after := round()
	t.Logf("to acquire, renew and release %d of %d leases takes %v, and %v after ANALYZE", most, leases, before, after)
	if before > 6*after {
		t.Errorf("to acquire, renew and release %d leases takes %v, and %v after ANALYZE, want no more than 6 times that", most, before, after)
	}
}

// The queries of each process once a second, and at each handover, take milliseconds with 40,000
// leases: no statement is compiled by the server, which takes longer than all of them.
func TestFleetOf40000(t *testing.T) {
	t.Parallel()
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

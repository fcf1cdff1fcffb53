package leasepg_test

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

// A process that has no work reads at most once a second, at the default TTL, whether it owns something or stands by.
func TestCostOfIdling(t *testing.T) {
	t.Parallel()
	_, m := measuredDB(t, measured(t), "idle")
	const processes = 2
	for range processes {
		running(t, kit.Must[*lease.Consumer](t)(lease.NewConsumer(leasepg.New(open(t, m.pool.Config().ConnString())), lease.Spec{
			Name: "idle", Per: backend.PerGroup, Topics: []string{"*"}, Handlers: []lease.Handler{
				lease.One("kind", func(context.Context, lease.Message[struct{}]) error { return nil })},
		}, quiet())))
	}
	calls := func() (out map[string]int) {
		out = map[string]int{}
		var text string
		var n int
		rows, err := m.pool.Query(t.Context(), `SELECT query, calls
			FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid AND d.datname = current_database()`)
		kit.OK(t, err)
		_, err = pgx.ForEachRow(rows, []any{&text, &n}, func() error {
			if name := queryName.FindStringSubmatch(text); name != nil {
				out[name[1]] += n
			}
			return nil
		})
		kit.OK(t, err)
		return out
	}
	const commits = "SELECT xact_commit::int FROM pg_stat_database WHERE datname = current_database()"
	time.Sleep(10 * time.Second) // until they have become idle
	before, began, committed := calls(), time.Now(), query[int](t, m.pool, commits)
	time.Sleep(24 * time.Second)
	took, total := time.Since(began).Seconds(), 0
	committed = query[int](t, m.pool, commits) - committed
	after := calls()
	for _, name := range slices.Sorted(maps.Keys(after)) {
		n := after[name] - before[name]
		if n > 0 {
			t.Logf("%s: %d", name, n)
		}
		if !besides[name] {
			total += n
		}
	}
	// With all that besides leaves out, the pings of the pool, autovacuum and the measurement itself.
	all := float64(committed) / took / processes
	if t.Logf("%.2f transactions a second and process, everything counted", all); all > 3 {
		t.Errorf("%.2f transactions a second and process, want at most 3", all)
	}
	rate := float64(total) / took / processes
	if t.Logf("%.2f reads a second and process", rate); rate > 1 {
		t.Errorf("%.2f reads a second and process, want at most 1", rate)
	}
}

// besides are statements that share a transaction with one that is counted, the heartbeat, and what one process of a fleet does
// to keep house.
var besides = map[string]bool{
	"Aim": true, "WaitForLock": true, "WaitForNudge": true, "Durable": true, "Expect": true, "Steady": true, "Uncompiled": true, "NextDelayed": true, "NextLane": true,
	"WatchOwnership": true, "Heartbeat": true,
	"BuryExpired": true, "Chore": true, "DropSegments": true, "EnsureSegments": true, "ForgetIDs": true, "ForgetSessions": true, "ForgetStreams": true,
	"HeldBack": true, "LogEnd": true, "TryMaintain": true, "UnwantedTopics": true,
}

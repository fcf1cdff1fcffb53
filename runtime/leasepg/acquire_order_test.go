package leasepg_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
)

// The lease that has been free longest is granted first, so that under a backlog no stream waits much longer than another.
func TestLongestFreeIsGrantedFirst(t *testing.T) {
	be, _ := migrated(t)
	info := backend.ConsumerInfo{Name: "c", Per: backend.PerStream, Topics: []string{"*"}}
	session := kit.Join(t, be, info, time.Hour)
	const n = 12
	for i := range n {
		kit.OK(t, be.Register(t.Context(), info, []string{fmt.Sprint("s", (i*5)%n)}))
	}
	for i := range n {
		gs := session.Acquires(1)
		kit.Equal(t, "granted", len(gs), 1)
		kit.Equal(t, "granted next", gs[0].Resource, fmt.Sprint("s", (i*5)%n))
	}
}

// Leases of a crashed session that wait for their grace hide none that was given back since, however many they are.
func TestGraceHidesNothingFree(t *testing.T) {
	be, pool := migrated(t)
	info := backend.ConsumerInfo{Name: "c", Per: backend.PerTopic, Topics: []string{"*"}, Grace: time.Hour}
	const n = 600
	topics := make([]string, n)
	for i := range topics {
		topics[i] = fmt.Sprint("t", i)
	}
	kit.OK(t, be.Register(t.Context(), info, topics))
	crashed := kit.Join(t, be, info, time.Hour)
	kit.Equal(t, "held by the session that crashes", len(crashed.Acquires(n-1)), n-1)
	b := kit.Join(t, be, info, time.Hour)
	gs := b.Acquires(1)
	kit.Equal(t, "held by another", len(gs), 1)
	exec(t, pool, "UPDATE leasegen.session SET state = 'dead', expires_at = clock_timestamp() WHERE id = $1", crashed.ID)
	kit.OK(t, be.Release(t.Context(), b.ID, info.Name, kit.Refs(gs)))
	c := kit.Join(t, be, info, time.Hour)
	got := c.Acquires(1)
	kit.Equal(t, "granted", len(got), 1)
	kit.Equal(t, "granted", got[0].Resource, gs[0].Resource)
}

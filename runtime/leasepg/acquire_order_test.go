package leasepg_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// What has been free longest is granted first, so that under a backlog no stream waits much longer than another.
func TestLongestFreeIsGrantedFirst(t *testing.T) {
	be, _ := migrated(t)
	info := backend.ConsumerInfo{Name: "c", Per: backend.PerStream, Topics: []string{"*"}}
	session, _ := member(t, be, time.Hour, info)
	const n = 12
	for i := range n {
		ok(t, be.Register(t.Context(), info, []string{fmt.Sprint("s", (i*5)%n)}))
	}
	for i := range n {
		gs := acquire(t, be, session, info, 1)
		equal(t, "granted", len(gs), 1)
		equal(t, "granted next", gs[0].Resource, fmt.Sprint("s", (i*5)%n))
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
	ok(t, be.Register(t.Context(), info, topics))
	crashed, _ := member(t, be, time.Hour, info)
	equal(t, "held by the session that crashes", len(acquire(t, be, crashed, info, n-1)), n-1)
	b, _ := member(t, be, time.Hour, info)
	gs := acquire(t, be, b, info, 1)
	equal(t, "held by another", len(gs), 1)
	exec(t, pool, "UPDATE leasegen.session SET state = 'dead', expires_at = clock_timestamp() WHERE id = $1", crashed)
	ok(t, be.Release(t.Context(), b, info.Name, refs(gs)))
	c, _ := member(t, be, time.Hour, info)
	got := acquire(t, be, c, info, 1)
	equal(t, "granted", len(got), 1)
	equal(t, "granted", got[0].Resource, gs[0].Resource)
}

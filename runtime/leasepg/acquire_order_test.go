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

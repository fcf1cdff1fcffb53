package leaseredis_test

import (
	"context"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// More sessions than are declared dead at once expire with leases that have expired by themselves. The end of
// one that is noted later must not set free what another has taken by then.
func TestALeaseThatWasTakenIsNotFreedByTheEndOfItsFormerOwner(t *testing.T) {
	be := fresh(t)
	rows := backend.ConsumerInfo{Name: "rows", Per: backend.PerStream, Announced: true, Lock: backend.LockRow, TTL: 50 * time.Millisecond}
	ok(t, be.Register(t.Context(), rows, []string{"s"}))
	for range 20 {
		member(t, be, 50*time.Millisecond, rows)
	}
	former, _ := member(t, be, 3*time.Second, rows)
	equal(t, "taken by the former owner", len(acquire(t, be, former, rows, 1)), 1)
	eventually(t, "all have expired", func() bool {
		s := survey(t, be, rows)
		return len(s.Members) == 0 && s.Free == 1
	})
	rows.TTL = time.Hour
	owner, _ := member(t, be, time.Hour, rows)
	taken := acquire(t, be, owner, rows, 1)
	equal(t, "taken by the next owner", len(taken), 1)
	other, _ := member(t, be, time.Hour, rows)
	for range 3 {
		equal(t, "taken by another", len(acquire(t, be, other, rows, 1)), 0)
	}
	lost := must[[]string](t)(be.Renew(context.Background(), owner, rows, refs(taken)))
	equal(t, "lost", len(lost), 0)
}

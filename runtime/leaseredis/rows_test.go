package leaseredis_test

import (
	"context"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
)

// More sessions than are declared dead at once expire with leases that have expired by themselves. The end of
// one that is noted later must not set free what another has taken by then.
func TestALeaseThatWasTakenIsNotFreedByTheEndOfItsFormerOwner(t *testing.T) {
	t.Parallel()
	be := fresh(t)
	rows := backend.ConsumerInfo{Name: "rows", Per: backend.PerStream, Announced: true, Lock: backend.LockRow, TTL: 50 * time.Millisecond}
	kit.OK(t, be.Register(t.Context(), rows, []string{"s"}))
	for range 20 {
		kit.Join(t, be, rows, time.Second)
	}
	former := kit.Join(t, be, rows, 10*time.Second)
	kit.Equal(t, "taken by the former owner", len(former.Acquires(1)), 1)
	kit.Eventually(t, "all have expired", func() bool {
		s := survey(t, be, rows)
		return len(s.Members) == 0 && s.Free == 1
	})
	rows.TTL = time.Hour
	owner := kit.Join(t, be, rows, time.Hour)
	taken := owner.Acquires(1)
	kit.Equal(t, "taken by the next owner", len(taken), 1)
	other := kit.Join(t, be, rows, time.Hour)
	for range 3 {
		kit.Equal(t, "taken by another", len(other.Acquires(1)), 0)
	}
	lost := kit.Must[[]string](t)(be.Renew(context.Background(), owner.ID, rows, kit.Refs(taken)))
	kit.Equal(t, "lost", len(lost), 0)
}

package leasepg_test

import (
	"fmt"
	"testing"

	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/leasetest"
)

// Nobody waits for a connection while holding one: what the suite asks for is so on pools that
// are smaller than the handlers at work, too. Left out are scenarios that only wait for a TTL.
func TestConformanceOnSmallPools(t *testing.T) {
	for _, conns := range []int32{1, 2, 4} {
		t.Run(fmt.Sprint(conns), func(t *testing.T) {
			leasetest.RunSome(t, factoryMax(pgtest.DB, conns),
				"Pool_", "Once_Effects", "T003-56", "X-01", "T000-40", "A_failing_batch", "Partition_keys", "Tx/", "Publish/", "Parked/", "Cursor/")
		})
	}
}

package leasemem_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/leasetest"
)

func TestMain(m *testing.M) {
	pace.Parallel(32)
	goleak.VerifyTestMain(m)
}

func TestConformance(t *testing.T) {
	var mu sync.Mutex
	effects := map[backend.Backend][]string{}
	leasetest.Run(t, leasetest.Factory{
		Simulated: true,
		New:       func(testing.TB) backend.Backend { return leasemem.New() },
		Again: func(_ testing.TB, be backend.Backend) backend.Backend {
			return be.(*leasemem.Backend).Share()
		},
		SetBack: func(_ testing.TB, be backend.Backend) func() {
			at := be.(*leasemem.Backend).Snapshot()
			return func() { be.(*leasemem.Backend).Restore(at) }
		},
		Effect: func(_ context.Context, be backend.Backend, tx any, value string) error {
			tx.(*leasemem.Tx).Do(func() {
				mu.Lock()
				defer mu.Unlock()
				effects[be] = append(effects[be], value)
			})
			return nil
		},
		Effects: func(_ testing.TB, be backend.Backend) []string {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(effects[be])
		},
	})
}

package leasetest

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leasemem"
)

// TestMisbehaviour goes through all cells in simulated time, so that faults last longer than
// every deadline of the runtime.
func TestMisbehaviour(t *testing.T) {
	for _, c := range cells() {
		t.Run(c.name(), func(t *testing.T) {
			t.Parallel()
			kit.Bubble(t, func(t *testing.T) {
				t.Cleanup(func() { time.Sleep(time.Minute) }) // last: for calls that were left behind
				runCell(simulated{t}, memory(), c, simulatedPace)
			})
		})
	}
}

// simulated is a test in simulated time, which is cheap.
type simulated struct{ testing.TB }

func (simulated) Patience() time.Duration { return 5 * time.Minute }

// memory makes backends in memory, with effects.
func memory() Factory {
	var mu sync.Mutex
	var effects []string
	return Factory{
		New:   func(testing.TB) backend.Backend { return leasemem.New() },
		Again: func(_ testing.TB, be backend.Backend) backend.Backend { return be.(*leasemem.Backend).Share() },
		Effect: func(_ context.Context, _ backend.Backend, tx any, value string) error {
			tx.(*leasemem.Tx).Do(func() {
				mu.Lock()
				defer mu.Unlock()
				effects = append(effects, value)
			})
			return nil
		},
		Effects: func(testing.TB, backend.Backend) []string {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(effects)
		},
	}
}

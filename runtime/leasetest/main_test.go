package leasetest

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/leasegen/leasegen/internal/pace"
)

func TestMain(m *testing.M) {
	pace.Parallel(32)
	goleak.VerifyTestMain(m)
}

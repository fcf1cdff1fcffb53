package leasetest

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	Parallel(32)
	goleak.VerifyTestMain(m)
}

package leasetest

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	flag.Parse()
	flag.Set("test.parallel", "32") // most tests wait
	goleak.VerifyTestMain(m)
}

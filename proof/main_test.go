package proof

import (
	"os"
	"testing"

	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/pgtest"
)

// The replicas are this test binary, started again.
func TestMain(m *testing.M) {
	if os.Getenv(envMode) != "" {
		os.Exit(replicaMain())
	}
	pace.Parallel(6) // they wait more than they work
	pgtest.Main(m)
}

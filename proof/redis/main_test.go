package redisproof

import (
	"os"
	"testing"

	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/redistest"
)

// The replicas are this test binary, started again.
func TestMain(m *testing.M) {
	if os.Getenv(envReplica) != "" {
		os.Exit(replicaMain())
	}
	pace.Parallel(8) // they wait more than they work
	redistest.Main(m)
}

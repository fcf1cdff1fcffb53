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
	atOnce := 8 // they wait more than they work
	if pace.Long() {
		atOnce = 4 // and more is published: with more at once, handlers on two cores fall behind for minutes
	}
	pace.Parallel(atOnce)
	redistest.Main(m)
}

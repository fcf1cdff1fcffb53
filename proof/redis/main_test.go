package redisproof

import (
	"flag"
	"os"
	"testing"

	"github.com/leasegen/leasegen/internal/redistest"
)

// The replicas are this test binary, started again.
func TestMain(m *testing.M) {
	if os.Getenv(envReplica) != "" {
		os.Exit(replicaMain())
	}
	// They wait more than they work.
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		if err := f.Value.Set("6"); err != nil {
			panic(err)
		}
	}
	redistest.Main(m)
}

package proof

import (
	"fmt"
	"testing"

	"github.com/leasegen/leasegen/internal/fleet"
)

// startFleet starts one replica for each DSN, and waits until each has a session.
func startFleet(t *testing.T, m mode, dsns ...string) *fleet.Fleet {
	t.Helper()
	replicas := make([]fleet.Replica, len(dsns))
	for i, dsn := range dsns {
		replicas[i] = replicaOf(m, i+1, dsn)
	}
	return fleet.Start(t, replicas...)
}

func replicaOf(m mode, number int, dsn string) fleet.Replica {
	name := fmt.Sprintf("replica-%d", number)
	return fleet.Replica{Name: name, Env: []string{envMode + "=" + string(m), envDSN + "=" + dsn, envName + "=" + name}}
}

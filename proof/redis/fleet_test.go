package redisproof

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/leasegen/leasegen/internal/fleet"
)

// startFleet starts a replica for each of the settings and waits until all have a session.
func startFleet(t *testing.T, all ...settings) *fleet.Fleet {
	t.Helper()
	replicas := make([]fleet.Replica, len(all))
	for i, s := range all {
		replicas[i] = s.replica()
	}
	return fleet.Start(t, replicas...)
}

func (s settings) replica() fleet.Replica {
	told, err := json.Marshal(s)
	if err != nil {
		panic(err) // all its fields are of simple types
	}
	return fleet.Replica{Name: s.Name, Env: []string{envReplica + "=" + string(told)}}
}

// names are the settings of n replicas.
func names(s settings, n int) []settings {
	all := make([]settings, n)
	for i := range all {
		all[i] = s
		all[i].Name = fmt.Sprintf("replica-%d", i+1)
	}
	return all
}

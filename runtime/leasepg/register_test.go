package leasepg_test

import (
	"strings"
	"testing"

	"github.com/leasegen/leasegen/internal/tabletest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
)

// The cursors and resources of a consumer mean something only for what it reads and what it
// owns: another source or per= under the old name is refused, and has no effect.
func TestConsumerOfAnotherKind(t *testing.T) {
	t.Parallel()
	be, pool := withTable(t)
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 10)))
	refused := func(what string, c backend.ConsumerInfo) {
		t.Helper()
		before := query[string](t, pool, "SELECT string_agg(l::text, ',' ORDER BY resource) FROM leasegen.lease l WHERE consumer = $1", c.Name)
		if err := be.Register(t.Context(), c, nil); err == nil || !strings.Contains(err.Error(), "give the consumer another name") {
			t.Errorf("%s: %v", what, err)
		}
		kit.Equal(t, "leases after "+what, query[string](t, pool, "SELECT string_agg(l::text, ',' ORDER BY resource) FROM leasegen.lease l WHERE consumer = $1", c.Name), before)
	}
	info := byGroup(t, be, &tabletest.ByGroup{}).Info()
	kit.OK(t, be.Register(t.Context(), info, nil))
	log := info
	log.Source, log.Topics = nil, []string{"*"}
	refused("from a table to the log", log)
	kit.OK(t, be.Register(t.Context(), info, nil))

	kit.OK(t, be.Register(t.Context(), topical, nil))
	slots := topical
	slots.Per = backend.PerPartition
	refused("from topics to slots", slots)
	kit.OK(t, be.Register(t.Context(), topical, nil))
	patterns := topical
	patterns.Topics = []string{"x", "y"}
	kit.OK(t, be.Register(t.Context(), patterns, nil))
	kit.OK(t, be.Register(t.Context(), led, nil))
	whole := led
	whole.Per, whole.Lock, whole.Topics = backend.PerGroup, backend.LockSession, []string{"*"}
	kit.OK(t, be.Register(t.Context(), whole, nil)) // a leader that reads the log from now on has the same resource
}

package leasepg_test

import (
	"testing"
	"time"

	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

// Two schemas of one database are two worlds: consumers of the same name have a leader in each.
func TestLeadersOfTwoSchemas(t *testing.T) {
	t.Parallel()
	pool := open(t, pgtest.DB(t))
	for _, schema := range []string{"leasegen", "staging", "canary"} {
		_, err := leasepg.Migrate(t.Context(), pool, leasepg.WithSchema(schema))
		kit.OK(t, err)
		be := leasepg.New(pool, leasepg.WithSchema(schema))
		kit.OK(t, be.Check(t.Context(), nil))
		kit.OK(t, be.Register(t.Context(), led, nil))
		id, s := leader(t, be, time.Hour)
		kit.Equal(t, "leads in "+schema, len(kit.Acting(t, be, id, led).Acquires(1)), 1)
		kit.OK(t, kit.Heartbeat(t, s))
		other, _ := leader(t, be, time.Hour)
		kit.Equal(t, "leads beside the leader of "+schema, len(kit.Acting(t, be, other, led).Acquires(1)), 0)
	}
	kit.Equal(t, "holders of the default schema's lock", query[int](t, pool, "SELECT count(*) FROM leasegen.lock_holders($1)", leasepg.LockKey(led.Name)), 1)
}

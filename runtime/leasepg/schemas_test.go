package leasepg_test

import (
	"testing"
	"time"

	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

// Two schemas of one database are two worlds: consumers of the same name have a leader in each.
func TestLeadersOfTwoSchemas(t *testing.T) {
	t.Parallel()
	pool := open(t, pgtest.DB(t))
	for _, schema := range []string{"leasegen", "staging", "canary"} {
		_, err := leasepg.Migrate(t.Context(), pool, leasepg.WithSchema(schema))
		ok(t, err)
		be := leasepg.New(pool, leasepg.WithSchema(schema))
		ok(t, be.Check(t.Context(), nil))
		ok(t, be.Register(t.Context(), led, nil))
		id, s := leader(t, be, time.Hour)
		equal(t, "leads in "+schema, len(acquire(t, be, id, led, 1)), 1)
		ok(t, s.Heartbeat(t.Context()))
		other, _ := leader(t, be, time.Hour)
		equal(t, "leads beside the leader of "+schema, len(acquire(t, be, other, led, 1)), 0)
	}
	equal(t, "holders of the default schema's lock", query[int](t, pool, "SELECT count(*) FROM leasegen.lock_holders($1)", leasepg.LockKey(led.Name)), 1)
}

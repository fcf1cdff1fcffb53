package leasepg_test

import (
	"fmt"
	"testing"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/operate"
)

// told returns a backend on the same database, and what it tells its observer.
func told(t testing.TB) (be *leasepg.Backend, run func(sql string), observed func() []operate.ObservedSetBack) {
	t.Helper()
	_, pool := migrated(t)
	var all []operate.ObservedSetBack
	be = leasepg.New(pool, leasepg.WithObserver(operate.ObserverFunc(func(o operate.Observation) {
		if o, is := o.(operate.ObservedSetBack); is {
			all = append(all, o)
		}
	})))
	return be, func(sql string) { exec(t, pool, sql) }, func() []operate.ObservedSetBack { return all }
}

// A lease whose stored position was written on another server begins again, durably.
func TestAStoredPositionFromTheFuture(t *testing.T) {
	t.Parallel()
	be, run, observed := told(t)
	kit.OK(t, be.Publish(t.Context(), kit.Events("t", 5)))
	id, g := kit.Sole(t, be, grouped)
	read := kit.Fetch(t, be, grouped, backend.Whole, g.Cursor, 10)
	kit.Must[[]string](t)(be.Commit(t.Context(), id.ID, grouped.Name, []backend.Progress{{Ref: g.Ref, Seq: 1, Cursor: read.Next}}))
	kit.OK(t, be.Release(t.Context(), id.ID, grouped.Name, []backend.Ref{g.Ref}))
	run("UPDATE leasegen.lease SET pos = 4000, snap = '9000000000:9000000000:', x = '9000000001'")
	kit.OK(t, be.Publish(t.Context(), kit.Events("t", 2)))
	for range 2 { // the second time it is stored
		again := id.Acquires(1)
		kit.Equal(t, "leases", len(again), 1)
		kit.Equal(t, "messages", len(kit.Fetch(t, be, grouped, backend.Whole, again[0].Cursor, 10).Messages), 7)
		kit.OK(t, be.Release(t.Context(), id.ID, grouped.Name, []backend.Ref{again[0].Ref}))
	}
	kit.Equal(t, "observed", fmt.Sprint(len(observed()), " ", observed()[0].Consumer, " ", observed()[0].Resource), "1 grouped *")
}

// A log whose ids are given out again is read from what a position has not seen.
func TestALogThatWasSetBack(t *testing.T) {
	t.Parallel()
	be, run, observed := told(t)
	for _, c := range []backend.ConsumerInfo{grouped, topical} {
		kit.OK(t, be.Publish(t.Context(), kit.Events("t", 20)))
		_, g := kit.Sole(t, be, c, "t")
		at := kit.Fetch(t, be, c, g.Resource, g.Cursor, 100).Next
		run("TRUNCATE leasegen.message RESTART IDENTITY")
		kit.OK(t, be.Publish(t.Context(), kit.Events("t", 7)))
		n := 0
		for range 4 {
			read := kit.Fetch(t, be, c, g.Resource, at, 100)
			n, at = n+len(read.Messages), read.Next
		}
		kit.Equal(t, "messages of "+c.Name, n, 7)
		run("TRUNCATE leasegen.message RESTART IDENTITY")
	}
	kit.Equal(t, "observed", len(observed()), 2)
}

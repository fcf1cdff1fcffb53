package leasepg_test

import (
	"context"
	"strings"
	"testing"

	"github.com/leasegen/leasegen/internal/tabletest"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/operate"
)

// TestSkewedTable: a few topics, and slots, have nearly all rows of an application's table, which ANALYZE has seen. Rows of the others
// are found by the index of their resource: no read walks the primary key through the rows of the large ones.
func TestSkewedTable(t *testing.T) {
	const large, small = 300_000, 500
	be, m := measuredDB(t, measured(t), "skewed")
	addTable(t, m.pool)
	exec(t, m.pool, "ALTER TABLE app.outbox DROP COLUMN dawdled; ALTER TABLE app.outbox ADD COLUMN dawdled double precision NOT NULL DEFAULT 0")
	fill := func() {
		exec(t, m.pool, `INSERT INTO app.outbox (channel, customer_id, event_type, n) SELECT 'large' || i % 4, i % 4, 'large', i FROM generate_series(1, $1::int) i`, large/2)
	}
	fill()
	var topics tabletest.ByTopic
	var keys tabletest.ByKey
	consumers := []*lease.Consumer{byTopic(t, be, &topics), byKey(t, be, &keys)}
	for _, c := range consumers {
		kit.OK(t, be.Register(t.Context(), c.Info(), nil))
		kit.Must[int](t)(be.SetCursor(t.Context(), c.Info().Name, "", operate.CursorTarget{Now: true}))
	}
	exec(t, m.pool, `INSERT INTO app.outbox (channel, customer_id, event_type, n) SELECT 'small' || i, 1000 + i, 'small', i FROM generate_series(1, $1::int) i`, small)
	fill()
	exec(t, m.pool, "ANALYZE app.outbox")
	// The large ones have been read.
	exec(t, m.pool, `UPDATE leasegen.lease SET pos = (SELECT max(id) FROM app.outbox), snap = pg_current_snapshot(), x = pg_current_xact_id()
		WHERE resource LIKE 'large%' OR resource IN (SELECT DISTINCT ((hashtextextended(k::text, 0) & 9223372036854775807) % 16)::text FROM generate_series(0, 3) k)`)
	smallOf := func(rows []tabletest.Message) (n int) {
		for _, r := range rows {
			if r.Payload.EventType == "small" {
				n++
			}
		}
		return n
	}
	slots := query[int](t, m.pool, `SELECT count(*) FROM generate_series(1, $1::int) i WHERE
		(hashtextextended((1000 + i)::text, 0) & 9223372036854775807) % 16 NOT IN (SELECT (hashtextextended(k::text, 0) & 9223372036854775807) % 16 FROM generate_series(0, 3) k)`, small)
	touched := m.costs(func() {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		g := lease.NewGroup()
		for _, c := range consumers {
			kit.OK(t, g.Add(c))
		}
		ended := make(chan error, 1)
		go func() { ended <- kit.Run(ctx, g) }()
		kit.Eventually(t, "the rows of small topics and slots", func() bool { return smallOf(topics.Rows()) == small && smallOf(keys.Rows()) == slots })
		cancel()
		kit.OK(t, <-ended)
	})
	reads := 0
	for name, cost := range touched {
		if strings.HasSuffix(name, "Read") || strings.HasSuffix(name, "Heads") {
			reads++
		}
		if cost.pages > scaleBuffers && name != "FreeSessionLeases" { // of which it frees all that the process has
			t.Errorf("%s touches %d pages", name, cost.pages)
		}
	}
	kit.Equal(t, "kinds of reads", reads, 4)
	t.Logf("%v", touched)
}

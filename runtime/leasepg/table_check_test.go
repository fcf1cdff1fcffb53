package leasepg_test

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/leasegen/leasegen/internal/tabletest"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

// TestTableIndexesThatDoNotServe: rows of a topic are read in the order of an index of both columns; one that has another
// order is as good as none.
func TestTableIndexesThatDoNotServe(t *testing.T) {
	for columns, serves := range map[string]bool{
		"channel, id": true, "channel DESC, id DESC": true, "channel, id DESC": false, "channel text_pattern_ops, id": false, `channel COLLATE "POSIX", id`: false,
	} {
		_, pool := withTable(t)
		exec(t, pool, "DROP INDEX app.outbox_channel_id_idx; CREATE INDEX ON app.outbox ("+columns+")")
		var log text
		be := leasepg.New(pool, leasepg.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		kit.OK(t, be.Register(t.Context(), byTopic(t, be, &tabletest.ByTopic{}).Info(), nil))
		if warned := strings.Contains(log.String(), "an index is missing"); warned == serves {
			t.Errorf("%s: warned %v\n%s", columns, warned, log.String())
		}
	}
}

// TestTableRowsHidden: a table of which row-level security may hide a row is refused; a policy that shows all is fine.
func TestTableRowsHidden(t *testing.T) {
	_, pool := withTable(t)
	reader := readerOf(t, pool)
	exec(t, pool, "GRANT USAGE ON SCHEMA app TO table_reader; GRANT SELECT ON app.outbox TO table_reader; ALTER TABLE app.outbox ENABLE ROW LEVEL SECURITY")
	const shown = "CREATE POLICY p ON app.outbox FOR SELECT TO table_reader USING (true)"
	for policy, hides := range map[string]bool{
		"SELECT": true,
		"CREATE POLICY p ON app.outbox USING (channel = 'eu')":                   true,
		"CREATE POLICY p ON app.outbox FOR INSERT WITH CHECK (true)":             true,
		"CREATE POLICY p ON app.outbox FOR SELECT TO pg_monitor USING (true)":    true,
		shown + "; CREATE POLICY r ON app.outbox AS RESTRICTIVE USING (id <> 7)": true,
		shown: false,
		"CREATE POLICY p ON app.outbox USING (true)":        false,
		"ALTER TABLE app.outbox DISABLE ROW LEVEL SECURITY": false,
	} {
		exec(t, pool, "DROP POLICY IF EXISTS p ON app.outbox; DROP POLICY IF EXISTS r ON app.outbox; ALTER TABLE app.outbox ENABLE ROW LEVEL SECURITY; "+policy)
		be := leasepg.New(reader)
		err := be.Register(t.Context(), byTopic(t, be, &tabletest.ByTopic{}).Info(), nil)
		if hides != (err != nil && strings.Contains(err.Error(), "row-level security hides rows from this role")) || !hides && err != nil {
			t.Errorf("%s: %v", policy, err)
		}
	}
}

package leasepg_test

import (
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/leasegen/leasegen/internal/tabletest"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/leasepg/pgtable"
	"github.com/leasegen/leasegen/runtime/operate"
)

// TestTableValuesThatDoNotFit: a later migration allows a NULL that the generated type does not. Its row becomes a dead letter.
// Consumers of every kind handle the rows beside it, and the row itself after it was fixed and replayed.
func TestTableValuesThatDoNotFit(t *testing.T) {
	be, pool := withTable(t)
	var readers tableReaders
	readers.run(t, be)
	exec(t, pool, "ALTER TABLE app.outbox ALTER COLUMN n DROP NOT NULL")
	exec(t, pool, "INSERT INTO app.outbox (channel, customer_id, event_type, n) SELECT 'a', 1, 'x', nullif(i, 3) FROM generate_series(1, 5) i")
	readers.await(t, "x", 4)
	kit.Eventually(t, "dead letters", func() bool { return query[int](t, pool, "SELECT count(*) FROM leasegen.dead_letter") == 3 })
	for _, d := range kit.Must[[]operate.DeadLetterInfo](t)(be.DeadLetters(t.Context(), operate.DeadLetterFilter{})) {
		kit.Equal(t, "reason", d.Reason, "column n: is NULL, want int64")
		kit.Equal(t, "message", d.MessageID, "3")
		shown := kit.Must[[]operate.DeadLetterInfo](t)(be.DeadLetters(t.Context(), operate.DeadLetterFilter{IDs: []string{d.ID}}))
		if !strings.Contains(string(shown[0].Payload), `"n": null`) && !strings.Contains(string(shown[0].Payload), `"n":null`) {
			t.Errorf("the dead letter shows %s", shown[0].Payload)
		}
	}
	exec(t, pool, "UPDATE app.outbox SET n = 3 WHERE n IS NULL")
	kit.Equal(t, "replayed", kit.Must[int](t)(be.Replay(t.Context(), operate.DeadLetterFilter{})), 3)
	readers.await(t, "x", 5)
}

// TestTableTypeThatIsNotKnown: a column of another type stops the consumer, whose log names the column. No row becomes a dead
// letter, and the consumer goes on after the column was fixed.
func TestTableTypeThatIsNotKnown(t *testing.T) {
	be, pool := withTable(t)
	exec(t, pool, "ALTER TABLE app.outbox ALTER COLUMN status DROP DEFAULT, ALTER COLUMN status TYPE int[] USING '{}'")
	exec(t, pool, "INSERT INTO app.outbox (channel, customer_id, event_type, n, status) VALUES ('a', 1, 'x', 1, '{7}')")
	var log text
	h := &tabletest.ByTopic{}
	running(t, kit.Must[*lease.Consumer](t)(tabletest.NewByTopic(be, h, lease.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))))
	kit.Eventually(t, "the log names the column", func() bool {
		return strings.Contains(log.String(), "(col: status)") && strings.Contains(log.String(), "generate again")
	})
	kit.Equal(t, "dead letters", query[int](t, pool, "SELECT count(*) FROM leasegen.dead_letter"), 0)
	exec(t, pool, "ALTER TABLE app.outbox ALTER COLUMN status TYPE text USING 'ready'")
	kit.Eventually(t, "the row", func() bool { return len(h.Rows()) == 1 })
}

// TestTableColumnOfAnotherType: fields that scan by themselves, such as pgtype.UUID, are no exception. A value of the right type
// that does not fit, or a NULL, concerns its row alone.
func TestTableColumnOfAnotherType(t *testing.T) {
	_, pool := migrated(t)
	var (
		id   pgtype.UUID
		n    int16
		text string
	)
	for _, c := range []struct {
		value string
		field any
		stops bool
		unfit string
	}{
		{"5::bigint", &id, true, ""},
		{"'{1}'::int[]", &text, true, ""},
		{"gen_random_uuid()", &id, false, ""},
		{"NULL::uuid", &id, false, ""},
		{"NULL::bigint", &n, false, "column ref: is NULL, want int16"},
		{"70000::bigint", &n, false, "column ref: its value does not fit int16"},
	} {
		rows, err := leasepg.RowsOf(pool, func(db pgtable.Querier) (out []pgtable.Row, err error) {
			rows, err := db.Query(t.Context(), "SELECT 7::bigint AS position, "+c.value+" AS ref")
			if err != nil {
				return nil, err
			}
			defer rows.Close()
			for rows.Next() {
				var r pgtable.Row
				if err := rows.Scan(&r.Position, c.field); err != nil {
					return nil, err
				}
				out = append(out, r)
			}
			return out, rows.Err()
		})
		if c.stops {
			if err == nil || !strings.Contains(err.Error(), "(col: ref)") {
				t.Errorf("%s: %v, %v", c.value, rows, err)
			}
			continue
		}
		kit.OK(t, err)
		unfit := ""
		if e, is := rows[0].Row.(error); is {
			unfit = e.Error()
		}
		kit.Equal(t, c.value, unfit, c.unfit)
	}
}

// TestTableRowsStay: the trigger of docs/tables.md refuses to move a row to where others have passed its position, and
// refuses no other change.
func TestTableRowsStay(t *testing.T) {
	_, pool := withTable(t)
	exec(t, pool, "INSERT INTO app.outbox (channel, n) VALUES ('a', 1)")
	page := string(kit.Must[[]byte](t)(os.ReadFile("../../docs/tables.md")))
	_, guard, found := strings.Cut(page, "```sql\nCREATE FUNCTION app.outbox_stays")
	guard, _, _ = strings.Cut("CREATE FUNCTION app.outbox_stays"+guard, "```")
	if !found {
		t.Fatal("docs/tables.md has no such trigger")
	}
	exec(t, pool, guard)
	for _, move := range []string{"channel = 'c'", "customer_id = 7", "id = DEFAULT", "xid = pg_current_xact_id()", "customer_id = 7, status = 'done'"} {
		if _, err := pool.Exec(t.Context(), "UPDATE app.outbox SET "+move+" WHERE n = 1"); err == nil || !strings.Contains(err.Error(), "row 1 of app.outbox would move") {
			t.Errorf("%s: %v", move, err)
		}
	}
	exec(t, pool, "UPDATE app.outbox SET status = 'done', channel = channel, body = '{}'")
}

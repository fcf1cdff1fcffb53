package leasepg

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
)

// TestPrintedStatements: the server runs the statements that are printed for tables whose names need quotes.
func TestPrintedStatements(t *testing.T) {
	conn, err := pgx.Connect(t.Context(), pgtest.DB(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	rows, err := conn.Query(t.Context(), "SELECT word FROM pg_get_keywords() WHERE catcode IN ('R', 'T')")
	if err != nil {
		t.Fatal(err)
	}
	words, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(words) < 90 {
		t.Fatal(len(words), err)
	}
	for _, word := range words {
		if got := ident(word); got != `"`+word+`"` {
			t.Errorf("%s: %s", word, got)
		}
	}
	for name, want := range map[string]string{"id": "id", "OrderID": `"OrderID"`, "1a": `"1a"`, `a"b`: `"a""b"`, "": `""`} {
		if got := ident(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	source := &tableSource{Table: "Shop.order", Position: "user", XID: "Xid", Topic: "group", Slots: 4, Key: "OrderID", Slot: `hashtextextended("OrderID", 0)`}
	none := leasedb.TableFactsRow{}
	statements := []string{`CREATE SCHEMA "Shop"`, `CREATE TABLE "Shop"."order" ("user" bigint GENERATED ALWAYS AS IDENTITY, "group" text NOT NULL, "OrderID" text)`,
		source.addXID(), source.wrong(leasedb.TableFactsRow{Kind: "r", Readable: true, PositionPlace: 1, PositionType: "bigint", PositionSet: true,
			SequenceCache: 1, SequenceRises: true, XidPlace: 2, XidType: "xid8"})}
	for _, index := range source.missingIndexes(none) {
		statements = append(statements, "CREATE INDEX ON "+source.printed()+" "+index)
	}
	for _, sql := range statements {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Errorf("%v\n%s", err, sql)
		}
	}
	if grant := source.wrong(leasedb.TableFactsRow{Kind: "r"}); !strings.Contains(grant, `ON "Shop"."order" TO`) {
		t.Error(grant)
	}
}

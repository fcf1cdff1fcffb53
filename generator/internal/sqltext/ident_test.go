package sqltext

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// TestIdent: every word that the server reserves is quoted, and what stands in quotes is what it was.
func TestIdent(t *testing.T) {
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
		if got := Ident(word); got != `"`+word+`"` {
			t.Errorf("%s: %s", word, got)
		}
	}
	for name, want := range map[string]string{"id": "id", "_a1": "_a1", "OrderID": `"OrderID"`, "1a": `"1a"`, "a b": `"a b"`, `a"b`: `"a""b"`, "": `""`, "name": "name", "value": "value"} {
		if got := Ident(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if got := Qualified("Shop.order"); got != `"Shop"."order"` {
		t.Error(got)
	}
	if strings.Contains(reserved, "  ") {
		t.Error("words are joined badly")
	}
}

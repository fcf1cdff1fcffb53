package table

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/generator/internal/ir"
	"github.com/leasegen/leasegen/generator/internal/resolve"
	"github.com/leasegen/leasegen/generator/internal/spec"
	"github.com/leasegen/leasegen/generator/internal/sqltext"
	"github.com/leasegen/leasegen/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// TestQuoted: names that mean something else without quotes are quoted in every statement that is printed or generated:
// the server runs them all.
func TestQuoted(t *testing.T) {
	conn, err := pgx.Connect(t.Context(), pgtest.DB(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	run := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Errorf("%v\n%s", err, sql)
		}
	}
	names := []string{"user", "OrderID", "order", "current_date", "Group"}
	for i := range names {
		name := func(n int) string { return names[(i+n)%len(names)] }
		for _, per := range []string{"group", "topic", "partition"} {
			table := "Shop." + name(4)
			run(`DROP SCHEMA IF EXISTS "Shop" CASCADE; CREATE SCHEMA "Shop"`)
			run(fmt.Sprintf("CREATE TABLE %s (%s bigint GENERATED ALWAYS AS IDENTITY, %s text NOT NULL, %s text)",
				sqltext.Qualified(table), sqltext.Ident(name(0)), sqltext.Ident(name(1)), sqltext.Ident(name(2))))
			d := &spec.Table{Name: table, Position: name(0), XID: name(3), Topic: name(1), Key: name(2), Kind: name(1)}
			c := &resolve.Consumer{Name: "relay", Annotations: spec.Annotations{Consumer: &spec.Consumer{Per: per}, Table: d}}
			x := &ir.Table{Query: "Relay", Name: table, Position: name(0), XID: name(3)}
			cast := "::text"
			switch per {
			case "topic":
				x.Topic = name(1)
			case "partition":
				x.Key, x.Slots, cast = name(2), 4, "::smallint"
				x.Slot = slotOf(ident(name(2)), ident(name(0)), 4)("")
			}
			g := &generation{}
			for statement := range strings.SplitSeq(strings.Join(g.migration(x, c, true), "\n"), ";\n") {
				if !strings.Contains(statement, "$$ BEGIN") {
					run(strings.ReplaceAll(statement, "CONCURRENTLY ", ""))
					continue
				}
				run(statement) // up to its first semicolon there is no statement within
			}
			where := sqltext.Ident(name(2)) + " IS NOT NULL"
			sql, err := queriesOf(x, "relay", d.Key, d.Kind, d.Topic, where, cast).render(parsed())
			if err != nil {
				t.Fatal(err)
			}
			for i, query := range strings.Split(string(sql), "-- name: ")[1:] {
				numbers := map[string]int{}
				query = regexp.MustCompile(`sqlc\.arg\((\w+)\)`).ReplaceAllStringFunc(query, func(arg string) string {
					if numbers[arg] == 0 {
						numbers[arg] = len(numbers) + 1
					}
					return fmt.Sprintf("$%d", numbers[arg])
				})
				_, query, _ = strings.Cut(strings.ReplaceAll(query, "sqlc.embed(o)", "o.*"), "\n")
				if _, err := conn.Prepare(t.Context(), fmt.Sprintf("%d %d %s", len(query), i, per), query); err != nil {
					t.Errorf("%s: %v\n%s", per, err, query)
				}
			}
			if err := conn.DeallocateAll(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

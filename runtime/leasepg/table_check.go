package leasepg

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
	"github.com/leasegen/leasegen/runtime/leasepg/pgtable"
)

// checkTable reports, once per process, why the table would lose messages or cannot be
// read, and warns of indexes that are missing. The generator has looked at the migrations;
// this looks at the database.
func (ts *tables) checkTable(ctx context.Context, t *tableSource, c backend.ConsumerInfo) error {
	if _, ok := ts.checked.Load(t); ok {
		return nil
	}
	schema, name, _ := strings.Cut(t.Table, ".")
	var facts leasedb.TableFactsRow
	err := ts.readTable(ctx, t, func(db pgtable.Querier) (err error) {
		facts, err = ts.queries(db).TableFacts(ctx, leasedb.TableFactsParams{
			Schema: schema, Name: name, Position: t.Position, Xid: t.XID, Topic: t.Topic, Slots: int32(t.Slots),
		})
		return err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("table %s does not exist in this database, or has another name: run the application's migrations, or change //leasegen:table and generate again", t.Table)
	}
	if err != nil {
		return err
	}
	if wrong := t.wrong(facts); wrong != "" {
		return fmt.Errorf("table %s: %s", t.Table, wrong)
	}
	var now pgtable.Now
	if err := ts.readTable(ctx, t, func(db pgtable.Querier) (err error) { now, err = t.Now(ctx, db); return err }); err != nil {
		return err
	}
	if now.Foreign {
		return fmt.Errorf("table %s holds rows that were restored from another cluster, whose transaction ids have no meaning here: "+
			"run UPDATE %s SET %s = '3' WHERE %s >= pg_snapshot_xmax(pg_current_snapshot())",
			t.Table, t.printed(), ident(t.XID), ident(t.XID))
	}
	for _, index := range t.missingIndexes(facts) {
		ts.log.Warn("leasepg: an index is missing, so that every read walks through the whole table", "consumer", c.Name, "table", t.Table,
			"fix", "CREATE INDEX CONCURRENTLY ON "+t.printed()+" "+index)
	}
	if facts.Sequence == "" || !facts.SequenceReadable {
		ts.log.Warn("leasepg: the sequence of positions may not be read, so that a table that is set back while no process reads it may lose rows",
			"consumer", c.Name, "table", t.Table, "fix", "GRANT SELECT ON SEQUENCE "+facts.Sequence+" TO …")
		facts.Sequence = ""
	}
	ts.checked.Store(t, facts.Sequence)
	return nil
}

var integers = []string{"bigint", "integer", "smallint"}

func (t *tableSource) wrong(f leasedb.TableFactsRow) string {
	switch {
	case f.Kind != "r" && f.Kind != "p":
		return "is not a plain or partitioned table"
	case !f.Readable:
		return "this role may not read it: GRANT SELECT ON " + t.printed() + " TO …"
	case f.RowsHidden:
		return "row-level security hides rows from this role, and they would be passed over: CREATE POLICY … ON " + t.printed() + " FOR SELECT TO … USING (true), or ALTER ROLE … BYPASSRLS"
	case f.PositionPlace == 0:
		return fmt.Sprintf("has no column %s: run the application's migrations", t.Position)
	case !slices.Contains(integers, f.PositionType) || !f.PositionSet:
		return fmt.Sprintf("column %s is %s, and a position is an integer that is never NULL", t.Position, f.PositionType)
	case f.SequenceCache == 0:
		return fmt.Sprintf("column %s draws from no sequence, so its values need not rise: make it GENERATED ALWAYS AS IDENTITY", t.Position)
	case f.SequenceCache > 1 || !f.SequenceRises:
		return fmt.Sprintf("the sequence of column %s must hand out its numbers one by one, in order: CACHE 1, a positive INCREMENT, NO CYCLE (now CACHE %d)",
			t.Position, f.SequenceCache)
	case f.XidPlace == 0:
		return fmt.Sprintf("has no column %s; without it rows that commit late are lost. To add it:\n%s", t.XID, t.addXID())
	case f.XidType != "xid8":
		return fmt.Sprintf("column %s is %s, and must be xid8", t.XID, f.XidType)
	case f.XidDefault != "pg_current_xact_id()":
		return fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s SET DEFAULT pg_current_xact_id()", t.printed(), ident(t.XID))
	case f.XidPlace > f.PositionPlace && !f.XidFirst:
		return fmt.Sprintf("column %s stands after %s, so that a row draws its position before its xid, and may be lost when it commits late. To fix it:\n%s",
			t.XID, t.Position, t.xidFirst())
	}
	return ""
}

func (t *tableSource) addXID() string {
	return fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s xid8;\nALTER TABLE %[1]s ALTER COLUMN %[2]s SET DEFAULT pg_current_xact_id();\n%s", t.printed(), ident(t.XID), t.xidFirst())
}

// xidFirst is the trigger that draws the xid before the first row's defaults are evaluated.
func (t *tableSource) xidFirst() string {
	schema, name, _ := strings.Cut(t.Table, ".")
	name = ident(name + "_xid_first")
	return fmt.Sprintf("CREATE FUNCTION %[3]s.%[2]s() RETURNS trigger LANGUAGE plpgsql AS\n"+
		"    $$ BEGIN PERFORM pg_current_xact_id(); RETURN NULL; END $$;\n"+
		"CREATE TRIGGER %[2]s BEFORE INSERT ON %[1]s\n    FOR EACH STATEMENT EXECUTE FUNCTION %[3]s.%[2]s();", t.printed(), name, ident(schema))
}

func (t *tableSource) missingIndexes(f leasedb.TableFactsRow) (missing []string) {
	if !f.PositionIndexed {
		missing = append(missing, "("+ident(t.Position)+")")
	}
	if !f.XidIndexed {
		missing = append(missing, "("+ident(t.XID)+")")
	}
	if !f.TopicIndexed {
		missing = append(missing, "("+ident(t.Topic)+", "+ident(t.Position)+")")
	}
	if !f.SlotIndexed {
		missing = append(missing, "(("+t.Slot+"), "+ident(t.Position)+")")
	}
	return missing
}

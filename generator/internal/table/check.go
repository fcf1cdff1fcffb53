package table

import (
	"fmt"
	"slices"
	"strings"

	"github.com/leasegen/leasegen/generator/internal/diag"
	"github.com/leasegen/leasegen/generator/internal/ir"
	"github.com/leasegen/leasegen/generator/internal/resolve"
	"github.com/leasegen/leasegen/generator/internal/sqlc"
	"github.com/leasegen/leasegen/generator/internal/sqlschema"
	"github.com/leasegen/leasegen/generator/internal/sqltext"
)

// Types as sqlc has them, for columns in several roles.
var (
	integerTypes = []string{"int8", "bigint", "bigserial", "serial8", "int4", "int", "integer", "serial", "serial4", "int2", "smallint", "smallserial", "serial2"}
	textTypes    = []string{"text", "varchar", "bpchar", "citext"}
)

// check holds a directive against the schema and returns what is to be generated, or nil.
func (g *generation) check(f *folder, c *resolve.Consumer, catalog *sqlc.Catalog, schema *sqlschema.Schema) *ir.Table {
	t := irTable(f, c)
	schemaName, name := c.Table.Qualified()
	columns := catalog.Columns(schemaName, name)
	if columns == nil {
		f.bad(g.diags, c, "LG0803", "name", fmt.Sprintf("the schema has no table %s", t.Name), diag.Suggest(t.Name, catalog.Tables()))
		return nil
	}
	ok := true
	bad := func(code, key, message, hint string, detail ...string) {
		ok = false
		f.bad(g.diags, c, code, key, message, hint, detail...)
	}
	var names []string
	for _, x := range columns {
		names = append(names, x.Name)
	}
	found := map[string]sqlc.Column{}
	for _, key := range []string{"position", "xid", "topic", "key", "kind"} {
		column, named := c.Table.Columns()[key]
		if !named {
			continue
		}
		i := slices.Index(names, column)
		switch {
		case i >= 0:
			found[key] = columns[i]
		case key == "xid" && !c.Table.Has("xid"):
			bad("LG0804", "name", fmt.Sprintf("%s has no column of type xid8, without which rows that commit late are lost", t.Name),
				"add it with this migration:", g.migration(t, c, true)...)
		default:
			bad("LG0803", key, fmt.Sprintf("%s: table %s has no column %s", key, t.Name, column), diag.Suggest(column, names))
		}
	}
	if !g.condition(f, c, t.Name, columns) || !ok {
		return nil
	}
	p, x := found["position"], found["xid"]
	if !slices.Contains(integerTypes, p.Type) || p.Array || !p.NotNull {
		bad("LG0805", "position", fmt.Sprintf("position: column %s is of type %s", p.Name, typeText(p)), "a position is an integer that is never NULL and rises from row to row")
	}
	if x.Type != "xid8" || x.Array {
		bad("LG0804", "xid", fmt.Sprintf("xid: column %s is of type %s, not xid8", x.Name, typeText(x)),
			"32-bit xids come round again; add a column of type xid8")
	}
	if t.Topic != "" {
		k := found["topic"]
		if !k.NotNull {
			bad("LG0803", "topic", fmt.Sprintf("topic: column %s may be NULL, and rows without a topic would never be read", k.Name), "make the column NOT NULL")
		}
		if !comparable(k) {
			bad("LG0803", "topic", fmt.Sprintf("topic: column %s is of type %s", k.Name, typeText(k)), "a topic is a text, an integer or a uuid")
		}
	}
	if k := found["key"]; t.Slots > 0 && !comparable(k) {
		bad("LG0803", "key", fmt.Sprintf("key: column %s is of type %s", k.Name, typeText(k)), "with per=partition a key is a text, an integer or a uuid")
	}
	if !ok || !g.order(f, c, t, schema) {
		return nil
	}
	return t
}

// order looks at what sqlc does not keep: where values come from, and in which order. What
// the migrations do in ways that are not understood is left to the check at start.
func (g *generation) order(f *folder, c *resolve.Consumer, t *ir.Table, schema *sqlschema.Schema) bool {
	schemaName, name := c.Table.Qualified()
	known := schema.Table(schemaName, name)
	if known == nil {
		return true
	}
	position, at := known.Column(t.Position)
	xid, after := known.Column(t.XID)
	if at < 0 || after < 0 {
		return true
	}
	switch draws := strings.HasPrefix(position.Default, "nextval "); {
	case !position.Identity && !position.Serial && !draws:
		f.bad(g.diags, c, "LG0805", "position", fmt.Sprintf("position: column %s draws from no sequence, so its values need not rise", position.Name),
			"make it GENERATED ALWAYS AS IDENTITY")
	case schema.Cache(schemaName, name, position) > 1:
		f.bad(g.diags, c, "LG0805", "position", fmt.Sprintf("position: column %s draws its numbers ahead (CACHE %d), so that they do not rise from insert to insert",
			position.Name, schema.Cache(schemaName, name, position)), "set CACHE 1 on its sequence")
	case xid.Default != "pg_current_xact_id ( )":
		f.bad(g.diags, c, "LG0804", "xid", fmt.Sprintf("xid: column %s does not default to pg_current_xact_id()", xid.Name),
			"add this migration:", g.migration(t, c, false)...)
	case after > at && len(known.Triggers) == 0:
		f.bad(g.diags, c, "LG0804", "xid", fmt.Sprintf("xid: column %s stands after %s, so that rows draw their position before their xid, "+
			"and may be lost when they commit late", xid.Name, position.Name), "add this migration:", trigger(t)...)
	default:
		return true
	}
	return false
}

func typeText(c sqlc.Column) string {
	s := c.Type
	if c.Array {
		s += "[]"
	}
	if !c.NotNull {
		s += " NULL"
	}
	return s
}

// comparable reports whether a column's text is the same for ever, so that it can name a
// resource, and be found by an index.
func comparable(c sqlc.Column) bool {
	return !c.Array && (slices.Contains(integerTypes, c.Type) || slices.Contains(textTypes, c.Type) || c.Type == "uuid")
}

// cast turns a resource's name into what the index of its column holds.
func (g *generation) cast(t *ir.Table, c *resolve.Consumer, catalog *sqlc.Catalog) string {
	switch {
	case t.Slots > 0:
		return "::smallint"
	case t.Topic == "":
		return "::text"
	}
	schemaName, name := c.Table.Qualified()
	for _, x := range catalog.Columns(schemaName, name) {
		switch {
		case x.Name != t.Topic:
		case slices.Contains(integerTypes, x.Type):
			return "::bigint"
		case x.Type == "uuid":
			return "::uuid"
		}
	}
	return "::text"
}

// migration is what gives the table its xid, in an order in which no message is lost.
func (g *generation) migration(t *ir.Table, c *resolve.Consumer, add bool) []string {
	table, position, xid := sqltext.Qualified(t.Name), ident(t.Position), ident(t.XID)
	var lines []string
	if add {
		lines = append(lines, fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s xid8;", table, xid))
	}
	lines = append(lines, fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s SET DEFAULT pg_current_xact_id();", table, xid))
	lines = append(lines, trigger(t)...)
	lines = append(lines, "-- in a migration of its own, outside a transaction:",
		fmt.Sprintf("CREATE INDEX CONCURRENTLY ON %s (%s);", table, xid))
	switch {
	case t.Topic != "":
		lines = append(lines, fmt.Sprintf("CREATE INDEX CONCURRENTLY ON %s (%s, %s);", table, ident(t.Topic), position))
	case t.Slots > 0:
		lines = append(lines, fmt.Sprintf("CREATE INDEX CONCURRENTLY ON %s ((%s), %s);", table, t.Slot, position))
	}
	return lines
}

// trigger draws the xid before the defaults of the first row are evaluated, whatever the
// order of the columns.
func trigger(t *ir.Table) []string {
	_, name, _ := strings.Cut(t.Name, ".")
	table, function := sqltext.Qualified(t.Name), sqltext.Qualified(t.Name+"_xid_first")
	return []string{
		fmt.Sprintf("CREATE FUNCTION %s() RETURNS trigger LANGUAGE plpgsql AS", function),
		"    $$ BEGIN PERFORM pg_current_xact_id(); RETURN NULL; END $$;",
		fmt.Sprintf("CREATE TRIGGER %s BEFORE INSERT ON %s", sqltext.Ident(name+"_xid_first"), table),
		fmt.Sprintf("    FOR EACH STATEMENT EXECUTE FUNCTION %s();", function),
	}
}

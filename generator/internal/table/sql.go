package table

import (
	"bytes"
	"fmt"
	"strings"
	"text/template"

	"github.com/leasegen/leasegen/generator/internal/ir"
	"github.com/leasegen/leasegen/generator/internal/sqltext"
	"github.com/leasegen/leasegen/templates"
)

// queries is what the template of one consumer's queries needs.
type queries struct {
	Query, Consumer, Table string
	Position, XID          string
	Topic, Key, Kind       string // columns; Topic only where it names resources
	topic                  string // column of Message.Topic
	slot                   func(alias string) string
	Cast                   string // of a resource, from text to the type it is compared with
	where                  string
}

// Per says what has one owner.
func (q *queries) Per() string {
	switch {
	case q.Topic != "":
		return "one owner for each value of " + q.Topic
	case q.slot != nil:
		return "one owner for each slot of " + q.Key
	}
	return "one owner for all of it"
}

// Resource is the expression that names a row's resource.
func (q *queries) Resource(alias string) string {
	switch {
	case q.Topic != "":
		return alias + "." + q.Topic
	case q.slot != nil:
		return q.slot(alias)
	}
	return "'*'"
}

// Match is the condition that a row belongs to a resource, followed by AND; empty if all do.
func (q *queries) Match(row, item string) string {
	if q.whole() {
		return ""
	}
	return fmt.Sprintf("%s = %s.lg_resource AND ", q.Resource(row), item)
}

// Beyond is the condition that a row belongs to a resource and lies between two positions, the second one included; an
// upto of "" is none. Order is what such rows are sorted by, and Of what has to be selected for that. All name the columns
// of the index that holds each resource's rows in order. The primary key is in the order of positions, too: where
// a few resources have nearly all rows, it looks cheap, and is walked from end to end for the others.
func (q *queries) Beyond(row, item, after, upto string) string {
	position := row + "." + q.Position
	if q.whole() {
		if upto == "" {
			return fmt.Sprintf("%s > %s.%s", position, item, after)
		}
		return fmt.Sprintf("%s > %s.%s AND %[1]s <= %[2]s.%[4]s", position, item, after, upto)
	}
	if upto == "" {
		upto = "9223372036854775807"
	} else {
		upto = item + "." + upto
	}
	return fmt.Sprintf("(%[1]s, %[2]s) > (%[3]s.lg_resource, %[3]s.%[4]s) AND (%[1]s, %[2]s) <= (%[3]s.lg_resource, %[5]s)",
		q.Resource(row), position, item, after, upto)
}

func (q *queries) Order(row string) string {
	if q.whole() {
		return row + "." + q.Position
	}
	return q.Resource(row) + ", " + row + "." + q.Position
}

func (q *queries) Of(row string) string {
	if q.whole() {
		return ""
	}
	return ", " + q.Resource(row) + " AS lg_of"
}

// OrderOf is Order for rows that were selected with Of.
func (q *queries) OrderOf(row string) string {
	if q.whole() {
		return row + "." + q.Position
	}
	return row + ".lg_of, " + row + "." + q.Position
}

// whole says that all rows are one resource.
func (q *queries) whole() bool { return q.Topic == "" && q.slot == nil }

// And and Only put the user's condition where one more, or the first one, goes.
func (q *queries) And() string {
	if q.where == "" {
		return ""
	}
	return " AND (" + q.where + ")"
}

func (q *queries) Only() string {
	if q.where == "" {
		return ""
	}
	return "WHERE (" + q.where + ")\n        "
}

// Columns are what makes a row a message.
func (q *queries) Columns(alias string) string {
	text := func(column, as string) string {
		if column == "" {
			return "''::text AS " + as
		}
		return fmt.Sprintf("coalesce(%s.%s::text, '')::text AS %s", alias, column, as)
	}
	return fmt.Sprintf("%s.%s::bigint AS position, %s, %s, %s", alias, q.Position, text(q.topic, "topic"), text(q.Key, "key"), text(q.Kind, "kind"))
}

// slotOf is the log's rule for the slot of a key, as an expression that an index can have.
func slotOf(key, position string, slots int) func(alias string) string {
	return func(alias string) string {
		if alias != "" {
			alias += "."
		}
		return fmt.Sprintf("(CASE WHEN coalesce(%[1]s%[2]s::text, '') = '' THEN %[1]s%[3]s::bigint "+
			"ELSE hashtextextended(%[1]s%[2]s::text, 0) & 9223372036854775807 END %% %[4]d::bigint)::smallint", alias, key, position, slots)
	}
}

// parsed are the templates; they are part of the program.
func parsed() *template.Template {
	return template.Must(template.ParseFS(templates.Files, "*.tmpl"))
}

func (q *queries) render(t *template.Template) ([]byte, error) {
	var b bytes.Buffer
	if err := t.ExecuteTemplate(&b, "table.sql.tmpl", q); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// row is a table's struct: what sqlc would call it, and what it is called.
type row struct{ Model, Type string }

// config is sqlc's configuration: for its catalog, or for Go code in a package.
func config(t *template.Template, pkg string, rows []row) (string, error) {
	var b strings.Builder
	err := t.ExecuteTemplate(&b, "sqlc.yaml.tmpl", struct {
		Catalog bool
		Package string
		Rows    []row
	}{pkg == "", pkg, rows})
	return b.String(), err
}

// queriesOf is what the annotations of a consumer say, in SQL.
func queriesOf(c *ir.Table, consumer string, key, kind, topic, where, cast string) *queries {
	key, kind, topic = ident(key), ident(kind), ident(topic)
	q := &queries{
		Query: c.Query, Consumer: consumer, Table: sqltext.Qualified(c.Name), Position: ident(c.Position), XID: ident(c.XID),
		Topic: ident(c.Topic), Key: key, Kind: kind, topic: topic, where: where, Cast: cast,
	}
	if c.Slots > 0 {
		q.slot = slotOf(key, q.Position, c.Slots)
	}
	return q
}

// ident is a column as SQL has it; "" if there is none.
func ident(column string) string {
	if column == "" {
		return ""
	}
	return sqltext.Ident(column)
}

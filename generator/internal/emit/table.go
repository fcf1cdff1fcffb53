package emit

import (
	"fmt"

	"github.com/dave/jennifer/jen"

	"github.com/leasegen/leasegen/generator/internal/ir"
	"github.com/leasegen/leasegen/generator/internal/names"
)

// describeTable says what has one owner, for a consumer of a table.
func describeTable(c *ir.Consumer, order string) string {
	switch c.Per {
	case ir.PerTopic:
		return fmt.Sprintf("the rows of %s with one %s are worked on by one replica at a time, %s.", c.Table.Name, c.Table.Topic, order)
	case ir.PerPartition:
		return fmt.Sprintf("the rows of %s are spread over %d partitions by their key, and each partition is worked on by "+
			"one replica at a time, %s.", c.Table.Name, c.Table.Slots, order)
	}
	return fmt.Sprintf("one replica at a time works on all rows of %s, %s.", c.Table.Name, order)
}

// source binds the generated queries of a consumer's table to the runtime.
func source(c *ir.Consumer) *jen.Statement {
	t := c.Table
	var s fields
	s.text("Table", t.Name)
	s.text("Position", t.Position)
	s.text("XID", t.XID)
	s.text("Topic", t.Topic)
	if t.Slots > 0 {
		s.add("Slots", jen.Lit(t.Slots))
		s.add("Key", jen.Lit(t.Key))
		s.add("Slot", jen.Lit(t.Slot))
	}
	if t.Filtered {
		s.add("Filtered", jen.True())
	}
	q := tableQueries{c.Locals, t}
	s.add("Now", q.closure(pg("Now"), nil, func(g *jen.Group) {
		g.List(jen.Id(q.local["now"]), jen.Err()).Op(":=").Add(q.call("Now"))
		g.Return(pg("Now").Call(jen.Id(q.local["now"])), jen.Err())
	}))
	s.add("News", q.converted("News", "News", "NewsParams"))
	if t.Topic != "" {
		s.add("Topics", q.closure(jen.Index().String(), nil, func(g *jen.Group) { g.Return(q.call("Topics")) }))
	}
	s.add("Heads", q.converted("Heads", "Head", "HeadsParams"))
	s.add("Read", q.rows("Read", pg("ReadParams"), true))
	s.add("Rows", q.rows("Rows", jen.Index().Int64(), false))
	return jen.Op("&").Add(pg("Source")).Add(lines("{", "}", s...))
}

// pg refers to a name of package pgtable.
func pg(name string) *jen.Statement { return jen.Qual(names.PGTable, name) }

type tableQueries struct {
	local map[string]string
	table *ir.Table
}

// of refers to something generated for one of the queries.
func (q tableQueries) of(query, suffix string) *jen.Statement {
	return jen.Qual(q.table.Row.Path, q.table.Query+query+suffix)
}

// call runs a query.
func (q tableQueries) call(query string, args ...jen.Code) *jen.Statement {
	return jen.Qual(q.table.Row.Path, "New").Call(jen.Id(q.local["db"])).Dot(q.table.Query + query).
		Call(append([]jen.Code{jen.Id(q.local["ctx"])}, args...)...)
}

// closure is a function of the source, with the parameters p of the type given.
func (q tableQueries) closure(result *jen.Statement, params *jen.Statement, body func(*jen.Group)) *jen.Statement {
	in := []jen.Code{jen.Id(q.local["ctx"]).Qual("context", "Context"), jen.Id(q.local["db"]).Add(pg("Querier"))}
	if params != nil {
		in = append(in, jen.Id(q.local["p"]).Add(params))
	}
	return jen.Func().Params(in...).Params(result, jen.Error()).BlockFunc(body)
}

// many is a closure over a query of many rows, each of which convert makes a result of.
func (q tableQueries) many(query string, result, params, arg *jen.Statement, convert jen.Code) *jen.Statement {
	return q.closure(jen.Index().Add(result), params, func(g *jen.Group) {
		g.List(jen.Id(q.local["rows"]), jen.Err()).Op(":=").Add(q.call(query, arg))
		g.Return(pg("Rows").Call(jen.Id(q.local["rows"]), jen.Err(),
			jen.Func().Params(jen.Id(q.local["r"]).Add(q.of(query, "Row"))).Add(result).Block(jen.Return(convert))))
	})
}

// converted is for results that are the runtime's own, field by field.
func (q tableQueries) converted(query, result, params string) *jen.Statement {
	return q.many(query, pg(result), pg(params), q.of(query, "Params").Call(jen.Id(q.local["p"])),
		pg(result).Call(jen.Id(q.local["r"])))
}

// rows is for results that hold rows of the table.
func (q tableQueries) rows(query string, params *jen.Statement, read bool) *jen.Statement {
	r := func(field string) *jen.Statement { return jen.Id(q.local["r"]).Dot(field) }
	var s fields
	arg := jen.Id(q.local["p"])
	if read {
		arg = q.of(query, "Params").Call(arg)
		s.add("Part", r("Part"))
		s.add("Item", r("Item"))
	}
	for _, f := range []string{"Position", "Topic", "Key", "Kind"} {
		s.add(f, r(f))
	}
	if !read {
		s.add("JSON", r("Json"))
	}
	s.add("Row", r(q.table.Row.Name))
	return q.many(query, pg("Row"), params, arg, pg("Row").Add(lines("{", "}", s...)))
}

package emit

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dave/jennifer/jen"

	"github.com/leasegen/leasegen/generator/internal/ir"
	"github.com/leasegen/leasegen/generator/internal/names"
)

// methods writes the assertion that the handlers still are what they were.
func methods(g *jen.File, c *ir.Consumer) {
	comment(g, fmt.Sprintf("The handlers of %s as leasegen found them. If the next lines do not compile, "+
		"a method has changed since: run leasegen again, and commit what it writes.", c.Type.Name))
	var items []jen.Code
	if c.Streams {
		items = append(items, jen.Id("Streams").Params(jen.Qual("context", "Context")).Params(jen.Index().String(), jen.Error()))
	}
	for _, h := range c.Handlers {
		items = append(items, jen.Id(h.Method).Params(params(h)...).Error())
	}
	g.Var().Id("_").Interface(items...).Op("=").
		Parens(jen.Op("*").Add(named(c.Type))).Parens(jen.Nil()).Line()
}

// params are the parameter types of a handler.
func params(h ir.Handler) []jen.Code {
	ctx := jen.Qual("context", "Context")
	tx := jen.Qual(names.PGX, "Tx")
	message := jen.Qual(names.Lease, "Message").Types(named(h.Payload))
	switch h.Form {
	case ir.Batch:
		return []jen.Code{ctx, jen.Index().Add(message)}
	case ir.OneTx:
		return []jen.Code{ctx, tx, message}
	case ir.BatchTx:
		return []jen.Code{ctx, tx, jen.Index().Add(message)}
	case ir.Run:
		return []jen.Code{ctx, jen.Qual(names.Lease, "Lease")}
	}
	return []jen.Code{ctx, message}
}

// constructor writes the function that binds a consumer to a backend.
func constructor(g *jen.File, c *ir.Consumer) {
	comment(g, c.Constructor+" returns the consumer "+c.Name+": "+describe(c)+
		" Options override what the annotations say.")
	be, h, opts := c.Locals["be"], c.Locals["h"], c.Locals["opts"]
	g.Func().Id(c.Constructor).Params(
		jen.Id(be).Add(backend(*c)),
		jen.Id(h).Op("*").Add(named(c.Type)),
		jen.Id(opts).Op("...").Qual(names.Lease, "Option"),
	).Params(jen.Op("*").Qual(names.Lease, "Consumer"), jen.Error()).Block(
		jen.If(jen.Id(h).Op("==").Nil()).Block(
			jen.Return(jen.Nil(), jen.Qual(names.Lease, "NilHandler").Call(jen.Lit(c.Name))),
		),
		jen.Return(jen.Qual(names.Lease, "NewConsumer").Call(
			jen.Id(be), spec(c), jen.Id(opts).Op("..."),
		)),
	).Line()
}

// backend is the interface where every consumer allows it, so that tests can run
// them in memory, PostgreSQL where a handler takes its transaction, or a table is read, and
// Redis where streams of others are read.
func backend(consumers ...ir.Consumer) *jen.Statement {
	for _, c := range consumers {
		switch {
		case c.Postgres():
			return jen.Op("*").Qual(names.LeasePG, "Backend")
		case c.Redis != nil:
			return jen.Op("*").Qual(names.LeaseRedis, "Backend")
		}
	}
	return jen.Qual(names.Lease, "Backend")
}

// describe is the rest of the sentence that begins with the consumer's name: what has one owner.
func describe(c *ir.Consumer) string {
	which := func(match string) string {
		if slices.Contains(c.Topics, "*") {
			return ""
		}
		return " that " + match + " " + strings.Join(c.Topics, " or ")
	}
	order := "in order"
	if c.Parallel() {
		order = "in order for each key"
	}
	if c.Table != nil {
		return describeTable(c, order)
	}
	if c.Redis != nil {
		return describeRedis(c, order)
	}
	switch c.Per {
	case ir.PerGroup:
		return fmt.Sprintf("one replica at a time works on all topics%s, %s.", which("match"), order)
	case ir.PerPartition:
		return fmt.Sprintf("the keys of all topics%s are spread over partitions, and each partition is worked on by "+
			"one replica at a time, %s.", which("match"), order)
	case ir.PerStream:
		if c.Streams {
			return "each stream that its method Streams names is owned by one replica at a time, until Run returns."
		}
		return fmt.Sprintf("each key of the topics%s is a stream, which is owned by one replica at a time while it has work, "+
			"and worked on in order.", which("match"))
	case ir.PerCluster:
		return "its Run method runs on one replica at a time."
	}
	return fmt.Sprintf("each topic%s is worked on by one replica at a time, %s.", which("matches"), order)
}

// spec is the consumer's declaration, with what the annotations set and no more.
func spec(c *ir.Consumer) *jen.Statement {
	per := map[ir.Per]string{ir.PerTopic: "PerTopic", ir.PerGroup: "PerGroup", ir.PerPartition: "PerPartition",
		ir.PerStream: "PerStream", ir.PerCluster: "PerCluster"}
	handlers := make([]jen.Code, len(c.Handlers))
	for i, x := range c.Handlers {
		handlers[i] = handler(x, c.Locals)
	}
	var s fields
	s.add("Name", jen.Lit(c.Name))
	s.add("Per", jen.Qual(names.Lease, per[c.Per]))
	if len(c.Topics) > 0 {
		s.add("Topics", literals(c.Topics))
	}
	if c.Table != nil {
		s.add("Source", source(c))
	}
	if c.Redis != nil {
		s.add("Source", streamSource(c.Redis))
	}
	if c.Streams {
		s.add("Streams", jen.Id(c.Locals["h"]).Dot("Streams"))
	}
	s.add("Handlers", jen.Index().Qual(names.Lease, "Handler").Add(lines("{", "}", handlers...)))
	s.settings(c.Settings)
	return jen.Qual(names.Lease, "Spec").Add(lines("{", "}", s...))
}

// handler binds a method to the kind it takes.
func handler(x ir.Handler, locals map[string]string) jen.Code {
	method := jen.Id(locals["h"]).Dot(x.Method)
	if x.Form == ir.Run {
		return jen.Qual(names.Lease, "Run").Call(method)
	}
	form := map[ir.Form]string{ir.One: "One", ir.Batch: "Batch", ir.OneTx: "OneTx", ir.BatchTx: "BatchTx"}
	bound := jen.Qual(names.Lease, form[x.Form]).Call(jen.Lit(x.Kind), method)
	if len(x.Once.Path) == 0 {
		return bound
	}
	unknown := "OnUnknownRetry"
	if x.OncePark {
		unknown = "OnUnknownPark"
	}
	return jen.Qual(names.Lease, "Once").Add(lines("(", ")",
		bound, getter(x.Payload, x.Once, locals["e"]), jen.Qual(names.Lease, unknown)))
}

// fields are the fields of a composite literal that are set, in order.
type fields []jen.Code

func (s *fields) add(name string, value *jen.Statement) {
	*s = append(*s, jen.Id(name).Op(":").Add(value))
}

// text adds a field, unless its value is empty.
func (s *fields) text(name, value string) {
	if value != "" {
		s.add(name, jen.Lit(value))
	}
}

// settings adds fields of Spec; those of one struct within it share a literal.
func (s *fields) settings(all []ir.Setting) {
	for i := 0; i < len(all); {
		within, _, nested := strings.Cut(all[i].Field, ".")
		if !nested {
			s.add(within, setting(all[i].Value))
			i++
			continue
		}
		var inner fields
		for ; i < len(all) && strings.HasPrefix(all[i].Field, within+"."); i++ {
			inner.add(strings.TrimPrefix(all[i].Field, within+"."), setting(all[i].Value))
		}
		s.add(within, jen.Qual(names.Lease, within).Values(inner...))
	}
}

// literals is a slice of strings.
func literals(texts []string) *jen.Statement {
	return jen.Index().String().ValuesFunc(func(g *jen.Group) {
		for _, t := range texts {
			g.Lit(t)
		}
	})
}

func setting(value any) *jen.Statement {
	switch v := value.(type) {
	case ir.Const:
		return jen.Qual(names.Lease, string(v))
	case ir.Duration:
		return duration(v)
	}
	return jen.Lit(value)
}

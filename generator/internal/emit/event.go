package emit

import (
	"fmt"
	"strings"

	"github.com/dave/jennifer/jen"

	"github.com/leasegen/leasegen/generator/internal/ir"
	"github.com/leasegen/leasegen/generator/internal/names"
)

// publish writes the function that publishes one kind of event.
func publish(g *jen.File, e *ir.Event) {
	var typ fields
	typ.add("Kind", jen.Lit(e.Kind))
	text := "They have no key."
	if len(e.Key.Path) > 0 {
		typ.add("Key", getter(e.Type, e.Key, e.Locals["e"]))
		text = "Their key is " + strings.Join(e.Key.Path, ".") + "."
	}
	if len(e.ID.Path) > 0 {
		typ.add("ID", getter(e.Type, e.ID, e.Locals["e"]))
		text += " Their id is " + strings.Join(e.ID.Path, ".") + ": a topic takes one event of each."
	}
	literal := jen.Values(typ...)
	if len(typ) > 1 {
		literal = lines("{", "}", typ...)
	}
	comment(g, fmt.Sprintf("%s appends %s events to a topic, in the order given; see lease.Publisher. %s",
		e.Publish, e.Kind, text))
	g.Func().Id(e.Publish).Params(
		jen.Id(e.Locals["ctx"]).Qual("context", "Context"),
		jen.Id(e.Locals["to"]).Qual(names.Lease, "Publisher"),
		jen.Id(e.Locals["topic"]).String(),
		jen.Id(e.Locals["events"]).Op("...").Add(named(e.Type)),
	).Error().Block(
		jen.Return(jen.Qual(names.Lease, "Publish").Call(
			jen.Id(e.Locals["ctx"]), jen.Id(e.Locals["to"]), jen.Id(e.Locals["topic"]),
			jen.Qual(names.Lease, "EventType").Types(named(e.Type)).Add(literal), jen.Id(e.Locals["events"]),
		)),
	).Line()
}

// getter is the function that reads a field of an event as a string, on one line.
func getter(t ir.Type, f ir.Field, e string) *jen.Statement {
	field := jen.Id(e)
	for _, name := range f.Path {
		field.Dot(name)
	}
	return jen.Func().Params(jen.Id(e).Op("*").Add(named(t))).String().
		Custom(jen.Options{Open: "{", Close: "}"}, jen.Return(fieldString(f, field)))
}

// fieldString turns a field into the string that it stands for.
func fieldString(f ir.Field, field *jen.Statement) *jen.Statement {
	if f.Addr {
		field = jen.Op("&").Add(field)
	}
	switch f.Kind {
	case ir.FieldText:
		return jen.Qual(names.Lease, "Text").Call(field)
	case ir.FieldStringer:
		return jen.Qual(names.Lease, "String").Call(field)
	case ir.FieldTime:
		return jen.Qual(names.Lease, "Text").Call(field.Dot("UTC").Call())
	case ir.FieldNamed:
		return jen.String().Call(field)
	case ir.FieldSigned:
		return jen.Qual("strconv", "FormatInt").Call(jen.Int64().Call(field), jen.Lit(10))
	case ir.FieldUnsigned:
		return jen.Qual("strconv", "FormatUint").Call(jen.Uint64().Call(field), jen.Lit(10))
	}
	return field
}

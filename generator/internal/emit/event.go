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
	typ := jen.Dict{jen.Id("Kind"): jen.Lit(e.Kind)}
	keyText := "They have no key."
	if len(e.Key) > 0 {
		field := jen.Id(e.Locals["e"])
		for _, name := range e.Key {
			field.Dot(name)
		}
		typ[jen.Id("Key")] = jen.Func().Params(jen.Id(e.Locals["e"]).Op("*").Add(named(e.Type))).String().
			Block(jen.Return(keyString(e.KeyKind, field)))
		keyText = "Their key is " + strings.Join(e.Key, ".") + "."
	}
	comment(g, fmt.Sprintf("%s appends %s events to a topic, all or none, in the order given. %s",
		e.Publish, e.Kind, keyText))
	g.Func().Id(e.Publish).Params(
		jen.Id(e.Locals["ctx"]).Qual("context", "Context"),
		jen.Id(e.Locals["to"]).Qual(names.Lease, "Publisher"),
		jen.Id(e.Locals["topic"]).String(),
		jen.Id(e.Locals["events"]).Op("...").Add(named(e.Type)),
	).Error().Block(
		jen.Return(jen.Qual(names.Lease, "Publish").Call(
			jen.Id(e.Locals["ctx"]), jen.Id(e.Locals["to"]), jen.Id(e.Locals["topic"]),
			jen.Qual(names.Lease, "EventType").Types(named(e.Type)).Values(typ), jen.Id(e.Locals["events"]),
		)),
	).Line()
}

// keyString turns a key field into the string that orders messages.
func keyString(kind ir.KeyKind, field *jen.Statement) *jen.Statement {
	switch kind {
	case ir.KeyNamed:
		return jen.String().Call(field)
	case ir.KeySigned:
		return jen.Qual("strconv", "FormatInt").Call(jen.Int64().Call(field), jen.Lit(10))
	case ir.KeyUnsigned:
		return jen.Qual("strconv", "FormatUint").Call(jen.Uint64().Call(field), jen.Lit(10))
	}
	return field
}

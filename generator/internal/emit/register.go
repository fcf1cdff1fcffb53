package emit

import (
	"github.com/dave/jennifer/jen"

	"github.com/leasegen/leasegen/generator/internal/ir"
	"github.com/leasegen/leasegen/generator/internal/names"
)

// register writes the package's list of handlers and the function that adds all
// of them to a group.
func register(g *jen.File, consumers []ir.Consumer) {
	comment(g, names.Handlers+" are the handlers of this package. Those that are nil are left out.")
	items := make([]jen.Code, len(consumers))
	for i, c := range consumers {
		items[i] = jen.Id(c.Type.Name).Op("*").Add(named(c.Type))
	}
	g.Type().Id(names.Handlers).Struct(items...).Line()

	comment(g, names.Register+" makes a consumer of every handler in h and adds it to g.")
	g.Func().Id(names.Register).Params(
		jen.Id("g").Op("*").Qual(names.Lease, "Group"),
		jen.Id("be").Add(backend(consumers...)),
		jen.Id("h").Id(names.Handlers),
		jen.Id("opts").Op("...").Qual(names.Lease, "Option"),
	).Error().BlockFunc(func(b *jen.Group) {
		for _, c := range consumers {
			b.If(jen.Id("h").Dot(c.Type.Name).Op("!=").Nil()).Block(
				jen.List(jen.Id("c"), jen.Err()).Op(":=").Id(c.Constructor).Call(
					jen.Id("be"), jen.Id("h").Dot(c.Type.Name), jen.Id("opts").Op("...")),
				jen.If(jen.Err().Op("!=").Nil()).Block(jen.Return(jen.Err())),
				jen.If(jen.Err().Op(":=").Id("g").Dot("Add").Call(jen.Id("c")), jen.Err().Op("!=").Nil()).
					Block(jen.Return(jen.Err())),
			)
		}
		b.Return(jen.Nil())
	})
}

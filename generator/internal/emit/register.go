package emit

import (
	"strconv"

	"github.com/dave/jennifer/jen"

	"github.com/leasegen/leasegen/generator/internal/ir"
	"github.com/leasegen/leasegen/generator/internal/names"
)

// register writes a package's list of handlers and the function that adds all of them to a
// group. It makes every consumer before it adds one, so that its error names each handler
// that is nil, and the group is then as it was.
func register(g *jen.File, r *ir.Register) {
	comment(g, r.Handlers+" are the handlers of this package. "+r.Func+" needs all of them.")
	items := make([]jen.Code, len(r.Consumers))
	for i, c := range r.Consumers {
		items[i] = jen.Id(c.Type.Name).Op("*").Add(named(c.Type))
	}
	g.Type().Id(r.Handlers).Struct(items...).Line()

	text := r.Func + " makes a consumer of every handler in h and adds it to g. If one cannot be made, " +
		"because its handler is nil for example, it adds none and says why. To run some of the consumers only, add those to the group by their constructors."
	for _, o := range r.Others {
		where := "in files without a build constraint"
		if o.Constraint != "" {
			where = "under //go:build " + o.Constraint
		}
		text += " Consumers " + where + " are added by " + o.Func + "."
	}
	comment(g, text)
	id := func(role string) *jen.Statement { return jen.Id(r.Locals[role]) }
	g.Func().Id(r.Func).Params(
		id("g").Op("*").Qual(names.Lease, "Group"),
		id("be").Add(backend(r.Consumers...)),
		id("h").Id(r.Handlers),
		id("opts").Op("...").Qual(names.Lease, "Option"),
	).Error().BlockFunc(func(b *jen.Group) {
		var errs, adds []jen.Code
		for i, c := range r.Consumers {
			n := strconv.Itoa(i + 1)
			b.List(id("c"+n), id("err"+n)).Op(":=").Id(c.Constructor).Call(
				id("be"), id("h").Dot(c.Type.Name), id("opts").Op("..."))
			errs = append(errs, id("err"+n))
			adds = append(adds, id("g").Dot("Add").Call(id("c"+n)))
		}
		b.If(id("err").Op(":=").Qual("errors", "Join").Call(errs...), id("err").Op("!=").Nil()).Block(jen.Return(id("err")))
		b.Return(jen.Qual("errors", "Join").Call(adds...))
	})
}

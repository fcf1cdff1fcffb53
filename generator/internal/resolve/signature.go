package resolve

import (
	"go/types"

	"github.com/leasegen/leasegen/generator/internal/ir"
	"github.com/leasegen/leasegen/generator/internal/names"
)

// signature is what the parameters and results of a method make of it.
type signature struct {
	form    ir.Form
	payload types.Type // nil for Run, or if there is a problem
	problem string     // why it is no handler
}

// classify recognises the forms of handlers.
func classify(sig *types.Signature) signature {
	params := make([]types.Type, 0, sig.Params().Len())
	for p := range sig.Params().Variables() {
		params = append(params, types.Unalias(p.Type()))
	}
	switch {
	case len(params) == 0 || !isNamed(params[0], "context", "Context"):
		for _, p := range params {
			if isNamed(p, "context", "Context") {
				return signature{problem: "context.Context must come first"}
			}
		}
		return signature{problem: "the first parameter must be context.Context"}
	case sig.Variadic():
		return signature{problem: "the parameters must not be variadic"}
	case sig.Results().Len() != 1 || !isError(sig.Results().At(0).Type()):
		return signature{problem: "the result must be error alone"}
	}
	rest := params[1:]
	if len(rest) == 1 && isNamed(rest[0], names.Lease, "Lease") {
		return signature{form: ir.Run}
	}
	tx := len(rest) > 0 && isNamed(rest[0], names.PGX, "Tx")
	if tx {
		rest = rest[1:]
	}
	switch {
	case len(rest) == 0:
		return signature{problem: "the message is missing"}
	case len(rest) == 2 && isNamed(rest[1], names.PGX, "Tx"):
		return signature{problem: "the transaction must come before the message"}
	case len(rest) == 2 && looksLikeTx(rest[0]):
		return signature{problem: "the transaction must be pgx.Tx of " + names.PGX}
	case len(rest) > 1:
		return signature{problem: "there are too many parameters"}
	}
	form := ir.One
	message := rest[0]
	if s, ok := message.(*types.Slice); ok {
		form, message = ir.Batch, types.Unalias(s.Elem())
	}
	if tx {
		form += ir.OneTx - ir.One
	}
	if p, ok := message.(*types.Pointer); ok && isNamed(types.Unalias(p.Elem()), names.Lease, "Message") {
		return signature{problem: "messages must be passed by value"}
	}
	if !isNamed(message, names.Lease, "Message") {
		return signature{problem: "the last parameter must be lease.Message[X] or []lease.Message[X]"}
	}
	return signature{form: form, payload: types.Unalias(message.(*types.Named).TypeArgs().At(0))}
}

// messagePayload returns X of lease.Message[X], also behind pointers and slices, or nil.
func messagePayload(t types.Type) types.Type {
	switch t := types.Unalias(t).(type) {
	case *types.Pointer:
		return messagePayload(t.Elem())
	case *types.Slice:
		return messagePayload(t.Elem())
	case *types.Named:
		if isNamed(t, names.Lease, "Message") {
			return t.TypeArgs().At(0)
		}
	}
	return nil
}

// takesMessages reports whether a method has to do with what handlers take: a message of any
// form, or a lease.
func takesMessages(sig *types.Signature) bool {
	for p := range sig.Params().Variables() {
		if messagePayload(p.Type()) != nil || isNamed(types.Unalias(p.Type()), names.Lease, "Lease") {
			return true
		}
	}
	return false
}

func isError(t types.Type) bool {
	return types.Identical(t, types.Universe.Lookup("error").Type())
}

// isNamed compares by path and name, so that the generator needs not import the package.
func isNamed(t types.Type, path, name string) bool {
	n, ok := t.(*types.Named)
	return ok && n.Obj().Pkg() != nil && n.Obj().Pkg().Path() == path && n.Obj().Name() == name
}

// looksLikeTx reports whether a type is a transaction of some kind.
func looksLikeTx(t types.Type) bool {
	n, ok := pointee(t).(*types.Named)
	return ok && n.Obj().Name() == "Tx"
}

// have prints a signature without parameter names, as seen from pkg.
func have(sig *types.Signature, pkg *types.Package) string {
	plain := func(t *types.Tuple) *types.Tuple {
		var vars []*types.Var
		for v := range t.Variables() {
			vars = append(vars, types.NewParam(v.Pos(), v.Pkg(), "", v.Type()))
		}
		return types.NewTuple(vars...)
	}
	s := types.NewSignatureType(nil, nil, nil, plain(sig.Params()), plain(sig.Results()), sig.Variadic())
	return types.TypeString(s, relativeTo(pkg))
}

// accepted lists the signatures of handlers for payload x.
func accepted(x string) []string {
	return []string{
		"want func(context.Context, lease.Message[" + x + "]) error",
		"  or func(context.Context, []lease.Message[" + x + "]) error",
		"  or func(context.Context, pgx.Tx, lease.Message[" + x + "]) error",
		"  or func(context.Context, pgx.Tx, []lease.Message[" + x + "]) error",
	}
}

const acceptedRun = "want func(context.Context, lease.Lease) error"

// relativeTo qualifies types by package names, but those of pkg not at all.
func relativeTo(pkg *types.Package) types.Qualifier {
	return func(p *types.Package) string {
		if p == pkg {
			return ""
		}
		return p.Name()
	}
}

func packageName(p *types.Package) string { return p.Name() }

// catchAll reports whether a payload is taken as it is, whatever its kind.
func catchAll(t types.Type) (ir.Type, bool) {
	if s, ok := t.(*types.Slice); ok {
		if b, ok := types.Unalias(s.Elem()).(*types.Basic); ok && b.Kind() == types.Byte {
			return ir.Type{Name: names.Bytes}, true
		}
	}
	for _, raw := range [][2]string{{"encoding/json", "RawMessage"}, {"encoding/json/jsontext", "Value"}} {
		if isNamed(t, raw[0], raw[1]) { // an alias of the second, where the new JSON is switched on
			return ir.Type{Path: "encoding/json", PkgName: "json", Name: "RawMessage"}, true
		}
	}
	return ir.Type{}, false
}

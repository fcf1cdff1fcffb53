package resolve

import (
	"fmt"
	"go/ast"
	"go/types"
	"strings"

	"github.com/leasegen/leasegen/generator/internal/diag"
	"github.com/leasegen/leasegen/generator/internal/load"
)

// elsewhere reports handlers in files that are not compiled here: the output would be compiled with
// them and never call them.
func (h *handlers) elsewhere(s *Source, t *types.Named) {
	if _, read := h.others[s.Pkg.Path]; !read {
		h.others[s.Pkg.Path] = h.prog.Module.Elsewhere(s.Pkg)
	}
	receivers := map[string]bool{t.Obj().Name(): true}
	embeddedNames(t, receivers)
	for _, f := range h.others[s.Pkg.Path] {
		for _, d := range f.File.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv == nil || !receivers[strings.TrimPrefix(types.ExprString(fn.Recv.List[0].Type), "*")] || !h.couldHandle(fn) {
				continue
			}
			m, _, _ := types.LookupFieldOrMethod(t, true, h.pkg, fn.Name.Name)
			if m != nil || !h.prog.Module.Together(f.Constraint, s.Constraint) {
				continue
			}
			h.failed = true
			h.at(fn.Name, diag.Diagnostic{Code: "LG0714",
				Message: fmt.Sprintf("%s.%s is left out here (%s), so that it would never be called", t.Obj().Name(), fn.Name.Name, load.Excluder(f.File, f.Path)),
				Hint:    "declare it in a file that is compiled wherever the struct is, or give the struct's file this constraint"})
		}
	}
}

// couldHandle reports whether a method has the name of a handler, and what a handler takes.
func (h *handlers) couldHandle(fn *ast.FuncDecl) bool {
	name := fn.Name.Name
	if h.runs {
		return name == "Run"
	}
	n := len(fn.Type.Params.List)
	if !isHandlerName(name) || n == 0 {
		return false
	}
	last := fn.Type.Params.List[n-1].Type
	if a, ok := last.(*ast.ArrayType); ok {
		last = a.Elt
	}
	generic, ok := last.(*ast.IndexExpr)
	if !ok {
		return false
	}
	switch x := generic.X.(type) {
	case *ast.SelectorExpr:
		return x.Sel.Name == "Message"
	case *ast.Ident:
		return x.Name == "Message"
	}
	return false
}

// embeddedNames collects the names of the package's types that t embeds.
func embeddedNames(t *types.Named, names map[string]bool) {
	st, ok := t.Underlying().(*types.Struct)
	if !ok {
		return
	}
	for f := range st.Fields() {
		n, ok := pointee(f.Type()).(*types.Named)
		if f.Embedded() && ok && n.Obj().Pkg() == t.Obj().Pkg() && !names[n.Obj().Name()] {
			names[n.Obj().Name()] = true
			embeddedNames(n, names)
		}
	}
}

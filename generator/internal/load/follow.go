package load

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
)

// demand follows a name that the package may declare.
func (s *shaken) demand(name string, want part) {
	s.parse()
	if want == 0 || s.parts[name]&want == want || len(s.decls[name]) == 0 {
		return
	}
	s.parts[name] |= want
	for _, d := range s.decls[name] {
		if !d.file.kept {
			d.file.kept = true
			for _, i := range d.file.imports {
				if i.path != "C" && i.path != "unsafe" && i.name != "_" {
					s.l.hinted[i.path] = true
				}
			}
		}
		follow(d.file).declaration(d, want)
	}
	if t, ok := s.decls[name][0].spec.(*ast.TypeSpec); ok && !t.Assign.IsValid() {
		for _, m := range s.methods[name] {
			if m.matters(want) {
				m.file.kept = true
				follow(m.file).method(m, want)
			}
		}
	}
}

// cutter goes through declarations of a file and follows what matters in them. If cut is set, it leaves out the
// rest: each declaration is cut once, when all that matters of it is known.
type cutter struct {
	*file
	cut bool
}

func follow(f *file) cutter { return cutter{file: f} }

// declaration returns a declaration, without what does not matter if that is cut.
func (c cutter) declaration(d decl, want part) ast.Decl {
	switch spec := d.spec.(type) {
	case *ast.TypeSpec:
		c.typeParams(spec.TypeParams, want)
		switch {
		case want != asName || spec.Assign.IsValid():
			c.typ(spec.Type, want)
		case c.cut:
			spec.Type = empty(spec.Type)
		}
		return &ast.GenDecl{TokPos: d.gen.TokPos, Tok: token.TYPE, Specs: []ast.Spec{spec}}
	case *ast.ValueSpec:
		if d.gen.Tok == token.VAR && want&(asName|asData) != asName|asData { // its type matters only
			typ := spec.Type
			if typ == nil {
				typ = empty(spec.Names[0])
			} else {
				c.typ(typ, asName)
			}
			return &ast.GenDecl{TokPos: d.gen.TokPos, Tok: token.VAR, Specs: []ast.Spec{&ast.ValueSpec{Names: spec.Names, Type: typ}}}
		}
		specs := []ast.Spec{spec}
		if d.gen.Tok == token.CONST {
			specs = d.gen.Specs // they may count, or repeat the one before
		}
		for _, spec := range specs {
			c.value(spec)
		}
		return &ast.GenDecl{TokPos: d.gen.TokPos, Tok: d.gen.Tok, Lparen: d.gen.Lparen, Specs: specs, Rparen: d.gen.Rparen}
	}
	c.signature(d.fn.Type)
	return d.fn
}

// matters reports whether a method makes a difference to a type.
func (d decl) matters(want part) bool {
	return want&(asHandler|asData) != 0 // a method hides a field of its name, or makes it ambiguous
}

// method returns a method, with its signature if it may be a handler or has to do with data.
func (c cutter) method(d decl, want part) ast.Decl {
	if want&asWritten != 0 || slices.Contains(dataMethods, d.fn.Name.Name) || d.mayHandle() {
		c.signature(d.fn.Type)
		return d.fn
	}
	return &ast.FuncDecl{Recv: d.fn.Recv, Name: d.fn.Name, Type: &ast.FuncType{Func: d.fn.Type.Func, Params: &ast.FieldList{}}}
}

// mayHandle reports whether a method may be a handler, by its name, or by its signature: a
// context first, a message last, which is of a generic type, and an error as the only result.
func (d decl) mayHandle() bool {
	switch name := strings.ToLower(d.fn.Name.Name); {
	case strings.HasPrefix(name, "handle"), name == "run", name == "streams":
		return true
	}
	in, out := d.fn.Type.Params, d.fn.Type.Results
	if in.NumFields() < 2 || out.NumFields() != 1 {
		return false
	}
	if result, ok := out.List[0].Type.(*ast.Ident); !ok || result.Name != "error" {
		return false
	}
	switch first := in.List[0].Type.(type) {
	case *ast.SelectorExpr:
		if first.Sel.Name != "Context" {
			return false
		}
	case *ast.Ident:
	default:
		return false
	}
	last := in.List[len(in.List)-1].Type
	if s, ok := last.(*ast.ArrayType); ok {
		last = s.Elt
	}
	switch t := last.(type) {
	case *ast.IndexExpr:
		return true
	case *ast.Ident: // another name of one
		for _, l := range d.file.pkg.decls[t.Name] {
			spec, ok := l.spec.(*ast.TypeSpec)
			return ok && spec.Assign.IsValid()
		}
	case *ast.SelectorExpr:
		return t.Sel.Name == "Lease"
	}
	return false
}

func (c cutter) signature(t *ast.FuncType) {
	c.typeParams(t.TypeParams, asWritten)
	for _, list := range []*ast.FieldList{t.Params, t.Results} {
		if list == nil {
			continue
		}
		for _, p := range list.List {
			c.typ(p.Type, asName)
		}
	}
}

// typeParams cuts constraints that do not matter.
func (c cutter) typeParams(list *ast.FieldList, want part) {
	if list == nil {
		return
	}
	for _, p := range list.List {
		switch {
		case want&asWritten != 0: // and with the signatures of its methods
			c.typ(p.Type, asName|asHandler)
		case want&asData != 0:
			c.typ(p.Type, asData)
		case c.cut:
			p.Type = &ast.Ident{NamePos: p.Type.Pos(), Name: "comparable"} // as the key of a map has to be
		}
	}
}

// empty is struct{} where t stands.
func empty(t ast.Expr) ast.Expr {
	return &ast.StructType{Struct: t.Pos(), Fields: &ast.FieldList{Opening: t.Pos(), Closing: t.Pos()}}
}

// typ follows what matters of a type, and cuts what does not.
func (c cutter) typ(e ast.Expr, want part) {
	ast.Inspect(e, func(n ast.Node) bool {
		switch t := n.(type) {
		case *ast.Ident:
			c.local(t.Name, want)
		case *ast.SelectorExpr:
			if x, ok := t.X.(*ast.Ident); ok {
				c.other(x.Name, t.Sel.Name, want)
			}
		case *ast.IndexExpr:
			c.typ(t.X, want)
			c.typ(t.Index, asName|asData)
		case *ast.IndexListExpr:
			c.typ(t.X, want)
			for _, i := range t.Indices {
				c.typ(i, asName|asData)
			}
		case *ast.ArrayType:
			if t.Len != nil {
				c.value(t.Len)
			}
			c.typ(t.Elt, want)
		case *ast.ChanType:
			c.typ(t.Value, asName)
		case *ast.FuncType:
			c.signature(t)
		case *ast.InterfaceType:
			c.iface(t, want)
		case *ast.StructType:
			c.structure(t, want)
		case *ast.ParenExpr, *ast.StarExpr, *ast.Ellipsis, *ast.MapType, *ast.BinaryExpr, *ast.UnaryExpr:
			return true // operators stand in constraints
		case ast.Expr:
			c.value(t)
		}
		return false
	})
}

// iface goes through an interface. To data it only matters that it has methods.
func (c cutter) iface(t *ast.InterfaceType, want part) {
	for _, m := range t.Methods.List {
		switch fn, ok := m.Type.(*ast.FuncType); {
		case !ok || want&asHandler != 0 || want&asData == 0:
			c.typ(m.Type, want)
		case c.cut:
			m.Type = &ast.FuncType{Func: fn.Func, Params: &ast.FieldList{}}
		}
	}
}

// structure goes through a struct. The types of fields that are not exported matter to a
// signature only, those of exported ones to data, those of embedded ones to all.
func (c cutter) structure(t *ast.StructType, want part) {
	for _, field := range t.Fields.List {
		exported := slices.ContainsFunc(field.Names, (*ast.Ident).IsExported)
		switch {
		case len(field.Names) == 0 || want == asName:
			c.typ(field.Type, want)
		case want&asData != 0 && exported:
			c.typ(field.Type, want&^asHandler)
		case want&asValue != 0:
			c.typ(field.Type, asName|asValue)
		case want&asWritten != 0:
			c.typ(field.Type, asName)
		case c.cut:
			field.Type = empty(field.Type)
		}
	}
}

// value follows every name in what gives a constant or a variable its value.
func (f *file) value(n ast.Node) {
	for n := range ast.Preorder(n) {
		switch n := n.(type) {
		case *ast.Ident:
			f.local(n.Name, asName|asData|asValue)
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok {
				f.other(x.Name, n.Sel.Name, asName|asData|asValue)
			}
		}
	}
}

// local follows a name of the package, or of one that the file imports with a dot.
func (f *file) local(name string, want part) {
	if name == "_" {
		return
	}
	want = want&^asWritten | asName
	if len(f.pkg.decls[name]) > 0 {
		f.pkg.demand(name, want)
		return
	}
	for _, i := range f.imports {
		if i.name == "." && token.IsExported(name) {
			i.used = true
			f.pkg.l.need(i.path, func(s *shaken) { s.demand(name, want) })
		}
	}
}

// other follows a name of a package that the file calls qualifier.
func (f *file) other(qualifier, name string, want part) {
	want = want&^asWritten | asName
	follow := func(i *imported) {
		if i.used = true; i.path != "C" && i.path != "unsafe" {
			f.pkg.l.need(i.path, func(s *shaken) { s.demand(name, want) })
		}
	}
	var guessed, rest []*imported
	for _, i := range f.imports {
		switch {
		case i.name == qualifier || i.path == "unsafe" && i.name == "" && qualifier == "unsafe":
			follow(i)
			return
		case i.name != "" || i.path == "unsafe":
		case guess(i.path) == qualifier:
			guessed = append(guessed, i)
		default:
			rest = append(rest, i)
		}
	}
	f.named(append(guessed, rest...), qualifier, follow)
}

// named calls follow with the first of imports whose package has a name. Only the go command
// knows the names; those that are likely come first.
func (f *file) named(imports []*imported, name string, follow func(*imported)) {
	if len(imports) == 0 {
		return
	}
	i := imports[0]
	f.pkg.l.need(i.path, func(s *shaken) {
		if s.Name == name || s.failed() && guess(i.path) == name {
			follow(i)
			return
		}
		f.named(imports[1:], name, follow)
	})
}

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
		s.declaration(d, want)
	}
	if t, ok := s.decls[name][0].spec.(*ast.TypeSpec); ok && !t.Assign.IsValid() {
		for _, m := range s.methods[name] {
			if m.matters(want) {
				m.file.kept = true
				m.method(want)
			}
		}
	}
}

// declaration returns a declaration without what does not matter, and follows what does.
func (s *shaken) declaration(d decl, want part) ast.Decl {
	switch spec := d.spec.(type) {
	case *ast.TypeSpec:
		out := *spec
		out.Doc, out.Comment = nil, nil
		out.TypeParams = d.file.typeParams(spec.TypeParams, want)
		switch {
		case spec.Assign.IsValid():
			out.Type = d.file.typ(spec.Type, want)
		case want == asName:
			out.Type = empty(spec.Type)
		default:
			out.Type = d.file.typ(spec.Type, want)
		}
		return &ast.GenDecl{TokPos: d.gen.TokPos, Tok: token.TYPE, Specs: []ast.Spec{&out}}
	case *ast.ValueSpec:
		specs := []ast.Spec{spec}
		if d.gen.Tok == token.CONST {
			specs = d.gen.Specs // they may count, or repeat the one before
		}
		if v := spec; d.gen.Tok == token.VAR && want&(asName|asData) != asName|asData { // its type matters only
			if v.Type == nil {
				return &ast.GenDecl{TokPos: d.gen.TokPos, Tok: token.VAR, Specs: []ast.Spec{&ast.ValueSpec{Names: v.Names, Type: empty(v.Names[0])}}}
			}
			return &ast.GenDecl{TokPos: d.gen.TokPos, Tok: token.VAR, Specs: []ast.Spec{&ast.ValueSpec{Names: v.Names, Type: d.file.typ(v.Type, asName)}}}
		}
		for _, spec := range specs {
			d.file.value(spec)
		}
		return &ast.GenDecl{TokPos: d.gen.TokPos, Tok: d.gen.Tok, Lparen: d.gen.Lparen, Specs: specs, Rparen: d.gen.Rparen}
	}
	return &ast.FuncDecl{Recv: d.fn.Recv, Name: d.fn.Name, Type: d.file.signature(d.fn.Type)}
}

// matters reports whether a method makes a difference to a type.
func (d decl) matters(want part) bool {
	return want&(asHandler|asData) != 0 // a method hides a field of its name, or makes it ambiguous
}

// method returns a method with its signature if it may be a handler or has to do with data.
func (d decl) method(want part) ast.Decl {
	out := &ast.FuncDecl{Recv: d.fn.Recv, Name: d.fn.Name, Type: &ast.FuncType{Func: d.fn.Type.Func, Params: &ast.FieldList{}}}
	if want&asWritten != 0 || slices.Contains(dataMethods, d.fn.Name.Name) || d.mayHandle() {
		out.Type = d.file.signature(d.fn.Type)
	}
	return out
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

func (f *file) signature(t *ast.FuncType) *ast.FuncType {
	return &ast.FuncType{Func: t.Func, TypeParams: f.typeParams(t.TypeParams, asWritten), Params: f.params(t.Params), Results: f.params(t.Results)}
}

func (f *file) params(list *ast.FieldList) *ast.FieldList {
	if list == nil {
		return nil
	}
	out := &ast.FieldList{Opening: list.Opening, Closing: list.Closing}
	for _, p := range list.List {
		out.List = append(out.List, &ast.Field{Names: p.Names, Type: f.typ(p.Type, asName)})
	}
	return out
}

// typeParams drops constraints where they do not matter.
func (f *file) typeParams(list *ast.FieldList, want part) *ast.FieldList {
	if list == nil {
		return nil
	}
	out := &ast.FieldList{Opening: list.Opening, Closing: list.Closing}
	for _, p := range list.List {
		constraint := ast.Expr(&ast.Ident{NamePos: p.Type.Pos(), Name: "comparable"}) // as the key of a map has to be
		switch {
		case want&asWritten != 0: // and with the signatures of its methods
			constraint = f.typ(p.Type, asName|asHandler)
		case want&asData != 0:
			constraint = f.typ(p.Type, asData)
		}
		out.List = append(out.List, &ast.Field{Names: p.Names, Type: constraint})
	}
	return out
}

// empty is struct{} where t stands.
func empty(t ast.Expr) ast.Expr {
	return &ast.StructType{Struct: t.Pos(), Fields: &ast.FieldList{Opening: t.Pos(), Closing: t.Pos()}}
}

// typ returns a type without what does not matter, and follows what does.
func (f *file) typ(e ast.Expr, want part) ast.Expr {
	switch t := e.(type) {
	case *ast.Ident:
		f.local(t.Name, want)
	case *ast.SelectorExpr:
		if x, ok := t.X.(*ast.Ident); ok {
			f.other(x.Name, t.Sel.Name, want)
		}
	case *ast.ParenExpr:
		return &ast.ParenExpr{Lparen: t.Lparen, X: f.typ(t.X, want), Rparen: t.Rparen}
	case *ast.StarExpr:
		return &ast.StarExpr{Star: t.Star, X: f.typ(t.X, want)}
	case *ast.Ellipsis:
		return &ast.Ellipsis{Ellipsis: t.Ellipsis, Elt: f.typ(t.Elt, want)}
	case *ast.IndexExpr:
		return &ast.IndexExpr{X: f.typ(t.X, want), Lbrack: t.Lbrack, Index: f.typ(t.Index, asName|asData), Rbrack: t.Rbrack}
	case *ast.IndexListExpr:
		out := &ast.IndexListExpr{X: f.typ(t.X, want), Lbrack: t.Lbrack, Rbrack: t.Rbrack}
		for _, i := range t.Indices {
			out.Indices = append(out.Indices, f.typ(i, asName|asData))
		}
		return out
	case *ast.ArrayType:
		if t.Len != nil {
			f.value(t.Len)
		}
		return &ast.ArrayType{Lbrack: t.Lbrack, Len: t.Len, Elt: f.typ(t.Elt, want)}
	case *ast.MapType:
		return &ast.MapType{Map: t.Map, Key: f.typ(t.Key, want), Value: f.typ(t.Value, want)}
	case *ast.ChanType:
		out := *t
		out.Value = f.typ(t.Value, asName)
		return &out
	case *ast.FuncType:
		return f.signature(t)
	case *ast.InterfaceType:
		return f.iface(t, want)
	case *ast.StructType:
		return f.structure(t, want)
	case *ast.BinaryExpr: // of a constraint
		return &ast.BinaryExpr{X: f.typ(t.X, want), OpPos: t.OpPos, Op: t.Op, Y: f.typ(t.Y, want)}
	case *ast.UnaryExpr:
		return &ast.UnaryExpr{OpPos: t.OpPos, Op: t.Op, X: f.typ(t.X, want)}
	default:
		f.value(e)
	}
	return e
}

// iface returns an interface. To data it only matters that it has methods.
func (f *file) iface(t *ast.InterfaceType, want part) ast.Expr {
	out := &ast.InterfaceType{Interface: t.Interface, Methods: &ast.FieldList{Opening: t.Methods.Opening, Closing: t.Methods.Closing}}
	for _, m := range t.Methods.List {
		typ := m.Type
		switch fn, ok := typ.(*ast.FuncType); {
		case ok && want&asHandler == 0 && want&asData != 0:
			typ = &ast.FuncType{Func: fn.Func, Params: &ast.FieldList{}}
		default:
			typ = f.typ(typ, want)
		}
		out.Methods.List = append(out.Methods.List, &ast.Field{Names: m.Names, Type: typ})
	}
	return out
}

// structure returns a struct. The types of fields that are not exported matter to a
// signature only, those of exported ones to data, those of embedded ones to all.
func (f *file) structure(t *ast.StructType, want part) ast.Expr {
	out := &ast.StructType{Struct: t.Struct, Fields: &ast.FieldList{Opening: t.Fields.Opening, Closing: t.Fields.Closing}}
	for _, field := range t.Fields.List {
		typ := field.Type
		exported := slices.ContainsFunc(field.Names, (*ast.Ident).IsExported)
		switch {
		case len(field.Names) == 0 || want == asName:
			typ = f.typ(typ, want)
		case want&asData != 0 && exported:
			typ = f.typ(typ, want&^asHandler)
		case want&asValue != 0:
			typ = f.typ(typ, asName|asValue)
		case want&asWritten != 0:
			typ = f.typ(typ, asName)
		default:
			typ = empty(typ)
		}
		out.Fields.List = append(out.Fields.List, &ast.Field{Names: field.Names, Type: typ, Tag: field.Tag})
	}
	return out
}

// value follows every name in what gives a constant or a variable its value.
func (f *file) value(n ast.Node) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			f.local(n.Name, asName|asData|asValue)
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok {
				f.other(x.Name, n.Sel.Name, asName|asData|asValue)
			}
		}
		return true
	})
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

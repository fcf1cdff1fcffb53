package directive

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"

	"github.com/leasegen/leasegen/generator/internal/diag"
	"github.com/leasegen/leasegen/generator/internal/syntax"
)

// outline is the file once more with its function bodies, which the loader drops but
// which tell where a misplaced directive stands.
type outline struct {
	file *ast.File
	fset *token.FileSet
}

func (c *collector) outline() *outline {
	if c.whole == nil {
		fset := token.NewFileSet()
		// The loader reports syntax errors; what could be parsed is good enough here.
		f, _ := parser.ParseFile(fset, "", c.src, parser.ParseComments|parser.SkipObjectResolution|parser.AllErrors)
		c.whole = &outline{f, fset}
	}
	return c.whole
}

func (o *outline) offset(p token.Pos) int { return o.fset.PositionFor(p, false).Offset }

func (o *outline) within(n ast.Node, offset int) bool {
	return o.offset(n.Pos()) <= offset && offset < o.offset(n.End())
}

func (o *outline) in(g *ast.CommentGroup, offset int) bool {
	return g != nil && o.within(g, offset)
}

// misplaced reports a directive that is not in a doc comment where it could work.
func (c *collector) misplaced(d Directive) {
	full := Prefix + d.Name
	report := func(code, message, hint string) {
		c.diags.Add(diag.Diagnostic{
			Code: code, Message: full + " " + message, Hint: hint,
			Pos: d.Position(d.Pos), End: d.Position(d.nameEnd()),
		})
	}
	home := "put it into the doc comment of a struct type"
	if d.Name == Defaults {
		home = "put it above the package clause"
	}
	if c.codeBefore(d.Pos) {
		report("LG0203", "stands behind code", home)
		return
	}
	if c.src == nil {
		report("LG0201", "stands on no struct type", home)
		return
	}
	o, at := c.outline(), c.file.Offset(d.Pos)
	if o.in(o.file.Doc, at) {
		report("LG0206", "stands above the package clause", home)
		return
	}
	if at < o.offset(o.file.Package) {
		if d.Name == Defaults {
			report("LG0202", "is separated from the package clause by a blank line", "remove the blank line")
		} else {
			report("LG0202", "belongs to no declaration", home)
		}
		return
	}
	for _, decl := range o.file.Decls {
		if what, code, hint := o.owner(decl, at); what != "" {
			if hint == "" || d.Name == Defaults {
				hint = home
			}
			report(code, what, hint)
			return
		}
	}
	for _, decl := range o.file.Decls {
		if o.offset(decl.Pos()) < at {
			continue
		}
		if gen, ok := decl.(*ast.GenDecl); ok && gen.Tok == token.TYPE && !gen.Lparen.IsValid() && d.Name != Defaults {
			report("LG0202", "is separated from "+describe(gen.Specs[0].(*ast.TypeSpec))+" by a blank line", "remove the blank line")
			return
		}
		break
	}
	report("LG0202", "belongs to no declaration", home)
}

// owner says on what within decl the directive at offset stands, or "".
func (o *outline) owner(decl ast.Decl, at int) (what, code, hint string) {
	switch decl := decl.(type) {
	case *ast.FuncDecl:
		name, hint := "func "+decl.Name.Name, ""
		if t := syntax.Receiver(decl); t != "" {
			name, hint = "method "+t+"."+decl.Name.Name, "move it to the doc comment of type "+t
		}
		if o.in(decl.Doc, at) {
			return "stands on " + name, "LG0201", hint
		}
		if decl.Body != nil && o.within(decl.Body, at) {
			if local := o.localType(decl.Body, at); local != "" {
				return "stands on type " + local + ", which is local to " + name, "LG0205", "move the type to package level"
			}
			return "stands inside " + name, "LG0201", ""
		}
	case *ast.GenDecl:
		if !o.in(decl.Doc, at) && !o.within(decl, at) {
			return "", "", ""
		}
		if decl.Tok != token.TYPE {
			return "stands on " + article(decl.Tok), "LG0201", ""
		}
		for _, s := range decl.Specs {
			spec := s.(*ast.TypeSpec)
			on := o.in(spec.Doc, at) || o.in(decl.Doc, at) && !decl.Lparen.IsValid()
			switch {
			case on && isStruct(spec): // only defaults come here
				return "stands on type " + spec.Name.Name, "LG0206", ""
			case on:
				return "stands on " + describe(spec), "LG0201", ""
			case o.within(spec, at):
				return "stands inside type " + spec.Name.Name, "LG0201", "put it above type " + spec.Name.Name
			}
		}
		if o.in(decl.Doc, at) {
			return "stands on a group of types", "LG0201", "move it inside the parentheses, above the type that is meant"
		}
		for _, s := range decl.Specs {
			if spec := s.(*ast.TypeSpec); o.offset(spec.Pos()) > at {
				return "is separated from " + describe(spec) + " by a blank line", "LG0202", "remove the blank line"
			}
		}
		return "belongs to no declaration", "LG0202", ""
	}
	return "", "", ""
}

func (o *outline) localType(body *ast.BlockStmt, at int) string {
	for n := range ast.Preorder(body) {
		if gen, ok := n.(*ast.GenDecl); ok && gen.Tok == token.TYPE {
			for _, spec := range slices.Backward(gen.Specs) { // of a group's doc comment the last one
				if spec := spec.(*ast.TypeSpec); o.in(spec.Doc, at) || o.in(gen.Doc, at) {
					return spec.Name.Name
				}
			}
		}
	}
	return ""
}

func isStruct(spec *ast.TypeSpec) bool {
	_, ok := spec.Type.(*ast.StructType)
	return ok && !spec.Assign.IsValid()
}

// describe names a type with what it is.
func describe(spec *ast.TypeSpec) string {
	_, isInterface := spec.Type.(*ast.InterfaceType)
	switch {
	case isStruct(spec):
		return "type " + spec.Name.Name
	case spec.Assign.IsValid():
		return "alias " + spec.Name.Name
	case isInterface:
		return "interface " + spec.Name.Name
	}
	return "type " + spec.Name.Name + ", which is not declared as a struct"
}

func article(tok token.Token) string {
	switch tok {
	case token.CONST:
		return "a constant"
	case token.VAR:
		return "a variable"
	}
	return "an import"
}

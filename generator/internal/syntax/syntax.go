// Package syntax answers what several steps ask of the syntax of a Go file.
package syntax

import (
	"go/ast"
	"go/token"
	"iter"
)

// Types are the types that a file declares at package level, with their doc comments.
func Types(f *ast.File) iter.Seq2[*ast.TypeSpec, *ast.CommentGroup] {
	return func(yield func(*ast.TypeSpec, *ast.CommentGroup) bool) {
		for _, d := range f.Decls {
			gen, ok := d.(*ast.GenDecl)
			if !ok || gen.Tok != token.TYPE {
				continue
			}
			for _, s := range gen.Specs {
				spec := s.(*ast.TypeSpec)
				doc := spec.Doc
				if !gen.Lparen.IsValid() {
					doc = gen.Doc
				}
				if !yield(spec, doc) {
					return
				}
			}
		}
	}
}

// Declared are the names that a declaration gives to its package.
func Declared(d ast.Decl) (ids []*ast.Ident) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			ids = append(ids, d.Name)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			ids = append(ids, Names(spec)...)
		}
	}
	return ids
}

// Names are those that a type, constant or variable declares; an import declares none here.
func Names(spec ast.Spec) []*ast.Ident {
	switch spec := spec.(type) {
	case *ast.TypeSpec:
		return []*ast.Ident{spec.Name}
	case *ast.ValueSpec:
		return spec.Names
	}
	return nil
}

// Receiver returns the name of a method's receiver type, or "".
func Receiver(d *ast.FuncDecl) string {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return ""
	}
	for n := range ast.Preorder(d.Recv.List[0].Type) {
		switch n := n.(type) {
		case *ast.StarExpr, *ast.ParenExpr, *ast.IndexExpr, *ast.IndexListExpr:
		case *ast.Ident:
			return n.Name
		default:
			return ""
		}
	}
	return ""
}

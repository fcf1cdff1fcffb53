package directive

import (
	"bytes"
	"go/ast"
	"go/token"
	"go/types"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/leasegen/leasegen/generator/internal/diag"
	"github.com/leasegen/leasegen/generator/internal/syntax"
)

// File holds the directives of one Go file, with what they belong to.
type File struct {
	// Package are those above the package clause.
	Package []Directive
	// Types are the struct types that have directives, in source order.
	Types []TypeDirectives
	// Doubtful are struct types that have findings in the place of directives: what they lack may be there, misspelt.
	Doubtful map[*ast.TypeSpec]bool
}

// TypeDirectives are the directives in the doc comment of one struct type.
type TypeDirectives struct {
	Spec       *ast.TypeSpec
	Doc        *ast.CommentGroup
	Directives []Directive
}

// Collect returns the directives of f. src is the file's content and f its syntax with
// comments, parsed into fset; function bodies may be missing. Near misses, misplaced and
// duplicate directives and what is malformed are added to diags and left out of the
// result; whether names and values are known is for package spec to say.
func Collect(fset *token.FileSet, f *ast.File, src []byte, diags *diag.List) File {
	c := &collector{fset: fset, file: fset.File(f.FileStart), src: src, diags: diags}
	if c.file == nil || c.file.Size() != len(src) {
		c.src = nil // not what was parsed; fall back on the comments' own text
	}
	carriers := carriers(f)
	out := File{Doubtful: map[*ast.TypeSpec]bool{}}
	for _, group := range f.Comments {
		for i, comment := range group.List {
			if strings.HasPrefix(comment.Text, "/*") {
				c.block(comment)
				continue
			}
			before := c.diags.Len()
			d, ok := c.line(comment, wrapped(group, i))
			if !ok {
				if spec := carriers[group]; spec != nil && c.diags.Len() > before {
					out.Doubtful[spec] = true
				}
				continue
			}
			switch spec := carriers[group]; {
			case spec != nil && d.Name != Defaults:
				n := len(out.Types)
				if n == 0 || out.Types[n-1].Spec != spec {
					out.Types = append(out.Types, TypeDirectives{Spec: spec, Doc: group})
					n++
				}
				out.Types[n-1].Directives = c.appendOnce(out.Types[n-1].Directives, d)
			case group == f.Doc && d.Name == Defaults && !c.codeBefore(comment.Slash):
				out.Package = c.appendOnce(out.Package, d)
			default:
				c.misplaced(d)
			}
		}
	}
	return out
}

type collector struct {
	fset  *token.FileSet
	file  *token.File
	src   []byte
	diags *diag.List
	whole *outline // see place.go; made when first needed
}

// mayBeStruct reports whether a type is declared as a struct, or as another type that may be
// one: type Placed orders.Placed.
func mayBeStruct(spec *ast.TypeSpec) bool {
	switch t := spec.Type.(type) {
	case *ast.Ident:
		return !spec.Assign.IsValid() && types.Universe.Lookup(t.Name) == nil
	case *ast.SelectorExpr, *ast.IndexExpr, *ast.IndexListExpr:
		return !spec.Assign.IsValid()
	}
	return isStruct(spec)
}

// carriers maps doc comments to the struct types they belong to.
func carriers(f *ast.File) map[*ast.CommentGroup]*ast.TypeSpec {
	m := map[*ast.CommentGroup]*ast.TypeSpec{}
	for spec, doc := range syntax.Types(f) {
		if mayBeStruct(spec) && doc != nil {
			m[doc] = spec
		}
	}
	return m
}

// text returns a comment as it stands in the file; go/ast drops carriage returns, and
// with them the columns.
func (c *collector) text(comment *ast.Comment) string {
	if c.src == nil {
		return comment.Text
	}
	raw := c.src[c.file.Offset(comment.Slash):]
	end := bytes.IndexByte(raw, '\n')
	if strings.HasPrefix(comment.Text, "/*") {
		if end = bytes.Index(raw, []byte("*/")); end >= 0 {
			end += 2
		}
	}
	if end >= 0 {
		raw = raw[:end]
	}
	return string(raw)
}

// wrapped reports whether a line stands amid a sentence: the line above does not end one, and the one below goes on.
func wrapped(group *ast.CommentGroup, i int) bool {
	if i == 0 || i+1 == len(group.List) {
		return false
	}
	above, isText := strings.CutPrefix(strings.TrimRight(group.List[i-1].Text, " \t\r"), "// ")
	below, goesOn := strings.CutPrefix(group.List[i+1].Text, "// ")
	last, _ := utf8.DecodeLastRuneInString(above)
	first, _ := utf8.DecodeRuneInString(below)
	return isText && goesOn && (unicode.IsLetter(last) || last == ',') && unicode.IsLower(first) &&
		!strings.HasPrefix(above, "leasegen:") && !strings.HasPrefix(below, "leasegen:")
}

// line reads a // comment, which may be amid a sentence.
func (c *collector) line(comment *ast.Comment, amid bool) (Directive, bool) {
	text := strings.TrimRight(c.text(comment), " \t\r")
	kind, name, end := lookAt(text)
	p := &lineParser{fset: c.fset, diags: c.diags, pos: comment.Slash, text: text}
	switch kind {
	case exact:
		return p.directive()
	case near:
		if amid && spaced(text) && end == len(text) {
			return Directive{}, false // "leasegen:event" and no more
		}
		p.nearMissFinding(name, end)
	}
	return Directive{}, false
}

// block reports the lines of a /* */ comment that look like directives.
func (c *collector) block(comment *ast.Comment) {
	text := c.text(comment)
	for at := 0; at < len(text); {
		line, next := text[at:], len(text)
		if n := strings.IndexByte(line, '\n'); n >= 0 {
			line, next = line[:n], at+n+1
		}
		// The decoration: the opening, and what often begins the lines after it.
		trimmed := strings.TrimLeft(line, " \t*")
		if at == 0 {
			trimmed = strings.TrimLeft(line[len("/*"):], " \t*")
		}
		indent := len(line) - len(trimmed)
		trimmed = strings.TrimRight(strings.TrimSuffix(strings.TrimRight(trimmed, "\r"), "*/"), " \t")
		if kind, name, end := lookAt(trimmed); kind != prose {
			if kind == exact {
				name, _, _ = strings.Cut(trimmed[len(Prefix):], " ")
				end = len(Prefix) + len(name)
			}
			p := &lineParser{fset: c.fset, diags: c.diags, pos: comment.Slash + token.Pos(at+indent)}
			p.report("LG0204", 0, end, "a directive inside a block comment has no effect", "write "+Prefix+name+" as a line of its own")
		}
		at = next
	}
}

// appendOnce appends d, unless the declaration has a directive of that name.
func (c *collector) appendOnce(ds []Directive, d Directive) []Directive {
	for _, first := range ds {
		if first.Name == d.Name {
			c.diags.Add(diag.Diagnostic{
				Code: "LG0108", Message: Prefix + d.Name + " is given twice", Hint: "join the two lines",
				Pos: d.Position(d.Pos), End: d.Position(d.nameEnd()),
				Related: []diag.Related{{Pos: first.Position(first.Pos), Message: "first at"}},
			})
			return ds
		}
	}
	return append(ds, d)
}

func (d Directive) nameEnd() token.Pos { return d.NamePos + token.Pos(len(d.Name)) }

// codeBefore reports whether something but space stands before pos on its line.
func (c *collector) codeBefore(pos token.Pos) bool {
	if c.src == nil {
		return false
	}
	before := c.src[:c.file.Offset(pos)]
	before = before[bytes.LastIndexByte(before, '\n')+1:]
	return len(bytes.TrimLeft(before, " \t\r\ufeff")) > 0
}

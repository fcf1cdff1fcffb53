package fsout

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strings"

	"github.com/leasegen/leasegen/generator/internal/syntax"
)

// steps are the writes in an order in which what each file refers to is there at every
// moment, as far as the renaming of one file at a time allows that: a run may be killed
// between any two of them. First come files that only gain declarations, what they refer to
// before them. Then come those that lose some, or go, in the opposite order. An output whose
// source has another name now is renamed, so that its declarations are there once at any time.
func (c *Changes) steps() []write {
	moves, writes := moves(c.writes)
	var gain, lose []write
	for _, w := range writes {
		if w.content == nil || path.Base(w.path) != Queries && loses(w) {
			lose = append(lose, w)
		} else {
			gain = append(gain, w)
		}
	}
	byLevel := func(a, b write) int {
		return cmp.Or(cmp.Compare(level(a.path), level(b.path)), strings.Compare(a.path, b.path))
	}
	slices.SortFunc(gain, byLevel)
	slices.SortFunc(lose, func(a, b write) int { return byLevel(b, a) })
	return slices.Concat(moves, gain, lose)
}

// level is higher for files that refer to those of lower ones. A file of queries proves that
// those beside it are leasegen's, so that it comes first and goes last.
func level(name string) int {
	base := path.Base(name)
	if base == Queries {
		return 0
	}
	if i := slices.Index(FromQueries(), base); i >= 0 {
		return 1 + i
	}
	if strings.HasPrefix(base, Register) {
		return 2 + len(FromQueries())
	}
	return 1 + len(FromQueries())
}

// moves finds outputs that go while another one comes that declares the same and more. It
// returns the renames, and what is left to do.
func moves(writes []write) (moves, rest []write) {
	rest = slices.Clone(writes)
	for i := range rest {
		to := &rest[i]
		if to.old != nil || to.content == nil || !strings.HasSuffix(to.path, Suffix) {
			continue
		}
		j := slices.IndexFunc(rest, func(from write) bool {
			return from.content == nil && path.Dir(from.path) == path.Dir(to.path) && len(declared(from.old)) > 0 &&
				!loses(write{old: from.old, content: to.content})
		})
		if j < 0 {
			continue
		}
		from := rest[j]
		moves = append(moves, write{path: to.path, from: from.path})
		to.old, to.mode = from.old, from.mode
		rest[j].content, rest[j].old = nil, nil // done
	}
	rest = slices.DeleteFunc(rest, func(w write) bool { return w.content == nil && w.old == nil })
	return moves, rest
}

// loses reports whether a file declares less than before.
func loses(w write) bool {
	now := declared(w.content)
	for name := range declared(w.old) {
		if !now[name] {
			return true
		}
	}
	return false
}

// declared are the names that a Go file declares, fields and methods included.
func declared(src []byte) map[string]bool {
	names := map[string]bool{}
	if src == nil {
		return names
	}
	f, err := parser.ParseFile(token.NewFileSet(), "", src, parser.SkipObjectResolution)
	if err != nil {
		return names // what is broken is not missed
	}
	for t := range syntax.Types(f) {
		members := &ast.FieldList{}
		switch t := t.Type.(type) {
		case *ast.StructType:
			members = t.Fields
		case *ast.InterfaceType:
			members = t.Methods
		}
		for _, field := range members.List {
			for _, name := range field.Names {
				names[t.Name.Name+"."+name.Name] = true
			}
		}
	}
	for _, d := range f.Decls {
		for _, id := range syntax.Declared(d) {
			names[id.Name] = true
		}
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv != nil {
			names[syntax.Receiver(fn)+"."+fn.Name.Name] = true
		}
	}
	delete(names, "_")
	return names
}

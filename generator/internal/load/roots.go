package load

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"

	"github.com/leasegen/leasegen/generator/internal/syntax"
)

// roots type-checks the annotated declarations of packages, and all that other packages declare.
func (l *shaker) roots(pkgs []*Package, also []string) (Checked, error) {
	paths := map[string]bool{}
	for _, p := range pkgs {
		paths[p.Path] = true
		l.need(p.Path, func(s *shaken) { l.root(s, p) })
	}
	for _, path := range also {
		paths[path] = true
		l.need(path, (*shaken).all)
	}
	for len(l.wanted) > 0 {
		if err := l.list(); err != nil {
			return nil, err
		}
		later := l.later
		l.later = nil
		for _, f := range later {
			f()
		}
	}
	checked := Checked{}
	for _, path := range sortedKeys(paths) {
		s := l.pkgs[path]
		s.check()
		checked[path] = s.Package
	}
	return checked, nil
}

// root follows the names of what is annotated in a package.
func (l *shaker) root(s *shaken, p *Package) {
	s.whole = true
	s.parse()
	for _, f := range s.files {
		for _, i := range f.imports {
			if i.name == "." {
				l.need(i.path, func(s *shaken) { s.whole = true; s.parse() })
			} else if i.name == "" {
				l.need(i.path, func(*shaken) {}) // its name is one of the file's
			}
		}
	}
	for _, f := range l.m.Elsewhere(p) {
		s.index(&file{pkg: s, tree: f.File, aside: true})
	}
	sources, tables := map[string]bool{}, map[string]bool{}
	for _, f := range p.Files {
		if f.Src == nil {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), f.Path, f.Src, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			continue
		}
		for t, doc := range syntax.Types(tree) {
			want := annotated(doc, tables)
			s.demand(t.Name.Name, want)
			if want != 0 {
				sources[filepath.Base(f.Path)] = true
			}
		}
	}
	// A file about to be deleted may be in use: declarations that name it have to do without it.
	leave := p.leaving(sources, tables)
	for _, name := range sortedKeys(s.decls) {
		if slices.ContainsFunc(slices.Concat(s.decls[name], s.methods[name]), func(d decl) bool { return d.names(leave) }) {
			s.demand(name, asName|asHandler|asWritten)
		}
	}
}

// all follows every name that a package declares, though not into what the types of other packages are made of.
func (s *shaken) all() {
	s.whole = true
	s.parse()
	for _, name := range sortedKeys(s.decls) {
		s.demand(name, asName|asHandler|asWritten)
	}
}

// leaving are the names that outputs of what is not annotated any more declare, and those of folders of tables.
func (p *Package) leaving(sources, tables map[string]bool) map[string]bool {
	leave := map[string]bool{}
	for _, o := range p.Outputs {
		stays := slices.ContainsFunc(strings.Split(o.Source, ", "), func(source string) bool { return sources[source] })
		if stays || o.Source == "" && len(sources) > 0 {
			continue
		}
		tree, _ := parser.ParseFile(token.NewFileSet(), o.Path, nil, parser.SkipObjectResolution) // as far as it can be read
		if tree == nil {
			continue
		}
		for _, d := range tree.Decls {
			for _, id := range syntax.Declared(d) {
				leave[id.Name] = true
			}
		}
	}
	for _, path := range p.Tables {
		if folder := filepath.Base(filepath.Dir(path)); !tables[folder] {
			leave[folder] = true
		}
	}
	return leave
}

// names reports whether a declaration refers to one of these names, or may do so.
func (d decl) names(these map[string]bool) bool {
	if len(these) == 0 {
		return false
	}
	node := ast.Node(d.spec)
	if d.fn != nil {
		node = d.fn.Type
	}
	for n := range ast.Preorder(node) {
		if id, ok := n.(*ast.Ident); ok && these[id.Name] {
			return true
		}
	}
	return false
}

// annotated says what the directives above a type make of it. It adds the folder of a table.
func annotated(doc *ast.CommentGroup, tables map[string]bool) (want part) {
	if doc == nil {
		return 0
	}
	for _, c := range doc.List {
		name, args, _ := strings.Cut(c.Text, " ")
		switch name {
		case "//leasegen:event":
			want |= asData | asName
		case "//leasegen:consumer":
			want |= asHandler | asName
		case "//leasegen:table":
			folder := "leasedb"
			if _, given, ok := strings.Cut(args, "package="); ok {
				folder, _, _ = strings.Cut(given, " ")
				folder = strings.TrimRight(folder, "\"\r")
			}
			tables[folder] = true
		}
	}
	return want
}

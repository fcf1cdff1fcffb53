package resolve

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/leasegen/leasegen/generator/internal/diag"
	"github.com/leasegen/leasegen/generator/internal/ir"
	"github.com/leasegen/leasegen/generator/internal/load"
	"github.com/leasegen/leasegen/generator/internal/names"
	"github.com/leasegen/leasegen/generator/internal/spec"
	"github.com/leasegen/leasegen/generator/internal/syntax"
)

// Names chooses the identifiers of all files and refuses those that are taken.
func Names(prog *load.Program, sources []*Source, files []*ir.File, diags *diag.List) {
	r := &resolver{prog: prog, diags: diags}
	pkgs := map[string]*load.Package{}
	for _, s := range sources {
		pkgs[s.Pkg.Path] = s.Pkg
	}
	at := positions(sources)
	scopes := map[string]*scope{}
	for _, f := range files {
		s := scopes[f.PkgPath]
		if s == nil {
			s = r.scope(pkgs[f.PkgPath])
			scopes[f.PkgPath] = s
		}
		if r.headless(s, f) {
			continue
		}
		for _, e := range f.Events {
			s.add(generated{f, e.Publish, "for event " + e.Type.Name, "publish", "event", at[[3]string{f.PkgPath, e.Type.Name, "publish"}]})
		}
		for _, c := range f.Consumers {
			s.add(generated{f, c.Constructor, "for consumer " + c.Type.Name, "constructor", "consumer", at[[3]string{f.PkgPath, c.Type.Name, "constructor"}]})
		}
		if f.Register != nil {
			s.add(generated{file: f, name: f.Register.Handlers, what: "for the consumers of the package"})
			s.add(generated{file: f, name: f.Register.Func, what: "for the consumers of the package"})
		}
	}
	for _, path := range sortedKeys(scopes) {
		r.taken(scopes[path])
	}
	for _, f := range files {
		s := scopes[f.PkgPath]
		in := maps.Clone(s.declared)
		for _, g := range s.generated {
			in[g.name] = true
		}
		names.File(f, in)
		for _, c := range f.Consumers {
			for _, h := range c.Handlers {
				if h.Payload.Name == names.Uint8s && h.Payload.Path == "" && s.declared["uint8"] {
					r.hidden(s, "uint8", pkgs[f.PkgPath])
				}
			}
		}
	}
}

// generated is a name that leasegen is about to declare.
type generated struct {
	file       *ir.File
	name, what string
	// key of directive is the argument that gives it another name, if there is one.
	key, directive string
	at             [2]token.Position // from, to
}

// positions of the names that the outputs declare, by package, type and the argument that gives them.
func positions(sources []*Source) map[[3]string][2]token.Position {
	out := map[[3]string][2]token.Position{}
	add := func(s *Source, t *ast.TypeSpec, from *spec.Source, key string) {
		pos, end := from.Span(key)
		out[[3]string{s.Pkg.Path, t.Name.Name, key}] = [2]token.Position{pos, end}
	}
	for _, s := range sources {
		for _, e := range s.Events {
			add(s, e.Type, &e.Spec.Source, "publish")
		}
		for _, c := range s.Consumers {
			add(s, c.Type, &c.Consumer.Source, "constructor")
		}
	}
	return out
}

// scope is what names mean in a package.
type scope struct {
	declared map[string]bool           // in the package, tests and files of other platforms included
	at       map[string]token.Position // of those compiled here, and of names that its files import
	// elsewhere are those of files that are not compiled here.
	elsewhere []elsewhere
	// generated are the names that leasegen declares in the package.
	generated []generated
}

// elsewhere is a name that is declared where a constraint holds.
type elsewhere struct {
	id         *ast.Ident
	constraint string
}

func (r *resolver) scope(pkg *load.Package) *scope {
	s := &scope{declared: map[string]bool{}, at: map[string]token.Position{}}
	declared, imported := r.prog.Scope(pkg.Path)
	for name, obj := range imported {
		s.at[name] = r.position(obj.Pos())
	}
	for name, obj := range declared {
		s.declared[name] = true
		s.at[name] = r.position(obj.Pos())
	}
	for _, t := range pkg.Tests {
		f, err := parser.ParseFile(r.prog.Module.Fset, t.Path, nil, parser.SkipObjectResolution)
		if err != nil || f.Name.Name != pkg.Name { // tests outside the package have a scope of their own
			continue
		}
		for _, d := range f.Decls {
			for _, id := range syntax.Declared(d) {
				s.declared[id.Name] = true
				s.at[id.Name] = r.position(id.Pos())
			}
		}
	}
	for _, f := range r.prog.Module.Elsewhere(pkg) {
		for _, d := range f.File.Decls {
			for _, id := range syntax.Declared(d) {
				s.declared[id.Name] = true
				s.elsewhere = append(s.elsewhere, elsewhere{id, f.Constraint})
			}
		}
	}
	for _, name := range names.Predeclared() {
		if s.declared[name] {
			r.hidden(s, name, pkg)
		}
	}
	return s
}

// hidden reports a predeclared name that the package gives another meaning.
func (r *resolver) hidden(s *scope, name string, pkg *load.Package) {
	pos := s.at[name]
	for _, e := range s.elsewhere {
		if e.id.Name == name && !pos.IsValid() {
			pos = r.position(e.id.Pos())
		}
	}
	r.add(diag.Diagnostic{Code: "LG0402", Pos: pos, End: diag.After(pos, name),
		Message: fmt.Sprintf("package %s declares %s and hides Go's own, which generated code needs", pkg.Name, name),
		Hint:    "rename it"})
}

// headless reports a file that stands where f goes and declares what f would: an output that has lost its first line.
// Its names count as leasegen's from then on, so that one mistake is one finding.
func (r *resolver) headless(s *scope, f *ir.File) bool {
	var found token.Position
	for name, pos := range s.at {
		if r.prog.Module.Rel(pos.Filename) == path.Join(f.Dir, f.Output) {
			found = pos
			delete(s.at, name)
		}
	}
	if !found.IsValid() {
		return false
	}
	found.Line, found.Column, found.Offset = 1, 1, 0
	r.add(diag.Diagnostic{Code: "LG0601", Pos: found, End: found,
		Message: fmt.Sprintf("%s stands where leasegen writes what it makes of %s, and its first line is not leasegen's", f.Output, f.Source),
		Hint:    "if leasegen wrote it, delete it and run again; if it is yours, rename it"})
	return true
}

// taken reports names that leasegen is about to declare and that exist, or that it
// declares twice.
func (r *resolver) taken(s *scope) {
	before := map[string][]generated{}
	for _, g := range s.generated {
		pos, exists := s.at[g.name]
		what := g.what
		for _, e := range s.elsewhere {
			if !exists && e.id.Name == g.name && r.prog.Module.Together(e.constraint, g.file.Constraint) {
				pos, exists = r.position(e.id.Pos()), true
				what += ", in a file that is compiled beside this one (//go:build " + e.constraint + ")"
			}
		}
		twice := slices.IndexFunc(before[g.name], func(o generated) bool { return r.prog.Module.Together(o.file.Constraint, g.file.Constraint) })
		hint := "rename yours"
		if g.key != "" {
			hint = fmt.Sprintf("write %s=%s at //leasegen:%s, or rename yours", g.key, s.free(g), g.directive)
		}
		switch {
		case exists:
			r.add(diag.Diagnostic{Code: "LG0401", Pos: pos, End: diag.After(pos, g.name), Hint: hint,
				Message: fmt.Sprintf("%s exists already; leasegen declares it %s", g.name, what)})
		case twice >= 0 && g.key != "":
			r.add(diag.Diagnostic{Code: "LG0401", Pos: g.at[0], End: g.at[1], Hint: fmt.Sprintf("write %s=%s", g.key, s.free(g)),
				Message: fmt.Sprintf("leasegen would declare %s twice, %s and %s", g.name, before[g.name][twice].what, g.what)})
		}
		before[g.name] = append(before[g.name], g)
	}
}

func (s *scope) add(g generated) { s.generated = append(s.generated, g) }

// free is a name like g's that the package does not have and will not have.
func (s *scope) free(g generated) string {
	base := g.name + strings.ToUpper(g.directive[:1]) + g.directive[1:]
	return names.Unused(base, func(name string) bool {
		_, exists := s.at[name]
		return exists || s.declared[name] || slices.ContainsFunc(s.generated, func(g generated) bool { return g.name == name })
	})
}

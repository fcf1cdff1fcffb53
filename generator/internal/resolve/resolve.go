package resolve

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/leasegen/leasegen/generator/internal/diag"
	"github.com/leasegen/leasegen/generator/internal/fsout"
	"github.com/leasegen/leasegen/generator/internal/ir"
	"github.com/leasegen/leasegen/generator/internal/load"
	"github.com/leasegen/leasegen/generator/internal/names"
)

// Resolve checks the annotated declarations against their types and returns the files
// to be written, in the order of sources. Sources of packages that could not be loaded
// are passed over; loading has reported why.
func Resolve(prog *load.Program, sources []*Source, diags *diag.List) []*ir.File {
	r := &resolver{prog: prog, diags: diags, events: map[string]*known{}, doubtful: map[string]bool{}, postgres: map[*Consumer]bool{}, files: map[string]*ir.File{},
		others: map[string][]load.Syntax{}}
	loaded := slices.DeleteFunc(slices.Clone(sources), func(s *Source) bool { return !prog.Clean(s.Pkg.Path) })
	for _, s := range loaded {
		for _, name := range s.Doubtful {
			r.doubtful[s.Pkg.Path+"."+name] = true
		}
		for _, e := range s.Events {
			r.event(s, e)
		}
	}
	for _, s := range loaded {
		for _, c := range s.Consumers {
			r.consumer(s, c)
		}
	}
	r.uniqueConsumers(sources)
	r.lockKeys(sources, lockKey)
	r.uniqueEvents(sources)
	r.oneBackend(loaded)
	var files []*ir.File
	for _, s := range loaded {
		if f := r.files[s.Path]; f != nil {
			files = append(files, f)
		}
	}
	return append(files, r.registers(loaded)...)
}

// resolver holds what resolving the sources of one run shares.
type resolver struct {
	prog  *load.Program
	diags *diag.List
	// events by path and name of their type; nil for types that are none.
	events  map[string]*known
	foreign []*known // those of other packages
	// doubtful types may be events: their directives have findings.
	doubtful map[string]bool
	// postgres has the consumers that were resolved: whether they need PostgreSQL.
	postgres map[*Consumer]bool
	files    map[string]*ir.File
	// others are the files that are not compiled here, by package.
	others map[string][]load.Syntax
}

// file returns the output for a source.
func (r *resolver) file(s *Source) *ir.File {
	if f := r.files[s.Path]; f != nil {
		return f
	}
	rel := r.prog.Module.Rel(s.Path)
	base := path.Base(rel)
	pkg := r.prog.Types(s.Pkg.Path)
	f := &ir.File{
		Dir: path.Dir(rel), Source: base, Output: strings.TrimSuffix(base, ".go") + fsout.Suffix,
		PkgPath: pkg.Path(), PkgName: pkg.Name(), Constraint: s.Constraint,
	}
	r.files[s.Path] = f
	return f
}

// uniqueConsumers refuses two consumers of one name: they would share leases and cursors.
func (r *resolver) uniqueConsumers(sources []*Source) {
	first := map[string]*Consumer{}
	for _, s := range sources {
		for _, c := range s.Consumers {
			// Lower case: names are so already, unless that is a finding of its own.
			key := strings.ToLower(c.Name)
			f := first[key]
			if f == nil {
				first[key] = c
				continue
			}
			pos, end := c.Consumer.Span("name")
			r.add(diag.Diagnostic{Code: "LG0403", Pos: pos, End: end,
				Message: fmt.Sprintf("there is a consumer named %q already, %s", c.Name, f.Type.Name.Name),
				Hint:    "consumers of one name share leases and cursors; write another name=",
				Related: []diag.Related{{Pos: r.position(f.Type.Name.Pos()), Message: "first at"}}})
		}
	}
}

// uniqueEvents refuses two types for one kind.
func (r *resolver) uniqueEvents(sources []*Source) {
	first := map[string]*known{}
	for _, e := range r.foreign {
		if first[e.kind] == nil {
			first[e.kind] = e
		}
	}
	for _, s := range sources {
		for _, e := range s.Events {
			f := first[e.Kind]
			if f == nil {
				first[e.Kind] = &known{pos: r.position(e.Type.Name.Pos()), kind: e.Kind}
				continue
			}
			if f.pos == r.position(e.Type.Name.Pos()) {
				continue
			}
			pos, end := e.Spec.Span("name")
			r.add(diag.Diagnostic{Code: "LG0404", Pos: pos, End: end,
				Message: fmt.Sprintf("there is an event named %q already", e.Kind),
				Hint:    "messages of one kind have one type; write another name=, or use the type that exists",
				Related: []diag.Related{{Pos: f.pos, Message: "first at"}}})
		}
	}
}

// Names chooses the identifiers of all files and refuses those that are taken.
func Names(prog *load.Program, sources []*Source, files []*ir.File, diags *diag.List) {
	r := &resolver{prog: prog, diags: diags}
	pkgs := map[string]*load.Package{}
	for _, s := range sources {
		pkgs[s.Pkg.Path] = s.Pkg
	}
	scopes := map[string]*scope{}
	for _, f := range files {
		s := scopes[f.PkgPath]
		if s == nil {
			s = r.scope(pkgs[f.PkgPath])
			scopes[f.PkgPath] = s
		}
		names.File(f, s.declared)
		if r.headless(s, f) {
			continue
		}
		for _, e := range f.Events {
			r.taken(s, f, e.Publish, "for event "+e.Type.Name)
		}
		for _, c := range f.Consumers {
			for _, h := range c.Handlers {
				if h.Payload.Name == names.Uint8s && h.Payload.Path == "" && s.declared["uint8"] {
					r.hidden(s, "uint8", pkgs[f.PkgPath])
				}
			}
			r.taken(s, f, c.Constructor, "for consumer "+c.Type.Name)
		}
		if f.Register != nil {
			r.taken(s, f, f.Register.Handlers, "for the consumers of the package")
			r.taken(s, f, f.Register.Func, "for the consumers of the package")
		}
	}
}

// scope is what names mean in a package.
type scope struct {
	declared map[string]bool           // in the package, tests and files of other platforms included
	at       map[string]token.Position // of those compiled here, and of names that its files import
	// elsewhere are those of files that are not compiled here.
	elsewhere []elsewhere
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
	for name, pos := range r.testNames(pkg) {
		s.declared[name] = true
		s.at[name] = pos
	}
	for _, f := range r.prog.Module.Elsewhere(pkg) {
		for _, d := range f.File.Decls {
			for _, id := range declaredNames(d) {
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
	r.add(diag.Diagnostic{Code: "LG0402", Pos: pos, End: after(pos, name),
		Message: fmt.Sprintf("package %s declares %s and hides Go's own, which generated code needs", pkg.Name, name),
		Hint:    "rename it"})
}

// testNames are the package-level names that tests inside the package declare.
func (r *resolver) testNames(pkg *load.Package) map[string]token.Position {
	out := map[string]token.Position{}
	for _, t := range pkg.Tests {
		f, err := parser.ParseFile(r.prog.Module.Fset, t.Path, nil, parser.SkipObjectResolution)
		if err != nil || f.Name.Name != pkg.Name {
			continue
		}
		for _, d := range f.Decls {
			for _, id := range declaredNames(d) {
				out[id.Name] = r.position(id.Pos())
			}
		}
	}
	return out
}

func declaredNames(d ast.Decl) (ids []*ast.Ident) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			ids = append(ids, d.Name)
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				ids = append(ids, s.Name)
			case *ast.ValueSpec:
				ids = append(ids, s.Names...)
			}
		}
	}
	return ids
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

// taken reports a name that leasegen is about to declare in f and that exists.
func (r *resolver) taken(s *scope, f *ir.File, name, what string) {
	pos, exists := s.at[name]
	for _, e := range s.elsewhere {
		if !exists && e.id.Name == name && r.prog.Module.Together(e.constraint, f.Constraint) {
			pos, exists = r.position(e.id.Pos()), true
			what += ", in a file that is compiled beside this one (//go:build " + e.constraint + ")"
		}
	}
	if !exists {
		return
	}
	hint := "rename yours"
	if strings.HasPrefix(name, "New") || strings.HasPrefix(name, "new") {
		hint += ", for example to Make" + name[len("New"):]
	}
	r.add(diag.Diagnostic{Code: "LG0401", Pos: pos, End: after(pos, name),
		Message: fmt.Sprintf("%s exists already; leasegen declares it %s", name, what), Hint: hint})
}

func (r *resolver) add(d diag.Diagnostic) { r.diags.Add(d) }

// at reports d at an identifier.
func (r *resolver) at(id *ast.Ident, d diag.Diagnostic) { r.named(id.Pos(), id.Name, d) }

// named reports d where name stands.
func (r *resolver) named(p token.Pos, name string, d diag.Diagnostic) {
	d.Pos = r.position(p)
	d.End = after(d.Pos, name)
	r.add(d)
}

// after is the position behind a name.
func after(pos token.Position, name string) token.Position {
	pos.Column += len(name)
	pos.Offset += len(name)
	return pos
}

func (r *resolver) position(p token.Pos) token.Position {
	return load.Position(r.prog.Module.Fset, p)
}

// place is where a method is shown: at its name, or, if another package declares it, at
// the handler struct that it is promoted to.
func (h *handlers) place(m *types.Func) token.Position {
	if m.Pkg() != h.pkg {
		return h.position(h.consumer.Type.Name.Pos())
	}
	return h.position(m.Pos())
}

func (h *handlers) placeEnd(m *types.Func) token.Position {
	if m.Pkg() != h.pkg {
		return after(h.place(m), h.typ.Name())
	}
	return after(h.place(m), m.Name())
}

// ownEvent reports whether an event was resolved in this run, findings included.
func (h *handlers) ownEvent(obj *types.TypeName) bool {
	return !slices.Contains(h.foreign, h.events[typeKey(obj)])
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

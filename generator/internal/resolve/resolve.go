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
	"strconv"
	"strings"

	"github.com/leasegen/leasegen/generator/internal/diag"
	"github.com/leasegen/leasegen/generator/internal/fsout"
	"github.com/leasegen/leasegen/generator/internal/ir"
	"github.com/leasegen/leasegen/generator/internal/load"
	"github.com/leasegen/leasegen/generator/internal/names"
)

// Resolve checks the annotated declarations against their types and returns the files
// to be written, in the order of sources. Sources of packages that could not be loaded
// are passed over; loading has reported why. others are in packages that this run leaves
// alone; only names are compared with theirs.
func Resolve(prog *load.Program, sources, others []*Source, diags *diag.List) []*ir.File {
	r := &resolver{prog: prog, diags: diags, events: map[string]*known{}, postgres: map[*Consumer]bool{}, files: map[string]*ir.File{}}
	loaded := slices.DeleteFunc(slices.Clone(sources), func(s *Source) bool { return !prog.Clean(s.Pkg.Path) })
	for _, s := range loaded {
		for _, e := range s.Events {
			r.event(s, e)
		}
	}
	for _, s := range loaded {
		for _, c := range s.Consumers {
			r.consumer(s, c)
		}
	}
	r.uniqueConsumers(others, sources)
	r.lockKeys(sources, lockKey)
	r.uniqueEvents(others, sources)
	r.oneBackend(loaded)
	var files []*ir.File
	for _, s := range loaded {
		if f := r.files[s.Path]; f != nil {
			files = append(files, f)
		}
	}
	registers(files)
	return files
}

// resolver holds what resolving the sources of one run shares.
type resolver struct {
	prog  *load.Program
	diags *diag.List
	// events by path and name of their type; nil for types that are none.
	events  map[string]*known
	foreign []*known // those of other packages
	// postgres has the consumers that were resolved: whether they need PostgreSQL.
	postgres map[*Consumer]bool
	files    map[string]*ir.File
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

// registers gives each package's RegisterLeasegen to the first file with a consumer.
// A file that is compiled under other conditions than the function's own cannot be part
// of it; where files differ, the function is for those without conditions.
func registers(files []*ir.File) {
	byPkg := map[string][]*ir.File{}
	for _, f := range files {
		if len(f.Consumers) > 0 {
			byPkg[f.PkgPath] = append(byPkg[f.PkgPath], f)
		}
	}
	for _, fs := range byPkg {
		constraint := fs[0].Constraint
		if slices.ContainsFunc(fs, func(f *ir.File) bool { return f.Constraint != constraint }) {
			constraint = ""
		}
		fs = slices.DeleteFunc(fs, func(f *ir.File) bool { return f.Constraint != constraint })
		for _, f := range fs {
			fs[0].Register = append(fs[0].Register, f.Consumers...)
		}
	}
}

// uniqueConsumers refuses two consumers of one name: they would share leases and cursors.
func (r *resolver) uniqueConsumers(others, sources []*Source) {
	first := map[string]*Consumer{}
	for _, s := range others {
		for _, c := range s.Consumers {
			if key := strings.ToLower(c.Name); first[key] == nil {
				first[key] = c
			}
		}
	}
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
func (r *resolver) uniqueEvents(others, sources []*Source) {
	first := map[string]*known{}
	for _, s := range others {
		for _, e := range s.Events {
			if first[e.Kind] == nil {
				first[e.Kind] = &known{pos: r.position(e.Type.Name.Pos()), kind: e.Kind}
			}
		}
	}
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
	at := positions(sources)
	scopes := map[string]*scope{}
	for _, f := range files {
		s := scopes[f.PkgPath]
		if s == nil {
			s = r.scope(pkgs[f.PkgPath])
			scopes[f.PkgPath] = s
		}
		for _, e := range f.Events {
			s.add(generated{e.Publish, "for event " + e.Type.Name, "publish", "event", at[[2]string{f.PkgPath, e.Type.Name}].publish})
		}
		for _, c := range f.Consumers {
			s.add(generated{c.Constructor, "for consumer " + c.Type.Name, "constructor", "consumer", at[[2]string{f.PkgPath, c.Type.Name}].constructor})
		}
		if len(f.Register) > 0 {
			s.add(generated{name: names.Handlers, what: "for the consumers of the package"})
			s.add(generated{name: names.Register, what: "for the consumers of the package"})
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
	}
}

// generated is a name that leasegen is about to declare.
type generated struct {
	name, what string
	// key of directive is the argument that gives it another name, if there is one.
	key, directive string
	at             [2]token.Position // from, to
}

// positions of the names that the outputs declare, by package and type.
func positions(sources []*Source) map[[2]string]struct{ publish, constructor [2]token.Position } {
	out := map[[2]string]struct{ publish, constructor [2]token.Position }{}
	for _, s := range sources {
		for _, e := range s.Events {
			key := [2]string{s.Pkg.Path, e.Type.Name.Name}
			p := out[key]
			p.publish[0], p.publish[1] = e.Spec.Span("publish")
			out[key] = p
		}
		for _, c := range s.Consumers {
			key := [2]string{s.Pkg.Path, c.Type.Name.Name}
			p := out[key]
			p.constructor[0], p.constructor[1] = c.Consumer.Span("constructor")
			out[key] = p
		}
	}
	return out
}

// scope is what names mean in a package.
type scope struct {
	declared map[string]bool           // in the package, tests included
	at       map[string]token.Position // of those, and of names that its files import
	// generated are the names that leasegen declares in the package.
	generated []generated
}

func (r *resolver) scope(pkg *load.Package) *scope {
	s := &scope{map[string]bool{}, map[string]token.Position{}, nil}
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
	for _, name := range names.Predeclared() {
		if s.declared[name] {
			r.add(diag.Diagnostic{Code: "LG0402", Pos: s.at[name], End: after(s.at[name], name),
				Message: fmt.Sprintf("package %s declares %s and hides Go's own, which generated code needs", pkg.Name, name),
				Hint:    "rename it"})
		}
	}
	return s
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

// taken reports names that leasegen is about to declare and that exist, or that it
// declares twice.
func (r *resolver) taken(s *scope) {
	first := map[string]generated{}
	for _, g := range s.generated {
		pos, exists := s.at[g.name]
		other, twice := first[g.name]
		first[g.name] = g
		hint := "rename yours"
		if g.key != "" {
			hint = fmt.Sprintf("write %s=%s at //leasegen:%s, or rename yours", g.key, s.free(g), g.directive)
		}
		switch {
		case exists:
			r.add(diag.Diagnostic{Code: "LG0401", Pos: pos, End: after(pos, g.name), Hint: hint,
				Message: fmt.Sprintf("%s exists already; leasegen declares it %s", g.name, g.what)})
		case twice && g.key != "":
			r.add(diag.Diagnostic{Code: "LG0401", Pos: g.at[0], End: g.at[1], Hint: fmt.Sprintf("write %s=%s", g.key, s.free(g)),
				Message: fmt.Sprintf("leasegen would declare %s twice, %s and %s", g.name, other.what, g.what)})
		}
	}
}

func (s *scope) add(g generated) { s.generated = append(s.generated, g) }

// free is a name like g's that the package does not have and will not have.
func (s *scope) free(g generated) string {
	base := g.name + strings.ToUpper(g.directive[:1]) + g.directive[1:]
	name := base
	for i := 2; s.has(name); i++ {
		name = base + strconv.Itoa(i)
	}
	return name
}

// has reports whether a package has a name, or will have it.
func (s *scope) has(name string) bool {
	_, exists := s.at[name]
	return exists || slices.ContainsFunc(s.generated, func(g generated) bool { return g.name == name })
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

package resolve

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"iter"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/leasegen/leasegen/generator/internal/diag"
	"github.com/leasegen/leasegen/generator/internal/fsout"
	"github.com/leasegen/leasegen/generator/internal/ir"
	"github.com/leasegen/leasegen/generator/internal/load"
)

// Resolve checks the annotated declarations against their types and returns the files
// to be written, in the order of sources. Sources of packages that could not be loaded
// are passed over; loading has reported why. others are in packages that this run leaves
// alone; only names are compared with theirs.
func Resolve(prog *load.Program, sources, others []*Source, diags *diag.List) []*ir.File {
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
	for c, s := range Consumers(loaded) {
		r.consumer(s, c)
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
func (r *resolver) uniqueConsumers(others, sources []*Source) {
	first := map[string]*Consumer{}
	// Lower case: names are so already, unless that is a finding of its own.
	for c := range Consumers(others) {
		firstOf(first, strings.ToLower(c.Name), c)
	}
	for c := range Consumers(sources) {
		if f := firstOf(first, strings.ToLower(c.Name), c); f != c {
			r.add(c.Consumer.Finding("LG0403", "name", fmt.Sprintf("there is a consumer named %q already, %s", c.Name, f.Type.Name.Name),
				"consumers of one name share leases and cursors; write another name=",
				diag.Related{Pos: r.position(f.Type.Name.Pos()), Message: "first at"}))
		}
	}
}

// uniqueEvents refuses two types for one kind.
func (r *resolver) uniqueEvents(others, sources []*Source) {
	first := map[string]token.Position{}
	for _, s := range others {
		for _, e := range s.Events {
			firstOf(first, e.Kind, r.position(e.Type.Name.Pos()))
		}
	}
	for _, e := range r.foreign {
		firstOf(first, e.kind, e.pos)
	}
	for _, s := range sources {
		for _, e := range s.Events {
			pos := r.position(e.Type.Name.Pos())
			if f := firstOf(first, e.Kind, pos); f != pos {
				r.add(e.Spec.Finding("LG0404", "name", fmt.Sprintf("there is an event named %q already", e.Kind),
					"messages of one kind have one type; write another name=, or use the type that exists",
					diag.Related{Pos: f, Message: "first at"}))
			}
		}
	}
}

// firstOf returns the first value that was noted under a key, x itself if there was none before.
func firstOf[K comparable, T any](noted map[K]T, key K, x T) T {
	if first, ok := noted[key]; ok {
		return first
	}
	noted[key] = x
	return x
}

// Consumers are those of all sources, in their order.
func Consumers(sources []*Source) iter.Seq2[*Consumer, *Source] {
	return func(yield func(*Consumer, *Source) bool) {
		for _, s := range sources {
			for _, c := range s.Consumers {
				if !yield(c, s) {
					return
				}
			}
		}
	}
}

func (r *resolver) add(d diag.Diagnostic) { r.diags.Add(d) }

// at reports d at an identifier.
func (r *resolver) at(id *ast.Ident, d diag.Diagnostic) { r.named(id.Pos(), id.Name, d) }

// named reports d where name stands.
func (r *resolver) named(p token.Pos, name string, d diag.Diagnostic) {
	d.Pos = r.position(p)
	d.End = diag.After(d.Pos, name)
	r.add(d)
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
		return diag.After(h.place(m), h.typ.Name())
	}
	return diag.After(h.place(m), m.Name())
}

// ownEvent reports whether an event was resolved in this run, findings included.
func (h *handlers) ownEvent(obj *types.TypeName) bool {
	return !slices.Contains(h.foreign, h.events[typeKey(obj)])
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

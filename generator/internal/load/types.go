package load

import (
	"context"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"go/types"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/tools/go/packages"

	"github.com/leasegen/leasegen/generator/internal/diag"
)

// Program is the packages of a Module with their types.
type Program struct {
	Module    *Module
	types     map[string]*types.Package
	clean     map[string]bool
	checked   Checked
	generated map[string]bool // see Module.Types
}

// Checked is packages that were type-checked, by their paths.
type Checked map[string]*packages.Package

// Packages is how many packages something was type-checked of: these, and what they import.
func (c Checked) Packages() int {
	n := 0
	for _, p := range c.all() {
		if p.Types != nil {
			n++
		}
	}
	return n
}

// Check type-checks what the annotated declarations of pkgs are made of, from source and
// without function bodies, as if leasegen's outputs did not exist. overlay holds outputs that code may refer
// to, by absolute path, as if they were on disk. also are the paths of packages that outputs
// import, whether or not the source does; all that they declare is checked.
func (m *Module) Check(ctx context.Context, pkgs []*Package, overlay map[string][]byte, also []string) (Checked, error) {
	if len(pkgs) == 0 {
		return nil, nil
	}
	all := m.stubs()
	maps.Copy(all, overlay)
	l := &shaker{m: m, ctx: ctx, overlay: all, pkgs: map[string]*shaken{}, wanted: map[string]bool{}, hinted: map[string]bool{}}
	return l.roots(pkgs, also)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// Types makes a program of those of pkgs that were checked. generated holds the identifiers
// that leasegen's outputs declare; code that uses them before they exist is not an error.
// Errors that keep a package from being understood are added to diags.
func (m *Module) Types(checked Checked, pkgs []*Package, generated map[string]bool, diags *diag.List) *Program {
	prog := &Program{Module: m, types: map[string]*types.Package{}, clean: map[string]bool{}, checked: checked, generated: generated}
	for _, pkg := range pkgs {
		p := checked[pkg.Path]
		if p == nil {
			continue
		}
		prog.types[p.PkgPath] = p.Types
		found := m.problems(p, generated)
		prog.clean[p.PkgPath] = len(found) == 0
		if len(found) > 0 {
			found = append(found, prog.Upstream(p.PkgPath)...) // they may be the cause
		}
		diags.Add(found...)
	}
	return prog
}

// stubs replaces every output of leasegen by an empty file of its package, so that a
// broken, stale or missing one makes no difference.
func (m *Module) stubs() map[string][]byte {
	overlay := map[string][]byte{}
	for _, p := range m.Packages {
		name := p.clause()
		for _, o := range p.Outputs {
			overlay[o.Path] = []byte("package " + name + "\n")
		}
		for _, t := range p.Tables {
			if strings.HasSuffix(t, ".go") {
				overlay[t] = []byte("package " + filepath.Base(filepath.Dir(t)) + "\n")
			}
		}
	}
	return overlay
}

// clause is the package's name as its hand-written files give it. The go command's
// answer may have been led astray by a broken output.
func (p *Package) clause() string {
	for _, f := range p.Files {
		file, err := parser.ParseFile(token.NewFileSet(), f.Path, nil, parser.PackageClauseOnly)
		if err == nil {
			return file.Name.Name
		}
	}
	return p.Name
}

// parseSignatures parses a file without comments and function bodies.
func parseSignatures(fset *token.FileSet, name string, src []byte) (*ast.File, error) {
	f, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
	if f != nil {
		dropBodies(f)
	}
	return f, err
}

func dropBodies(f *ast.File) {
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok {
			fn.Body = nil
		}
	}
}

// problems are the findings about a package that was loaded. If the go command or the
// parser complains, what the type checker says is their consequence and left out.
func (m *Module) problems(p *packages.Package, generated map[string]bool) []diag.Diagnostic {
	var found []diag.Diagnostic
	for _, e := range p.Errors {
		if e.Kind != packages.TypeError && !excludesAll(e) {
			found = append(found, finding(m.config.Dir, p.PkgPath, e))
		}
	}
	if len(found) > 0 {
		return found
	}
	for _, e := range p.TypeErrors {
		if e.Soft || ofGenerated(e.Msg, generated) {
			continue
		}
		if d, ok := m.failedImport(p, e); ok {
			found = append(found, d)
			continue
		}
		if more, ok := strings.CutPrefix(e.Msg, "\t"); ok && len(found) > 0 { // says more about the one before
			last := &found[len(found)-1]
			last.Related = append(last.Related, diag.Related{Pos: Position(e.Fset, e.Pos), Message: more + " at"})
			continue
		}
		found = append(found, diag.Diagnostic{Code: "LG0702", Pos: Position(e.Fset, e.Pos), Message: e.Msg})
	}
	return found
}

// failedImport says why an import failed, in the go command's words; the type checker
// only knows that it did.
func (m *Module) failedImport(p *packages.Package, e types.Error) (diag.Diagnostic, bool) {
	rest, ok := strings.CutPrefix(e.Msg, "could not import ")
	path, _, _ := strings.Cut(rest, " ")
	imported := p.Imports[path]
	if !ok || imported == nil || len(imported.Errors) == 0 {
		return diag.Diagnostic{}, false
	}
	d := finding(m.config.Dir, path, imported.Errors[0])
	d.Code, d.Pos = "LG0703", Position(e.Fset, e.Pos)
	return d, true
}

// SyntaxErrors turns what the parser returned into findings.
func SyntaxErrors(err error) []diag.Diagnostic {
	list, ok := err.(scanner.ErrorList)
	if !ok {
		return []diag.Diagnostic{{Code: "LG0701", Message: err.Error()}}
	}
	var found []diag.Diagnostic
	for _, e := range list {
		e.Pos.Offset = 0 // as in what the go command reports, so that the same is reported once
		found = append(found, diag.Diagnostic{Code: "LG0701", Pos: e.Pos, Message: e.Msg})
	}
	return found
}

// ofGenerated reports whether a type error says only that an identifier which leasegen
// is about to declare does not exist yet.
func ofGenerated(message string, generated map[string]bool) bool {
	name, ok := strings.CutPrefix(message, "undefined: ")
	if !ok {
		return false
	}
	if _, selected, ok := strings.Cut(name, "."); ok {
		name = selected
	}
	return generated[name]
}

// excludesAll: build constraints exclude all files, or there are none. That the package
// has directives in excluded files is reported on its own.
func excludesAll(e packages.Error) bool {
	return strings.Contains(e.Msg, "build constraints exclude all Go files") || strings.HasPrefix(e.Msg, "no Go files in")
}

// finding turns a complaint of the go command or the parser into a diagnostic.
func finding(dir, path string, e packages.Error) diag.Diagnostic {
	d := diag.Diagnostic{Code: "LG0703", Pos: errorPosition(dir, e.Pos)}
	first, rest, _ := strings.Cut(strings.TrimSpace(e.Msg), "\n")
	d.Message = first
	for line := range strings.Lines(rest) {
		d.Detail = append(d.Detail, strings.TrimSpace(line))
	}
	switch {
	case e.Kind == packages.ParseError, d.Pos.IsValid() && syntaxError(first):
		d.Code = "LG0701"
	case !d.Pos.IsValid() && !strings.Contains(first, path):
		d.Message = "package " + path + ": " + first
	}
	return d
}

// syntaxError recognises the parser's complaints as the go command passes them on.
func syntaxError(message string) bool {
	return strings.HasPrefix(message, "expected ") || strings.HasPrefix(message, "syntax error")
}

// errorPosition reads "file:line:col", "file:line" or "-".
func errorPosition(dir, s string) token.Position {
	m := regexp.MustCompile(`^(.+?)(?::(\d+))?(?::(\d+))?$`).FindStringSubmatch(s)
	if m == nil || s == "-" {
		return token.Position{}
	}
	pos := token.Position{Filename: m[1]}
	if !filepath.IsAbs(pos.Filename) {
		pos.Filename = filepath.Join(dir, pos.Filename)
	}
	pos.Line, _ = strconv.Atoi(m[2])
	pos.Column, _ = strconv.Atoi(m[3])
	return pos
}

// Position returns where p is in the file that a person wrote: //line comments are not
// followed, except in what cgo made of a file.
func Position(fset *token.FileSet, p token.Pos) token.Position {
	if pos := fset.PositionFor(p, false); filepath.Ext(pos.Filename) == ".go" && !strings.Contains(pos.Filename, "_cgo_") && !strings.HasSuffix(pos.Filename, ".cgo1.go") {
		return pos
	}
	return fset.Position(p)
}

// Types returns a package that was loaded, or nil.
func (p *Program) Types(path string) *types.Package { return p.types[path] }

// Upstream returns what is wrong with the packages of the module that a package imports.
// It only matters where a type is unknown because of it.
func (p *Program) Upstream(path string) (found []diag.Diagnostic) {
	packages.Visit([]*packages.Package{p.checked[path]}, nil, func(other *packages.Package) {
		if other.PkgPath != path && other.Module != nil && other.Module.Main {
			found = append(found, p.Module.problems(other, p.generated)...)
		}
	})
	return found
}

// Clean reports whether a package was loaded without any error.
func (p *Program) Clean(path string) bool { return p.clean[path] }

// Scope returns the identifiers of a package: those declared in it, and apart from
// them those that its files import, dot imports included.
func (p *Program) Scope(path string) (declared, imported map[string]types.Object) {
	declared, imported = map[string]types.Object{}, map[string]types.Object{}
	pkg := p.types[path]
	if pkg == nil {
		return declared, imported
	}
	collect := func(s *types.Scope, into map[string]types.Object) {
		for _, name := range s.Names() {
			into[name] = s.Lookup(name)
		}
	}
	collect(pkg.Scope(), declared)
	for i := range pkg.Scope().NumChildren() {
		collect(pkg.Scope().Child(i), imported)
	}
	return declared, imported
}

// Stale returns the outputs of clean packages that are not among written, as paths
// relative to the module root. An output is kept while a file that build constraints
// exclude here may still have it.
func (p *Program) Stale(written map[string]bool) []string {
	var stale []string
	for _, pkg := range p.Module.Packages {
		if !p.clean[pkg.Path] {
			continue
		}
		for _, o := range pkg.Outputs {
			rel := p.Module.Rel(o.Path)
			other := slices.ContainsFunc(pkg.Excluded, func(f File) bool {
				return f.Src != nil && slices.Contains(strings.Split(o.Source, ", "), filepath.Base(f.Path))
			})
			if !written[rel] && !other {
				stale = append(stale, rel)
			}
		}
		excluded := slices.ContainsFunc(pkg.Excluded, func(f File) bool { return f.Src != nil }) // it may have the table
		for _, t := range pkg.Tables {
			if rel := p.Module.Rel(t); !written[rel] && !excluded {
				stale = append(stale, rel)
			}
		}
	}
	slices.Sort(stale)
	return stale
}

// Rel returns a path relative to the module root, with slashes.
func (m *Module) Rel(path string) string {
	rel, err := filepath.Rel(m.Root, path)
	if err != nil {
		return filepath.ToSlash(path)
	}
	return filepath.ToSlash(rel)
}

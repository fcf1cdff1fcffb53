package load

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

// Source is a file as it will be on disk.
type Source struct {
	Path       string // absolute
	Constraint string
	Content    []byte
}

// Fault is something about planned outputs that does not compile.
type Fault struct {
	Platform Platform
	Message  string
	Output   string    // the planned output that it is in
	Pos      token.Pos // in the output
	Syntax   *ast.File // of the output
	// Others are places of hand-written files that it is about.
	Others []token.Position
}

// Compile type-checks planned outputs of one directory, with their function bodies, beside what people
// wrote there, whose bodies do not matter: on this platform, and on each other one that takes other files.
// Errors of hand-written files alone are not reported.
func (m *Module) Compile(checked Checked, dir string, outputs []Source) []Fault {
	c := &compilation{Module: m, checked: checked.all(), outputs: map[string]*ast.File{}}
	var constraints []string
	planned := map[string]bool{}
	for _, o := range outputs {
		f, err := parser.ParseFile(m.Fset, o.Path, o.Content, parser.SkipObjectResolution)
		if err != nil {
			return []Fault{{Platform: m.Platforms(nil)[0], Message: err.Error(), Output: o.Path, Syntax: f}}
		}
		planned[o.Path] = true
		c.outputs[o.Path] = f
		constraints = append(constraints, o.Constraint)
	}
	here, written := c.written(dir, planned, outputs[0].Path)
	for _, w := range written {
		constraints = append(constraints, w.Constraint)
	}
	var faults []Fault
	seen := map[string]bool{}
	for _, p := range m.Platforms(constraints) {
		var files []*ast.File
		for _, w := range written {
			if p.Here() && here[w.Path] || !p.Here() && p.Holds(w.Constraint) {
				files = append(files, w.File)
			}
		}
		any := false
		for _, o := range outputs { // last, so that what is declared twice is reported there
			if p.Here() || p.Holds(o.Constraint) { // sources of all outputs are compiled here
				any = true
				files = append(files, c.outputs[o.Path])
			}
		}
		if !any {
			continue
		}
		for _, f := range c.check(p, files) {
			// The same may hold on several platforms.
			if key := fmt.Sprint(f.Pos, f.Message); !seen[key] {
				seen[key] = true
				faults = append(faults, f)
			}
		}
	}
	return faults
}

type compilation struct {
	*Module
	checked map[string]*packages.Package
	outputs map[string]*ast.File
}

// written are the files of a directory that stay as they are, and which of them are compiled here.
func (c *compilation) written(dir string, planned map[string]bool, first string) (here map[string]bool, files []Syntax) {
	here = map[string]bool{}
	name := c.outputs[first].Name.Name
	add := func(path string, compiled bool) {
		if planned[path] || Ignored(path) {
			return
		}
		if s, ok := c.syntax(path, name); ok {
			files = append(files, s)
			here[path] = compiled
		}
	}
	i := slices.IndexFunc(c.Packages, func(p *Package) bool { return p.Dir == dir && p.Path != "" })
	if i < 0 { // of a table, or one that the patterns do not match
		entries, err := os.ReadDir(dir)
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") && regular(path) && !c.table(path) {
				add(path, true)
			}
		}
		return here, files
	}
	p := c.Packages[i]
	for _, f := range p.Files {
		if !c.table(f.Path) {
			add(f.Path, true)
		}
	}
	for _, f := range p.Excluded {
		add(f.Path, false)
	}
	for _, o := range p.Outputs { // of sources that are not compiled here; they are kept
		if slices.ContainsFunc(p.Excluded, func(f File) bool { return f.Src != nil && filepath.Base(f.Path) == o.Source }) {
			add(o.Path, false)
		}
	}
	return here, files
}

// table reports whether a file was generated for a table.
func (m *Module) table(path string) bool {
	return slices.ContainsFunc(m.Packages, func(p *Package) bool { return slices.Contains(p.Tables, path) })
}

// fault is one error of the type checker, with what it adds in further ones.
type fault struct {
	types.Error
	more []types.Error
}

func (c *compilation) check(p Platform, files []*ast.File) []Fault {
	var found []fault
	cfg := types.Config{
		Importer: c, FakeImportC: true, Sizes: types.SizesFor("gc", runtime.GOARCH),
		Error: func(err error) {
			e := err.(types.Error)
			if strings.HasPrefix(e.Msg, "\t") && len(found) > 0 {
				last := &found[len(found)-1]
				last.more = append(last.more, e)
				return
			}
			found = append(found, fault{Error: e})
		},
	}
	if c.GoVersion != "" {
		cfg.GoVersion = "go" + c.GoVersion
	}
	cfg.Check(files[0].Name.Name, c.Fset, files, nil) // what is wrong is in found
	var faults []Fault
	blind := false // what files of another platform are made of is not known in part
	for _, e := range found {
		out := Fault{Platform: p, Message: e.Msg}
		for _, x := range append([]types.Error{e.Error}, e.more...) {
			path := c.Fset.PositionFor(x.Pos, false).Filename
			switch f := c.outputs[path]; {
			case f != nil && out.Output == "":
				out.Output, out.Pos, out.Syntax = path, x.Pos, f
			case f == nil && x.Pos.IsValid():
				out.Others = append(out.Others, Position(c.Fset, x.Pos))
			}
		}
		if out.Output != "" {
			faults = append(faults, out)
			continue
		}
		// A package that does not build there in any case is not the outputs' doing.
		name, undefined := strings.CutPrefix(e.Msg, "undefined: ")
		switch {
		case p.Here():
		case undefined && strings.Contains(name, "."): // it may have been left out: no declaration here needs it
			blind = true
		case undefined && !token.IsExported(name) && c.unnamed(files, e.Pos): // of an import that was not loaded
		case undefined || strings.Contains(e.Msg, "redeclared"):
			return nil
		}
	}
	if blind {
		return slices.DeleteFunc(faults, func(f Fault) bool { return !strings.Contains(f.Message, "declared") })
	}
	return faults
}

// unnamed reports whether the file of a position imports a package that was not loaded, whose name is therefore not known.
func (c *compilation) unnamed(files []*ast.File, pos token.Pos) bool {
	return slices.ContainsFunc(files, func(f *ast.File) bool {
		return f.FileStart <= pos && pos <= f.FileEnd && slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool {
			return i.Name == nil && c.checked[strings.Trim(i.Path.Value, "\"`")] == nil
		})
	})
}

// Import finds a package among those that were checked.
func (c *compilation) Import(path string) (*types.Package, error) {
	if path == "unsafe" {
		return types.Unsafe, nil
	}
	p := c.checked[path]
	switch {
	case p == nil:
		return nil, errors.New("not found")
	case p.Types == nil || len(p.GoFiles) == 0 && len(p.Errors) > 0:
		return nil, errors.New(failure(p))
	}
	return p.Types, nil
}

// all are the packages that were checked, and those that they import, by path.
func (c Checked) all() map[string]*packages.Package {
	out := map[string]*packages.Package{}
	packages.Visit(slices.Collect(maps.Values(c)), nil, func(p *packages.Package) { out[p.PkgPath] = p })
	return out
}

// Lookup returns a package that was asked for, or why there is none.
func (c Checked) Lookup(path string) (*types.Package, string) {
	p := c[path]
	switch {
	case p == nil:
		return nil, "it was not found"
	case p.Types == nil || len(p.GoFiles) == 0:
		return nil, failure(p)
	}
	return p.Types, ""
}

// failure is what the go command says of a package that it could not find.
func failure(p *packages.Package) string {
	if len(p.Errors) == 0 {
		return "it has no Go files"
	}
	return p.Errors[0].Msg
}

// Imports reports whether a file of the package imports a path.
func (p *Package) Imports(path string) bool {
	return slices.ContainsFunc(p.Files, func(f File) bool {
		syntax, err := parser.ParseFile(token.NewFileSet(), f.Path, nil, parser.ImportsOnly)
		return err == nil && slices.ContainsFunc(syntax.Imports, func(i *ast.ImportSpec) bool { return strings.Trim(i.Path.Value, "\"`") == path })
	})
}

// Package verify holds planned outputs against what the go command will make of them: the
// module's go.mod, the runtime that it requires, and Go's type checker on every platform that
// takes other files of the package.
package verify

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"go/version"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/leasegen/leasegen/generator/internal/diag"
	"github.com/leasegen/leasegen/generator/internal/fsout"
	"github.com/leasegen/leasegen/generator/internal/ir"
	"github.com/leasegen/leasegen/generator/internal/load"
	"github.com/leasegen/leasegen/generator/internal/names"
	"github.com/leasegen/leasegen/generator/internal/resolve"
)

// Oldest is the oldest version of the language that generated code is valid in: it has generics.
const Oldest = "go1.18"

// Imports are the packages of which outputs for sources need all, for tables too.
func Imports(sources []*resolve.Source, tables []fsout.File) []string {
	if len(sources) == 0 {
		return nil
	}
	paths := []string{names.Lease, "context", "encoding", "errors", "fmt", "time", "strconv"}
	add := func(p string) {
		if !slices.Contains(paths, p) {
			paths = append(paths, p)
		}
	}
	for c, s := range resolve.Consumers(sources) {
		if c.Redis != nil {
			add(names.LeaseRedis)
		}
		switch {
		case c.Table != nil:
			add(names.LeasePG)
			add(names.PGTable)
			add(path.Join(s.Pkg.Path, c.Table.Folder()))
		case s.Pkg.Imports(names.PGX):
			add(names.LeasePG)
			add(names.PGX)
		}
	}
	for _, f := range tables {
		if !strings.HasSuffix(f.Path, ".go") {
			continue
		}
		syntax, err := parser.ParseFile(token.NewFileSet(), f.Path, f.Content, parser.ImportsOnly)
		if err != nil {
			continue // told when it is checked
		}
		for _, i := range syntax.Imports {
			if p, err := strconv.Unquote(i.Path.Value); err == nil {
				add(p)
			}
		}
	}
	return paths
}

// Plan is what is to be written, and what it was made of.
type Plan struct {
	Module  *load.Module
	Sources []*resolve.Source
	Files   []*ir.File
	Outputs []fsout.File // all of them, with those for tables

	again bool // Check was called before
}

// Check adds to diags what would not compile. Missing names imports that were not among the packages
// checked; then no file was looked at.
func (p *Plan) Check(ctx context.Context, checked load.Checked, diags *diag.List) (missing []string) {
	if len(p.Files) == 0 {
		return nil
	}
	for _, f := range p.Files {
		for _, c := range f.Consumers {
			if _, loaded := checked[names.LeasePG]; c.Postgres() && !loaded && !slices.Contains(missing, names.LeasePG) {
				missing = append(missing, names.LeasePG, names.PGX) // of a handler that another package declares
			}
		}
	}
	if len(missing) > 0 && !p.again {
		p.again = true
		return missing
	}
	if !p.goMod(ctx, checked, diags) {
		return nil
	}
	byDir := map[string][]load.Source{}
	constraints := map[string]string{}
	for _, f := range p.Files {
		constraints[path.Join(f.Dir, f.Output)] = f.Constraint
	}
	var dirs []string
	for _, o := range p.Outputs {
		if !strings.HasSuffix(o.Path, ".go") {
			continue
		}
		dir := path.Dir(o.Path)
		if byDir[dir] == nil {
			dirs = append(dirs, dir)
		}
		byDir[dir] = append(byDir[dir], load.Source{
			Path: filepath.Join(p.Module.Root, filepath.FromSlash(o.Path)), Constraint: constraints[o.Path], Content: o.Content})
	}
	slices.Sort(dirs)
	for _, dir := range dirs {
		faults := p.Module.Compile(checked, filepath.Join(p.Module.Root, filepath.FromSlash(dir)), byDir[dir])
		diags.Add(p.findings(faults)...)
	}
	return nil
}

// goMod looks at the runtime that go.mod requires.
func (p *Plan) goMod(ctx context.Context, checked load.Checked, diags *diag.List) bool {
	add := func(code, line, message, hint string) bool {
		diags.Add(diag.Diagnostic{Code: code, Pos: goModLine(p.Module, line), Message: message, Hint: hint})
		return false
	}
	needed := []string{names.Lease}
	for _, f := range p.Files {
		for _, c := range f.Consumers {
			if c.Postgres() && !slices.Contains(needed, names.LeasePG) {
				needed = append(needed, names.LeasePG)
			}
			if c.Redis != nil && !slices.Contains(needed, names.LeaseRedis) {
				needed = append(needed, names.LeaseRedis)
			}
		}
	}
	for _, runtime := range needed {
		pkg, why := checked.Lookup(runtime)
		if pkg == nil {
			first, _, _ := strings.Cut(why, "\n")
			return add("LG0710", "module ", "generated code imports "+runtime+", which cannot be found: "+strings.TrimSuffix(first, "; to add it:"), "go get "+runtime)
		}
		if needs, why := p.Module.Incomplete(ctx, checked[runtime]); needs != "" {
			first, _, _ := strings.Cut(why, "\n")
			return add("LG0710", "module ", fmt.Sprintf("generated code imports %s, which needs %s: %s", runtime, needs, first), "go get "+runtime)
		}
		if runtime == names.Lease && pkg.Scope().Lookup(names.ABI) == nil {
			other := "none"
			for _, name := range pkg.Scope().Names() {
				if strings.HasPrefix(name, "ABI") {
					other = name
				}
			}
			return add("LG0711", "github.com/leasegen/leasegen ", fmt.Sprintf("generated code is for a runtime with %s.%s; the one that go.mod requires has %s",
				pkg.Name(), names.ABI, other), "use the same version of leasegen and of its runtime")
		}
	}
	return true
}

// Language adds to diags that go.mod names a version of the language which generated code is not valid in.
// Without generics the runtime cannot be loaded either.
func Language(m *load.Module, diags *diag.List) bool {
	if m.GoVersion == "" || version.Compare("go"+m.GoVersion, Oldest) >= 0 {
		return true
	}
	diags.Add(diag.Diagnostic{Code: "LG0713", Pos: goModLine(m, "go "),
		Message: fmt.Sprintf("go.mod says go %s, a version of the language without generics, which generated code needs", m.GoVersion),
		Hint:    "go mod edit -go=" + strings.TrimPrefix(Oldest, "go") + " && go mod tidy"})
	return false
}

// goModLine is where a line of go.mod has a text, or else its first line.
func goModLine(m *load.Module, text string) token.Position {
	pos := token.Position{Filename: m.GoMod, Line: 1, Column: 1}
	content, _ := os.ReadFile(m.GoMod)
	n := 0
	for line := range strings.Lines(string(content)) {
		n++
		if i := strings.Index(line, text); i >= 0 && strings.TrimSpace(strings.TrimPrefix(line[:i], "require")) == "" {
			pos.Line, pos.Column = n, i+1
			break
		}
	}
	return pos
}

var (
	notImported = regexp.MustCompile(`^could not import (\S+) \((.*)`)
	ofRuntime   = regexp.MustCompile(`\b(lease|leasepg|leaseredis)\.\w+`)
	noMethod    = regexp.MustCompile(`\((?:missing method|wrong type for method) (\w+)\)`)
	clash       = regexp.MustCompile(`^(\S+) (redeclared in this block|already declared through)`)
)

// findings tells what is wrong with a package: one fault that is not understood for each output, and none
// where one is understood, which is the cause most likely.
func (p *Plan) findings(faults []load.Fault) []diag.Diagnostic {
	var known, rest []diag.Diagnostic
	seen := map[string]bool{}
	for _, f := range faults {
		if d := p.finding(f); d.Code != "LG0719" {
			known = append(known, d)
		} else if !seen[f.Output] {
			seen[f.Output] = true
			rest = append(rest, d)
		}
	}
	if len(known) > 0 {
		return known
	}
	return rest
}

// finding says what a fault means for the source.
func (p *Plan) finding(f load.Fault) diag.Diagnostic {
	d := diag.Diagnostic{Code: "LG0719"}
	at, table := p.owner(f, &d)
	where := ""
	if !f.Platform.Here() {
		where = " with " + f.Platform.String()
	}
	output := path.Base(filepath.ToSlash(f.Output))
	if m := notImported.FindStringSubmatch(f.Message); m != nil {
		d.Code, d.Hint = "LG0712", "go get "+m[1]
		d.Message = "generated code imports " + m[1] + ", which cannot be found"
		if table != nil {
			d.Message = fmt.Sprintf("sqlc makes of columns of %s types of %s, which cannot be found", table.SQL.Name, m[1])
			d.Detail = fieldsOf(f.Syntax, m[1])
			d.Hint += ", or leave the columns out of the table"
		}
		return d
	}
	if m := clash.FindStringSubmatch(f.Message); m != nil && len(f.Others) > 0 {
		d.Code, d.Pos, d.Hint = "LG0401", f.Others[0], "rename yours"
		d.End = diag.After(d.Pos, m[1])
		d.Message = fmt.Sprintf("%s exists already; leasegen declares it in %s%s", m[1], output, where)
		return d
	}
	if m := noMethod.FindStringSubmatch(f.Message); m != nil && where != "" && at != nil {
		d.Code = "LG0714"
		d.Message = fmt.Sprintf("%s has no method %s%s, so that %s would not compile there", at.Name.Name, m[1], where, output)
		d.Hint = "declare handlers in files that are compiled wherever the struct is, or give the struct's file their build constraint"
		return d
	}
	d.Message = fmt.Sprintf("%s would not compile%s: %s", output, where, f.Message)
	d.Hint = "please report it, with the declaration"
	if ofRuntime.MatchString(f.Message) && where == "" {
		d.Code, d.Hint = "LG0711", "use the same version of leasegen and of its runtime"
	}
	return d
}

// fieldsOf lists the fields of structs that have a type of a package.
func fieldsOf(f *ast.File, imported string) (lines []string) {
	for n := range ast.Preorder(f) {
		s, ok := n.(*ast.StructType)
		if !ok {
			continue
		}
		for _, field := range s.Fields.List {
			text := types.ExprString(field.Type)
			pkg, _, qualified := strings.Cut(strings.TrimLeft(text, "*[]"), ".")
			if qualified && strings.Contains(imported, pkg) && len(field.Names) == 1 {
				lines = append(lines, "field "+field.Names[0].Name+" is a "+text)
			}
		}
	}
	return lines
}

// owner is the declaration that a fault's place in an output was made for. It sets the position of d.
func (p *Plan) owner(f load.Fault, d *diag.Diagnostic) (at *ast.TypeSpec, table *resolve.Consumer) {
	dir := filepath.Dir(f.Output)
	for c, s := range resolve.Consumers(p.Sources) {
		if c.Table != nil && c.SQL != nil && filepath.Join(s.Pkg.Dir, c.Table.Folder()) == dir {
			d.Pos, d.End = c.Table.Span("name")
			return c.Type, c
		}
	}
	i := slices.IndexFunc(p.Sources, func(s *resolve.Source) bool {
		return filepath.Dir(s.Path) == dir && strings.TrimSuffix(s.Path, ".go")+fsout.Suffix == f.Output
	})
	if i < 0 {
		d.Pos = token.Position{Filename: f.Output}
		return nil, nil
	}
	name := ""
	if f.Syntax != nil {
		for _, decl := range f.Syntax.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && f.Pos <= fn.End() { // what stands before a function belongs to it
				name = fn.Name.Name
				break
			}
		}
	}
	s := p.Sources[i]
	for _, e := range s.Events {
		if at == nil || names.Publish(e.Type.Name.Name) == name {
			at = e.Type
		}
	}
	for _, c := range s.Consumers {
		if at == nil || names.Constructor(c.Type.Name.Name) == name {
			at = c.Type
		}
	}
	d.Pos = load.Position(p.Module.Fset, at.Name.Pos())
	d.End = diag.After(d.Pos, at.Name.Name)
	return at, nil
}

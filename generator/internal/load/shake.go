package load

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/scanner"
	"go/token"
	"go/types"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/tools/go/packages"

	"github.com/leasegen/leasegen/generator/internal/syntax"
)

// A shaker type-checks what annotated declarations are made of, and no more: it follows
// names from them, through as many packages as that takes, and leaves out every declaration,
// field, method and import that makes no difference. Errors elsewhere are not seen.
type shaker struct {
	m       *Module
	ctx     context.Context
	overlay map[string][]byte
	pkgs    map[string]*shaken // by path; what the go command knows
	// wanted are the packages to be listed next, hinted those that are worth listing with
	// them, and later what goes on then.
	wanted, hinted map[string]bool
	later          []func()
}

// part says how much of a type matters. Parts add up.
type part int

const (
	// asName: that there is such a type.
	asName part = 1 << iota
	// asHandler: its methods, and those of what it embeds, as the consumer of messages.
	asHandler
	// asData: its exported fields, all the way down, and how it becomes text and JSON.
	asData
	// asWritten: everything that the declaration itself names.
	asWritten
	// asValue: the types of all fields, for a literal that gives a constant or a variable its value.
	asValue
)

// dataMethods are the methods that matter to data.
var dataMethods = []string{"MarshalJSON", "MarshalJSONTo", "MarshalText", "String", "UTC",
	"UnmarshalJSON", "UnmarshalJSONFrom", "UnmarshalText"}

// shaken is one package.
type shaken struct {
	*packages.Package // what the go command said, and the result
	l                 *shaker
	parsed            bool
	// whole keeps the names of all declarations, though not what they declare.
	whole   bool
	files   []*file
	decls   map[string][]decl
	methods map[string][]decl
	parts   map[string]part
	checked bool
}

type file struct {
	pkg     *shaken
	tree    *ast.File
	imports []*imported
	kept    bool
	aside   bool // of another platform: names are followed in it, and it is not checked
}

type imported struct {
	spec *ast.ImportSpec
	path string // for the go command
	name string // if the file gives one
	used bool
}

// decl is the declaration of one name, or a method.
type decl struct {
	file *file
	gen  *ast.GenDecl
	spec ast.Spec
	fn   *ast.FuncDecl
}

// need calls f with a package as soon as the go command has told of it.
func (l *shaker) need(path string, f func(*shaken)) {
	if s := l.pkgs[path]; s != nil {
		f(s)
		return
	}
	l.wanted[path] = true
	l.later = append(l.later, func() { f(l.pkgs[path]) })
}

// list asks the go command where the wanted packages are. Their own imports are not looked at.
func (l *shaker) list() error {
	for path := range l.hinted {
		if l.pkgs[path] == nil {
			l.wanted[path] = true
		}
	}
	paths := sortedKeys(l.wanted)
	clear(l.wanted)
	clear(l.hinted)
	c := l.m.packagesConfig(l.ctx, packages.NeedName|packages.NeedFiles|packages.NeedModule)
	c.Overlay = l.overlay
	found, err := packages.Load(c, paths...)
	if err != nil {
		return fmt.Errorf("load packages: %w", goError(err))
	}
	for _, p := range found {
		l.pkgs[p.PkgPath] = &shaken{Package: p, l: l, parts: map[string]part{}}
	}
	for _, path := range paths {
		if l.pkgs[path] == nil { // cannot be, but for a go command that renames packages
			l.pkgs[path] = &shaken{l: l, parts: map[string]part{}, Package: &packages.Package{PkgPath: path,
				Errors: []packages.Error{{Msg: "the go command does not find package " + path, Kind: packages.ListError}}}}
		}
	}
	return nil
}

// failed reports whether there is no such package.
func (s *shaken) failed() bool { return len(s.GoFiles) == 0 && len(s.Errors) > 0 }

// parse reads the package's files and notes what they declare.
func (s *shaken) parse() {
	if s.parsed {
		return
	}
	s.parsed = true
	s.decls, s.methods = map[string][]decl{}, map[string][]decl{}
	for _, name := range s.GoFiles {
		src, ok := s.l.overlay[name]
		if !ok {
			var err error
			if src, err = os.ReadFile(name); err != nil {
				s.Errors = append(s.Errors, packages.Error{Pos: name + ":1", Msg: err.Error(), Kind: packages.ParseError})
				continue
			}
			if _, output := outputSource(name, src); output && s.Module != nil && s.Module.Main {
				continue // it may be stale or broken, whatever the patterns are
			}
		}
		tree, err := parseSignatures(s.l.m.Fset, name, src)
		if list, ok := errors.AsType[scanner.ErrorList](err); ok {
			for _, e := range list {
				s.Errors = append(s.Errors, packages.Error{Pos: e.Pos.String(), Msg: e.Msg, Kind: packages.ParseError})
			}
		}
		if tree != nil {
			s.index(&file{pkg: s, tree: tree})
		}
	}
	for name, decls := range s.decls { // a method may name its type by an alias
		if t, ok := decls[0].spec.(*ast.TypeSpec); ok && t.Assign.IsValid() {
			if to, ok := t.Type.(*ast.Ident); ok {
				s.methods[to.Name] = append(s.methods[to.Name], s.methods[name]...)
			}
		}
	}
}

func (s *shaken) index(f *file) {
	s.files = append(s.files, f)
	for _, spec := range f.tree.Imports {
		text, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue
		}
		i := &imported{spec: spec}
		i.path = s.listed(text)
		if spec.Name != nil {
			i.name = spec.Name.Name
		}
		if i.path == "C" {
			i.name = "C"
		}
		f.imports = append(f.imports, i)
	}
	add := func(name *ast.Ident, d decl) { s.decls[name.Name] = append(s.decls[name.Name], d) }
	for _, d := range f.tree.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				add(d.Name, decl{file: f, fn: d})
			} else if t := syntax.Receiver(d); t != "" {
				s.methods[t] = append(s.methods[t], decl{file: f, fn: d})
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				for _, name := range syntax.Names(spec) {
					add(name, decl{file: f, gen: d, spec: spec})
				}
			}
		}
	}
}

var version = regexp.MustCompile(`^v\d+$`)

// guess is what the name of a package most likely is.
func guess(importPath string) string {
	base := path.Base(importPath)
	if version.MatchString(base) {
		base = path.Base(path.Dir(importPath))
	}
	base, _, _ = strings.Cut(base, ".v") // gopkg.in
	return strings.TrimSuffix(strings.TrimPrefix(base, "go-"), "-go")
}

// check type-checks what is left of a package.
func (s *shaken) check() {
	if s.checked {
		return
	}
	s.checked = true
	s.Fset, s.Imports = s.l.m.Fset, map[string]*packages.Package{}
	s.parse()
	var files []*ast.File
	for _, f := range s.files {
		if (f.kept || s.whole) && !f.aside {
			files = append(files, f.shake())
		}
	}
	if len(files) == 0 { // a name is asked of it that it does not have
		files = append(files, &ast.File{Name: ast.NewIdent(s.Name)})
	}
	conf := &types.Config{
		IgnoreFuncBodies: true, FakeImportC: true,
		Importer: s,
		Error: func(err error) {
			e, ok := err.(types.Error)
			// Methods that a constraint asks for may have been left out.
			if ok && !strings.Contains(e.Msg, " does not satisfy ") {
				s.TypeErrors = append(s.TypeErrors, e)
			}
		},
	}
	if s.Module != nil && s.Module.Main && s.Module.GoVersion != "" {
		conf.GoVersion = "go" + s.Module.GoVersion
	}
	s.Types, _ = conf.Check(s.PkgPath, s.Fset, files, nil)
	for _, f := range s.files {
		f.tree = nil // it is large, and no more needed
	}
	s.files, s.decls, s.methods = nil, nil, nil
}

// shake returns the file with those of its declarations that matter.
func (f *file) shake() *ast.File {
	s := f.pkg
	out := &ast.File{Package: f.tree.Package, Name: f.tree.Name, FileStart: f.tree.FileStart, FileEnd: f.tree.FileEnd, GoVersion: f.tree.GoVersion}
	done := map[ast.Node]bool{}
	c := cutter{file: f, cut: true}
	for _, d := range f.tree.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			switch {
			case d.Recv != nil:
				m := decl{file: f, fn: d}
				if t := s.aliased(syntax.Receiver(d)); t != "" && m.matters(s.parts[t]) {
					out.Decls = append(out.Decls, c.method(m, s.parts[t]))
				}
			case s.parts[name] != 0:
				out.Decls = append(out.Decls, c.declaration(decl{file: f, fn: d}, s.parts[name]))
			case s.first(d.Name, decl{fn: d}):
				out.Decls = append(out.Decls, &ast.FuncDecl{Name: d.Name, Type: &ast.FuncType{Func: d.Type.Func, Params: &ast.FieldList{}}})
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				out.Decls = append(out.Decls, c.keep(d, spec, done)...)
			}
		}
	}
	var imports []ast.Decl // what is used is known now
	for _, i := range f.imports {
		if i.used || s.whole && i.name != "_" && i.path != "C" {
			imports = append(imports, &ast.GenDecl{TokPos: i.spec.Pos(), Tok: token.IMPORT, Specs: []ast.Spec{i.spec}})
			out.Imports = append(out.Imports, i.spec)
		}
	}
	out.Decls = append(imports, out.Decls...)
	return out
}

// aliased is the name of the type that t is another name of.
func (s *shaken) aliased(t string) string {
	if ds := s.decls[t]; len(ds) > 0 {
		if spec, ok := ds[0].spec.(*ast.TypeSpec); ok && spec.Assign.IsValid() {
			if to, ok := spec.Type.(*ast.Ident); ok {
				return to.Name
			}
		}
	}
	return t
}

// keep returns what is left of one type, constant or variable.
func (c cutter) keep(gen *ast.GenDecl, spec ast.Spec, done map[ast.Node]bool) (out []ast.Decl) {
	s := c.pkg
	for _, id := range syntax.Names(spec) {
		d := decl{file: c.file, gen: gen, spec: spec}
		unit := ast.Node(spec)
		if gen.Tok == token.CONST {
			unit = gen
		}
		if done[unit] {
			continue
		}
		if gen.Tok == token.CONST && slices.ContainsFunc(gen.Specs, func(spec ast.Spec) bool {
			return slices.ContainsFunc(spec.(*ast.ValueSpec).Names, func(id *ast.Ident) bool { return s.parts[id.Name] != 0 })
		}) || s.parts[id.Name] != 0 {
			done[unit] = true
			out = append(out, c.declaration(d, s.parts[id.Name]))
			continue
		}
		if s.first(id, d) {
			var stub ast.Spec = &ast.ValueSpec{Names: []*ast.Ident{id}, Type: empty(id)}
			tok := token.VAR
			if gen.Tok == token.TYPE {
				stub, tok = &ast.TypeSpec{Name: id, Type: empty(id)}, token.TYPE
			}
			out = append(out, &ast.GenDecl{TokPos: id.Pos(), Tok: tok, Specs: []ast.Spec{stub}})
		}
	}
	return out
}

// first reports whether a name that does not matter is kept at this declaration.
func (s *shaken) first(id *ast.Ident, d decl) bool {
	if !s.whole || id.Name == "_" || id.Name == "init" || len(s.decls[id.Name]) == 0 {
		return false
	}
	first := s.decls[id.Name][0]
	return first.spec == d.spec && first.fn == d.fn
}

// listed is the path by which the go command knows an import: the standard library has some of its own.
func (s *shaken) listed(importPath string) string {
	if first, _, _ := strings.Cut(importPath, "/"); s.Module == nil && strings.Contains(first, ".") {
		return "vendor/" + importPath
	}
	return importPath
}

// Import returns a package as far as it matters, which may be by its name only.
func (s *shaken) Import(importPath string) (*types.Package, error) {
	if importPath == "unsafe" {
		return types.Unsafe, nil
	}
	at := s.listed(importPath)
	p := s.l.pkgs[at]
	used := slices.ContainsFunc(s.files, func(f *file) bool {
		return slices.ContainsFunc(f.imports, func(i *imported) bool { return i.path == at && i.used })
	})
	if p == nil || !used && (p.failed() || !p.whole) {
		name := guess(importPath)
		if p != nil && !p.failed() {
			name = p.Name
		}
		fake := types.NewPackage(importPath, name)
		fake.MarkComplete()
		return fake, nil
	}
	s.Imports[importPath] = p.Package
	switch {
	case p.failed():
		return nil, errors.New(p.Errors[0].Msg)
	case p.checked && p.Types == nil:
		return nil, errors.New("import cycle")
	}
	p.check()
	return p.Types, nil
}

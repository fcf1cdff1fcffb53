package generator

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// generate runs Generate and fails the test if that is not possible.
func generate(t *testing.T, root string, patterns ...string) *Result {
	t.Helper()
	res, err := Generate(t.Context(), Config{Dir: root, Patterns: patterns})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// TestBudget: generated code stays thin, and has neither loops nor goroutines nor locks.
func TestBudget(t *testing.T) {
	root := newModule(t)
	writeFile(t, filepath.Join(root, "one", "a.go"), handlerFile("one", 1, 1))
	writeFile(t, filepath.Join(root, "many", "a.go"), handlerFile("many", 2, 50))
	res := generate(t, root, "./...")
	if len(res.Files) != 4 { // each package has a file that registers
		t.Fatal(res.Diags.All())
	}
	const header = 16 // lines that a file has however many handlers it has
	for i, handlers := range []int{50, 1, 1, 1} {
		f := res.Files[[]int{0, 2, 1, 3}[i]]
		lines := bytes.Count(f.Content, []byte("\n"))
		if perHandler := float64(lines-header) / float64(handlers); perHandler > 40+20/float64(handlers) {
			t.Errorf("%s: %d lines for %d handlers\n%s", f.Path, lines, handlers, f.Content)
		}
		if handlers == 50 && lines/handlers > 20 {
			t.Errorf("%s: %d lines for %d handlers", f.Path, lines, handlers)
		}
		file, err := parser.ParseFile(token.NewFileSet(), f.Path, f.Content, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n.(type) {
			case *ast.ForStmt, *ast.RangeStmt, *ast.GoStmt, *ast.SelectStmt, *ast.DeferStmt:
				t.Errorf("%s has a %T", f.Path, n)
			}
			return true
		})
		if bytes.Contains(f.Content, []byte(`"sync`)) {
			t.Errorf("%s imports sync", f.Path)
		}
	}
}

// TestInjection: whatever an argument's value is, the output's syntax is that of a
// harmless value, but for the literals, and they are what was written.
func TestInjection(t *testing.T) {
	const source = `package p

import (
	"context"

	"github.com/leasegen/leasegen/runtime/lease"
)

//leasegen:event name=%s
type E struct{}

//leasegen:consumer name=c%d per=topic topics=%s
type C struct{}

func (*C) HandleE(context.Context, lease.Message[E]) error { return nil }
`
	values := []string{
		`harmless`, `*/`, `/*`, `//`, `//go:build.ignore`, `//go:linkname`, `//export`, `#cgo`, `${}`, `{{.}}`,
		`%s%!d(MISSING)`, `$1`, `$$`, `\u2028`, `\n`, `;panic(1)`, `)`, `}`, `--`, `:=`, `'`, `?`, `[`, `<a>`, `&`, `@`, `=`,
		"`", `"`, "\u2028", "\u202e", "é", "\x7f", "\xff", // NUL the go command refuses itself
	}
	root := newModule(t)
	var patterns []string
	for i, v := range values {
		writeFile(t, filepath.Join(root, fmt.Sprint("topic", i), "p.go"), fmt.Appendf(nil, source, fmt.Sprint("e", i), i, v))
		writeFile(t, filepath.Join(root, fmt.Sprint("event", i), "p.go"), fmt.Appendf(nil, source, v, i+100, "a"))
		patterns = append(patterns, fmt.Sprint("./topic", i), fmt.Sprint("./event", i))
	}
	// A refusal does no harm; a source that is accepted could.
	refused := map[string]bool{}
	for _, d := range generate(t, root, patterns...).Diags.All() {
		refused["./"+filepath.Base(filepath.Dir(d.Pos.Filename))] = true
	}
	accepted := slices.DeleteFunc(patterns, func(p string) bool { return refused[p] })
	res := generate(t, root, accepted...)
	if len(res.Files) != 2*len(accepted) || len(accepted) < 20 {
		t.Fatalf("%d files for %v: %v", len(res.Files), accepted, res.Diags.All())
	}
	var harmless []string
	for _, f := range res.Files {
		if path.Base(f.Path) != "p_leasegen.go" { // no value goes into what registers
			continue
		}
		var n int
		if _, err := fmt.Sscanf(f.Path, "topic%d/", &n); err != nil {
			if f.Path != "event0/p_leasegen.go" {
				t.Errorf("an event may be named %q", values[n])
			}
			continue
		}
		shape, literals := syntax(t, f.Content)
		if n == 0 {
			harmless = shape
		}
		if d := cmp.Diff(harmless, shape); d != "" {
			t.Errorf("topic %q changes the syntax:\n%s", values[n], d)
		}
		if !slices.Contains(literals, values[n]) {
			t.Errorf("topic %q does not come out as it went in: %q", values[n], literals)
		}
	}
}

// syntax returns the nodes of a file without comments, with its identifiers, and its strings.
func syntax(t *testing.T, src []byte) (shape, literals []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "", src, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	for n := range ast.Preorder(f) {
		switch n := n.(type) {
		case *ast.Comment:
			if !strings.HasPrefix(n.Text, "// ") {
				t.Errorf("comment %q is more than a comment", n.Text)
			}
		case *ast.CommentGroup: // the number of lines varies with their length
		case *ast.Ident:
			shape = append(shape, n.Name)
		case *ast.BasicLit:
			if v, err := strconv.Unquote(n.Value); err == nil {
				literals = append(literals, v)
			}
			shape = append(shape, n.Kind.String())
		default:
			shape = append(shape, fmt.Sprintf("%T", n))
		}
	}
	return shape, literals
}

// TestPatterns: what cannot be generated for is one clear error.
func TestPatterns(t *testing.T) {
	root := newModule(t)
	writeFile(t, filepath.Join(root, "a", "a.go"), handlerFile("a", 1, 1))
	writeFile(t, filepath.Join(root, "nested", "go.mod"), []byte("module nested.test\n\ngo 1.26\n"))
	writeFile(t, filepath.Join(root, "nested", "n.go"), handlerFile("nested", 2, 1))
	writeFile(t, filepath.Join(root, "empty", "README"), nil)
	for _, c := range []struct{ pattern, want string }{
		{"a/a.go", "name packages, not files"},
		{"fmt", "is not in a Go module"},
		{"github.com/leasegen/leasegen/runtime/lease", "belongs to module github.com/leasegen/leasegen"},
		{"./empty/...", "no package matches ./empty/..."},
	} {
		if _, err := Generate(t.Context(), Config{Dir: root, Patterns: []string{c.pattern}}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.pattern, err, c.want)
		}
	}
	if _, err := Generate(t.Context(), Config{Dir: filepath.Join(root, "gone")}); err == nil {
		t.Error("a directory that does not exist is accepted")
	}
	for _, pattern := range []string{"./nope", "./nope/...", "./nested", "example.com/nowhere"} {
		res := generate(t, root, "./a", pattern)
		if res.Diags.Errors() != 1 || res.Diags.All()[0].Code != "LG0703" || res.Files != nil {
			t.Errorf("%s: %v", pattern, res.Diags.All())
		}
	}
	var paths []string
	for _, f := range generate(t, root, "./...").Files {
		paths = append(paths, f.Path)
	}
	if !slices.Equal(paths, []string{"a/a_leasegen.go", "a/zz_register_leasegen.go"}) {
		t.Errorf("./... gives %v; nested modules are not entered", paths)
	}
}

// TestBrokenModule: a module that the go command refuses is one error that says so.
func TestBrokenModule(t *testing.T) {
	root := newModule(t)
	writeFile(t, filepath.Join(root, "a.go"), handlerFile("a", 1, 1))
	writeFile(t, filepath.Join(root, "vendor", "modules.txt"), []byte("# nothing\n"))
	t.Setenv("GOFLAGS", "-mod=vendor")
	if _, err := Generate(t.Context(), Config{Dir: root}); err == nil || !strings.Contains(err.Error(), "inconsistent vendoring") {
		t.Errorf("got %v", err)
	}
	t.Setenv("GOFLAGS", "")
	writeFile(t, filepath.Join(root, "go.mod"), []byte("module x\n\ngo 9.99\n"))
	t.Setenv("GOTOOLCHAIN", "local")
	if _, err := Generate(t.Context(), Config{Dir: root}); err == nil || !strings.Contains(err.Error(), "go >= 9.99") {
		t.Errorf("got %v", err)
	}
}

// TestNothingIsCompiled: with an empty build cache and without a network, generating
// compiles no package and runs none of the user's code.
func TestNothingIsCompiled(t *testing.T) {
	root := newModule(t)
	writeFile(t, filepath.Join(root, "a", "a.go"), handlerFile("a", 1, 1))
	writeFile(t, filepath.Join(root, "a", "deps.go"), []byte("package a\n\nimport _ \"github.com/jackc/pgx/v5\"\n\nfunc init() { panic(\"run\") }\n"))
	cache := t.TempDir()
	t.Setenv("GOCACHE", cache)
	t.Setenv("GOPROXY", "off")
	if res := generate(t, root, "./..."); len(res.Files) != 2 {
		t.Fatal(res.Diags.All())
	}
	archives := 0
	err := filepath.WalkDir(cache, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		if head, err := os.ReadFile(path); err == nil && bytes.HasPrefix(head, []byte("!<arch>")) {
			archives++
		}
		return nil
	})
	if err != nil || archives > 0 {
		t.Errorf("%d packages were compiled: %v", archives, err)
	}
}

// TestCgo: positions in a file that cgo rewrites are those of what people wrote.
func TestCgo(t *testing.T) {
	out, err := exec.Command("go", "env", "CGO_ENABLED").Output()
	if err != nil || strings.TrimSpace(string(out)) != "1" {
		t.Skip("cgo is switched off or there is no C compiler")
	}
	root := newModule(t)
	src := string(handlerFile("c", 1, 1))
	src = strings.Replace(src, "import (", "// int one(void) { return 1; }\nimport \"C\"\n\nimport (", 1)
	src += "\nvar one = C.one()\n\nfunc (*Consumer1) HandleWrong(lease.Message[Event1X0]) error { return nil }\n"
	name := filepath.Join(root, "c", "c.go")
	writeFile(t, name, []byte(src))
	res := generate(t, root, "./c")
	line := strings.Count(src[:strings.Index(src, "HandleWrong")], "\n") + 1
	if ds := res.Diags.All(); len(ds) != 1 || ds[0].Code != "LG0302" || ds[0].Pos.Filename != name || ds[0].Pos.Line != line {
		t.Fatalf("want LG0302 at %s:%d, got %v", name, line, ds)
	}
	writeFile(t, name, []byte(strings.Replace(src, "HandleWrong", "other", 1)))
	if res := generate(t, root, "./c"); len(res.Files) != 2 || res.Diags.Len() != 0 {
		t.Fatal(res.Diags.All())
	}
}

// TestLineComments: //line comments, as other generators write them, do not lead astray.
func TestLineComments(t *testing.T) {
	root := newModule(t)
	name := filepath.Join(root, "l", "l.go")
	writeFile(t, name, []byte("package l\n\n//line grammar.y:100\n\n//leasegen:event key=Nope\ntype E struct{}\n\n//leasegen:consumer per=cluster\ntype C struct{}\n"))
	ds := generate(t, root, "./l").Diags.All()
	if len(ds) != 2 || ds[0].Pos.Filename != name || ds[0].Pos.Line != 5 || ds[1].Pos.Line != 9 {
		t.Error(ds)
	}
}

// TestErrorsElsewhere: what does not type-check blocks only where annotated declarations are
// made of it.
func TestErrorsElsewhere(t *testing.T) {
	root := newModule(t)
	writeFile(t, filepath.Join(root, "a", "a.go"), []byte(`package a

import (
	"context"

	"example.com/nowhere"
	"golden.test/broken"

	"github.com/leasegen/leasegen/runtime/lease"
)

//leasegen:event key=ID
type E struct {
	ID      string
	private Missing
}

//leasegen:consumer per=topic topics=x
type C struct {
	client nowhere.Client
	DB     broken.DB
}

func (*C) HandleE(context.Context, lease.Message[E]) error { return nil }
func (*C) Other(nowhere.Client, Missing) *Gone             { return nil }
`))
	writeFile(t, filepath.Join(root, "a", "other.go"), []byte(`package a

import "golden.test/syntax"

type twice struct{ x Missing }
type twice int

func (twice) Method(Gone)  {}
func (twice) Method(Gone2) {}

var v syntax.V = nope
const c string = 1

type loop struct{ loop }
`))
	writeFile(t, filepath.Join(root, "broken", "b.go"), []byte("package broken\n\nimport _ \"example.com/gone\"\n\ntype DB struct{ x Missing }\n\nvar x int = \"\"\n"))
	writeFile(t, filepath.Join(root, "syntax", "s.go"), []byte("package syntax\n\nfunc (\n"))
	for _, pattern := range []string{"./a", "./a/..."} {
		res := generate(t, root, pattern)
		if res.Diags.Len() != 0 || len(res.Files) != 2 {
			t.Errorf("%s: %d files, %v", pattern, len(res.Files), res.Diags.All())
		}
	}
	// The same errors where an event is made of them.
	writeFile(t, filepath.Join(root, "b", "b.go"), []byte(`package b

import (
	"example.com/nowhere"
	"golden.test/broken"
)

//leasegen:event name=b
type E struct {
	A nowhere.Client
	B broken.Type
	C map[string]*Missing
}
`))
	var codes []string
	for _, d := range generate(t, root, "./b").Diags.All() {
		codes = append(codes, fmt.Sprint(d.Code, " ", filepath.Base(d.Pos.Filename), ":", d.Pos.Line))
	}
	if d := cmp.Diff([]string{"LG0703 b.go:4", "LG0702 b.go:11", "LG0702 b.go:12"}, codes); d != "" {
		t.Errorf("%s\n%v", d, generate(t, root, "./b").Diags.All())
	}
}

// TestOnePackageAlone: a package can be generated for alone wherever all can, whatever state the
// outputs of the others are in, and what two packages must not both have is found either way.
func TestOnePackageAlone(t *testing.T) {
	root := newModule(t)
	writeFile(t, filepath.Join(root, "events", "e.go"), []byte("package events\n\n//leasegen:event\ntype Placed struct{ ID string }\n"))
	writeFile(t, filepath.Join(root, "events", "e_leasegen.go"), []byte("// Code generated by leasegen. DO NOT EDIT.\n// source: e.go\n\n<<<<<<< HEAD\npackage other\n"))
	writeFile(t, filepath.Join(root, "a", "a.go"), []byte(`package a

import (
	"context"

	"golden.test/events"

	"github.com/leasegen/leasegen/runtime/lease"
)

//leasegen:consumer per=topic topics=x
type Billing struct{}

func (*Billing) HandlePlaced(context.Context, lease.Message[events.Placed]) error { return nil }
`))
	for pattern, files := range map[string]int{"./a": 2, "./...": 3} {
		if res := generate(t, root, pattern); res.Diags.Len() != 0 || len(res.Files) != files {
			t.Errorf("%s: %d files, %v", pattern, len(res.Files), res.Diags.All())
		}
	}
	writeFile(t, filepath.Join(root, "b", "b.go"), []byte(`package b

import (
	"context"

	"github.com/leasegen/leasegen/runtime/lease"
)

//leasegen:event
type Placed struct{ ID int }

//leasegen:consumer per=topic topics=x
type Billing struct{}

func (*Billing) HandlePlaced(context.Context, lease.Message[Placed]) error { return nil }
`))
	// Not part of the module, or not of this platform.
	for _, dir := range []string{"testdata/x", "nested/x", "_x"} {
		writeFile(t, filepath.Join(root, dir, "x.go"), []byte("package x\n\n//leasegen:event name=own\ntype Own struct{}\n"))
	}
	writeFile(t, filepath.Join(root, "nested", "go.mod"), []byte("module nested.test\n"))
	writeFile(t, filepath.Join(root, "c", "c_plan9.go"), []byte("package c\n\n//leasegen:event name=own\ntype Own struct{}\n"))
	writeFile(t, filepath.Join(root, "d", "d.go"), []byte("package d\n\n//leasegen:event name=own\ntype Own struct{}\n"))
	for pattern, want := range map[string][]string{"./b": {"LG0404", "LG0403"}, "./a": {"LG0403"}, "./events": {"LG0404"}, "./d": nil} {
		var codes []string
		for _, d := range generate(t, root, pattern).Diags.All() {
			codes = append(codes, d.Code)
		}
		if !slices.Equal(codes, want) {
			t.Errorf("%s: %v, want %v", pattern, codes, want)
		}
	}
}

package fsout_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/leasegen/leasegen/generator"
	"github.com/leasegen/leasegen/generator/internal/fsout"
	"github.com/leasegen/leasegen/internal/sqlctest"
)

const kept = `package p

import (
	"context"

	"github.com/leasegen/leasegen/runtime/lease"
)

//leasegen:event
type EVENTHappened struct{ ID string }

//leasegen:consumer name=DIR.kept per=group topics=a
type Kept struct{}

func (*Kept) Handle(context.Context, lease.Message[EVENTHappened]) error { return nil }
`

// more has a consumer if DIRECTIVE is one.
const more = `package p

import (
	"context"

	"github.com/leasegen/leasegen/runtime/lease"
)

DIRECTIVE
type More struct{}

func (*More) Handle(context.Context, lease.Message[EVENTHappened]) error { return nil }

//leasegen:consumer name=DIR.less per=group topics=a
type Less struct{}

func (*Less) Handle(context.Context, lease.Message[EVENTHappened]) error { return nil }
`

const rows = `package p

import (
	"context"

	"github.com/leasegen/leasegen/runtime/lease"
	"golden.test/DIR/leasedb"
)

//leasegen:consumer name=DIR.rows per=group
//leasegen:table name=box schema=DIR/schema.sql
type Rows struct{}

func (*Rows) Handle(context.Context, lease.Message[leasedb.BoxRow]) error { return nil }
`

const schema = `CREATE TABLE box (xid xid8 DEFAULT pg_current_xact_id(), id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY);`

// changes are what people do to a package whose generated files build before and after. Each is
// the files before it, and those after it; use.go refers to what is there throughout.
func changes() map[string][2]map[string]string {
	use := "package p\n\nvar _, _ = NewKept, RegisterLeasegen\n"
	with, without := strings.Replace(more, "DIRECTIVE", "//leasegen:consumer name=DIR.more per=group topics=a", 1), strings.Replace(more, "DIRECTIVE", "// More", 1)
	noted := strings.Replace(schema, "KEY);", "KEY, note text NOT NULL);", 1)
	return map[string][2]map[string]string{
		"addfile":    {{"k.go": kept, "use.go": use}, {"k.go": kept, "use.go": use, "a.go": with}},
		"addlater":   {{"k.go": kept, "use.go": use}, {"k.go": kept, "use.go": use, "z.go": with}},
		"add":        {{"k.go": kept, "m.go": without, "use.go": use}, {"k.go": kept, "m.go": with, "use.go": use}},
		"remove":     {{"k.go": kept, "m.go": with, "use.go": use}, {"k.go": kept, "m.go": without, "use.go": use}},
		"removefile": {{"k.go": kept, "m.go": strings.Replace(with, "//leasegen:consumer name=DIR.less", "// less", 1), "use.go": use}, {"k.go": kept, "m.go": strings.Replace(without, "//leasegen:consumer name=DIR.less", "// less", 1), "use.go": use}},
		"rename":     {{"k.go": kept, "m.go": with, "use.go": use}, {"k.go": kept, "a.go": with, "use.go": use}},
		"rename+add": {{"k.go": kept, "m.go": without, "use.go": use}, {"k.go": kept, "zz.go": with, "use.go": use}},
		"last":       {{"k.go": kept}, {"k.go": strings.Replace(kept, "//leasegen:consumer", "// consumer", 1)}},
		"first":      {{"k.go": strings.Replace(kept, "//leasegen:consumer", "// consumer", 1)}, {"k.go": kept}},
		"where":      {{"r.go": rows, "schema.sql": schema}, {"r.go": strings.Replace(rows, "box schema", `box "where=id > 7" schema`, 1), "schema.sql": schema}},
		"column":     {{"r.go": rows, "schema.sql": schema}, {"r.go": rows, "schema.sql": noted}},
		"no column":  {{"r.go": rows, "schema.sql": noted}, {"r.go": rows, "schema.sql": schema}},
	}
}

// TestKilled generates for many changes at once, looks at the disk after each step, as a run that is
// killed there leaves it, and type-checks every package that the step has changed.
func TestKilled(t *testing.T) {
	root := t.TempDir()
	repo, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(repo, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	mod = bytes.Replace(mod, []byte("module github.com/leasegen/leasegen"), []byte("module golden.test"), 1)
	put(t, root, "go.mod", fmt.Sprintf("%s\nrequire github.com/leasegen/leasegen v0.0.0\n\nreplace github.com/leasegen/leasegen => %s\n", mod, repo))
	sum, err := os.ReadFile(filepath.Join(repo, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	put(t, root, "go.sum", string(sum))
	names := slices.Sorted(maps.Keys(changes()))
	sources := func(when int) {
		for i, name := range names {
			dir, files := fmt.Sprint("t", i), changes()[name][when]
			for other := range changes()[name][0] {
				if _, stays := files[other]; when == 1 && !stays {
					if err := os.Remove(filepath.Join(root, dir, other)); err != nil {
						t.Fatal(err)
					}
				}
			}
			for file, text := range files {
				put(t, root, path.Join(dir, file), strings.NewReplacer("EVENT", fmt.Sprint("T", i), "DIR", dir).Replace(text))
			}
		}
	}
	plan := func() *fsout.Changes {
		res, err := generator.Generate(t.Context(), generator.Config{Dir: root, Patterns: []string{"./..."}, SQLC: sqlctest.Path(t)})
		if err != nil || res.Diags.Errors() > 0 {
			t.Fatal(err, res.Diags.All())
		}
		c, diags := fsout.Plan(res.Root, res.Files, res.Stale)
		if diags.Len() > 0 {
			t.Fatal(diags.All())
		}
		return c
	}
	sources(0)
	if diags := plan().Apply(t.Context()); diags.Len() > 0 {
		t.Fatal(diags.All())
	}
	sources(1)
	check := newChecker(t, root)
	before := map[string]string{}
	for i, name := range names {
		before[name] = text(t, filepath.Join(root, fmt.Sprint("t", i)))
		if err := check(fmt.Sprint("t", i)); err != nil {
			t.Errorf("%s: does not build before: %v", name, err)
		}
	}
	c := plan()
	steps := 0
	c.OnStep(func() {
		steps++
		for i, name := range names {
			now := text(t, filepath.Join(root, fmt.Sprint("t", i)))
			if now == before[name] {
				continue
			}
			before[name] = now
			if err := check(fmt.Sprint("t", i)); err != nil {
				t.Errorf("%s: killed after step %d, does not build: %v", name, steps, err)
			}
		}
	})
	if diags := c.Apply(t.Context()); diags.Len() > 0 {
		t.Fatal(diags.All())
	}
	if steps < 2*len(names) {
		t.Errorf("only %d steps for %d changes", steps, len(names))
	}
	if left := plan().List(); len(left) > 0 {
		t.Errorf("left to do: %v", left)
	}
}

func put(t *testing.T, root, name, content string) {
	t.Helper()
	full := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// text is all Go files below dir.
func text(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || filepath.Ext(name) != ".go" {
			return err
		}
		src, err := os.ReadFile(name)
		fmt.Fprintf(&b, "%s\n%s\n", name, src)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// newChecker returns a function that type-checks a package of the module at root, and those of the
// module that it imports, as they are on disk now. Others come from the build cache.
func newChecker(t *testing.T, root string) func(dir string) error {
	t.Helper()
	cmd := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}}\t{{.Export}}", "errors", "context", "time", "strconv", "encoding/json",
		"github.com/leasegen/leasegen/runtime/lease", "github.com/leasegen/leasegen/runtime/leasepg", "github.com/jackc/pgx/v5", "github.com/jackc/pgx/v5/pgconn")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	exports := map[string]string{}
	for line := range strings.Lines(string(out)) {
		name, file, _ := strings.Cut(strings.TrimSpace(line), "\t")
		exports[name] = file
	}
	fset := token.NewFileSet()
	gc := importer.ForCompiler(fset, "gc", func(name string) (io.ReadCloser, error) { return os.Open(exports[name]) })
	var check func(dir string) (*types.Package, error)
	check = func(dir string) (*types.Package, error) {
		found, err := filepath.Glob(filepath.Join(root, dir, "[a-z]*.go"))
		if err != nil {
			return nil, err
		}
		var files []*ast.File
		for _, name := range found {
			f, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			files = append(files, f)
		}
		config := types.Config{Importer: importFunc(func(name string) (*types.Package, error) {
			if dir, own := strings.CutPrefix(name, "golden.test/"); own {
				return check(dir)
			}
			return gc.Import(name)
		})}
		return config.Check("golden.test/"+dir, fset, files, nil)
	}
	return func(dir string) error { _, err := check(dir); return err }
}

type importFunc func(name string) (*types.Package, error)

func (f importFunc) Import(name string) (*types.Package, error) { return f(name) }

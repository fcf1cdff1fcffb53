package generator

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const modulePath = "github.com/leasegen/leasegen"

// TestWhatUsersCompile: a user's binary holds what its imports need and no more.
func TestWhatUsersCompile(t *testing.T) {
	// Imports that each package may use beside the standard library. A package that does not
	// exist (yet) has no rule.
	const guard = "runtime/internal/guard" // all may use it
	allowed := map[string][]string{
		guard:               {},
		"runtime/operate":   {},
		"runtime/backend":   {"runtime/operate"},
		"runtime/lease":     {"runtime/backend", "runtime/operate"},
		"runtime/leaseweb":  {"runtime/operate"},
		"runtime/leasemem":  {"runtime/backend", "runtime/operate"},
		"runtime/leasetest": {"runtime/lease", "runtime/backend", "runtime/operate", "runtime/internal/kit"},
		"runtime/leasepg": {"runtime/backend", "runtime/operate", "runtime/leasepg",
			"github.com/jackc/pgx/v5", "github.com/jackc/pgpassfile", "github.com/jackc/pgservicefile",
			"github.com/jackc/puddle/v2", "golang.org/x/text", "golang.org/x/sync"},
		"runtime/leasesql": {"runtime/backend", "runtime/operate", "runtime/leasepg",
			"github.com/jackc/pgx/v5", "github.com/jackc/pgpassfile", "github.com/jackc/pgservicefile",
			"github.com/jackc/puddle/v2", "golang.org/x/text", "golang.org/x/sync"},
		"runtime/leasepgtest": {"runtime/backend", "runtime/operate", "runtime/leasepg",
			"github.com/jackc/pgx/v5", "github.com/jackc/pgpassfile", "github.com/jackc/pgservicefile",
			"github.com/jackc/puddle/v2", "golang.org/x/text", "golang.org/x/sync"},
		"runtime/leaseredistest": {"runtime/backend", "runtime/operate", "runtime/leaseredis",
			"github.com/redis/go-redis/v9", "github.com/cespare/xxhash/v2", "go.uber.org/atomic", "golang.org/x/sys"},
		"runtime/leaseredis": {"runtime/backend", "runtime/operate", "runtime/leaseredis",
			"github.com/redis/go-redis/v9", "github.com/cespare/xxhash/v2", "go.uber.org/atomic", "golang.org/x/sys"},
	}
	for _, pkg := range slices.Sorted(maps.Keys(allowed)) {
		if files, _ := filepath.Glob(filepath.Join("..", pkg, "*.go")); len(files) == 0 {
			if pkg == "runtime/lease" {
				t.Error("runtime/lease is gone")
			}
			continue
		}
		out, err := command(t, "..", "go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", "./"+pkg)
		if err != nil {
			t.Errorf("%s: %v\n%s", pkg, err, out)
			continue
		}
		deps := strings.Fields(out)
		if !slices.Contains(deps, modulePath+"/"+pkg) {
			t.Errorf("go list does not know %s: %s", pkg, out)
		}
		for _, dep := range deps {
			ok := dep == modulePath+"/"+pkg || dep == modulePath+"/"+guard
			for _, a := range allowed[pkg] {
				if strings.HasPrefix(a, "runtime/") {
					a = modulePath + "/" + a
				}
				ok = ok || dep == a || strings.HasPrefix(dep, a+"/")
			}
			if !ok {
				t.Errorf("%s compiles %s; a user of it would too", pkg, dep)
			}
		}
	}
}

// TestImportRules: what is dangerous or heavy is in one place.
func TestImportRules(t *testing.T) {
	only := map[string][]string{ // import: directories
		"github.com/dave/jennifer/jen": {"generator/internal/emit", "generator/internal/names"},
		"golang.org/x/tools":           {"generator/internal/load"},
		// sqlc; test servers and demonstrations
		"os/exec": {"generator/internal/sqlc", "internal", "examples"},
	}
	calls := map[string][]string{ // package-level function: directories
		"os.Exit": {"cmd", "examples", "internal/fleet"}, // fleet.Main ends a replica that does not
	}
	for _, f := range []string{"WriteFile", "Create", "CreateTemp", "OpenFile", "Remove", "RemoveAll", "Rename", "Mkdir", "MkdirAll", "Truncate", "Symlink", "Link", "OpenRoot"} {
		calls["os."+f] = []string{"generator/internal/fsout", "generator/internal/sqlc", "internal", "examples"}
	}
	// Migrations are read through a root, so that links do not lead out of it.
	calls["os.OpenRoot"] = append(slices.Clone(calls["os.OpenRoot"]), "generator/internal/sqlschema")
	seen := map[string]bool{}
	sources(t, func(dir string, fset *token.FileSet, f *ast.File) {
		local := map[string]string{}
		for _, spec := range f.Imports {
			path, _ := strconv.Unquote(spec.Path.Value)
			for rule, dirs := range only {
				if path == rule || strings.HasPrefix(path, rule+"/") {
					seen[rule] = true
					if !below(dir, dirs) {
						t.Errorf("%s imports %s; only %v may", fset.Position(spec.Pos()), path, dirs)
					}
				}
			}
			if strings.HasPrefix(path, modulePath+"/runtime") && below(dir, []string{"generator"}) {
				t.Errorf("%s imports the runtime; the generator knows it by name only", fset.Position(spec.Pos()))
			}
			if !strings.HasPrefix(path, modulePath+"/runtime") && strings.HasPrefix(path, modulePath) && below(dir, []string{"runtime"}) {
				t.Errorf("%s imports the generator; the runtime stands alone", fset.Position(spec.Pos()))
			}
			name := path[strings.LastIndex(path, "/")+1:]
			if spec.Name != nil {
				name = spec.Name.Name
			}
			local[name] = path
		}
		ast.Inspect(f, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if x, ok := sel.X.(*ast.Ident); ok && local[x.Name] != "" {
				call := local[x.Name] + "." + sel.Sel.Name
				if dirs, ruled := calls[call]; ruled {
					seen[call] = true
					if !below(dir, dirs) {
						t.Errorf("%s: %s; only %v may", fset.Position(sel.Pos()), call, dirs)
					}
				}
			}
			return true
		})
	})
	// A rule without a package that it applies to is dead.
	for _, rule := range []string{"github.com/dave/jennifer/jen", "golang.org/x/tools", "os.Exit"} {
		if !seen[rule] {
			t.Errorf("nothing uses %s; is the rule still right?", rule)
		}
	}
}

func below(dir string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool { return dir == d || strings.HasPrefix(dir, d+"/") })
}

// sources parses every Go file of the module that is not a test.
func sources(t *testing.T, visit func(dir string, fset *token.FileSet, f *ast.File)) {
	t.Helper()
	err := filepath.WalkDir("..", func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel := filepath.ToSlash(strings.TrimPrefix(strings.TrimPrefix(path, ".."), string(filepath.Separator)))
		if e.IsDir() && rel != "" {
			if strings.HasPrefix(e.Name(), ".") || e.Name() == "testdata" || rel == "bench" || rel == "proof" {
				return filepath.SkipDir
			}
		}
		if e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir := ""
		if i := strings.LastIndex(rel, "/"); i >= 0 {
			dir = rel[:i]
		}
		visit(dir, fset, f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestTypesStaySmall: a type that does everything is too long to be read to its end.
func TestTypesStaySmall(t *testing.T) {
	const most = 40 // methods
	count := map[string]int{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || d.Name() == "leasedb" || path != ".." && strings.HasPrefix(d.Name(), ".")):
			// sqlc writes leasedb. Hidden folders hold what tools keep, perhaps another tree of this module.
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv != nil {
				recv := f.Recv.List[0].Type
				if star, ok := recv.(*ast.StarExpr); ok {
					recv = star.X
				}
				if id, ok := recv.(*ast.Ident); ok {
					count[filepath.Dir(path)+"."+id.Name]++
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if count["../runtime/lease.runner"] == 0 {
		t.Fatalf("no methods of lease.runner found among %d types", len(count))
	}
	for name, n := range count {
		if n > most {
			t.Errorf("%s has %d methods, more than %d", name, n, most)
		}
	}
}

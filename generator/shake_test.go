package generator

import (
	"fmt"
	"go/types"
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/go/packages"

	"github.com/leasegen/leasegen/generator/internal/diag"
	"github.com/leasegen/leasegen/generator/internal/load"
)

// TestOnlyWhatIsUsed: what is loaded follows from the annotated declarations, not from what
// their package imports.
func TestOnlyWhatIsUsed(t *testing.T) {
	root := newModule(t)
	writeFile(t, filepath.Join(root, "a", "a.go"), []byte(`package a

import (
	"fmt"
	"go/types"
	"maps"
	"context"
	"database/sql"
	"net/http"
	"net/netip"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

//leasegen:event key=From
type E struct {
	From   netip.Addr
	client *http.Client
}

//leasegen:consumer per=topic topics=x
type C struct {
	DB      *pgxpool.Pool
	Backend *leasepg.Backend
	Every   time.Duration
}

func (*C) HandleE(context.Context, lease.Message[E]) error           { return nil }
func (*C) ServeHTTP(http.ResponseWriter, *http.Request)              {}
func (*C) Save(context.Context, *sql.DB) error                       { return nil }

type Server struct{ *http.Server }

var Default = http.DefaultClient
`))
	var diags diag.List
	m, err := load.List(t.Context(), load.Config{Dir: root, Patterns: []string{"./a"}}, &diags)
	if err != nil {
		t.Fatal(err)
	}
	checked, err := m.Check(t.Context(), m.Packages, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var used []string
	packages.Visit([]*packages.Package{checked["golden.test/a"]}, nil, func(p *packages.Package) { used = append(used, p.PkgPath) })
	slices.Sort(used)
	if d := cmp.Diff([]string{"context", "github.com/leasegen/leasegen/runtime/lease", "golden.test/a", "net/netip"}, used); d != "" {
		t.Error(d)
	}
	if e := checked["golden.test/a"].TypeErrors; len(e) > 0 {
		t.Error(e)
	}
}

// TestLeftOutMakesNoDifference: the fields and methods that decide on payloads, keys and ids
// are the same as in a load of everything.
func TestLeftOutMakesNoDifference(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it loads half of the standard library; make test runs it")
	}
	names := map[string][]string{
		"net/http": {"Request", "Header", "Cookie", "Server"}, "net/url": {"URL", "Values"}, "time": {"Time", "Location"},
		"net/netip": {"Addr", "Prefix"}, "math/big": {"Int", "Rat"}, "crypto/x509": {"Certificate"}, "database/sql": {"NullTime", "DB"},
		"github.com/jackc/pgx/v5/pgtype": {"UUID", "Numeric", "Timestamptz", "Map"},
		"log/slog":                       {"Record", "Level", "Attr", "Value"}, "go/ast": {"File", "Object"}, "encoding/json": {"Decoder", "Number"},
	}
	root := newModule(t)
	src, fields := "package a\n\nimport (\n", "\n//leasegen:event\ntype E struct {\n"
	for i, path := range slices.Sorted(maps.Keys(names)) {
		src += fmt.Sprintf("\tp%d %q\n", i, path)
		for _, name := range names[path] {
			fields += fmt.Sprintf("\tF%d%s p%d.%s\n", i, name, i, name)
		}
	}
	writeFile(t, filepath.Join(root, "a", "a.go"), []byte(src+"\t\"math/big\"\n)\n"+fields+"\tOwn own\n}\n\ntype own struct {\n\t*big.Float\n\tN int\n}\n"))
	var diags diag.List
	m, err := load.List(t.Context(), load.Config{Dir: root, Patterns: []string{"./a"}}, &diags)
	if err != nil {
		t.Fatal(err)
	}
	checked, err := m.Check(t.Context(), m.Packages, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := packages.Load(&packages.Config{Dir: root, Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles |
		packages.NeedImports | packages.NeedDeps | packages.NeedTypes | packages.NeedSyntax}, "./a")
	if err != nil {
		t.Fatal(err)
	}
	got, want := describe(checked["golden.test/a"].Types), describe(whole[0].Types)
	if d := cmp.Diff(want, got); d != "" || len(want) < 200 {
		t.Errorf("%d types and fields\n%s", len(want), d)
	}
}

// describe lists what can be seen of the type E by its exported fields, all the way down.
func describe(pkg *types.Package) []string {
	var out []string
	seen := map[string]bool{}
	var visit func(t types.Type)
	visit = func(t types.Type) {
		t = types.Unalias(t)
		if named, ok := t.(*types.Named); ok {
			if seen[named.String()] {
				return
			}
			seen[named.String()] = true
			set := types.NewMethodSet(types.NewPointer(named))
			for _, name := range []string{"MarshalJSON", "MarshalText", "String", "UTC", "UnmarshalJSON", "UnmarshalText"} {
				if m := set.Lookup(nil, name); m != nil {
					out = append(out, fmt.Sprint(named, " ", m.Obj().Name(), m.Obj().Type()))
				}
			}
		}
		switch u := t.Underlying().(type) {
		case *types.Struct:
			for i := range u.NumFields() {
				if f := u.Field(i); f.Exported() {
					out = append(out, fmt.Sprint(t, ".", f.Name(), " ", f.Type(), " ", u.Tag(i)))
					visit(f.Type())
				}
			}
		case *types.Interface:
			out = append(out, fmt.Sprint(t, " has methods: ", u.NumMethods() > 0))
		case interface{ Elem() types.Type }:
			if _, ok := u.(*types.Chan); !ok {
				visit(u.Elem())
			}
		default:
			out = append(out, fmt.Sprintf("%s is a %T", t, u))
		}
	}
	visit(pkg.Scope().Lookup("E").Type())
	slices.Sort(out)
	return out
}

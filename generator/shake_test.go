package generator

import (
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
	checked, err := m.Check(t.Context(), m.Packages, nil)
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

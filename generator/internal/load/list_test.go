package load

import (
	"slices"
	"testing"

	"github.com/leasegen/leasegen/generator/internal/diag"
)

// The packages of a module are read at once, each by itself.
func TestListReadsEveryPackage(t *testing.T) {
	var diags diag.List
	m, err := List(t.Context(), Config{Dir: "../../..", Patterns: []string{"./examples/...", "./generator/..."}}, &diags)
	if err != nil || diags.Len() > 0 {
		t.Fatal(err, diags.All())
	}
	directives := 0
	for _, p := range m.Packages {
		if len(p.Files)+len(p.Excluded)+len(p.Tests) == 0 {
			t.Errorf("%s has no file", p.Path)
		}
		if slices.ContainsFunc(p.Files, func(f File) bool { return f.Src != nil }) {
			directives++
		}
	}
	if directives < 5 {
		t.Errorf("%d of %d packages may hold directives, want those of the examples", directives, len(m.Packages))
	}
}

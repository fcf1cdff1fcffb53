package generator

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/leasegen/leasegen/generator/internal/diag"
)

// TestGoMod: where go.mod is what keeps generated code from building, that is a finding in
// go.mod, which says what to do, though no file of the source has anything wrong.
func TestGoMod(t *testing.T) {
	const event = "package p\n\n//leasegen:event\ntype E struct{ ID string }\n"
	for _, c := range []struct {
		name  string
		mod   string // "" for one that is fine
		files map[string]string
		want  []string
	}{
		{"fine", "", nil, nil},
		{"no runtime", "module x.test\n\ngo 1.26.0\n", nil, []string{"go.mod:1:1: ", "runtime/lease, which cannot be found", "go get github.com/leasegen/leasegen/runtime/lease", "(LG0710)"}},
		{"old language", "module x.test\n\ngo 1.17\n", nil, []string{"go.mod:3:1: ", "go 1.17", "go mod edit -go=1.18", "(LG0713)"}},
		{"old language, runtime required", "module x.test\n\ngo 1.17\n\nrequire github.com/leasegen/leasegen v0.0.0\n\nreplace github.com/leasegen/leasegen => ./other\n",
			map[string]string{"other/go.mod": "module github.com/leasegen/leasegen\n\ngo 1.26.0\n", "other/runtime/lease/lease.go": "package lease\n\nconst ABI1 = true\n"},
			[]string{"go.mod:3:1: ", "(LG0713)"}},
		{"another ABI", "module x.test\n\ngo 1.26.0\n\nrequire github.com/leasegen/leasegen v0.0.0\n\nreplace github.com/leasegen/leasegen => ./other\n",
			map[string]string{"other/go.mod": "module github.com/leasegen/leasegen\n\ngo 1.26.0\n", "other/runtime/lease/lease.go": "package lease\n\nconst ABI2 = true\n"},
			[]string{"go.mod:5:9: ", "lease.ABI1", "ABI2", "(LG0711)"}},
		{"older runtime", "module x.test\n\ngo 1.26.0\n\nrequire github.com/leasegen/leasegen v0.0.0\n\nreplace github.com/leasegen/leasegen => ./other\n",
			map[string]string{"other/go.mod": "module github.com/leasegen/leasegen\n\ngo 1.26.0\n", "other/runtime/lease/lease.go": "package lease\n\nconst ABI1 = true\n\ntype Publisher interface{}\n"},
			[]string{"p/p.go:4:6: ", "lease.Publish", "(LG0711)"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := newModule(t)
			if c.mod != "" {
				writeFile(t, filepath.Join(root, "go.mod"), []byte(c.mod))
			}
			writeFile(t, filepath.Join(root, "p", "p.go"), []byte(event))
			for name, text := range c.files {
				writeFile(t, filepath.Join(root, name), []byte(text))
			}
			res := generate(t, root, "./p")
			text := findings(t, root, res)
			if c.want == nil {
				if text != "" || len(res.Files) != 1 {
					t.Errorf("%d files, %s", len(res.Files), text)
				}
				return
			}
			for _, w := range c.want {
				if !strings.Contains(text, w) {
					t.Errorf("%q is not in\n%s", w, text)
				}
			}
			if res.Files != nil {
				t.Error("something would be written")
			}
		})
	}
}

func findings(t testing.TB, root string, res *Result) string {
	t.Helper()
	var b bytes.Buffer
	p := diag.Printer{Dir: root, Source: os.ReadFile}
	if err := p.Print(&b, res.Diags); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

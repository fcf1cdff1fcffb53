package generator

import (
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"

	"github.com/leasegen/leasegen/generator/internal/fsout"
	"github.com/leasegen/leasegen/generator/internal/names"
)

// TestWhatIsAcceptedBuilds generates for odd packages, of names, types, keys, tags and files of other
// platforms drawn at random. A run that reports success has to leave a module that builds, here and with other systems and tags,
// and each event that is published has to reach its handler as it was. PROOF_ROUNDS has it try more, -short fewer.
func TestWhatIsAcceptedBuilds(t *testing.T) {
	n := 60
	if testing.Short() {
		n = 15
	}
	if rounds, err := strconv.Atoi(os.Getenv("PROOF_ROUNDS")); err == nil {
		n = max(n, min(10*rounds, 2000))
	}
	seeds := make([]uint64, n)
	for i := range seeds {
		seeds[i] = uint64(i)
	}
	root := newModule(t)
	accepted, codes := buildOdd(t, root, seeds)
	if accepted < n/4 || accepted > n*9/10 {
		t.Errorf("%d of %d packages are accepted; findings: %v", accepted, n, codes)
	}
	t.Logf("%d of %d packages are accepted; findings: %v", accepted, n, codes)
	if out, err := command(t, root, "go", "run", "./run"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// FuzzWhatIsAcceptedBuilds is the same without an end: go test ./generator -run '^$' -fuzz Accepted
func FuzzWhatIsAcceptedBuilds(f *testing.F) {
	f.Fuzz(func(t *testing.T, seed uint64) { buildOdd(t, newModule(t), []uint64{seed}) })
}

// buildOdd generates for the packages of the seeds, type-checks what is accepted, and writes a program that
// publishes and handles its events.
func buildOdd(t *testing.T, root string, seeds []uint64) (accepted int, codes map[string]int) {
	t.Helper()
	writeFile(t, filepath.Join(root, "fill", "fill.go"), []byte(fillSource))
	var patterns []string
	for _, seed := range seeds {
		dir := fmt.Sprint("f", seed)
		for name, text := range oddPackage(seed) {
			writeFile(t, filepath.Join(root, dir, name), []byte(text))
		}
		patterns = append(patterns, "./"+dir)
	}
	shared := shareLoad(t, root, []*golden{{name: ".", patterns: []string{"././..."}}})
	imports := everything(t, root)
	codes = map[string]int{}
	var main strings.Builder
	main.WriteString("package main\n\nimport (\n\t\"golden.test/fill\"\n")
	var calls []string
	for i, seed := range seeds {
		dir := filepath.Join(root, fmt.Sprint("f", seed))
		res, err := shared.generate(t.Context(), dir, Config{Dir: dir, Patterns: patterns[i : i+1]}, false)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if res.Diags.Errors() > 0 {
			for _, d := range res.Diags.All() {
				codes[d.Code]++
				if d.Code == "LG0719" {
					t.Errorf("seed %d: a cause without a finding of its own:\n%s%s", seed, findings(t, root, res), listing(dir))
				}
			}
			continue
		}
		place(t, res)
		if len(res.Files) == 0 {
			continue
		}
		accepted++
		if faults := platformFaults(t, imports, dir); len(faults) > 0 {
			t.Errorf("seed %d is accepted and does not build: %s\n%s", seed, faults[0], listing(dir))
			continue
		}
		fmt.Fprintf(&main, "\tp%d \"golden.test/f%[1]d\"\n", seed)
		calls = append(calls, fmt.Sprintf("p%d.Probe", seed))
	}
	main.WriteString(")\n\nfunc main() {\n\tfill.Run(" + strings.Join(calls, ", ") + ")\n}\n")
	writeFile(t, filepath.Join(root, "run", "main.go"), []byte(main.String()))
	return accepted, codes
}

// imported finds packages by their paths.
type imported map[string]*types.Package

func (i imported) Import(path string) (*types.Package, error) {
	if p := i[path]; p != nil {
		return p, nil
	}
	return nil, errors.New("not found")
}

// everything loads whole what the packages of a module import, unlike leasegen, and the runtime.
func everything(t *testing.T, root string) types.Importer {
	t.Helper()
	loaded, err := packages.Load(&packages.Config{Dir: root, Context: t.Context(), Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles |
		packages.NeedImports | packages.NeedDeps | packages.NeedTypes}, "./...", names.Lease, "errors", "strconv", "time")
	if err != nil {
		t.Fatal(err)
	}
	all := imported{"unsafe": types.Unsafe}
	packages.Visit(loaded, nil, func(p *packages.Package) { all[p.PkgPath] = p.Types })
	return all
}

// platformFaults type-checks a package as the go command would see it with other systems and tags.
func platformFaults(t *testing.T, imports types.Importer, dir string) (faults []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []build.Context{
		{GOOS: "linux", GOARCH: "amd64", CgoEnabled: true}, {GOOS: "linux", GOARCH: "arm64"}, {GOOS: "windows", GOARCH: "amd64"},
		{GOOS: "linux", GOARCH: "amd64", CgoEnabled: true, BuildTags: []string{"odd"}}, {GOOS: "plan9", GOARCH: "386", BuildTags: []string{"odd"}},
	} {
		c.Compiler, c.ReleaseTags = "gc", build.Default.ReleaseTags
		fset := token.NewFileSet()
		var files []*ast.File
		for _, e := range entries {
			if ok, err := c.MatchFile(dir, e.Name()); err != nil || !ok || strings.HasSuffix(e.Name(), "_test.go") || e.Name() == "probe.go" {
				continue
			}
			f, err := parser.ParseFile(fset, filepath.Join(dir, e.Name()), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			if !c.CgoEnabled && slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"C"` }) {
				continue
			}
			files = append(files, f)
		}
		cfg := types.Config{Importer: imports, FakeImportC: true, Error: func(err error) {
			faults = append(faults, fmt.Sprintf("%s/%s %v: %v", c.GOOS, c.GOARCH, c.BuildTags, err))
		}}
		// Hand-written code may not build there in any case.
		written := slices.DeleteFunc(slices.Clone(files), func(f *ast.File) bool { return strings.HasSuffix(fset.File(f.Pos()).Name(), fsout.Suffix) })
		alone := types.Config{Importer: imports, FakeImportC: true}
		if len(written) == 0 || len(written) == len(files) {
			continue
		}
		if _, err := alone.Check("p", fset, written, nil); err == nil {
			cfg.Check("p", fset, files, nil)
		}
	}
	return faults
}

// listing is the source of a package, for a failure.
func listing(dir string) string {
	var b strings.Builder
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if text, err := os.ReadFile(filepath.Join(dir, e.Name())); err == nil && !strings.HasSuffix(e.Name(), fsout.Suffix) {
			fmt.Fprintf(&b, "-- %s --\n%s", e.Name(), text)
		}
	}
	return b.String()
}

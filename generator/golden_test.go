package generator

import (
	"bytes"
	"context"
	"flag"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"golang.org/x/tools/imports"

	"github.com/leasegen/leasegen/generator/internal/diag"
	"github.com/leasegen/leasegen/generator/internal/fsout"
	"github.com/leasegen/leasegen/generator/internal/load"
	"github.com/leasegen/leasegen/internal/sqlctest"
	"github.com/leasegen/leasegen/internal/testmodule"
)

var update = flag.Bool("update", false, "rewrite the want/ sections of testdata/golden")

// TestGolden generates every testdata/golden/NAME.txtar and compares. An archive holds
// Go files of module golden.test below NAME/, the outputs expected as want/FILE and the
// findings expected as want/errors.txt. Lines before the first file may set
// "tags: a,b" and "patterns: ./NAME", and "builds: a,b" has the outputs compiled with these
// tags, too; other lines say what the case is about.
// All outputs together are then compiled and vetted. Goldens without tags and patterns of
// their own share one listing and one type check, which take nearly all the time.
func TestGolden(t *testing.T) {
	archives, err := filepath.Glob("../testdata/golden/*.txtar")
	if err != nil || len(archives) == 0 {
		t.Fatalf("no goldens: %v", err)
	}
	root := newModule(t)
	var goldens []*golden
	for _, path := range archives {
		g := readGolden(t, path)
		if g.root = root; g.alone() {
			g.root = newModule(t) // names are compared with those of the whole module
		}
		g.materialise(t, g.root)
		goldens = append(goldens, g)
	}
	generateAll(t, root, goldens, func(g *golden, res *Result, err error) { g.res, g.err = res, err })
	var mu sync.Mutex
	compile := map[[2]string][]string{} // package patterns by module and tags
	t.Run("generate", func(t *testing.T) {
		for _, g := range goldens {
			t.Run(g.name, func(t *testing.T) {
				t.Parallel()
				if g.run(t, g.root) {
					mu.Lock()
					defer mu.Unlock()
					compile[[2]string{g.root, g.tags}] = append(compile[[2]string{g.root, g.tags}], g.below())
					if g.builds != "" {
						compile[[2]string{g.root, g.builds}] = append(compile[[2]string{g.root, g.builds}], g.below())
					}
				}
			})
		}
	})
	if *update {
		return
	}
	t.Run("again", func(t *testing.T) { // written files make no difference
		if testing.Short() {
			t.Skip("-short: it generates everything a second time; make test runs it")
		}
		written := slices.DeleteFunc(slices.Clone(goldens), func(g *golden) bool { return g.err != nil || len(g.res.Files) == 0 })
		generateAll(t, root, written, func(g *golden, res *Result, err error) {
			if err != nil {
				t.Errorf("%s: %v", g.name, err)
				return
			}
			if d := cmp.Diff(g.res.Files, res.Files, asText); d != "" || len(res.Stale) > 0 {
				t.Errorf("%s: a second run finds %v, takes %v for stale, and writes other files:\n%s", g.name, res.Diags.All(), res.Stale, d)
			}
		})
	})
	t.Run("goimports", func(t *testing.T) { formatted(t, root) })
	t.Run("compile", func(t *testing.T) {
		for at, patterns := range compile {
			args := append([]string{"vet", "-tags=" + at[1]}, patterns...)
			if out, err := command(t, at[0], "go", args...); err != nil {
				t.Errorf("go %s: %v\n%s", strings.Join(args[:2], " "), err, out)
			}
		}
	})
}

// asText has cmp compare the content of a file in one step: byte by byte it takes most of a test's time.
var asText = cmp.Transformer("text", func(content []byte) string { return string(content) })

// generateAll generates for goldens, which share what they load, and hands out what came of each.
func generateAll(t *testing.T, root string, goldens []*golden, took func(*golden, *Result, error)) {
	t.Helper()
	shared := shareLoad(t, root, goldens)
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, g := range goldens {
		if !g.alone() {
			shared.expect(1)
		}
	}
	for _, g := range goldens {
		cfg := Config{Dir: g.root, Patterns: g.patterns, Tags: g.tags, SQLC: g.sqlc(t)}
		all.Go(func() {
			var res *Result
			var err error
			if g.alone() {
				res, err = Generate(t.Context(), cfg)
			} else {
				res, err = shared.generate(t.Context(), filepath.Join(root, g.name), cfg, true)
			}
			mu.Lock()
			defer mu.Unlock()
			took(g, res, err)
		})
	}
	all.Wait()
}

type golden struct {
	path, name, tags string
	builds           string
	root             string // of its module
	patterns         []string
	archive          *txtar.Archive
	res              *Result
	err              error
}

func readGolden(t *testing.T, path string) *golden {
	t.Helper()
	a, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	g := &golden{path: path, archive: a, name: strings.TrimSuffix(filepath.Base(path), ".txtar")}
	g.patterns = []string{g.below()}
	for line := range strings.Lines(string(a.Comment)) {
		if v, ok := strings.CutPrefix(line, "tags: "); ok {
			g.tags = strings.TrimSpace(v)
		}
		if v, ok := strings.CutPrefix(line, "builds: "); ok {
			g.builds = strings.TrimSpace(v)
		}
		if v, ok := strings.CutPrefix(line, "patterns: "); ok {
			g.patterns = strings.Fields(v)
		}
	}
	return g
}

// materialise writes the archive's input.
func (g *golden) materialise(t *testing.T, root string) {
	t.Helper()
	for _, f := range g.archive.Files {
		if !strings.HasPrefix(f.Name, "want/") {
			writeFile(t, filepath.Join(root, g.name, filepath.FromSlash(f.Name)), f.Data)
		}
	}
}

// alone reports whether the golden is about how packages are found, or finds other ones.
func (g *golden) alone() bool {
	return g.tags != "" || len(g.patterns) > 1 || g.patterns[0] != g.below()
}

// below is the pattern of the golden's packages.
func (g *golden) below() string { return "./" + g.name + "/..." }

// sharedLoad is the packages of many goldens, listed and checked once.
type sharedLoad struct {
	module *load.Module
	slots  chan struct{} // how many generate at once

	mu      sync.Mutex
	waited  sync.WaitGroup // for those of expect that have not come to the check
	overlay map[string][]byte
	also    []string
	once    sync.Once
	checked load.Checked
	err     error
}

func shareLoad(t *testing.T, root string, goldens []*golden) *sharedLoad {
	t.Helper()
	var patterns []string
	for _, g := range goldens {
		if !g.alone() {
			patterns = append(patterns, g.below())
		}
	}
	var diags diag.List
	module, err := load.List(t.Context(), load.Config{Dir: root, Patterns: patterns}, &diags)
	if err != nil || diags.Len() > 0 {
		t.Fatal(err, diags.All())
	}
	return &sharedLoad{module: module, slots: make(chan struct{}, runtime.GOMAXPROCS(0)), overlay: map[string][]byte{}}
}

// expect has the one check of all packages wait for n calls of generate, with the code that these
// want checked though it does not exist yet.
func (s *sharedLoad) expect(n int) { s.waited.Add(n) }

// check is the one check of all packages.
func (s *sharedLoad) check(ctx context.Context) (load.Checked, error) {
	s.once.Do(func() { s.checked, s.err = s.module.Check(ctx, s.module.Packages, s.overlay, s.also) })
	return s.checked, s.err
}

// generate is Generate for the packages in one directory. expected says that expect has counted it.
func (s *sharedLoad) generate(ctx context.Context, dir string, cfg Config, expected bool) (*Result, error) {
	module := s.module.Alone(func(p *load.Package) bool {
		return p.Dir == dir || strings.HasPrefix(p.Dir, dir+string(filepath.Separator))
	})
	arrive := func() {
		if expected {
			expected = false
			s.waited.Done()
		}
	}
	s.slots <- struct{}{}
	defer func() { arrive(); <-s.slots }()
	check := func(ctx context.Context, pkgs []*load.Package, overlay map[string][]byte, also []string) (load.Checked, error) {
		if len(overlay) > 0 && !expected {
			return module.Check(ctx, pkgs, overlay, also)
		}
		s.mu.Lock()
		maps.Copy(s.overlay, overlay)
		s.also = append(s.also, also...)
		s.mu.Unlock()
		arrive()
		<-s.slots // for those that have not arrived
		s.waited.Wait()
		s.slots <- struct{}{}
		return s.check(ctx)
	}
	res := &Result{Diags: &diag.List{}}
	return res, res.generate(ctx, cfg, module, check, res.stopwatch())
}

// run compares or updates, and leaves the outputs in place. It reports whether there are outputs
// that have to compile.
func (g *golden) run(t *testing.T, root string) bool {
	res, err := g.res, g.err
	got := map[string]string{}
	if err != nil {
		got["want/errors.txt"] = err.Error() + "\n"
	} else {
		var findings bytes.Buffer
		p := diag.Printer{Dir: filepath.Join(root, g.name), Source: os.ReadFile}
		if err := p.Print(&findings, res.Diags); err != nil {
			t.Fatal(err)
		}
		if findings.Len() > 0 {
			got["want/errors.txt"] = findings.String()
		}
		for _, f := range res.Files {
			got["want/"+strings.TrimPrefix(f.Path, g.name+"/")] = string(f.Content)
		}
		for _, s := range res.Stale {
			got["want/stale.txt"] += strings.TrimPrefix(s, g.name+"/") + "\n"
		}
	}
	for name, text := range got {
		got[name] = strings.ReplaceAll(text, root, "$WORK")
	}
	if *update {
		g.update(t, got)
		return false
	}
	want := map[string]string{}
	for _, f := range g.archive.Files {
		if strings.HasPrefix(f.Name, "want/") {
			want[f.Name] = string(f.Data)
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("differs from %s (-want +got); go test ./generator -run Golden -update rewrites it\n%s", g.path, d)
		return false
	}
	if err != nil {
		return false
	}
	place(t, res)
	return len(res.Files) > 0
}

func (g *golden) update(t *testing.T, got map[string]string) {
	t.Helper()
	g.archive.Files = slices.DeleteFunc(g.archive.Files, func(f txtar.File) bool { return strings.HasPrefix(f.Name, "want/") })
	for _, name := range slices.Sorted(maps.Keys(got)) {
		g.archive.Files = append(g.archive.Files, txtar.File{Name: name, Data: []byte(got[name])})
	}
	if err := os.WriteFile(g.path, txtar.Format(g.archive), 0o644); err != nil {
		t.Fatal(err)
	}
}

// place brings a module to the state that a result describes, through the real writer.
func place(t *testing.T, res *Result) {
	t.Helper()
	changes, diags := fsout.Plan(res.Root, res.Files, res.Stale)
	if err := diags.Err(); err != nil {
		t.Fatal(err)
	}
	if err := changes.Apply(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
}

// formatted looks whether goimports and gofmt -s leave every output below root as it is.
func formatted(t *testing.T, root string) {
	var outputs []string
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		src, err := os.ReadFile(path)
		if err != nil || !bytes.HasPrefix(src, []byte("// Code generated by leasegen")) && !bytes.HasPrefix(src, []byte("// Code generated by sqlc")) {
			return err
		}
		if !bytes.Contains(src, []byte("\nimport ")) { // an output of the input
			return nil
		}
		outputs = append(outputs, path)
		got, err := imports.Process(path, src, nil)
		if d := cmp.Diff(string(src), string(got)); err != nil || d != "" {
			t.Errorf("goimports changes %s: %v\n%s", path, err, d)
		}
		return nil
	})
	if err != nil || len(outputs) < 20 {
		t.Fatal(err, len(outputs))
	}
	if out, err := command(t, root, "gofmt", append([]string{"-s", "-l"}, outputs...)...); err != nil || out != "" {
		t.Errorf("gofmt -s changes %s %v", out, err)
	}
}

// newModule makes an empty module golden.test that uses this repository's runtime.
func newModule(t testing.TB) string {
	t.Helper()
	return testmodule.New(t, "..", "golden.test")
}

// sqlc is the sqlc of this repository, for goldens that need it.
func (g *golden) sqlc(t testing.TB) string {
	t.Helper()
	if !bytes.Contains(txtar.Format(g.archive), []byte("//leasegen:table ")) {
		return ""
	}
	return sqlctest.Path(t)
}

func writeFile(t testing.TB, name string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

func command(t testing.TB, dir, name string, args ...string) (string, error) {
	t.Helper()
	ctx := context.Background()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Package snippets holds README.md, its neighbours and docs to their word: all Go code in them compiles and
// runs, the SQL runs as printed, and the commands exist. A snippet that needs something
// around it has that in snippets_go_test.go; docs/README.md says what readers may expect there.
package snippets

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/leasegen/leasegen/generator"
	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/internal/sqlctest"
	"github.com/leasegen/leasegen/internal/testmodule"
	"github.com/leasegen/leasegen/internal/words"
)

func TestMain(m *testing.M) { os.Exit(redistest.Wrap(pgtest.Wrap(m)).Run()) }

const root = "../.."

// block is a fenced block of a page.
type block struct {
	page string
	line int
	lang string
	text string
}

func (b block) String() string { return fmt.Sprintf("%s:%d", b.page, b.line) }

// dir is the package of a block in the module that TestGo makes.
func (b block) dir() string {
	name := strings.ReplaceAll(strings.TrimSuffix(filepath.Base(b.page), ".md"), "-", "_")
	return fmt.Sprintf("%s_%d", strings.ToLower(name), b.line)
}

// blocks are all fenced blocks of the pages in a language.
func blocks(t *testing.T, lang string) (found []block) {
	t.Helper()
	names, err := words.Pages(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		for _, b := range page(t, name) {
			// YAML is tested in manifests, a module of its own. Text is code of other projects.
			if !slices.Contains([]string{"", "go", "sql", "yaml", "text"}, b.lang) {
				t.Errorf("%s is in a language without a test: %s", b, b.lang)
			}
			if b.lang == lang {
				found = append(found, b)
			}
		}
	}
	if len(found) == 0 {
		t.Fatalf("no block of %q", lang)
	}
	return found
}

// page is a page's fenced blocks.
func page(t *testing.T, name string) (found []block) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	var open *block
	for i, line := range strings.Split(string(text), "\n") {
		fence, is := strings.CutPrefix(strings.TrimLeft(line, " \t"), "```")
		switch {
		case is && open == nil:
			open = &block{page: name, line: i + 1, lang: fence}
		case is:
			found = append(found, *open)
			open = nil
		case open != nil:
			open.text += line + "\n"
		}
	}
	return found
}

// match gives each block the entry of its page whose first words it begins with, and refuses entries
// and blocks without one another.
func match[T any](t *testing.T, blocks []block, entries []T, of func(T) (page, starts string)) map[block]T {
	t.Helper()
	out := map[block]T{}
	used := make([]bool, len(entries))
	for _, b := range blocks {
		i := slices.IndexFunc(entries, func(e T) bool {
			page, starts := of(e)
			return b.page == page && strings.HasPrefix(b.text, starts)
		})
		if i < 0 || used[i] {
			t.Errorf("%s is not tested, it begins with: %s", b, strings.SplitN(b.text, "\n", 2)[0])
			continue
		}
		used[i] = true
		out[b] = entries[i]
	}
	for i, e := range entries {
		if page, starts := of(e); !used[i] {
			t.Errorf("%s has no block any more that begins with: %s", page, starts)
		}
	}
	return out
}

// TestGo puts every Go snippet into a package of one module, generates, vets, and runs those
// that are statements.
func TestGo(t *testing.T) {
	dir := testmodule.New(t, root, "example.com/shop")
	support, err := txtar.ParseFile("testdata/support.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range support.Files {
		write(t, filepath.Join(dir, f.Name), string(f.Data))
	}
	write(t, filepath.Join(dir, "db/migrations/1.sql"), outbox)

	found := match(t, blocks(t, "go"), snippets(), func(s snippet) (string, string) { return s.page, s.starts })
	orders := map[string]string{} // by page: the block that is the package
	for b := range found {
		if strings.HasPrefix(b.text, "package orders\n") {
			orders[b.page] = b.dir()
		}
	}
	var runs, rest []string
	groups := map[string][]string{"orders": {"./orders"}} // what is generated for together: kinds and names are unique there
	for b, s := range found {
		if s.why != "" {
			continue
		}
		uses := "orders"
		if own := orders[b.page]; own != "" {
			uses = own
		}
		for _, starts := range s.beside {
			s.with += neighbour(t, b.page, starts)
		}
		file, text := "snippet.go", ""
		switch {
		case strings.HasPrefix(b.text, "package "):
			text = b.text
		case s.statements:
			text = complete(b.dir(), uses, statements(s, b.text))
			runs = append(runs, b.dir())
		default:
			text = complete(b.dir(), uses, b.text+"\n"+s.with)
		}
		if strings.HasPrefix(b.text, "func Test") {
			file, text = "snippet_test.go", complete(b.dir(), uses, b.text)
			write(t, filepath.Join(dir, b.dir(), "with.go"), complete(b.dir(), uses, s.with))
		}
		write(t, filepath.Join(dir, b.dir(), file), text)
		if !s.statements {
			rest = append(rest, b.dir())
		}
		switch {
		case s.statements:
		case s.alone:
			groups[b.dir()] = append(groups[b.dir()], "./"+b.dir())
		default:
			groups[uses] = append(groups[uses], "./"+b.dir())
		}
	}
	slices.Sort(runs)
	var imports, calls strings.Builder
	for _, name := range runs {
		fmt.Fprintf(&imports, "\t%q\n", "example.com/shop/"+name)
		fmt.Fprintf(&calls, "\tenv.Run(%q, %[1]s.Run)\n", name)
	}
	for _, name := range rest {
		fmt.Fprintf(&imports, "\t_ %q\n", "example.com/shop/"+name)
	}
	write(t, filepath.Join(dir, "main.go"), "package main\n\nimport (\n"+imports.String()+"\t\"example.com/shop/env\"\n)\n\nfunc main() {\n"+calls.String()+"}\n")

	for _, patterns := range groups {
		show := hide(t, dir, groups, patterns)
		generate(t, dir, patterns)
		show()
	}
	env := []string{"ADMIN_URL=" + pgtest.DB(t), "REDIS_ADDR=" + redistest.Shared(t).Addr()}
	out := command(t, dir, env, "go", "run", ".")
	for _, name := range runs {
		if !strings.Contains(out, "ran "+name+"\n") {
			t.Errorf("%s has not run:\n%s", name, out)
		}
	}
	for b := range found {
		switch {
		case strings.HasPrefix(b.text, "func Test"):
			command(t, dir, []string{"TEST_DATABASE_URL=" + pgtest.DB(t)}, "go", "test", "-count=1", "-vet=off", "./"+b.dir())
		case b.page == "docs/generating.md" && strings.Contains(b.text, "func NewBilling"):
			excerpt(t, b, filepath.Join(dir, orders["docs/generating.md"], "snippet_leasegen.go"))
		}
	}
}

// neighbour is another block of a page as declarations.
func neighbour(t *testing.T, name, starts string) string {
	t.Helper()
	for _, b := range page(t, name) {
		switch {
		case !strings.HasPrefix(b.text, starts):
		case b.lang == "sql":
			return fmt.Sprintf("\nconst migrations = `%s`\n", b.text)
		default:
			return "\n" + b.text
		}
	}
	t.Fatalf("%s has no block that begins with: %s", name, starts)
	return ""
}

// hide takes the packages out of the module that others than patterns are generated for, unless they are imported: names are compared
// over a whole module.
func hide(t *testing.T, dir string, groups map[string][]string, patterns []string) (show func()) {
	t.Helper()
	var imports []byte
	for _, p := range patterns {
		files, _ := filepath.Glob(filepath.Join(dir, p, "*.go"))
		for _, f := range files {
			src, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			imports = append(imports, src...)
		}
	}
	var back []func()
	for _, others := range groups {
		for _, o := range others {
			name := strings.TrimPrefix(o, "./")
			if slices.Contains(patterns, o) || bytes.Contains(imports, fmt.Appendf(nil, "%q", "example.com/shop/"+name)) {
				continue
			}
			from, to := filepath.Join(dir, name), filepath.Join(dir, "_"+name)
			if err := os.Rename(from, to); err != nil {
				t.Fatal(err)
			}
			back = append(back, func() {
				if err := os.Rename(to, from); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
	return func() {
		for _, f := range back {
			f()
		}
	}
}

// excerpt holds that all of a block, but for a line with an ellipsis, stands in a generated file.
func excerpt(t *testing.T, b block, file string) {
	t.Helper()
	generated, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	rest := string(generated)
	for _, part := range regexp.MustCompile(`(?m)^(.*….*)?\n`).Split(b.text, -1) {
		_, after, ok := strings.Cut(rest, part)
		if !ok {
			t.Errorf("%s is not what leasegen generates, which is:\n%s", b, generated)
			return
		}
		rest = after
	}
}

// statements makes a function of statements.
func statements(s snippet, text string) string {
	if s.redis {
		text = strings.Replace(text, `"localhost:6379"`, `os.Getenv("REDIS_ADDR")`, 1)
	}
	return s.with + `
// Run runs the snippet.
func Run(outer context.Context) error {
	ctx := outer
` + s.before + `
	run := func() error {
` + text + s.after + `
	}
	if err := run(); err != nil {
		return err
	}
	ctx = outer
	` + s.verify + `
	return ctx.Err()
}
`
}

// complete puts a package clause, and the imports that are used, before a text.
func complete(name, orders, text string) string {
	known := map[string]string{
		"context": "context", "errors": "errors", "fmt": "fmt", "fnv": "hash/fnv", "http": "net/http", "httptest": "net/http/httptest", "os": "os", "signal": "os/signal", "slog": "log/slog", "syscall": "syscall", "atomic": "sync/atomic", "testing": "testing", "time": "time",
		"pgx": "github.com/jackc/pgx/v5", "pgxpool": "github.com/jackc/pgx/v5/pgxpool", "stdlib": "github.com/jackc/pgx/v5/stdlib",
		"redis": "github.com/redis/go-redis/v9",
		"api":   "example.com/shop/api", "bank": "example.com/shop/bank", "env": "example.com/shop/env",
		"orders": "example.com/shop/" + orders, "leasedb": "example.com/shop/" + name + "/leasedb",
	}
	for _, runtime := range []string{"lease", "leasepg", "leasesql", "leaseredis", "leasemem", "leasehealth", "leaseweb", "leasetest", "leasepgtest"} {
		known[runtime] = "github.com/leasegen/leasegen/runtime/" + runtime
	}
	code := regexp.MustCompile(`(?m)//.*$|"[^"\n]*"`).ReplaceAllString(text, "")
	var imports []string
	for local, path := range known {
		if regexp.MustCompile(`(?:^|[^.\w])` + local + `\.[A-Z]`).MatchString(code) {
			imports = append(imports, fmt.Sprintf("import %s %q\n", local, path))
		}
	}
	slices.Sort(imports)
	return "package " + name + "\n\n" + strings.Join(imports, "") + "\n" + text
}

// generate does what leasegen does with patterns.
func generate(t *testing.T, dir string, patterns []string) {
	t.Helper()
	res, err := generator.Generate(t.Context(), generator.Config{Dir: dir, Patterns: patterns, SQLC: sqlctest.Path(t)})
	if err != nil || res.Diags.Len() > 0 {
		t.Fatal(patterns, err, res.Diags.All())
	}
	changes, findings := generator.Plan(res)
	findings.Add(changes.Apply(t.Context()).All()...)
	if findings.Len() > 0 {
		t.Fatal(findings.All())
	}
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// command runs a program in dir, and fails the test if it does.
func command(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return string(out)
}

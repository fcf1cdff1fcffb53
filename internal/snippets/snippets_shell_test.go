package snippets

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// output is a block, or the rest of one whose lines with a $ are commands, that no test runs as it
// stands, and why.
type output struct{ page, starts, why string }

func outputs() []output {
	return []output{
		{"docs/examples.md", "24 feeds;", "what an example printed, with the times of that machine"},
		{"docs/tested.md", "fault ", "what make proof printed"},
		{"docs/operating.md", "$ leasegen status", "what status prints; cmd/leasegen tests it"},
		{"docs/operating.md", "$ leasegen cursor show", "what cursor prints; cmd/leasegen tests it"},
		{"docs/operating.md", "$ leasegen parked", "what parked prints; cmd/leasegen tests it"},
		{"docs/operating.md", "$ leasegen dlq list", "what dlq prints; cmd/leasegen tests it"},
		{"docs/operating.md", "$ leasegen pause", "what pause and resume print; cmd/leasegen tests it"},
		{"docs/operating.md", "$ leasegen forget", "what forget prints; cmd/leasegen tests it"},
		{"docs/operating.md", "no consumer takes", "a line of status; cmd/leasegen tests it"},
		{"docs/alerts.md", "# prometheus.yml", "configuration of Prometheus"},
		{"docs/alerts.md", "# /etc/grafana", "configuration of Grafana"},
		{"docs/alerts.md", "(printf 'apiVersion: monitoring.coreos.com", "a cluster has to be there"},
		{"docs/page.md", "$ leasegen web", "what web prints; cmd/leasegen tests it"},
		{"docs/redis.md", "$ leasegen acl", "what acl prints, cut short; testdata/script/redis.txtar tests it"},
		{"docs/tables.md", "go install github.com/sqlc-dev/sqlc", "it downloads and builds sqlc for two minutes, as the Makefile does"},
	}
}

// TestCommands makes a module that uses a clone, by the lines that the pages print for it, generates and
// checks as printed, and asks the leasegen that it got whether every command and flag of the pages exists.
func TestCommands(t *testing.T) {
	shell := blocks(t, "")
	var rest []block
	for _, b := range shell {
		if b.page == "docs/start.md" || strings.HasPrefix(b.text, "go mod init") { // TestStart and TestReadme run them
			continue
		}
		known := slices.ContainsFunc(outputs(), func(o output) bool { return b.page == o.page && strings.HasPrefix(b.text, o.starts) })
		if !known || strings.HasPrefix(b.text, "$ ") {
			rest = append(rest, b)
		}
	}
	for _, o := range outputs() {
		if !slices.ContainsFunc(shell, func(b block) bool { return b.page == o.page && strings.HasPrefix(b.text, o.starts) }) {
			t.Errorf("%s has no block any more that begins with: %s", o.page, o.starts)
		}
		if len(o.why) < 20 {
			t.Errorf("%s: %s: the reason does not say why", o.page, o.starts)
		}
	}

	dir := t.TempDir()
	repo, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range blocks(t, "go") {
		if strings.HasPrefix(b.text, "package orders\n") && b.page == "docs/generating.md" {
			write(t, filepath.Join(dir, "orders", "orders.go"), b.text)
		}
		if strings.HasPrefix(b.text, "//go:generate") {
			write(t, filepath.Join(dir, "generate.go"), "package shop\n\n"+b.text)
		}
	}
	// go mod tidy asks for what the tests of dependencies import, too: on a new machine it is in no cache.
	env := []string{"GONOSUMDB=*", "GOFLAGS=-mod=mod -ldflags=-s", "GOWORK=off"}
	command(t, dir, env, "go", "mod", "init", "example.com/shop")
	setUp := 0
	for _, b := range rest {
		for line := range strings.Lines(b.text) {
			if line = shown(line); strings.HasPrefix(line, "go mod ") {
				// The repository's own path, so that what is built is in the build cache.
				command(t, dir, env, "sh", "-c", strings.Replace(line, "=../leasegen", "="+repo, 1))
				setUp++
			}
		}
	}
	if setUp != 3 {
		t.Errorf("%d lines make leasegen a tool of a module, want three in docs/generating.md", setUp)
	}
	command(t, dir, env, "go", "generate", "./...")
	for _, name := range []string{"orders/orders_leasegen.go", "orders/zz_register_leasegen.go"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	leasegen := strings.TrimSpace(command(t, dir, env, "go", "tool", "-n", "leasegen"))
	run := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), leasegen, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range rest {
		tested := 0
		for line := range strings.Lines(b.text) {
			transcript := strings.HasPrefix(b.text, "$ ")
			if transcript && !strings.HasPrefix(line, "$ ") {
				continue
			}
			line = shown(line)
			words := arguments(line)
			if len(words) == 0 {
				continue
			}
			tested++
			switch {
			case strings.HasPrefix(line, "go mod "): // above
			case words[0] == "leasegen", len(words) > 2 && slices.Equal(words[:3], []string{"go", "tool", "leasegen"}):
				if words[0] == "go" {
					words = words[2:]
				}
				args := words[1:]
				if last := args[len(args)-1]; strings.HasPrefix(last, "./") { // writes and checks as printed
					if out, err := run(args...); err != nil {
						t.Errorf("%s: %s: %v\n%s", b, line, err, out)
					}
					continue
				}
				if out, err := run(append(args, "-h")...); err != nil || !strings.Contains(out, "usage: leasegen "+args[0]) {
					t.Errorf("%s: %s -h: %v\n%s", b, line, err, out)
				}
			case words[0] == "make":
				if !regexp.MustCompile(`(?m)^` + words[1] + `:`).Match(makefile) {
					t.Errorf("%s: the Makefile has no %s", b, words[1])
				}
			case words[0] == "go" && words[1] == "test":
				found, err := filepath.Glob(filepath.Join(root, words[len(words)-1], "*_test.go"))
				if err != nil || len(found) == 0 {
					t.Errorf("%s: %s has no tests: %v", b, words[len(words)-1], err)
				}
			case strings.HasPrefix(line, "postgres://"):
				if _, err := pgx.ParseConfig(strings.Replace(line, "sslrootcert=/etc/ssl/shop-ca.pem", "", 1)); err != nil {
					t.Errorf("%s: %v", b, err)
				}
			default:
				t.Errorf("%s is not tested: %s", b, line)
			}
		}
		if tested == 0 {
			t.Errorf("%s: nothing of it is tested", b)
		}
	}
}

// shown is a line without its prompt, its remark, and what its output goes to.
func shown(line string) string {
	line = strings.TrimPrefix(strings.TrimSpace(line), "$ ")
	line = regexp.MustCompile(`\s#.*$|\s[|>]\s.*$`).ReplaceAllString(line, "")
	return strings.TrimSpace(line)
}

// arguments are the words of a line, without quotes.
func arguments(line string) []string {
	var words []string
	for _, m := range regexp.MustCompile(`'([^']*)'|(\S+)`).FindAllStringSubmatch(line, -1) {
		words = append(words, m[1]+m[2])
	}
	return words
}

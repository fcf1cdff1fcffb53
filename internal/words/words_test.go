package words

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// later are folders whose texts are still to be worked through: none.
var later = []string{}

// TestWords holds every page, comment and message to the rules.
func TestWords(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "git", "-C", root, "ls-files", "-co", "--exclude-standard", "-z").Output()
	if err != nil {
		t.Fatal(err)
	}
	names := strings.Split(strings.Trim(string(out), "\x00"), "\x00")
	if len(names) < 500 {
		t.Fatalf("%d files", len(names))
	}
	for _, name := range names {
		if strings.Contains(name, "testdata/") || name == "internal/words/words.go" || strings.HasPrefix(name, "internal/words/words_test.go") {
			continue // sources made up for tests, and the list itself
		}
		if strings.HasPrefix(name, "runtime/leasepg/migrations/") {
			continue // a migration stays as it was applied
		}
		if slices.ContainsFunc(later, func(folder string) bool { return strings.HasPrefix(name, folder) }) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // deleted, and not yet committed
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range file(name, string(text)) {
			t.Errorf("%s:%s", name, f)
		}
	}
}

// TestFinds shows each kind of file with a finding in a line, and the same words where they are no finding.
func TestFinds(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"a.md", "Fine.\n\nThen nobody\nwaits.", `3: "nobody"`},
		{"a.md", "one that is no\nmore here", `1: "is no more"`},
		{"a.md", "it is no more than 3", ""},
		{"a.md", "```\nnothing\n```\nand `nothing`, [x](nothing.md)", ""},
		{"a.md", "Good. What is\nleft is dropped.", `1: "What"`},
		{"a.md", "## What is left?", ""},
		{"a.md", "## What happens when…", ""},
		{"a.md", "after a crash, say, it waits", `1: ", say,"`},
		{"a.md", "the errors say why", ""},
		{"a.md", "| Who runs it is asked |", `1: "Who"`},
		{"a.go", "package a\n\n// It\n// tells of it.\nvar x = 1", `4: "tells of"`},
		{"a.go", "package a\n\nvar x = \"it has nothing\"", `3: "nothing"`},
		{"a.go", "package a\n\nvar x = \"nothing\"", ""},
		{"a.go", "package a\n\n// `nothing` is a name.\nvar nothing = 1", ""},
		{"a_test.go", "package a\n\nvar x = \"it has nothing\"", ""},
		{"a_test.go", "package a\n\nvar x = 1 // meanwhile", `3: "meanwhile"`},
		{"a.lua", "-- to whoever asks\nlocal nothing = 1", `1: "whoever"`},
		{"a.sql", "SELECT 1; -- is told\nINSERT INTO nothing", `1: "is told"`},
		{"Makefile", "x:\n\t@echo \"needs nothing\"\n\tnothing", `2: "nothing"`},
		{"a.sh", "echo nothing # mends it", `1: "mends"`},
		{"a.js", "x = nothing // heals", `1: "heals"`},
		{"a.html", "<p class=nothing>{{.Nothing}}\n<b>Who owns it</b>", `2: "Who"`},
	} {
		var got []string
		for _, f := range file(c.name, c.text) {
			before, _, _ := strings.Cut(f.String(), ": use ")
			got = append(got, before)
		}
		if strings.Join(got, ", ") != c.want {
			t.Errorf("%s %q: found %q, want %q", c.name, c.text, got, c.want)
		}
	}
}

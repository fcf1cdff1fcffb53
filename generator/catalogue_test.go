package generator

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/leasegen/leasegen/generator/internal/diag"
)

// TestCatalogue holds that every code is well formed, and shown by a golden, or by a script
// if it takes a disk to come about, or by another test if no source or no disk is known that has it.
func TestCatalogue(t *testing.T) {
	shown := map[string]bool{}
	code := regexp.MustCompile(`\\?\((LG\d{4})\\?\)`)
	for _, glob := range []string{"../testdata/golden/*.txtar", "../testdata/script/*.txtar", "internal/resolve/*_test.go", "builds_test.go"} {
		files, err := filepath.Glob(glob)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v", glob, err)
		}
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range code.FindAllStringSubmatch(string(text), -1) {
				shown[m[1]] = true
			}
		}
	}
	var codes []string
	for _, e := range diag.Codes() {
		codes = append(codes, e.Code)
		if !shown[e.Code] {
			t.Errorf("%s (%s) is in no golden and in no script", e.Code, e.Title)
		}
		if !code.MatchString("("+e.Code+")") || e.Title == "" || e.Explain == "" || strings.ContainsAny(e.Title, ".\n") {
			t.Errorf("%+v is not a proper entry", e)
		}
	}
	if !slices.IsSorted(codes) || len(slices.Compact(slices.Clone(codes))) != len(codes) {
		t.Errorf("codes are not sorted, or not unique: %v", codes)
	}
	for c := range shown {
		if !slices.Contains(codes, c) {
			t.Errorf("%s is shown, but not in the catalogue", c)
		}
	}
}

// TestExplain holds that whatever is listed can be asked for.
func TestExplain(t *testing.T) {
	all, err := Explain("")
	if err != nil {
		t.Fatal(err)
	}
	topics := regexp.MustCompile(`(?m)^  (\S+) `).FindAllStringSubmatch(all, -1)
	if len(topics) < 40 {
		t.Fatalf("only %d topics", len(topics))
	}
	for _, m := range topics {
		text, err := Explain(m[1])
		if err != nil || len(text) < 60 {
			t.Errorf("%s: %q, %v", m[1], text, err)
		}
		for line := range strings.Lines(text) {
			if len([]rune(line)) > 120 {
				t.Errorf("%s: line too long for a terminal: %s", m[1], line)
			}
		}
	}
	if _, err := Explain("leese"); err == nil || !strings.Contains(err.Error(), `did you mean "lease"`) {
		t.Errorf("no suggestion: %v", err)
	}
}

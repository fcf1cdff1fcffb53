package words

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// pages are the pages of this tree.
func pages(t *testing.T) []string {
	t.Helper()
	names, err := Pages(root)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestLength holds that pages are short enough to be read.
func TestLength(t *testing.T) {
	for _, name := range pages(t) {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		most := 250
		switch name {
		case "README.md":
			most = 150
		case "docs/bench.md":
			most = 500 // a program writes it: a row for each contender in each workload
		}
		if n := strings.Count(string(text), "\n"); n > most {
			t.Errorf("%s has %d lines, at most %d: move what is for other readers to a page of its own", name, n, most)
		}
	}
}

var (
	fenced = regexp.MustCompile("(?ms)^[ \t]*```.*?^[ \t]*```[ \t]*$")
	linked = regexp.MustCompile(`\]\(([^)\s]+)\)|(?:src|srcset)="([^"]+)"`)
)

// TestLinks holds that each link and picture leads to a file that is there, and each anchor to a heading.
func TestLinks(t *testing.T) {
	for _, name := range pages(t) {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range linked.FindAllStringSubmatch(fenced.ReplaceAllString(string(text), ""), -1) {
			link := m[1] + m[2]
			if strings.Contains(link, "://") {
				continue
			}
			file, anchor, _ := strings.Cut(link, "#")
			to := filepath.Join(root, name)
			if file != "" {
				to = filepath.Join(root, filepath.Dir(name), file)
			}
			there, err := os.ReadFile(to)
			if info, is := os.Stat(to); is == nil && info.IsDir() {
				continue
			}
			if err != nil {
				t.Errorf("%s: %s leads nowhere: %v", name, link, err)
				continue
			}
			if anchor != "" && !anchors(string(there))[anchor] {
				t.Errorf("%s: %s has no heading for #%s", name, file, anchor)
			}
		}
	}
}

// anchors are those of the headings of a page, as GitHub makes them.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	for _, h := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		slug := regexp.MustCompile(`[^\p{L}\p{N}_ -]`).ReplaceAllString(strings.ToLower(h[1]), "")
		all[strings.ReplaceAll(slug, " ", "-")] = true
	}
	return all
}

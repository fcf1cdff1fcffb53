package main

import (
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/html"
)

const repository = "../.."

var once = sync.OnceValues(func() (map[string][]byte, error) { return build(repository) })

// built is a folder with the site.
func built(t *testing.T) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "site")
	if err := write(repository, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// pagesOf are the paths of all pages that are not sources.
func pagesOf(t *testing.T) []string {
	t.Helper()
	files, err := once()
	if err != nil {
		t.Fatal(err)
	}
	var pages []string
	for name := range files {
		if path.Ext(name) == ".html" && !strings.HasPrefix(name, "source/") {
			pages = append(pages, name)
		}
	}
	slices.Sort(pages)
	return pages
}

// document is what links of a page name, and what links may name in it.
type document struct {
	ids   map[string]int
	links []string
}

func parsed(t *testing.T, content []byte) document {
	t.Helper()
	root, err := html.Parse(strings.NewReader(string(content)))
	if err != nil {
		t.Fatal(err)
	}
	d := document{ids: map[string]int{}}
	for n := range root.Descendants() {
		for _, a := range n.Attr {
			switch {
			case a.Key == "id", a.Key == "name" && n.Data == "a":
				d.ids[a.Val]++
			case a.Key == "href", a.Key == "src":
				d.links = append(d.links, a.Val)
			case a.Key == "srcset":
				for _, one := range strings.Split(a.Val, ",") {
					d.links = append(d.links, strings.Fields(one)[0])
				}
			}
		}
	}
	return d
}

// broken names the links of pages that lead nowhere, and the names that a page has twice.
func broken(t *testing.T, files map[string][]byte) []string {
	documents := map[string]document{}
	for name, content := range files {
		if path.Ext(name) == ".html" {
			documents[name] = parsed(t, content)
		}
	}
	var found []string
	for name, d := range documents {
		for id, n := range d.ids {
			if n > 1 {
				found = append(found, fmt.Sprintf("%s has the anchor %s %d times", name, id, n))
			}
		}
		for _, link := range d.links {
			u, err := url.Parse(link)
			if err != nil {
				found = append(found, fmt.Sprintf("%s: link %s: %v", name, link, err))
				continue
			}
			if u.Scheme != "" || u.Host != "" {
				if u.Scheme != "https" && u.Scheme != "http" && u.Scheme != "mailto" || u.Scheme != "mailto" && !strings.Contains(u.Host, ".") && !strings.HasPrefix(u.Host, "localhost") {
					found = append(found, fmt.Sprintf("%s: link %s is no address of the web", name, link))
				}
				continue
			}
			target := name
			if u.Path != "" {
				target = path.Join(path.Dir(name), u.Path)
			}
			if _, ok := files[target]; !ok {
				found = append(found, fmt.Sprintf("%s: link %s: the site has no %s", name, link, target))
			} else if u.Fragment != "" && documents[target].ids[u.Fragment] == 0 {
				found = append(found, fmt.Sprintf("%s: link %s: %s has no such heading", name, link, target))
			}
		}
	}
	slices.Sort(found)
	return found
}

func TestLinks(t *testing.T) {
	files, err := once()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range broken(t, files) {
		t.Error(line)
	}
}

// The check sees what it is there for.
func TestLinksAreChecked(t *testing.T) {
	files := map[string][]byte{
		"index.html": []byte(`<h1 id=a>A</h1><p id=a><a href="docs/b.html#b">fine</a><a href="#none">x</a><a href="docs/none.html">x</a>
			<a href="docs/b.html#none">x</a><a href="https://localhost">x</a><a href="ftp://x.org">x</a><picture><source srcset="none.svg"><img src="docs/b.html"></picture>`),
		"docs/b.html": []byte(`<h2 id=b>B</h2><a href="../index.html#a">fine</a>`),
	}
	want := []string{
		"index.html has the anchor a 2 times",
		"index.html: link #none: index.html has no such heading",
		"index.html: link docs/b.html#none: docs/b.html has no such heading",
		"index.html: link docs/none.html: the site has no docs/none.html",
		"index.html: link ftp://x.org is no address of the web",
		"index.html: link none.svg: the site has no none.svg",
	}
	if got := broken(t, files); !slices.Equal(got, want) {
		t.Errorf("broken links are\n%s", strings.Join(got, "\n"))
	}
}

// Headings have the anchors that GitHub gives them.
func TestAnchors(t *testing.T) {
	taken := map[string]int{}
	for _, c := range []struct{ heading, want string }{
		{"Memory, trimming, dead letters", "memory-trimming-dead-letters"},
		{"In a transaction of database/sql, GORM, ent or sqlx", "in-a-transaction-of-databasesql-gorm-ent-or-sqlx"},
		{"`leasegen -check ./...` in CI", "leasegen--check--in-ci"},
		{"What is `on_unknown`?", "what-is-on_unknown"},
		{"Grün & Äpfel — 100 %", "grün--äpfel--100-"},
		{"Fixed", "fixed"}, {"Fixed", "fixed-1"}, {"Fixed 1", "fixed-1-1"}, {"Fixed", "fixed-2"},
	} {
		heading := strings.ReplaceAll(c.heading, "`", "")
		if got := anchor(heading, taken); got != c.want {
			t.Errorf("%q has the anchor %q, not %q", c.heading, got, c.want)
		}
	}
}

// A page that the index lacks, one that it has twice, and a link to a missing file are errors with their names.
func TestWhatIsMissing(t *testing.T) {
	root := t.TempDir()
	for name, content := range map[string]string{
		"README.md": "# Home\n\n[gone](docs/gone.md), [code](cmd/main.go#L1), [folder](cmd), [away](../away.md)", "CHANGELOG.md": "# C", "CONTRIBUTING.md": "# C",
		"SECURITY.md": "# S", "docs/new.md": "# New", "docs/README.md": "# D\n\n## All\n\n[Home](../README.md) [C](../CHANGELOG.md) [C](../CONTRIBUTING.md) [S](../SECURITY.md) [S](../SECURITY.md)",
		"cmd/main.go": "package main", "runtime/leaseweb/assets/icon.svg": "<svg/>",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	files, err := build(root)
	want := []string{
		"site SECURITY.md: docs/README.md lists this page 2 times; keep one link",
		"site docs/new.md: docs/README.md does not list this page; add a link to it where readers should meet it",
		"site README.md: link docs/gone.md: the repository has no file docs/gone.md; correct the link",
		"site README.md: link ../away.md: the repository has no file ../away.md; correct the link",
	}
	if fmt.Sprint(err) != strings.Join(want, "\n") {
		t.Errorf("the errors are\n%v", err)
	}
	for _, name := range []string{"index.html", "docs/index.html", "source/cmd.html", "source/cmd/main.go.html"} {
		if _, ok := files[name]; !ok {
			t.Errorf("the site has no %s", name)
		}
	}
}

// Every section is found by the search, once, and no page is empty.
func TestSections(t *testing.T) {
	files, err := once()
	if err != nil {
		t.Fatal(err)
	}
	sections := string(files["sections.js"])
	err = fs.WalkDir(os.DirFS(repository), "docs", func(name string, d fs.DirEntry, err error) error {
		if base, ok := strings.CutSuffix(name, ".md"); ok && name != index && !strings.Contains(sections, `"`+base+".html#") {
			t.Errorf("the search lacks %s", name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

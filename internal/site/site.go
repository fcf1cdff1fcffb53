package main

import (
	"bytes"
	"cmp"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed assets
var assets embed.FS

var layout = template.Must(template.ParseFS(assets, "assets/page.html"))

// index is the page that lists all others, in the order of the site.
const index = "docs/README.md"

// page is a Markdown file, or a file of the repository that one links to.
type page struct {
	source string // its path in the repository
	Path   string // its path in the site
	Title  string
	Label  string // what the index calls it; empty for a page that it lacks
	Body   template.HTML
	Parts  []part
}

// part is a heading with what stands below it, up to the next.
type part struct {
	ID, Heading, Text string
	Level             int
}

type group struct {
	Title string
	Pages []*page
}

// site is what is being built.
type site struct {
	root   string
	pages  map[string]*page // by source
	queue  []*page          // not rendered yet
	groups []group
	order  []*page // of the groups, one after the other
	errs   []error
}

// build returns the files of the site by their paths. Its error names every page that the index lacks or repeats, and
// every link to a file that does not exist.
func build(root string) (map[string][]byte, error) {
	s := &site{root: root, pages: map[string]*page{}}
	files := map[string][]byte{
		"style.css": append(s.read(assets.ReadFile("assets/style.css")), colours()...),
		"script.js": s.read(assets.ReadFile("assets/script.js")),
		"icon.svg":  s.read(os.ReadFile(filepath.Join(root, "runtime/leaseweb/assets/icon.svg"))),
	}
	s.find(files)
	for ; len(s.queue) > 0; s.queue = s.queue[1:] {
		s.render(s.queue[0])
	}
	for _, p := range s.pages {
		files[p.Path] = s.html(p)
	}
	files["sections.js"] = s.sections()
	return files, errors.Join(s.errs...)
}

func (s *site) fail(source, format string, args ...any) {
	s.errs = append(s.errs, fmt.Errorf("site %s: %s", source, fmt.Sprintf(format, args...)))
}

func (s *site) read(content []byte, err error) []byte {
	if err != nil {
		s.errs = append(s.errs, fmt.Errorf("site: %w", err))
	}
	return content
}

// add makes a page of a file, or of a folder, of the repository. Other pages link to it from then on.
func (s *site) add(source string) *page {
	if p := s.pages[source]; p != nil {
		return p
	}
	p := &page{source: source, Path: "source/" + source + ".html", Title: source}
	if base, ok := strings.CutSuffix(source, ".md"); ok {
		if path.Base(base) == "README" {
			base = path.Join(path.Dir(base), "index")
		}
		p.Path = base + ".html"
	}
	s.pages[source] = p
	s.queue = append(s.queue, p)
	return p
}

// find adds the pages, and the pictures to the files. The index has to have each page, once.
func (s *site) find(files map[string][]byte) {
	all := []string{}
	for _, name := range []string{"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"} {
		all = append(all, name)
		s.add(name)
	}
	err := fs.WalkDir(os.DirFS(s.root), "docs", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case strings.HasSuffix(name, ".md"):
			s.add(name)
			all = append(all, name)
		case !d.IsDir() && strings.HasPrefix(name, "docs/images/"):
			files[name] = s.read(os.ReadFile(filepath.Join(s.root, name)))
		}
		return nil
	})
	if err != nil {
		s.fail("docs", "%v", err)
	}
	s.groups = s.listed()
	listed := map[string]int{}
	for _, g := range s.groups {
		s.order = append(s.order, g.Pages...)
		for _, p := range g.Pages {
			listed[p.source]++
		}
	}
	for _, name := range all {
		switch n := listed[name]; {
		case name == index:
		case n == 0:
			s.fail(name, "%s does not list this page; add a link to it where readers should meet it", index)
		case n > 1:
			s.fail(name, "%s lists this page %d times; keep one link", index, n)
		}
	}
}

// html puts a page into the layout.
func (s *site) html(p *page) []byte {
	data := struct {
		*page
		Root       string
		Groups     []group
		Prev, Next *page
	}{page: p, Root: strings.Repeat("../", strings.Count(p.Path, "/")), Groups: s.groups}
	if at := slices.Index(s.order, p); at >= 0 {
		if at > 0 {
			data.Prev = s.order[at-1]
		}
		if at+1 < len(s.order) {
			data.Next = s.order[at+1]
		}
	}
	var out bytes.Buffer
	if err := layout.Execute(&out, data); err != nil {
		s.fail(p.source, "%v", err)
	}
	return out.Bytes()
}

// sections is what the search looks through, as a script: a browser reads no other file beside a page on a disk.
func (s *site) sections() []byte {
	type section struct {
		Page    string `json:"page"`
		Heading string `json:"heading"`
		URL     string `json:"url"`
		Text    string `json:"text"`
	}
	var all []section
	for _, p := range s.order {
		for _, part := range p.Parts {
			all = append(all, section{cmp.Or(p.Label, p.Title), part.Heading, p.Path + "#" + part.ID, part.Text})
		}
	}
	return slices.Concat([]byte("sections = "), s.read(json.Marshal(all)), []byte(";\n"))
}

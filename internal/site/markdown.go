package main

import (
	"bytes"
	"fmt"
	"html/template"
	"io"
	"maps"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/alecthomas/chroma/v2"
	chromahtml "github.com/alecthomas/chroma/v2/formatters/html"
	"github.com/alecthomas/chroma/v2/lexers"
	"github.com/alecthomas/chroma/v2/styles"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/renderer"
	"github.com/yuin/goldmark/renderer/html"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"
)

var markdown = goldmark.New(goldmark.WithExtensions(extension.GFM), goldmark.WithRendererOptions(
	html.WithUnsafe(), renderer.WithNodeRenderers(util.Prioritized(code{}, 100))))

// listed returns what the index lists: links below headings.
func (s *site) listed() []group {
	source := s.read(os.ReadFile(filepath.Join(s.root, index)))
	groups := []group{{}}
	doc := markdown.Parser().Parse(text.NewReader(source))
	_ = ast.Walk(doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		switch n := n.(type) {
		case *ast.Heading:
			if entering && n.Level > 1 {
				groups = append(groups, group{Title: plain(n, source)})
			}
		case *ast.Link:
			if p := s.pages[path.Join(path.Dir(index), string(n.Destination))]; entering && p != nil {
				p.Label = plain(n, source)
				g := &groups[len(groups)-1]
				g.Pages = append(g.Pages, p)
			}
		}
		return ast.WalkContinue, nil
	})
	return groups
}

// render makes the body of a page.
func (s *site) render(p *page) {
	info, err := os.Stat(filepath.Join(s.root, p.source))
	if err == nil && info.IsDir() {
		s.folder(p)
		return
	}
	source := s.read(os.ReadFile(filepath.Join(s.root, p.source)))
	var out bytes.Buffer
	if !strings.HasSuffix(p.source, ".md") {
		coloured(&out, lexers.Match(path.Base(p.source)), source)
		p.Body = template.HTML("<h1>" + template.HTMLEscapeString(p.Title) + "</h1>\n" + out.String())
		return
	}
	doc := markdown.Parser().Parse(text.NewReader(source))
	_ = ast.Walk(doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		switch n := n.(type) {
		case *ast.Link:
			if entering {
				n.Destination = s.link(p, n.Destination)
			}
		case *ast.Image:
			if entering {
				n.SetAttributeString("loading", []byte("lazy"))
			}
		}
		return ast.WalkContinue, nil
	})
	p.Parts = parts(doc, source)
	if len(p.Parts) > 0 {
		p.Title = p.Parts[0].Heading
	}
	if err := markdown.Renderer().Render(&out, source, doc); err != nil {
		s.fail(p.source, "%v", err)
	}
	// A keyboard can scroll what has the focus.
	scrolls := strings.NewReplacer("<table>", `<div class="table" tabindex="0"><table>`, "</table>", "</table></div>",
		`<pre class="chroma">`, `<pre class="chroma" tabindex="0">`)
	p.Body = template.HTML(scrolls.Replace(out.String()))
}

// folder lists files, for a link to their folder.
func (s *site) folder(p *page) {
	entries, err := os.ReadDir(filepath.Join(s.root, p.source))
	if err != nil {
		s.fail(p.source, "%v", err)
	}
	var out strings.Builder
	fmt.Fprintf(&out, "<h1>%s</h1>\n<ul>\n", template.HTMLEscapeString(p.Title))
	for _, e := range entries {
		name := template.HTMLEscapeString(e.Name())
		if e.Type().IsRegular() {
			name = fmt.Sprintf(`<a href="%s">%s</a>`, s.link(p, []byte("/"+p.source+"/"+e.Name())), name)
		}
		fmt.Fprintf(&out, "<li>%s</li>\n", name)
	}
	p.Body = template.HTML(out.String() + "</ul>\n")
}

// link is where a link of a page leads in the site: to the page of the file that it names.
func (s *site) link(p *page, to []byte) []byte {
	u, err := url.Parse(string(to))
	switch {
	case err != nil:
		s.fail(p.source, "link %s: %v", to, err)
		return to
	case u.Scheme != "" || u.Path == "":
		return to
	}
	target := path.Join(path.Dir(p.source), u.Path)
	if strings.HasPrefix(u.Path, "/") {
		target = path.Clean(u.Path[1:])
	}
	if _, err := os.Stat(filepath.Join(s.root, target)); err != nil || !filepath.IsLocal(target) {
		s.fail(p.source, "link %s: the repository has no file %s; correct the link", to, target)
		return to
	}
	if strings.HasPrefix(target, "docs/images/") {
		return to
	}
	rel, err := filepath.Rel(path.Dir(p.Path), s.add(target).Path)
	u.Path = filepath.ToSlash(rel)
	return s.read([]byte(u.String()), err)
}

// parts gives each heading its anchor, and returns what the page says below each.
func parts(doc ast.Node, source []byte) []part {
	var parts []part
	ids := map[string]int{}
	for n := doc.FirstChild(); n != nil; n = n.NextSibling() {
		h, ok := n.(*ast.Heading)
		if !ok {
			if len(parts) > 0 {
				parts[len(parts)-1].Text += plain(n, source) + " "
			}
			continue
		}
		heading := plain(h, source)
		id := anchor(heading, ids)
		parts = append(parts, part{ID: id, Heading: heading, Level: h.Level})
		h.SetAttributeString("id", []byte(id))
		if h.Level > 1 {
			a := ast.NewLink()
			a.Destination = []byte("#" + id)
			a.SetAttributeString("class", []byte("anchor"))
			a.SetAttributeString("title", []byte("Link to this section"))
			a.AppendChild(a, ast.NewString([]byte("#")))
			h.AppendChild(h, a)
		}
	}
	return parts
}

// anchor is the name that GitHub gives a heading on a page that has others already.
func anchor(heading string, taken map[string]int) string {
	id := strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r) || unicode.IsMark(r):
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
	name := id
	for n, again := taken[name]; again; _, again = taken[name] {
		n++
		taken[id], name = n, fmt.Sprintf("%s-%d", id, n)
	}
	taken[name] = 0
	return name
}

// plain is the text of a node, without marks.
func plain(n ast.Node, source []byte) string {
	var out strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			if n.Type() == ast.TypeBlock {
				out.WriteByte(' ')
			}
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Text:
			out.Write(n.Value(source))
			if n.SoftLineBreak() || n.HardLineBreak() {
				out.WriteByte(' ')
			}
		case *ast.String:
			out.Write(n.Value)
		case *ast.AutoLink:
			out.Write(n.Label(source))
		case *ast.FencedCodeBlock, *ast.CodeBlock:
			out.Write(n.Lines().Value(source))
		}
		return ast.WalkContinue, nil
	})
	return strings.Join(strings.Fields(out.String()), " ")
}

// code renders blocks of code with the classes of their tokens.
type code struct{}

func (c code) RegisterFuncs(r renderer.NodeRendererFuncRegisterer) {
	r.Register(ast.KindFencedCodeBlock, c.block)
	r.Register(ast.KindCodeBlock, c.block)
}

func (code) block(w util.BufWriter, source []byte, n ast.Node, entering bool) (ast.WalkStatus, error) {
	if !entering {
		return ast.WalkContinue, nil
	}
	var lexer chroma.Lexer
	if fenced, ok := n.(*ast.FencedCodeBlock); ok {
		lexer = lexers.Get(string(fenced.Language(source)))
	}
	coloured(w, lexer, n.Lines().Value(source))
	return ast.WalkContinue, nil
}

// The colours of code in a light and in a dark page. Both take their tokens apart in the same way.
var light, dark = styles.Get("github"), styles.Get("github-dark")

func coloured(w io.Writer, lexer chroma.Lexer, source []byte) {
	if lexer == nil {
		lexer = lexers.Fallback
	}
	tokens, err := chroma.Coalesce(lexer).Tokenise(nil, string(source))
	if err == nil {
		err = chromahtml.New(chromahtml.WithClasses(true), chromahtml.WithAllClasses(true)).Format(w, light, tokens)
	}
	if err != nil {
		fmt.Fprintf(w, "<pre>%s</pre>", template.HTMLEscapeString(string(source)))
	}
}

// colours is a rule for each token that has a colour.
func colours() []byte {
	var out bytes.Buffer
	for _, token := range slices.Sorted(maps.Keys(chroma.StandardTypes)) {
		l, d, class := light.Get(token).Colour, dark.Get(token).Colour, chroma.StandardTypes[token]
		if token > chroma.None && l.IsSet() && d.IsSet() && token != chroma.Error {
			fmt.Fprintf(&out, ".chroma .%s { color: light-dark(%s, %s); }\n", class, l, d)
		}
	}
	return out.Bytes()
}

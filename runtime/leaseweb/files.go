package leaseweb

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"sync"
	"text/template/parse"
	"time"
)

//go:embed assets pages
var embedded embed.FS

// files are what is served as it is, and the templates of pages.
type files struct {
	assets map[string]asset
	pages  map[string]*template.Template
}

type asset struct {
	content []byte
	hash    string
}

// embeddedFiles reads and parses what is embedded.
var embeddedFiles = sync.OnceValue(func() *files {
	f := &files{assets: map[string]asset{}, pages: map[string]*template.Template{}}
	each("assets", func(name string, content []byte) {
		sum := sha256.Sum256(content)
		f.assets[name] = asset{content, hex.EncodeToString(sum[:8])}
	})
	base := template.New("base").Funcs(words())
	each("pages", func(name string, content []byte) {
		if name == "base.html" {
			template.Must(base.Parse(string(content)))
		}
	})
	each("pages", func(name string, content []byte) {
		if name != "base.html" {
			t := template.Must(template.Must(base.Clone()).Parse(string(content)))
			for _, part := range t.Templates() {
				makeVisible(part.Tree.Root)
			}
			f.pages[strings.TrimSuffix(name, ".html")] = t
		}
	})
	return f
})

// makeVisible lets all values that a template writes pass through visible, but for those that it calls raw: what goes into the
// fields of forms comes back, and has to be what it was.
func makeVisible(n parse.Node) {
	branches := func(list, other *parse.ListNode) {
		makeVisible(list)
		if other != nil {
			makeVisible(other)
		}
	}
	switch n := n.(type) {
	case *parse.ListNode:
		for _, child := range n.Nodes {
			makeVisible(child)
		}
	case *parse.IfNode:
		branches(n.List, n.ElseList)
	case *parse.RangeNode:
		branches(n.List, n.ElseList)
	case *parse.WithNode:
		branches(n.List, n.ElseList)
	case *parse.ActionNode:
		if len(n.Pipe.Decl) == 0 && !strings.HasPrefix(n.Pipe.String(), "raw ") {
			call := &parse.CommandNode{NodeType: parse.NodeCommand, Pos: n.Pos, Args: []parse.Node{parse.NewIdentifier("visible").SetPos(n.Pos)}}
			n.Pipe.Cmds = append(n.Pipe.Cmds, call)
		}
	}
}

// each visits the embedded files of a folder. That they can be read was seen when the program was built.
func each(dir string, visit func(name string, content []byte)) {
	entries, err := fs.ReadDir(embedded, dir)
	for _, e := range entries {
		content, errRead := embedded.ReadFile(path.Join(dir, e.Name()))
		if errRead != nil {
			panic(errRead)
		}
		visit(e.Name(), content)
	}
	if err != nil {
		panic(err)
	}
}

// serve answers with a file. Its address has the hash of its content, so that it can be kept.
func (f *files) serve(w http.ResponseWriter, r *http.Request, name string) {
	a := f.assets[name]
	h := w.Header()
	h.Set("ETag", `"`+a.hash+`"`)
	h.Set("Cache-Control", "no-cache")
	if r.URL.RawQuery == a.hash {
		h.Set("Cache-Control", "private, max-age=31536000, immutable")
	}
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(a.content))
}

// url is the address of a file, from any page.
func (f *files) url(name string) string { return name + "?" + f.assets[name].hash }

// view is what a route shows.
type view struct {
	name     string // of the template, and of the section
	Title    string
	Consumer string // whose page it is, "" for none
	Body     any
	follow   string // query of the stream of hints; "" if the page stays as it is
	watched  bool   // it follows
	refresh  bool   // without a script it is loaded again by itself
	again    bool   // it is loaded again by itself: there was no answer
}

// frame is what the base template has of every page.
type frame struct {
	view
	May                 may
	Target, Actor       string
	Style, Script, Icon string
	Follow, Done        string
	Now, AsOf           time.Time
	Old                 string // why it is of then
	Again               bool
	Live, Refresh       bool
	Section             string
}

type may struct{ Payloads, Operate bool }

// render writes a page, whole or not at all.
func (p *Pages) render(w http.ResponseWriter, r *request, status int, v view) {
	f := frame{view: v, May: may{r.access.has(Payloads), r.access.has(Operate)}, Target: p.opts.target, Actor: p.opts.actor(r.Request), Now: r.now,
		Style: p.served.url("style.css"), Script: p.served.url("script.js"), Icon: p.served.url("icon.svg"),
		Live: v.watched, Follow: "events?" + v.follow, Refresh: v.refresh, Section: v.name, AsOf: r.asOf, Again: v.again}
	if f.AsOf.IsZero() || f.AsOf.After(r.now) {
		f.AsOf = r.now
	}
	if r.old != nil {
		f.Old = r.old.Error()
	}
	if id := r.field("done"); id != "" && r.Method == http.MethodGet {
		f.Done = p.outcomes.take(id)
	}
	var b bytes.Buffer
	if err := p.served.pages[v.name].Execute(&b, f); err != nil {
		p.opts.log.LogAttrs(r.Context(), levelWarn, "leaseweb: "+err.Error(), p.who(r.Request, v.name)...)
		http.Error(w, "the page cannot be shown; the log says why", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(b.Bytes()) // who asked may be gone
	}
}

// Command site makes a site from README.md, its neighbours and docs, as they are: titles, texts and pictures have no
// second copy here. docs/README.md gives the order. It is a program of its own, not a theme of a generator, because the
// files have to stay as GitHub shows them: without front matter, with its anchors and links between .md files. Each is
// a setting, a hook and a template of Hugo, whose version every machine brings; here go.mod pins a parser and colours.
//
// It is a module of its own, so that users of leasegen compile none of it.
package main

import (
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

func main() {
	log.SetFlags(0)
	root := flag.String("root", "../..", "`folder` of the repository")
	out := flag.String("out", "", "`folder` that the site is written to")
	serve := flag.String("serve", "", "`address` to serve the site at, such as localhost:8000; each look at a page builds it anew")
	flag.Parse()
	if (*out == "") == (*serve == "") {
		log.Fatal("site: -out and -serve exclude each other; give one of them")
	}
	if *serve != "" {
		log.Printf("http://%s", *serve)
		log.Fatal(http.ListenAndServe(*serve, live(*root)))
	}
	if err := write(*root, *out); err != nil {
		log.Fatal(err)
	}
}

// write makes the folder out anew.
func write(root, out string) error {
	began := time.Now()
	files, err := build(root)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	for name, content := range files {
		name = filepath.Join(out, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, content, 0o644); err != nil {
			return err
		}
	}
	fmt.Printf("%s: %d files in %v\n", filepath.Join(out, "index.html"), len(files), time.Since(began).Round(time.Millisecond))
	return nil
}

// live serves the files as they are now. A site that cannot be built says why.
func live(root string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		files, err := build(root)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		name := strings.TrimPrefix(r.URL.Path, "/")
		if name == "" || strings.HasSuffix(name, "/") {
			name += "index.html"
		}
		content, ok := files[name]
		if !ok {
			http.NotFound(w, r)
			return
		}
		http.ServeContent(w, r, name, time.Time{}, strings.NewReader(string(content)))
	})
}

package main

import (
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/leasegen/leasegen/internal/browser"
)

var pictures = flag.String("pictures", "", "`folder` for pictures of pages, to look at")

func TestMain(m *testing.M) {
	code := m.Run()
	browser.End()
	os.Exit(code)
}

// served is the site at an address, and a tab that shows it.
func served(t *testing.T) *browser.Tab {
	t.Helper()
	files := http.FileServer(http.Dir(built(t)))
	server := httptest.NewServer(files)
	t.Cleanup(server.Close)
	return browser.New(t, server.URL+"/")
}

// Every page fits a phone and a desktop, and axe finds no barrier in either scheme.
func TestPagesFit(t *testing.T) {
	t.Parallel()
	b := served(t)
	for _, p := range pagesOf(t) {
		b.Open(p)
		for _, look := range []struct {
			width  int
			scheme string
		}{{400, "dark"}, {1400, "light"}} {
			b.Size(look.width, look.scheme)
			b.Fits(fmt.Sprintf("%s at %d px", p, look.width))
			if p == "index.html" || p == "docs/directives.html" || p == "docs/from/river.html" {
				b.Accessible(fmt.Sprintf("%s at %d px in %s colours", p, look.width, look.scheme))
			}
		}
	}
}

func TestSearch(t *testing.T) {
	for _, from := range []string{"a server", "files"} {
		t.Run(from, func(t *testing.T) {
			b := served(t)
			if from == "files" {
				b.Base = "file://" + filepath.ToSlash(built(t)) + "/"
			}
			b.Open("docs/from/river.html")
			b.Press("/")
			if at := browser.Eval[string](b, "document.activeElement.type"); at != "search" {
				t.Fatalf("/ leads to %q", at)
			}
			b.Do(chromedp.KeyEvent("unknown_wait"))
			b.Until(func() bool {
				return browser.Eval[int](b, "document.querySelectorAll('#site-found [role=option]').length") > 0
			}, "something is found")
			marks := browser.Eval[string](b, "document.querySelector('#site-found mark').textContent")
			if marks != "unknown_wait" {
				t.Errorf("the search marks %q", marks)
			}
			b.Goes(chromedp.KeyEvent(kb.Enter), "the first section found")
			if url := b.URL(); !strings.HasPrefix(url, b.Base+"docs/") || !strings.Contains(url, "#") {
				t.Errorf("the section found is at %s", url)
			}
			b.Sees("unknown_wait")

			b.Press("/")
			b.Do(chromedp.KeyEvent("<b>qqxzz"))
			b.Sees("No section has all these words.")
			b.Do(chromedp.KeyEvent(kb.Escape))
			b.Lacks("No section has all these words.")
		})
	}
}

// Headings count more than text, and all words have to be there.
func TestSearchOrder(t *testing.T) {
	t.Parallel()
	b := served(t)
	b.Open("index.html")
	b.Press("/")
	b.Do(chromedp.KeyEvent("dead letters"))
	first := ""
	b.Until(func() bool {
		first = browser.Eval[string](b, "document.querySelector('#site-found strong')?.textContent ?? ''")
		return first != ""
	}, "something is found")
	if !strings.Contains(strings.ToLower(first), "dead letters") {
		t.Errorf("the first section found is %q", first)
	}
	lacking := browser.Eval[[]string](b, `sections.filter((s) => [...document.querySelectorAll('#site-found a')].some((a) => a.href.endsWith(s.url)))
		.map((s) => [s.page, s.heading, s.text].join(' ').toLowerCase()).filter((s) => !s.includes('dead') || !s.includes('letters'))`)
	if len(lacking) > 0 {
		t.Errorf("sections found lack a word: %q", lacking)
	}
}

// The system decides on the colours until the reader does; pictures follow the reader, too.
func TestSchemes(t *testing.T) {
	t.Parallel()
	b := served(t)
	ground := func() string { return browser.Eval[string](b, "getComputedStyle(document.body).backgroundColor") }
	const white, black = "rgb(255, 255, 255)", "rgb(19, 20, 23)"
	wants := func(want, when string) {
		t.Helper()
		if got := ground(); got != want {
			t.Errorf("%s: the page is %s, not %s", when, got, want)
		}
	}
	b.Open("index.html")
	wants(white, "light system")
	b.Size(1400, "dark")
	wants(black, "dark system")
	b.Do(chromedp.Click(`//*[@id="site-scheme"]`))
	wants(white, "the reader chose light")
	b.Open("docs/once.html")
	wants(white, "the next page")
	b.Do(chromedp.Click(`//*[@id="site-scheme"]`))
	wants(black, "the reader chose dark")

	b.Scripts(false)
	b.Open("docs/once.html")
	wants(black, "without scripts, dark system")
	b.Size(1400, "light")
	wants(white, "without scripts, light system")
}

// Pages, parts and neighbours are reached on a phone without scripts.
func TestNavigation(t *testing.T) {
	t.Parallel()
	b := served(t)
	b.Scripts(false)
	b.Size(400, "light")
	b.Open("index.html")
	b.Lacks("Changelog\n")
	b.Do(chromedp.Click(browser.Named("Pages")))
	b.Sees("Changelog")
	b.Follow("Operate")
	if !strings.HasSuffix(b.URL(), "docs/operating.html") {
		t.Errorf("Operate is at %s", b.URL())
	}
	b.Do(chromedp.Click(browser.Named("On this page")))
	b.Sees("On this page")
	first := browser.Eval[string](b, "document.querySelector('#site-parts a').textContent")
	b.Do(chromedp.Click(`//*[@id="site-parts"]//a`))
	b.Until(func() bool { return strings.Contains(b.URL(), "#") }, "the address names the part "+first)
	b.Do(chromedp.KeyEvent(kb.Escape)) // only a script closes the list by itself
	before := strings.Split(b.URL(), "#")[0]
	b.Goes(chromedp.Click(`//a[@rel="next"]`), "the next page")
	b.Goes(chromedp.Click(`//a[@rel="prev"]`), "the page before")
	if b.URL() != before {
		t.Errorf("next and previous lead from %s to %s", before, b.URL())
	}
}

func TestPictures(t *testing.T) {
	if *pictures == "" {
		t.Skip("no folder is given by -pictures")
	}
	b := served(t)
	shoot := func(name string) {
		if err := os.WriteFile(filepath.Join(*pictures, name+".png"), b.Picture(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, width := range []int{1400, 400} {
		for _, scheme := range []string{"light", "dark"} {
			b.Size(width, scheme)
			for _, p := range []string{"index.html", "docs/operating.html", "docs/directives.html"} {
				b.Open(p)
				name := fmt.Sprintf("%s-%d-%s", strings.ReplaceAll(strings.TrimSuffix(p, ".html"), "/", "-"), width, scheme)
				shoot(name)
			}
			b.Open("docs/operating.html")
			b.Press("/")
			b.Do(chromedp.KeyEvent("dead letters"))
			b.Until(func() bool {
				return browser.Eval[int](b, "document.querySelectorAll('#site-found [role=option]').length") > 0
			}, "something is found")
			shoot(fmt.Sprintf("search-%d-%s", width, scheme))
			if width == 400 {
				b.Open("docs/operating.html")
				b.Do(chromedp.Click(browser.Named("Pages")))
				shoot("pages-400-" + scheme)
				b.Open("docs/operating.html")
				b.Do(chromedp.Click(browser.Named("On this page")))
				shoot("parts-400-" + scheme)
			}
		}
	}
}

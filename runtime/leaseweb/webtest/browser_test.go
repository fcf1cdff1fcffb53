// Package webtest drives the pages of leaseweb in a real browser. It is a module of its own, so that users of leaseweb
// compile no driver of browsers. It needs Chromium (on Debian the package chromium), PostgreSQL and Redis.
//
// testdata/axe.min.js is axe-core 4.14.1 of Deque Systems, as published, under the Mozilla Public License 2.0, which is
// beside it. It is read by these tests alone.
package webtest

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

//go:embed testdata/axe.min.js
var axe string

// patience is how long a page may take, on a machine that does other things, too.
const patience = 30 * time.Second

// started starts the browser that all tests share.
var started = sync.OnceValues(func() (context.Context, error) {
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-lcd-text", true), chromedp.Flag("font-render-hinting", "none"))
	if path := os.Getenv("LEASEGEN_CHROMIUM"); path != "" {
		options = append(options, chromedp.ExecPath(path))
	}
	allocator, end := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, _ := chromedp.NewContext(allocator)
	endBrowser = end
	return ctx, chromedp.Do(ctx)
})

var endBrowser = func() {}

// tab is a page in a browser without cookies and history. A message on the console fails the test at its end.
type tab struct {
	*testing.T
	ctx  context.Context
	base string

	mu      sync.Mutex
	console []string
}

func newTab(t *testing.T, base string) *tab {
	t.Helper()
	browser, err := started()
	if err != nil {
		t.Fatalf("start Chromium: %v; install it (on Debian: apt-get install chromium), or name it by LEASEGEN_CHROMIUM", err)
	}
	b := &tab{T: t, base: base}
	ctx, cancel := chromedp.NewContext(browser, chromedp.WithNewBrowserContext(), chromedp.WithListener(b.listen))
	t.Cleanup(cancel)
	b.ctx = ctx
	if err := chromedp.Do(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, line := range b.said() {
			t.Errorf("the console says: %s", line)
		}
	})
	b.size(1400, "light")
	return b
}

func (b *tab) listen(event any) {
	line := ""
	switch e := event.(type) {
	case *log.EventEntryAdded:
		line = fmt.Sprintf("%s %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL)
	case *runtime.EventExceptionThrown:
		line = "exception " + e.ExceptionDetails.Text
	case *runtime.EventConsoleAPICalled:
		line = fmt.Sprintf("console.%s", e.Type)
	}
	if line != "" {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.console = append(b.console, line)
	}
}

// said returns what the console has said, and forgets it.
func (b *tab) said() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	lines := b.console
	b.console = nil
	return lines
}

func (b *tab) within() (context.Context, context.CancelFunc) {
	return context.WithTimeout(b.ctx, patience)
}

func (b *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	ctx, cancel := b.within()
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.Fatal(err)
	}
}

// size sets the width of the window, and which colours the user prefers.
func (b *tab) size(width int, scheme string) {
	b.Helper()
	b.do(chromedp.EmulateViewport(int64(width), 900))
	if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}); err != nil {
		b.Fatal(err)
	}
}

// scripts turns them on and off for pages that are opened from now on.
func (b *tab) scripts(on bool) {
	b.Helper()
	if _, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: !on}); err != nil {
		b.Fatal(err)
	}
}

func (b *tab) open(path string) {
	b.Helper()
	b.do(chromedp.Navigate(b.base + path))
}

// eval returns what a script says of the page.
func eval[T any](b *tab, script string) T {
	b.Helper()
	ctx, cancel := b.within()
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
	if err != nil {
		b.Fatalf("%s: %v", script, err)
	}
	return v
}

// named finds a link or button by its whole text.
func named(text string) string {
	return fmt.Sprintf(`//*[self::a or self::button][normalize-space(.)=%q]`, text)
}

// follow clicks a link or button, and waits for the page that it leads to.
func (b *tab) follow(text string) {
	b.Helper()
	b.goes(chromedp.Click(named(text)), text)
}

func (b *tab) goes(by chromedp.Action[chromedp.Void], what string) {
	b.Helper()
	ctx, cancel := b.within()
	defer cancel()
	if _, err := chromedp.RunResponse(ctx, by); err != nil {
		b.Fatalf("%s: %v, on this page:\n%s", what, err, b.text())
	}
}

func (b *tab) text() string { b.Helper(); return eval[string](b, "document.body.innerText") }

func (b *tab) url() string { b.Helper(); return eval[string](b, "location.href") }

// sees waits until the page has a text.
func (b *tab) sees(text string) {
	b.Helper()
	b.until(func() bool { return strings.Contains(b.text(), text) }, "the page says "+text)
}

func (b *tab) until(done func() bool, what string) {
	b.Helper()
	for deadline := time.Now().Add(patience); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.Fatalf("waited in vain until %s; %s has:\n%s", what, b.url(), b.text())
		}
	}
}

// lacks fails the test if the page has a text.
func (b *tab) lacks(text string) {
	b.Helper()
	if has := b.text(); strings.Contains(has, text) {
		b.Errorf("the page says %q:\n%s", text, has)
	}
}

// fits fails the test by a page that is wider than the window.
func (b *tab) fits(what string) {
	b.Helper()
	if wide := eval[bool](b, "document.documentElement.scrollWidth > innerWidth"); wide {
		b.Errorf("%s: the page is wider than its window", what)
	}
}

// accessible fails the test by what axe finds serious.
func (b *tab) accessible(what string) {
	b.Helper()
	before := b.said()
	b.do(chromedp.Evaluate[chromedp.Void](axe))
	found := eval[[]struct {
		ID, Impact, Help string
		Nodes            []struct{ HTML, FailureSummary string }
	}](b, "axe.run(document, {resultTypes: ['violations']}).then(r => r.violations)")
	b.said() // what axe itself caused
	b.mu.Lock()
	b.console = append(b.console, before...)
	b.mu.Unlock()
	for _, v := range found {
		if v.Impact == "serious" || v.Impact == "critical" {
			b.Errorf("%s: %s (%s): %s\n%s\n%s", what, v.ID, v.Impact, v.Help, v.Nodes[0].HTML, v.Nodes[0].FailureSummary)
		}
	}
}

// Package browser drives pages in a real browser, for tests. It is a module of its own, so that users of leasegen compile
// no driver of browsers. It needs Chromium (on Debian the package chromium).
//
// testdata/axe.min.js is axe-core 4.14.1 of Deque Systems, as published, under the Mozilla Public License 2.0, which is
// beside it. It is read by tests alone.
package browser

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

//go:embed testdata/axe.min.js
var axe string

// Patience is how long a page may take, on a machine that does other things, too.
const Patience = 30 * time.Second

// process is the browser that all tests of a process share.
type process struct {
	start sync.Once
	ctx   context.Context
	end   context.CancelFunc
	err   error
}

var shared process

func (p *process) started() (context.Context, error) {
	p.start.Do(func() {
		options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.DisableGPU, chromedp.WSURLReadTimeout(4*Patience),
			chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-lcd-text", true), chromedp.Flag("font-render-hinting", "none"))
		if path := os.Getenv("LEASEGEN_CHROMIUM"); path != "" {
			options = append(options, chromedp.ExecPath(path))
		}
		var allocator context.Context
		allocator, p.end = chromedp.NewExecAllocator(context.Background(), options...)
		p.ctx, _ = chromedp.NewContext(allocator)
		p.err = chromedp.Do(p.ctx)
	})
	return p.ctx, p.err
}

// End ends the browser, if a test started it. TestMain calls it after all tests.
func End() {
	if shared.end != nil {
		shared.end()
	}
}

// Tab is a page in a browser without cookies and history. A message on the console fails the test at its end.
type Tab struct {
	*testing.T
	Base string // what the paths of pages follow
	ctx  context.Context

	mu      sync.Mutex
	console []string
}

// New opens a tab as wide as that of a desktop, in light colours.
func New(t *testing.T, base string) *Tab {
	t.Helper()
	browser, err := shared.started()
	if err != nil {
		t.Fatalf("start Chromium: %v; install it (on Debian: apt-get install chromium), or name it by LEASEGEN_CHROMIUM", err)
	}
	b := &Tab{T: t, Base: base}
	ctx, cancel := chromedp.NewContext(browser, chromedp.WithNewBrowserContext(), chromedp.WithListener(b.listen))
	t.Cleanup(cancel)
	b.ctx = ctx
	if err := chromedp.Do(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, line := range b.Said() {
			t.Errorf("the console says: %s", line)
		}
	})
	b.Size(1400, "light")
	return b
}

func (b *Tab) listen(event any) {
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

// Said returns what the console has said, and forgets it.
func (b *Tab) Said() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	lines := b.console
	b.console = nil
	return lines
}

func (b *Tab) within() (context.Context, context.CancelFunc) {
	return context.WithTimeout(b.ctx, Patience)
}

// Do runs actions, for as long as a page may take.
func (b *Tab) Do(actions ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	ctx, cancel := b.within()
	defer cancel()
	for _, action := range actions {
		if err := replaced(ctx, func() error { return chromedp.Do(ctx, action) }); err != nil {
			b.Fatal(err)
		}
	}
}

// replaced runs an action, and again where the page, which keeps itself up to date, replaced the element after it was found and before it
// was used. The browser tells that from others by words alone: an action under which the page has gone is done, and has the same code.
func replaced(ctx context.Context, action func() error) error {
	var before error
	for {
		err := action()
		gone, is := errors.AsType[*cdproto.Error](err)
		switch {
		case ctx.Err() != nil:
			return errors.Join(err, before)
		case !is || !strings.Contains(strings.ToLower(gone.Message), "node") && !strings.HasPrefix(gone.Message, "Could not compute"):
			return err
		}
		before = err
	}
}

// Size sets the width of the window, and which colours the user prefers.
func (b *Tab) Size(width int, scheme string) {
	b.Helper()
	b.Do(chromedp.EmulateViewport(int64(width), 900))
	if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}); err != nil {
		b.Fatal(err)
	}
}

// Scripts turns them on and off for pages that are opened from now on.
func (b *Tab) Scripts(on bool) {
	b.Helper()
	if _, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: !on}); err != nil {
		b.Fatal(err)
	}
}

// Open opens a page by its path.
func (b *Tab) Open(path string) {
	b.Helper()
	b.Do(chromedp.Navigate(b.Base + path))
}

// Picture is what the window shows, as PNG.
func (b *Tab) Picture() []byte {
	b.Helper()
	ctx, cancel := b.within()
	defer cancel()
	png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err != nil {
		b.Fatal(err)
	}
	return png
}

// Press presses a key that types a character, as a person does: a page that takes it keeps it out of its fields.
func (b *Tab) Press(key string) {
	b.Helper()
	ctx, cancel := b.within()
	defer cancel()
	for _, event := range []input.DispatchKeyEventParams{
		{Type: input.DispatchKeyEventTypeKeyDown, Key: key, Text: key}, {Type: input.DispatchKeyEventTypeKeyUp, Key: key}} {
		if _, err := chromedp.Call(ctx, input.DispatchKeyEvent, event); err != nil {
			b.Fatal(err)
		}
	}
}

// Hold presses the mouse on an element, and returns how to let it go.
func (b *Tab) Hold(selector string) (release func()) {
	b.Helper()
	at := Eval[struct{ X, Y float64 }](b, fmt.Sprintf(`(() => {
		const e = document.querySelector(%q);
		e.scrollIntoView({ block: "center" });
		const r = e.getBoundingClientRect();
		return { X: r.x + r.width / 2, Y: r.y + r.height / 2 };
	})()`, selector))
	mouse := func(kind input.DispatchMouseEventType) {
		b.Helper()
		ctx, cancel := b.within()
		defer cancel()
		if _, err := chromedp.Call(ctx, input.DispatchMouseEvent, input.DispatchMouseEventParams{Type: kind, X: at.X, Y: at.Y, Button: input.MouseButtonLeft, ClickCount: 1}); err != nil {
			b.Fatal(err)
		}
	}
	mouse(input.DispatchMouseEventTypeMousePressed)
	return func() { mouse(input.DispatchMouseEventTypeMouseReleased) }
}

// Eval returns what a script says of the page.
func Eval[T any](b *Tab, script string) T {
	b.Helper()
	ctx, cancel := b.within()
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
	if err != nil {
		b.Fatalf("%s: %v", script, err)
	}
	return v
}

// Named finds a link or button by its whole text.
func Named(text string) string {
	return fmt.Sprintf(`//*[self::a or self::button][normalize-space(.)=%q]`, text)
}

// Follow clicks a link or button, and waits for the page that it leads to.
func (b *Tab) Follow(text string) {
	b.Helper()
	b.Goes(chromedp.Click(Named(text)), text)
}

// Goes waits for the page that an action leads to.
func (b *Tab) Goes(by chromedp.Action[chromedp.Void], what string) {
	b.Helper()
	ctx, cancel := b.within()
	defer cancel()
	follow := func() error { _, err := chromedp.RunResponse(ctx, by); return err }
	if err := replaced(ctx, follow); err != nil {
		b.Fatalf("%s: %v, on this page:\n%s", what, err, b.Text())
	}
}

// Text is what the page shows.
func (b *Tab) Text() string { b.Helper(); return Eval[string](b, "document.body.innerText") }

// URL is the address of the page.
func (b *Tab) URL() string { b.Helper(); return Eval[string](b, "location.href") }

// Sees waits until the page has a text.
func (b *Tab) Sees(text string) {
	b.Helper()
	b.Until(func() bool { return strings.Contains(b.Text(), text) }, "the page says "+text)
}

// Until waits for a condition, with a limit.
func (b *Tab) Until(done func() bool, what string) {
	b.Helper()
	for deadline := time.Now().Add(Patience); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.Fatalf("waited in vain until %s; %s has:\n%s", what, b.URL(), b.Text())
		}
	}
}

// Lacks fails the test if the page has a text.
func (b *Tab) Lacks(text string) {
	b.Helper()
	if has := b.Text(); strings.Contains(has, text) {
		b.Errorf("the page says %q:\n%s", text, has)
	}
}

// Fits fails the test by a page that is wider than the window.
func (b *Tab) Fits(what string) {
	b.Helper()
	if wide := Eval[bool](b, "document.documentElement.scrollWidth > innerWidth"); wide {
		b.Errorf("%s: the page is wider than its window", what)
	}
}

// Accessible fails the test by what axe finds serious.
func (b *Tab) Accessible(what string) {
	b.Helper()
	before := b.Said()
	b.Do(chromedp.Evaluate[chromedp.Void](axe))
	found := Eval[[]struct {
		ID, Impact, Help string
		Nodes            []struct{ HTML, FailureSummary string }
	}](b, "axe.run(document, {resultTypes: ['violations']}).then(r => r.violations)")
	b.Said() // what axe itself caused
	b.mu.Lock()
	b.console = append(b.console, before...)
	b.mu.Unlock()
	for _, v := range found {
		if v.Impact == "serious" || v.Impact == "critical" {
			b.Errorf("%s: %s (%s): %s\n%s\n%s", what, v.ID, v.Impact, v.Help, v.Nodes[0].HTML, v.Nodes[0].FailureSummary)
		}
	}
}

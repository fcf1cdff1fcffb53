package webtest

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/leasegen/leasegen/internal/browser"
	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leaseweb"
)

const everything = leaseweb.View | leaseweb.Payloads | leaseweb.Operate

func TestMain(m *testing.M) { pgtest.Main(redistest.Wrap(closing{m})) }

// closing ends the browser when the tests have run.
type closing struct{ m *testing.M }

func (c closing) Run() int {
	defer browser.End()
	return c.m.Run()
}

// onEach runs a test on every backend.
func onEach(t *testing.T, test func(t *testing.T, w *world)) {
	for name := range backends {
		t.Run(name, func(t *testing.T) { test(t, newWorld(t, name)) })
	}
}

// A message is stuck: it is found, understood, and replayed when the cause is fixed, by one who sees the page for the first time.
func TestStuckMessage(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, w *world) {
		b := browser.New(t, w.serve(everything))
		began, clicks := time.Now(), 0
		click := func(text string) { b.Helper(); clicks++; b.Follow(text) }
		b.Open("")
		b.Sees("7 messages were given up on. See why, fix the cause, then replay.")
		click("Dead letters")
		b.Sees("carrier: * Service Unavailable (request *)")
		b.Do(chromedp.SetValue(chromedp.CSS("[name=text]"), "CUST-3"))
		click("Find")
		b.Sees("1 dead letter matches")
		b.Goes(chromedp.Click(chromedp.CSS("tbody th a.id")), "the dead letter")
		clicks++
		b.Sees("carrier: 503 Service Unavailable (request 10")
		b.Lacks("cents")
		click("Show the payload")
		b.Sees(`"cents": 12345678901234567,`)
		found := time.Since(began)

		w.fixed.Store(true) // a deploy
		click("Dead letters")
		click("Replay all…")
		b.Sees("Replay 7 dead letters?")
		click("Replay 7 dead letters")
		b.Sees("7 dead letters replayed.")
		b.Sees("There are no dead letters.")
		click("Owners")
		b.Until(func() bool { return !strings.Contains(b.Text(), "given up on") }, "it is well again")
		took := time.Since(began)
		t.Logf("found and understood after %.1f s, fixed after %.1f s, with %d clicks", found.Seconds(), took.Seconds(), clicks)
		if took > time.Minute {
			t.Errorf("it took %v", took)
		}
		w.logged("action=replay", "consumer=billing", "expected=7", "count=7")
		w.eventually("it is handled", func() bool { return w.status("billing").DeadLetters == 0 })
	})
}

// Every action does what its preview says, and is in the log.
func TestActions(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, w *world) {
		b := browser.New(t, w.serve(everything))

		// Purge two that are ticked, of seven.
		b.Open("dead?c=billing")
		b.Do(chromedp.Click(chromedp.CSS("tbody tr:nth-child(1) [name=id]")), chromedp.Click(chromedp.CSS("tbody tr:nth-child(3) [name=id]")))
		b.Follow("Purge selected…")
		b.Sees("Purge 2 dead letters?")
		b.Follow("Purge 2 dead letters")
		b.Sees("2 dead letters purged.")
		b.Sees("5 dead letters, for 1 reason.")
		w.logged("action=purge", "expected=2", "count=2")
		b.Follow("Purge all…")
		b.Follow("Leave it")
		b.Sees("5 dead letters, for 1 reason.")

		// Retry one that is parked, with the one behind it.
		w.fixed.Store(true)
		b.Follow("Parked")
		b.Sees("behind it")
		b.Do(chromedp.Click(chromedp.CSS("tbody [name=id]")))
		b.Follow("Retry selected now…")
		b.Follow("Retry 1 parked message")
		b.Sees("1 message due now.")
		w.eventually("one is handled", func() bool { return w.status("billing").ParkedKeys == 1 })
		w.logged("action=retry", "count=1")
		b.Follow("Retry all now…")
		b.Goes(chromedp.Click(chromedp.CSS("button.main")), "retry")
		w.eventually("all are handled", func() bool { return w.status("billing").ParkedKeys == 0 })

		// Pause, and resume.
		b.Follow("Owners")
		b.Follow("Pause…")
		b.Follow("Pause billing")
		b.Sees("Paused for")
		w.eventually("it is paused", func() bool { s := w.status("billing"); return s.Paused && s.Unowned == s.Resources })
		b.Open("")
		b.Sees("It is paused, for")
		b.Follow("Resume…")
		b.Follow("Resume billing")
		w.eventually("it is owned again", func() bool { s := w.status("billing"); return !s.Paused && s.Unowned == 0 })
		w.logged("action=pause")
		w.logged("action=resume")

		// Move one cursor, then all, for which the name is typed.
		b.Follow("Cursors")
		b.Goes(chromedp.Click(chromedp.CSS("tbody td a")), "Move…")
		b.Do(chromedp.Click(chromedp.CSS("[value=now]")))
		b.Follow("Look at what that does…")
		b.Follow("Move 1 cursor to the present")
		b.Sees("1 cursor moved.")
		b.Follow("All")
		b.Follow("Move all…")
		b.Do(chromedp.Click(chromedp.CSS("[value=beginning]")))
		b.Follow("Look at what that does…")
		b.Sees("5 dead letters are dropped")
		b.Do(chromedp.SendKeys(chromedp.CSS("[name=name]"), "bill"))
		b.Goes(chromedp.Click(chromedp.CSS("button.grave")), "move")
		b.Sees("Type the name of the consumer to confirm.")
		b.Said() // that it was a 409
		b.Do(chromedp.SendKeys(chromedp.CSS("[name=name]"), "billing"))
		b.Goes(chromedp.Click(chromedp.CSS("button.grave")), "move")
		b.Sees("cursors moved.")
		w.eventually("its dead letters are dropped", func() bool { return w.status("billing").DeadLetters == 0 })
		w.logged("action=move", "filter.to=beginning")

		// Forget, which waits until no process runs.
		b.Follow("Owners")
		b.Follow("Forget…")
		b.Sees("stop its programs first")
		w.stop()
		w.ended.Wait()
		w.eventually("nothing runs", func() bool { return w.status("billing").Members == 0 })
		b.Until(func() bool {
			b.Open("forget?c=billing")
			return strings.Contains(b.Text(), "to confirm")
		}, "the page knows")
		b.Do(chromedp.SendKeys(chromedp.CSS("[name=name]"), "billing"))
		b.Follow("Forget billing")
		b.Sees("Forgotten.")
		b.Lacks("billing")
		w.logged("action=forget")
	})
}

// pages are all that there are: those with something of their own to see, and further ones.
func pages(b *browser.Tab) (main, more []string) {
	b.Open("dead?c=billing")
	letter := browser.Eval[string](b, "document.querySelector('tbody th a.id').getAttribute('href')")
	return []string{"", "consumer?c=billing", "dead?c=billing", letter + "&payload=1", "parked?c=billing", "cursors?c=billing", "purge?c=billing", "move?c=billing"},
		[]string{"consumer?c=archive", "dead?c=billing&key=none", letter, "parked?c=archive", "replay?c=billing", "retry?c=billing", "move?c=billing&to=now", "pause?c=billing",
			"resume?c=billing", "forget?c=billing", "dead?c=nobody"}
}

// look is how a page is looked at.
type look struct {
	width  int
	scheme string
}

// Every page is accessible, in light and dark, on a telephone and a desk, and is silent on the console.
func TestPages(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, w *world) {
		b := browser.New(t, w.serve(everything))
		main, more := pages(b)
		looks := []look{{1400, "light"}, {1400, "dark"}, {400, "light"}, {400, "dark"}}
		if !strings.HasSuffix(t.Name(), "memory") { // the pages are the same
			looks = looks[:1]
		}
		for i, l := range looks {
			b.Size(l.width, l.scheme)
			if i == 0 {
				main = append(main, more...)
			} else {
				main = main[:len(main)-len(more)]
				more = nil
			}
			for _, page := range main {
				b.Open(page)
				b.Fits(fmt.Sprint(page, l))
				if len(looks) > 1 {
					b.Accessible(fmt.Sprint(page, l))
				}
			}
		}
		// The status of a page that is not there is said by the browser.
		lines := slices.DeleteFunc(b.Said(), func(line string) bool { return strings.Contains(line, "404 (Not Found)") })
		if len(lines) > 0 {
			t.Errorf("the console says %q", lines)
		}
	})
}

// Looking at all pages, with what is hostile on them, runs no script of others.
func TestHostile(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	if err := w.be.Publish(t.Context(), []lease.Event{{Topic: hostile, Kind: "order.placed", Key: "raw", Payload: []byte("</pre>" + hostile)},
		{Topic: "orders.eu", Kind: "order.placed", Key: "raw", Payload: []byte("</pre>" + hostile)}}); err != nil {
		t.Fatal(err)
	}
	w.eventually("what is no JSON is dead", func() bool { return w.status("billing").DeadLetters == 8 })
	b := browser.New(t, w.serve(everything))
	b.Open("dead?c=billing&key=raw")
	b.Goes(chromedp.Click(chromedp.CSS("tbody th a.id")), "the dead letter")
	b.Follow("Show the payload")
	b.Sees("</pre>" + strings.TrimSuffix(hostile, "\u202e") + `\u202e`)
	b.Open("dead?c=billing&text=alert")
	b.Sees(`"><script>alert(1)</script>`)
	for _, page := range []string{"", "parked?c=billing&key=", "cursors?c=billing&r=", "dead?c=billing&reason=", "replay?c=billing&key=", "move?c=billing&to=now&r="} {
		b.Open(page + map[bool]string{true: "%22%3E%3Cscript%3Ealert(1)%3C/script%3E"}[page != ""])
		if n := browser.Eval[int](b, "document.querySelectorAll('main script, main img').length"); n > 0 {
			t.Errorf("%s has %d elements of others", page, n)
		}
	}
	// The policy holds: what is written into the page by a script of others does not run, and the console says so.
	b.Do(chromedp.Evaluate[chromedp.Void](`document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='document.title = 1'><p style='color:red'>")`))
	b.Until(func() bool { return strings.Contains(strings.Join(b.Said(), "\n"), "Content Security Policy") }, "the console tells of the policy")
	if title := browser.Eval[string](b, "document.title"); title == "1" {
		t.Error("a handler within the page has run")
	}
	time.Sleep(100 * time.Millisecond)
	b.Said()
}

// The keys are enough: from the first page to a replay.
func TestKeyboard(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	b := browser.New(t, w.serve(everything))
	// tab goes on to an element by its text, and checks that each stop can be seen.
	reach := func(text string) {
		b.Helper()
		for range 200 {
			b.Do(chromedp.KeyEvent(kb.Tab))
			at := browser.Eval[struct {
				Text, Outline string
				Width         float64
			}](b, `(() => { const e = document.activeElement, s = getComputedStyle(e);
				return { Text: (e.getAttribute("aria-label") || e.innerText || "").trim(), Outline: s.outlineStyle, Width: parseFloat(s.outlineWidth) } })()`)
			if at.Outline == "none" || at.Width < 1 {
				t.Fatalf("%q has the focus, and it cannot be seen", at.Text)
			}
			if at.Text == text {
				return
			}
		}
		t.Fatalf("%q is not reached by tabs", text)
	}
	enter := func() { b.Helper(); b.Goes(chromedp.KeyEvent(kb.Enter), "enter") }
	b.Open("")
	b.Do(chromedp.KeyEvent(kb.Tab))
	if skip := browser.Eval[string](b, "document.activeElement.innerText"); skip != "Skip to the content" {
		t.Errorf("the first stop is %q", skip)
	}
	reach("Dead letters")
	enter()
	id := browser.Eval[string](b, "document.querySelector('tbody th a.id').innerText")
	reach("Dead letter " + id)
	b.Do(chromedp.KeyEvent(" "))
	reach("Replay selected…")
	enter()
	b.Sees("Replay 1 dead letter?")
	w.fixed.Store(true)
	reach("Replay 1 dead letter")
	enter()
	b.Sees("1 dead letter replayed.")
	w.logged("action=replay", "count=1")
}

// Without scripts all can be done.
func TestWithoutScripts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	b := browser.New(t, w.serve(everything))
	b.Scripts(false)
	b.Open("")
	if hint := browser.Eval[string](b, `document.querySelector("noscript").innerHTML`); !strings.Contains(hint, "refresh") {
		t.Errorf("the page is not loaded again by itself: %q", hint)
	}
	if browser.Eval[bool](b, `document.getElementById("live").checkVisibility()`) {
		t.Error("a button that needs a script is shown")
	}
	b.Follow("Dead letters")
	w.fixed.Store(true)
	b.Do(chromedp.Click(chromedp.CSS("tbody [name=id]")))
	b.Follow("Replay selected…")
	b.Follow("Replay 1 dead letter")
	b.Sees("1 dead letter replayed.")
	b.Sees("6 dead letters, for 1 reason.")
	b.Follow("Owners")
	b.Follow("Pause…")
	b.Follow("Pause billing")
	b.Sees("Paused")
	w.eventually("it is paused", func() bool { return w.status("billing").Paused })
}

// A page that is open shows what changes, and stays as it is while it is used.
func TestLive(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	b := browser.New(t, w.serve(everything))
	b.Size(400, "light")
	dead := func() string { return browser.Eval[string](b, `document.querySelector("#letters strong").innerText`) }
	more := func(i int) {
		w.publish("orders.eu", order{Customer: fmt.Sprint("new-", i), Do: "fail"})
		w.eventually("it is dead", func() bool { return w.status("billing").DeadLetters == 7+i })
	}
	// still looks for a poll and a second whether the page changes.
	still := func(before, what string) {
		t.Helper()
		for end := time.Now().Add(3500 * time.Millisecond); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			if got := dead(); got != before {
				t.Errorf("%s: the page changes to %q", what, got)
				return
			}
		}
	}
	b.Open("dead?c=billing")
	b.Do(chromedp.Evaluate[chromedp.Void]("window.kept = true; scrollTo(0, 300)"))
	more(1)
	b.Until(func() bool { return dead() == "8 dead letters" }, "the list grows")
	if y := browser.Eval[float64](b, "scrollY"); y != 300 {
		t.Errorf("it has scrolled to %v", y)
	}

	// A press of the mouse that began on a link ends on it, and so follows it: the page holds still until then.
	release := b.Hold("tbody th a.id")
	before := dead()
	more(2)
	still(before, "the mouse is pressed")
	release()
	b.Until(func() bool { return strings.Contains(b.URL(), "id=") }, "the link that was pressed is followed")
	b.Open("dead?c=billing")
	b.Do(chromedp.Evaluate[chromedp.Void]("window.kept = true"))

	// While text is selected, a field has the focus, or something is ticked, it does, too.
	for i, use := range []struct{ begin, end string }{
		{`getSelection().selectAllChildren(document.querySelector("td.reason"))`, `getSelection().removeAllRanges()`},
		{`document.querySelector("[name=key]").focus()`, `document.activeElement.blur()`},
		{`document.querySelector("tbody [name=id]").checked = true`, `document.querySelector("tbody [name=id]").checked = false`},
	} {
		before := dead()
		b.Do(chromedp.Evaluate[chromedp.Void](use.begin))
		more(3 + i)
		still(before, use.begin)
		b.Do(chromedp.Evaluate[chromedp.Void](use.end))
		b.Until(func() bool { return dead() == fmt.Sprintf("%d dead letters", 10+i) }, "the list grows after "+use.end)
	}

	// It can be stopped, and a focus within what is replaced stays.
	b.Do(chromedp.Click(chromedp.CSS("#live")))
	before = dead()
	more(6)
	still(before, "stopped")
	b.Do(chromedp.Evaluate[chromedp.Void](`document.querySelector("tbody th a.id").focus()`), chromedp.Click(chromedp.CSS("#live")),
		chromedp.Evaluate[chromedp.Void](`document.querySelector("tbody th a.id").focus()`))
	b.Until(func() bool { return dead() == "13 dead letters" }, "the list grows again")
	if !browser.Eval[bool](b, `document.activeElement.matches("tbody th a.id")`) {
		t.Error("the focus is lost")
	}
	if !browser.Eval[bool](b, "window.kept") {
		t.Error("the page was loaded anew")
	}
}

// Without rights there are no buttons, and another origin can press none.
func TestRights(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	b := browser.New(t, w.serve(leaseweb.View))
	for _, page := range []string{"", "consumer?c=billing", "dead?c=billing", "parked?c=billing", "cursors?c=billing"} {
		b.Open(page)
		if n := browser.Eval[int](b, `document.querySelectorAll("main a.button, main [type=checkbox], main form[method=post], main button[formaction]").length`); n > 0 {
			t.Errorf("%s offers %d actions", page, n)
		}
	}
	b.Open("dead?c=billing")
	b.Goes(chromedp.Click(chromedp.CSS("tbody th a.id")), "the dead letter")
	b.Sees("You may not look at payloads.")

	pages := w.serve(everything)
	target := strings.Replace(pages, "127.0.0.1", "localhost", 1) + "pause"
	evil := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		out.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(out, `<form method="post" action=%q><input name="c" value="billing"><input name="expected" value="1"><button>Win a prize</button></form>`, target)
	}))
	defer evil.Close()
	b.Base = evil.URL
	b.Open("/")
	b.Follow("Win a prize")
	b.Sees("The request came from a page of another origin.")
	if w.status("billing").Paused {
		t.Error("another origin has paused it")
	}
	b.Said() // that it was refused
}

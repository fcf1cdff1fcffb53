package browser

import (
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/chromedp/chromedp"
)

func TestMain(m *testing.M) {
	code := m.Run()
	End()
	os.Exit(code)
}

// A page that replaces its elements as it keeps itself up to date can be used, as by a person.
func TestElementsAreReplaced(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`<!doctype html><link rel="icon" href="data:,"><main></main><script>
			const draw = () => document.querySelector("main").innerHTML = '<input name="id" type="checkbox">';
			draw(); setInterval(draw, 40);</script>`))
	}))
	defer server.Close()
	b := New(t, server.URL)
	b.Open("")
	for range 15 {
		b.Do(chromedp.Click(chromedp.CSS("[name=id]")), chromedp.Focus(chromedp.CSS("[name=id]")))
	}
}

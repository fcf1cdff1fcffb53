package webtest

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/leasegen/leasegen/internal/browser"
	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/leaseredis"
)

// soon is within what a page of a backend that does not answer comes: 3 s, and what a busy machine adds.
const soon = 8 * time.Second

// get returns the status, the text and the time of a page, or of the answer to a form.
func (w *world) get(path string, form url.Values) (status int, page string, took time.Duration) {
	w.t.Helper()
	began := time.Now()
	do := func() (*http.Response, error) { return http.Get(w.url + path) }
	if form != nil {
		do = func() (*http.Response, error) { return http.PostForm(w.url+path, form) }
	}
	resp, err := do()
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode, string(body), time.Since(began)
}

// A server that is frozen is said to be silent, with what was known before; pages and hints go on when it answers again.
func TestFrozenServer(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) (share func() server, freeze, thaw func()){
		"postgres": func(t *testing.T) (func() server, func(), func()) {
			s := pgtest.Start(t)
			return onPostgres(t, s.DB("shop")), s.Pause, s.Resume
		},
		"redis": func(t *testing.T) (func() server, func(), func()) {
			s := redistest.Start(t)
			client := s.Client(t)
			return func() server { return leaseredis.New(client) }, s.Pause, s.Resume
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			share, freeze, thaw := start(t)
			w := worldOn(t, share)
			w.serve(everything)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			hints := make(chan struct{}, 100)
			req, _ := http.NewRequestWithContext(ctx, http.MethodGet, w.url+"events", nil)
			stream, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer stream.Body.Close()
			go func() {
				for lines := bufio.NewScanner(stream.Body); lines.Scan(); {
					if strings.HasPrefix(lines.Text(), "event: changed") {
						hints <- struct{}{}
					}
				}
			}()
			pages := []string{"", "consumer?c=billing", "dead?c=billing", "parked?c=billing", "cursors?c=billing"}
			var slowest time.Duration
			for _, page := range pages {
				status, text, took := w.get(page, nil)
				if slowest = max(slowest, took); status != http.StatusOK || strings.Contains(text, "does not answer") {
					t.Fatalf("%s: %d\n%s", page, status, text)
				}
			}
			silent := regexp.MustCompile(`As of \d+ s ago, since the backend does not answer: [^<]*`)
			freeze()
			defer thaw()
			aged := time.Now().Add(5*time.Second + 10*slowest) // until then what was just asked may count as new
			for _, page := range pages {
				status, text, took := w.get(page, nil)
				for status == http.StatusOK && !silent.MatchString(text) && time.Now().Before(aged) {
					time.Sleep(200 * time.Millisecond)
					var again time.Duration
					status, text, again = w.get(page, nil)
					took = max(took, again)
				}
				said := silent.FindString(text)
				t.Logf("%-20s %d after %.1f s: %s", page, status, took.Seconds(), said)
				if status != http.StatusOK || took > soon || said == "" {
					t.Errorf("%s: %d after %v\n%s", page, status, took, text)
				}
			}
			for _, page := range []string{"dead?c=billing&key=unseen", "replay?c=billing", "pause?c=billing"} {
				status, text, took := w.get(page, nil)
				if status != http.StatusGatewayTimeout && status != http.StatusServiceUnavailable || took > soon || !strings.Contains(text, "The backend ") {
					t.Errorf("%s: %d after %v\n%s", page, status, took, text)
				}
			}
			if status, text, took := w.get("pause", url.Values{"c": {"billing"}, "expected": {"1"}}); status < 500 || took > soon {
				t.Errorf("an action: %d after %v\n%s", status, took, text)
			}
			for len(hints) > 0 {
				<-hints
			}
			thaw()
			select {
			case <-hints:
			case <-time.After(browser.Patience):
				t.Error("no hint when it answers again")
			}
			w.eventually("pages are new again", func() bool {
				status, text, _ := w.get("", nil)
				return status == http.StatusOK && !strings.Contains(text, "does not answer")
			})
			if w.status("billing").Paused {
				t.Error("the action that was refused was done")
			}
		})
	}
}

// The answer says what is wrong with an address or a form, and counts as no failure of the backend.
func TestBadAddresses(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, w *world) {
		w.serve(everything)
		bad := []string{"no-id", "99999999999999999999", "-1", "1-x", "0-0-0", "1'--", "\xff\xfe", "\u202e", `\`, "%", "*", "(", "AAAA", "a/b", strings.Repeat("ü", 1000)}
		fields := map[string][]string{
			"": {"c"}, "consumer": {"c"}, "events": {}, "letter": {"c", "id"}, "dead": {"c", "topic", "key", "text", "reason", "min", "max", "after", "done"},
			"parked": {"c", "r", "key", "after"}, "cursors": {"c", "r"}, "replay": {"c", "id", "topic", "key", "text", "reason", "min", "max", "through", "after"},
			"purge": {"c", "id", "through"}, "retry": {"c", "id", "r", "key", "after"}, "move": {"c", "r", "to", "message"}, "pause": {"c"}, "resume": {"c"}, "forget": {"c"},
		}
		tried, repeated := 0, 0
		for page, names := range fields {
			for _, name := range names {
				for _, v := range bad {
					q := url.Values{"c": {"billing"}}
					if name == "message" {
						q.Set("to", "after")
					}
					q.Set(name, v)
					for _, post := range []bool{false, true} {
						form, path := url.Values(nil), page+"?"+q.Encode()
						if post {
							form, path = url.Values{"expected": {"-1"}, "of": {q.Encode()}}, page
						}
						status, text, _ := w.get(path, form)
						for ; status == http.StatusGatewayTimeout && repeated < 3; repeated++ { // a machine that is busy
							status, text, _ = w.get(path, form)
						}
						if tried++; status >= 500 {
							t.Errorf("%s with %s=%q, post %v: %d\n%s", page, name, v, post, status, text)
						}
					}
				}
			}
		}
		t.Logf("%d addresses and forms", tried)
		for path, want := range map[string]string{
			"dead?c=billing&after=no-id":      "&#34;no-id&#34; is not the id of a dead letter",
			"purge?c=billing&through=no-id":   "&#34;no-id&#34; is not the id of a dead letter",
			"parked?c=billing&after=no-place": "&#34;no-place&#34; is not the place of a parked message",
		} {
			if status, text, _ := w.get(path, nil); status != http.StatusBadRequest || !strings.Contains(text, want) {
				t.Errorf("%s: %d\n%s", path, status, text)
			}
		}
		cursors, text, _ := w.get("cursors?c=billing", nil)
		r := regexp.MustCompile(`r=([^"&]+)">`).FindStringSubmatch(text)
		if cursors != http.StatusOK || r == nil {
			r = []string{"", "0"}
		}
		form := url.Values{"expected": {"1"}, "of": {"c=billing&to=after&message=no-id&r=" + r[1]}}
		if status, text, _ := w.get("move", form); status != http.StatusBadRequest || !strings.Contains(text, "&#34;no-id&#34; is not the id of a message") {
			t.Errorf("a cursor behind no message: %d\n%s", status, text)
		}
	})
}

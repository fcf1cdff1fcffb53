package leaseweb

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"html"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/leasegen/leasegen/runtime/operate"
)

const all = View | Payloads | Operate

// allowing is an option that gives every request the same rights.
func allowing(a Access) Option { return WithAccess(func(*http.Request) Access { return a }) }

// world is a consumer in all kinds of trouble.
func world() *fake {
	now := time.Now()
	f := &fake{now: now, all: []operate.ConsumerStatus{
		{Consumer: "billing", Per: "partition", Lock: "session", Resources: 4, Members: 2, Unowned: 1, LagMax: 12, LagTotal: 14, OldestUnread: 70 * time.Second,
			ParkedKeys: 2, DeadLetters: 5},
		{Consumer: "quiet", Per: "group", Lock: "advisory", Resources: 1, Members: 1},
	}}
	for i, host := range []string{"web-1", "web-2"} {
		f.members = append(f.members, operate.MemberStatus{Session: strings.Repeat(fmt.Sprint(i+1), 32), Host: host, PID: 4077 + i, Since: time.Hour, Owned: 1 + i, FairShare: 2})
	}
	for i, session := range []string{f.members[0].Session, f.members[1].Session, f.members[1].Session, ""} {
		resource := fmt.Sprint(i)
		f.leases = append(f.leases, operate.LeaseStatus{Resource: resource, Session: session, Epoch: 1772625720000000, Since: time.Hour, Lag: int64(12 - 5*i), Parked: 1})
		f.cursors = append(f.cursors, operate.CursorStatus{Resource: resource, Session: session, Epoch: 1772625720000000, Position: "9133", Lag: 12})
	}
	for i := range 5 {
		f.letters = append(f.letters, operate.DeadLetterInfo{ID: fmt.Sprint(98 + i), Consumer: "billing", Resource: "1", MessageID: fmt.Sprint(9000 + i), Topic: "orders.eu",
			Key: fmt.Sprintf("cust-%d", i%2), Kind: "order.placed", Payload: []byte(`{"cents":12345678901234567890,"a":1.10}`), Size: 39,
			Headers: map[string]string{"tenant": "t1"}, DeadAt: now.Add(time.Duration(i-10) * time.Minute), Attempts: 8, Reason: fmt.Sprintf("carrier: %d", 500+i%3)})
	}
	for i := range 3 {
		f.parked = append(f.parked, operate.ParkedInfo{Resource: "1", MessageID: fmt.Sprint(9100 + i), Place: fmt.Sprint("place", i), Topic: "orders.eu",
			Key: fmt.Sprintf("cust-%d", i), Attempts: 3, Due: now.Add(time.Hour), Error: "carrier: 503"})
	}
	return f
}

func quietLog() Option { return WithLogger(slog.New(slog.DiscardHandler)) }

// send answers a request as a browser on the page itself sends it.
func send(h http.Handler, method, target string, form url.Values) *httptest.ResponseRecorder {
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	r := httptest.NewRequest(method, target, body)
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// hidden are the fields of the form that a preview shows.
func hidden(page string) url.Values {
	form := url.Values{}
	for _, m := range regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`).FindAllStringSubmatch(page, -1) {
		form.Add(m[1], html.UnescapeString(m[2]))
	}
	return form
}

// selects are the fields that select, of those of a form.
func selects(form url.Values) url.Values {
	q, err := url.ParseQuery(form.Get(selection))
	if err != nil {
		panic(err)
	}
	return q
}

// follow is the page that an action leads to.
func follow(t *testing.T, p *Pages, got *httptest.ResponseRecorder) string {
	t.Helper()
	goes := strings.TrimPrefix(got.Header().Get("Location"), "./")
	if got.Code != http.StatusSeeOther || !strings.Contains(goes, "done=") {
		t.Fatalf("%d to %q\n%s", got.Code, goes, got.Body)
	}
	return send(p, "GET", "/"+goes, nil).Body.String()
}

// previews are addresses of each action that has something to do.
var previews = map[string]string{
	"replay": "/replay?c=billing", "purge": "/purge?c=billing&key=cust-1", "retry": "/retry?c=billing&id=9101", "move": "/move?c=billing&r=1&to=now",
	"pause": "/pause?c=billing", "resume": "/resume?c=asleep", "forget": "/forget?c=gone",
}

// troubled is a world in which every action has something to do.
func troubled() *fake {
	f := world()
	f.all = append(f.all, operate.ConsumerStatus{Consumer: "asleep", Per: "topic", Resources: 1, Paused: true, PausedFor: time.Minute},
		operate.ConsumerStatus{Consumer: "gone", Per: "topic", Resources: 1})
	return f
}

// The matrix of rights: role by route by method. An action that is not allowed has no effect.
func TestAccess(t *testing.T) {
	routes := New(world()).routes()
	names := []string{}
	for _, rt := range routes {
		names = append(names, rt.path)
	}
	if len(names) != 6+len(previews) {
		t.Fatalf("the test knows other routes: %q", names)
	}
	for _, role := range []Access{0, View, View | Payloads, View | Operate, all, Operate, Payloads} {
		for _, rt := range routes {
			for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"} {
				f := troubled()
				p := New(f, allowing(role), quietLog())
				target := map[string]string{"": "/", "letter": "/letter?c=billing&id=98"}[rt.path]
				if preview := previews[rt.path]; preview != "" {
					target = preview
				}
				if target == "" {
					target = "/" + rt.path + "?c=billing"
				}
				var form url.Values
				changes := rt.post != nil
				if method == "POST" && changes {
					form = hidden(send(New(f, allowing(all), quietLog()), "GET", target, nil).Body.String())
					form.Set("name", "gone")
				}
				want := http.StatusOK
				switch {
				case !role.has(View):
					want = http.StatusForbidden
				case method == "POST" && changes:
					want = http.StatusSeeOther
				case method != "GET" && method != "HEAD":
					want = http.StatusMethodNotAllowed
				}
				if want != http.StatusMethodNotAllowed && changes && !role.has(Operate) {
					want = http.StatusForbidden
				}
				got := send(p, method, target, form)
				if got.Code != want {
					t.Errorf("role %03b: %s %s: %d, want %d\n%s", role, method, target, got.Code, want, got.Body)
				}
				if did := len(f.changed) > 0; did != (want == http.StatusSeeOther) {
					t.Errorf("role %03b: %s %s has changed %q", role, method, target, f.changed)
				}
				if method == "HEAD" && got.Body.Len() > 0 {
					t.Errorf("HEAD %s has a body", target)
				}
			}
		}
	}
}

// Payloads are shown to those alone who may see them, and as they were written.
func TestPayloads(t *testing.T) {
	const target = "/letter?c=billing&id=98"
	for role, want := range map[Access]int{View: 403, View | Operate: 403, View | Payloads: 200} {
		var log bytes.Buffer
		p := New(world(), allowing(role), WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		if body := send(p, "GET", target, nil).Body.String(); strings.Contains(body, "12345678901234567890") || strings.Contains(body, "payload=1") != (want == 200) {
			t.Errorf("role %03b: before it is asked for:\n%s", role, body)
		}
		got := send(p, "GET", target+"&payload=1", nil)
		if got.Code != want || strings.Contains(got.Body.String(), "cents") != (want == 200) {
			t.Errorf("role %03b: %d\n%s", role, got.Code, got.Body)
		}
		if want == 200 && (!strings.Contains(got.Body.String(), "&#34;cents&#34;: 12345678901234567890,\n  &#34;a&#34;: 1.10") || !strings.Contains(log.String(), "payload shown")) {
			t.Errorf("%s\n%s", got.Body, &log)
		}
		if strings.Contains(log.String(), "12345678901234567890") {
			t.Errorf("the log has the payload: %s", &log)
		}
	}
	p := New(world(), allowing(all), quietLog(), WithRedact(func(kind string, payload []byte) []byte {
		return []byte(kind + ": " + fmt.Sprint(len(payload)) + " bytes")
	}))
	if body := send(p, "GET", target+"&payload=1", nil).Body.String(); !strings.Contains(body, "order.placed: 39 bytes") || strings.Contains(body, "cents") {
		t.Errorf("not redacted:\n%s", body)
	}
	for payload, want := range map[string]string{"\xff\x00\x01": "ff 00 01", "plain\u202e\x1b[2J": `plain\u202e\x1b[2J`, "é": "é", `[1e400,01]`: "[1e400,01]"} {
		if text, _, _ := readable([]byte(payload)); !strings.Contains(text, want) {
			t.Errorf("%q is shown as %q", payload, text)
		}
	}
	if text, form, cut := readable(bytes.Repeat([]byte("é"), mostShown)); !cut || form != "text" || len(text) > mostShown || !strings.HasSuffix(text, "é") {
		t.Errorf("%d bytes of %s, cut %v", len(text), form, cut)
	}
}

// The action does what was previewed: no more if more came, and none if the selection has changed.
func TestWhatWasPreviewed(t *testing.T) {
	f := world()
	p := New(f, allowing(all), quietLog())
	for _, name := range []string{"replay", "purge"} {
		f.changed, f.letters = nil, world().letters
		p.shared.changed("billing")
		preview := send(p, "GET", "/"+name+"?c=billing", nil).Body.String()
		form := hidden(preview)
		if form.Get("expected") != "5" || selects(form).Get("through") != "102" || !strings.Contains(preview, "5 dead letters?") {
			t.Fatalf("%s: %v\n%s", name, form, preview)
		}
		// Two more die before the button is pressed.
		for i := range 2 {
			late := f.letters[0]
			late.ID, late.DeadAt = fmt.Sprint(200+i), f.now
			f.letters = append(f.letters, late)
		}
		page := follow(t, p, send(p, "POST", "/"+name, form))
		if want := []string{name + " 98", name + " 99", name + " 100", name + " 101", name + " 102"}; !slices.Equal(f.changed, want) {
			t.Errorf("%s: did %q", name, f.changed)
		}
		if !strings.Contains(page, "5 dead letters "+map[string]string{"replay": "replayed", "purge": "purged"}[name]) {
			t.Errorf("%s: not said afterwards:\n%s", name, page)
		}

		// The same form again: it finds none, asks again and has no effect.
		f.changed = nil
		if got := send(p, "POST", "/"+name, form); got.Code != 409 || !strings.Contains(got.Body.String(), "is 0 now") || len(f.changed) > 0 {
			t.Errorf("%s again: %d, did %q\n%s", name, got.Code, f.changed, got.Body)
		}
	}

	// Some are gone in between, as another operator replayed them.
	f.letters = world().letters
	p.shared.changed("billing")
	form := hidden(send(p, "GET", "/purge?c=billing&reason=carrier:*&key=cust-0", nil).Body.String())
	f.letters = f.letters[1:]
	f.changed = nil
	got := send(p, "POST", "/purge", form)
	if got.Code != 409 || len(f.changed) > 0 || hidden(got.Body.String()).Get("expected") != "2" || selects(hidden(got.Body.String())).Get("reason") != "carrier:*" {
		t.Errorf("%d, did %q\n%s", got.Code, f.changed, got.Body)
	}
	if got := send(p, "POST", "/purge", hidden(got.Body.String())); got.Code != 303 || !slices.Equal(f.changed, []string{"purge 100", "purge 102"}) {
		t.Errorf("%d, did %q\n%s", got.Code, f.changed, got.Body)
	}

	// Ticked ones, and none.
	f.letters, f.changed = world().letters, nil
	p.shared.changed("billing")
	ticked := url.Values{"c": {"billing"}, "picked": {"1"}, "id": {"99", "101"}}
	form = hidden(send(p, "POST", "/replay", ticked).Body.String())
	if len(f.changed) > 0 {
		t.Fatalf("the preview did %q", f.changed)
	}
	if got := send(p, "POST", "/replay", form); got.Code != 303 || !slices.Equal(f.changed, []string{"replay 99", "replay 101"}) {
		t.Errorf("%d, did %q\n%s", got.Code, f.changed, got.Body)
	}
	for _, target := range []string{"/replay", "/retry"} {
		if got := send(p, "POST", target, url.Values{"c": {"billing"}, "picked": {"1"}}); got.Code != 400 {
			t.Errorf("%s: none is ticked: %d\n%s", target, got.Code, got.Body)
		}
	}

	// All that are parked are named in the form, so that those that come later stay.
	f.changed = nil
	form = hidden(send(p, "GET", "/retry?c=billing", nil).Body.String())
	f.parked = append(f.parked, operate.ParkedInfo{MessageID: "9999"})
	if got := send(p, "POST", "/retry", form); got.Code != 303 || !slices.Equal(f.changed, []string{"retry 9100", "retry 9101", "retry 9102"}) {
		t.Errorf("%d, did %q\n%s", got.Code, f.changed, got.Body)
	}
}

// An action begins with the oldest. So does its preview, where not all are counted: these would be the newest otherwise.
func TestPreviewOfMoreThanIsCounted(t *testing.T) {
	for _, name := range []string{"replay", "purge"} {
		f := world()
		f.counts = 2
		p := New(f, allowing(all), quietLog())
		preview := send(p, "GET", "/"+name+"?c=billing", nil).Body.String()
		if !strings.Contains(preview, "these are the oldest") {
			t.Errorf("%s: not said:\n%s", name, preview)
		}
		form := hidden(preview)
		got := send(p, "POST", "/"+name, form)
		if want := []string{name + " 98", name + " 99", name + " 100", name + " 101", name + " 102"}; got.Code != 303 ||
			form.Get("expected") != fmt.Sprint(len(f.changed)) || !slices.Equal(f.changed, want) {
			t.Errorf("%s: %d, expected %s, did %q", name, got.Code, form.Get("expected"), f.changed)
		}
	}
}

// A preview counts all, though it names a hundred reasons at most; the last one may have another reason.
func TestPreviewOfManyReasons(t *testing.T) {
	f := world()
	first := f.letters[0]
	f.letters = nil
	for i := range 301 {
		l := first
		l.ID, l.Reason = strconv.Itoa(1000+i), fmt.Sprint("reason ", string(rune('a'+i/2%26)), i/2)
		f.letters = append(f.letters, l)
	}
	p := New(f, allowing(all), quietLog())
	form := hidden(send(p, "GET", "/purge?c=billing", nil).Body.String())
	if got := send(p, "POST", "/purge", form); got.Code != 303 || len(f.changed) != 301 {
		t.Errorf("%d, expected %s, did %d", got.Code, form.Get("expected"), len(f.changed))
	}
}

// A page claims only what this process has done, and claims it once.
func TestOutcomes(t *testing.T) {
	f := world()
	p := New(f, allowing(all), quietLog())
	claims := func(target string) bool {
		return strings.Contains(send(p, "GET", target, nil).Body.String(), `class="done"`)
	}
	for _, forged := range []string{"done=purge&n=5", "done=purge", "done=" + strings.Repeat("A", 26), "done="} {
		if claims("/dead?c=billing&" + forged) {
			t.Errorf("%s is believed", forged)
		}
	}
	goes := "/" + send(p, "POST", "/purge", hidden(send(p, "GET", "/purge?c=billing", nil).Body.String())).Header().Get("Location")
	send(p, "HEAD", goes, nil)
	if !claims(goes) || claims(goes) {
		t.Errorf("%s is not said once", goes)
	}
	synctest.Test(t, func(t *testing.T) {
		var o outcomes
		first := o.add("first")
		for range 3 * mostOutcomes {
			o.add("more")
		}
		if len(o.all) > mostOutcomes || o.take(first) != "" {
			t.Errorf("%d are kept", len(o.all))
		}
		late := o.add("late")
		time.Sleep(outcomeKept + time.Second)
		if o.take(late) != "" || o.take("") != "" {
			t.Error("it is kept for too long")
		}
		if o.add("new"); len(o.all) != 1 {
			t.Errorf("%d are kept", len(o.all))
		}
	})
}

// Ticked and parked messages are acted upon, however long their ids are; keys with line ends select what they did.
func TestLongNames(t *testing.T) {
	f := world()
	long := strings.Repeat("é", maxField/2-8) // two bytes each, six in a form
	letter, parked := f.letters[0], f.parked[0]
	f.letters, f.parked = nil, nil
	for i := range 1200 {
		letter.ID, parked.MessageID, parked.Place = fmt.Sprint(long, 1000+i), fmt.Sprint(long, 1000+i), fmt.Sprint(i)
		if letter.Key = "plain"; i < listed {
			letter.Key = "line\r\nand \n\r line"
		}
		f.letters, f.parked = append(f.letters, letter), append(f.parked, parked)
	}
	p := New(f, allowing(all), quietLog())
	ticked := url.Values{"c": {"billing"}, "picked": {"1"}}
	for _, l := range f.letters[:listed] {
		ticked.Add("id", l.ID)
	}
	page := send(p, "POST", "/replay", ticked).Body.String()
	if !strings.Contains(page, "Replay 100 dead letters?") {
		t.Fatalf("%.2000s", page)
	}
	if got := send(p, "POST", "/replay", hidden(page)); got.Code != 303 || len(f.changed) != listed {
		t.Errorf("%d, did %d\n%.2000s", got.Code, len(f.changed), got.Body)
	}

	f.changed = nil
	page = send(p, "GET", "/retry?c=billing", nil).Body.String()
	form := hidden(page)
	if n, _ := strconv.Atoi(form.Get("expected")); n < listed || n >= mostRetried || !strings.Contains(page, "There are more: these are the first "+form.Get("expected")+".") {
		t.Errorf("%d messages are retried", n)
	}
	if got := send(p, "POST", "/retry", form); got.Code != 303 || fmt.Sprint(len(f.changed)) != form.Get("expected") {
		t.Errorf("%d, did %d of %s\n%.2000s", got.Code, len(f.changed), form.Get("expected"), got.Body)
	}

	f.letters = world().letters
	f.letters[2].Key = "line\r\nand \n\r line"
	p.shared.changed("billing")
	f.changed = nil
	form = hidden(send(p, "GET", "/purge?c=billing&key="+url.QueryEscape(f.letters[2].Key), nil).Body.String())
	for name, values := range form { // as a browser sends it
		for i, v := range values {
			form[name][i] = regexp.MustCompile("\r\n|\r|\n").ReplaceAllString(v, "\r\n")
		}
	}
	if got := send(p, "POST", "/purge", form); got.Code != 303 || !slices.Equal(f.changed, []string{"purge 100"}) {
		t.Errorf("%d, did %q\n%s", got.Code, f.changed, got.Body)
	}
}

// No page has a character that steers how others are shown, but within the fields of forms, which give back what they got.
func TestVisible(t *testing.T) {
	const hostile = "a\u202eb\u2066c\u200bd\x1be\u00adf\xffg\u2028"
	shown := `a\u202eb\u2066c\u200bd\x1be\u00adf\xffg\u2028`
	world := func() *fake {
		f := troubled()
		for i := range f.all {
			f.all[i].Consumer += hostile
			f.all[i].Note, f.all[i].Per, f.all[i].Lock = hostile, hostile, hostile
		}
		for i := range f.members {
			f.members[i].Host = hostile
		}
		for i := range f.leases {
			f.leases[i].Resource, f.cursors[i].Resource, f.cursors[i].Position = fmt.Sprint(hostile, i), fmt.Sprint(hostile, i), hostile
		}
		for i := range f.letters {
			l := &f.letters[i]
			l.ID, l.Topic, l.Key, l.Kind, l.Reason, l.Resource, l.MessageID, l.Consumer = fmt.Sprint(hostile, i), hostile, hostile, hostile, hostile, hostile, hostile, "billing"+hostile
			l.Payload, l.Headers = []byte(hostile), map[string]string{hostile: hostile}
		}
		for i := range f.parked {
			m := &f.parked[i]
			m.Resource, m.Topic, m.Key, m.Error, m.Place, m.Kind, m.MessageID = hostile, hostile, hostile, hostile, hostile, hostile, hostile
		}
		return f
	}
	pages := func() *Pages {
		return New(world(), allowing(all), quietLog(), WithTarget(hostile), WithActor(func(*http.Request) string { return hostile }))
	}
	p := pages()
	q := url.QueryEscape(hostile)
	check := func(what, page string) {
		t.Helper()
		for i, r := range regexp.MustCompile(` value="[^"]*"`).ReplaceAllString(page, "") {
			if r != '\n' && (!unicode.IsPrint(r) || r == utf8.RuneError) {
				t.Errorf("%s has %q: %.300s", what, r, page[max(0, i-100):])
				return
			}
		}
		if !strings.Contains(page, shown) {
			t.Errorf("%s does not show what there is:\n%s", what, page)
		}
	}
	for _, rt := range p.routes() {
		for _, more := range []string{"", "&id=" + q + "0&payload=1&r=" + q + "0&key=" + q + "&topic=" + q + "&text=" + q + "&to=after&message=" + q} {
			for _, c := range []string{"billing", "asleep", "gone", "nobody"} {
				target := "/" + rt.path + "?c=" + c + q + more
				check(target, send(p, "GET", target, nil).Body.String())
			}
		}
	}
	for name, target := range previews {
		p := pages()
		c := map[string]string{"resume": "asleep", "forget": "gone"}[name]
		form := hidden(send(p, "GET", "/"+name+"?c="+cmp.Or(c, "billing")+q+map[string]string{"move": "&r=" + q + "0&to=now"}[name], nil).Body.String())
		form.Set("name", "gone"+hostile)
		check(target, follow(t, p, send(p, "POST", "/"+name, form)))
	}
	if form := hidden(send(p, "GET", "/purge?c=billing"+q+"&key="+q, nil).Body.String()); form.Get("c") != "billing"+hostile {
		t.Errorf("a form gives back %q", form)
	}
}

// Moving all cursors, and forgetting, take the consumer's name; forgetting takes that no work runs.
func TestTypedNames(t *testing.T) {
	f := troubled()
	p := New(f, allowing(all), quietLog())
	for target, name := range map[string]string{"/move?c=billing&to=beginning": "billing", "/forget?c=gone": "gone"} {
		page := send(p, "GET", target, nil).Body.String()
		form := hidden(page)
		path, _, _ := strings.Cut(target, "?")
		for _, typed := range []string{"", "billin", "BILLING"} {
			form.Set("name", typed)
			if got := send(p, "POST", path, form); got.Code != 409 || len(f.changed) > 0 {
				t.Errorf("%s with %q: %d, did %q", target, typed, got.Code, f.changed)
			}
		}
		form.Set("name", name)
		if got := send(p, "POST", path, form); got.Code != 303 || len(f.changed) != 1 {
			t.Errorf("%s: %d, did %q\n%s\n%s", target, got.Code, f.changed, got.Body, page)
		}
		f.changed = nil
	}
	for _, target := range []string{"/forget?c=billing", "/resume?c=billing", "/pause?c=asleep"} {
		if page := send(p, "GET", target, nil).Body.String(); strings.Contains(page, "<form") {
			t.Errorf("%s is offered:\n%s", target, page)
		}
	}
	path := New(struct{ operate.Operator }{f}, allowing(all)) // a backend that forgets no consumers
	if got := send(path, "GET", "/forget?c=gone", nil); got.Code != 404 {
		t.Errorf("forget: %d", got.Code)
	}
	if page := send(path, "GET", "/consumer?c=billing", nil).Body.String(); strings.Contains(page, "Forget") {
		t.Error("forget is offered")
	}
}

func TestMove(t *testing.T) {
	f := world()
	p := New(f, allowing(all), quietLog())
	if page := send(p, "GET", "/move?c=billing&r=1", nil).Body.String(); !strings.Contains(page, `type="radio"`) || strings.Contains(page, `method="post"`) {
		t.Errorf("it does not ask where to:\n%s", page)
	}
	page := send(p, "GET", "/move?c=billing&r=1&to=after&message=9000", nil).Body.String()
	if !strings.Contains(page, "Move 1 cursor behind 9000") {
		t.Errorf("%s", page)
	}
	if got := send(p, "POST", "/move", hidden(page)); got.Code != 303 || !slices.Equal(f.changed, []string{"move billing 1"}) {
		t.Errorf("%d, %q", got.Code, f.changed)
	}
	if page := send(p, "GET", "/move?c=billing&r=none&to=now", nil).Body.String(); strings.Contains(page, "<form") {
		t.Errorf("a resource that is not there:\n%s", page)
	}
	if got := send(p, "POST", "/move", url.Values{"c": {"billing"}, "expected": {"4"}, "name": {"billing"}}); got.Code != 400 {
		t.Errorf("without a target: %d", got.Code)
	}
}

// cursorless is a backend of consumers that read no messages.
type cursorless struct{ *fake }

func (cursorless) Cursors(context.Context, string, string, int) ([]operate.CursorStatus, error) {
	return nil, operate.ErrNoCursor
}

// A consumer without cursors has none to move, one or all.
func TestMoveOfNone(t *testing.T) {
	f := world()
	p := New(cursorless{f}, allowing(all), quietLog())
	for _, resource := range []string{"", "1"} {
		q := url.Values{"c": {"billing"}, "r": {resource}, "to": {"beginning"}, "expected": {"4"}, "name": {"billing"}}
		for _, method := range []string{"GET", "POST"} {
			target, form := "/move", q
			if method == "GET" {
				target, form = target+"?"+q.Encode(), nil
			}
			if got := send(p, method, target, form); got.Code != 400 || !strings.Contains(got.Body.String(), "reads no messages") || len(f.changed) > 0 {
				t.Errorf("%s of %q: %d, did %q", method, resource, got.Code, f.changed)
			}
		}
	}
}

// Every action leaves a line with who did what to which and how many, and no payload.
func TestAudit(t *testing.T) {
	for name, target := range previews {
		f := troubled()
		var log bytes.Buffer
		p := New(f, allowing(all), WithActor(func(*http.Request) string { return "ann" }), WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		form := hidden(send(p, "GET", target, nil).Body.String())
		if log.Len() > 0 {
			t.Errorf("%s: a preview is logged: %s", name, &log)
		}
		form.Set("name", "gone")
		f.err = nil
		if got := send(p, "POST", "/"+name, form); got.Code != 303 {
			t.Fatalf("%s: %d\n%s", name, got.Code, got.Body)
		}
		line := log.String()
		for _, want := range []string{"level=INFO", "action=" + name, "actor=ann", "consumer=" + form.Get("c"), "expected=" + form.Get("expected"), "count="} {
			if !strings.Contains(line, want) {
				t.Errorf("%s: no %s in %s", name, want, line)
			}
		}
		if strings.Contains(line, "12345678901234567890") || strings.Count(line, "\n") != 1 {
			t.Errorf("%s: %s", name, line)
		}
		for field := range selects(form) {
			if value := selects(form).Get(field); slices.Contains([]string{"key", "r", "to", "through"}, field) && !strings.Contains(line, "filter."+field+"="+value) {
				t.Errorf("%s: no %s in %s", name, field, line)
			}
		}
	}
}

// A page of another origin cannot change anything; a program that is no browser can.
func TestCrossOrigin(t *testing.T) {
	for _, c := range []struct {
		header, value string
		want          int
	}{
		{"Sec-Fetch-Site", "cross-site", 403}, {"Sec-Fetch-Site", "same-site", 403}, {"Sec-Fetch-Site", "same-origin", 303}, {"Sec-Fetch-Site", "none", 303},
		{"Origin", "http://evil.example", 403}, {"Origin", "null", 403}, {"Origin", "http://example.com", 303}, {"X-Other", "1", 303},
	} {
		f := troubled()
		p := New(f, allowing(all), quietLog())
		form := hidden(send(p, "GET", "/pause?c=billing", nil).Body.String())
		r := httptest.NewRequest("POST", "/pause", strings.NewReader(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set(c.header, c.value)
		w := httptest.NewRecorder()
		p.ServeHTTP(w, r)
		if w.Code != c.want || (len(f.changed) > 0) != (c.want == 303) {
			t.Errorf("%s: %s: %d, did %q", c.header, c.value, w.Code, f.changed)
		}
	}
}

func TestHeaders(t *testing.T) {
	p := New(world(), quietLog())
	for _, target := range []string{"/", "/consumer?c=billing", "/nope", "/style.css", "/dead?c=nobody"} {
		h := send(p, "GET", target, nil).Header()
		for name, want := range map[string]string{"Content-Security-Policy": "default-src 'none'; ", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
			"Referrer-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin"} {
			if !strings.HasPrefix(h.Get(name), want) {
				t.Errorf("%s: %s: %q", target, name, h.Get(name))
			}
		}
		if got := h.Get("Cache-Control"); target != "/style.css" && got != "no-store" {
			t.Errorf("%s: %q", target, got)
		}
	}
	if strings.Contains(policy, "unsafe") {
		t.Error(policy)
	}
	asset := regexp.MustCompile(`href="(style\.css\?[0-9a-f]+)"`).FindStringSubmatch(send(p, "GET", "/", nil).Body.String())[1]
	got := send(p, "GET", "/"+asset, nil)
	if got.Code != 200 || !strings.Contains(got.Header().Get("Cache-Control"), "immutable") {
		t.Errorf("%d %v", got.Code, got.Header())
	}
	r := httptest.NewRequest("GET", "/style.css", nil)
	r.Header.Set("If-None-Match", got.Header().Get("ETag"))
	w := httptest.NewRecorder()
	p.ServeHTTP(w, r)
	if w.Code != 304 {
		t.Errorf("the same file again: %d", w.Code)
	}
}

// Each response is small, and no page has a script or style within.
func TestServedFiles(t *testing.T) {
	total := 0
	if err := fs.WalkDir(embedded, ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			content, errRead := fs.ReadFile(embedded, path)
			total, err = total+len(content), errRead
			if strings.HasSuffix(path, ".html") && regexp.MustCompile(`(?i) style=|<style| on[a-z]+=|<script>|javascript:`).Match(content) {
				t.Errorf("%s has a style or script within", path)
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes", total)
	if total > 60_000 {
		t.Errorf("%d bytes are served, more than 60,000", total)
	}
}

// The pages work below a prefix, behind a proxy that takes a prefix away, and without the slash behind it.
func TestPrefix(t *testing.T) {
	p := New(world(), allowing(all), quietLog())
	mux := http.NewServeMux()
	mux.Handle("/ops/", http.StripPrefix("/ops", p))
	mux.Handle("/bare", http.StripPrefix("/bare", p))
	mux.Handle("/bare/", http.StripPrefix("/bare", p))
	app := httptest.NewServer(mux)
	defer app.Close()
	origin := httptest.NewServer(p)
	defer origin.Close()
	to, err := url.Parse(origin.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewServer(http.StripPrefix("/deep/er", &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}))
	defer proxy.Close()
	links := regexp.MustCompile(`(?:href|src|data-follow)="([^"#]+)"`)
	for _, base := range []string{app.URL + "/ops/", app.URL + "/ops", app.URL + "/bare", proxy.URL + "/deep/er/"} {
		seen, queue := map[string]bool{}, []string{base}
		for len(queue) > 0 && len(seen) < 60 {
			at := queue[0]
			queue = queue[1:]
			if seen[at] {
				continue
			}
			seen[at] = true
			resp, err := http.Get(at)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(at, "/events?") {
				resp.Body.Close()
				continue
			}
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode != 200 {
				t.Errorf("%s: %s", at, resp.Status)
			}
			if !strings.HasPrefix(resp.Request.URL.Path, strings.TrimSuffix(strings.TrimPrefix(base, "http://"+resp.Request.URL.Host), "/")+"/") {
				t.Errorf("%s leads out of the prefix, to %s", at, resp.Request.URL)
			}
			for _, m := range links.FindAllStringSubmatch(string(body), -1) {
				next, err := resp.Request.URL.Parse(strings.ReplaceAll(m[1], "&amp;", "&"))
				if err != nil {
					t.Errorf("%s: link %q: %v", at, m[1], err)
					continue
				}
				queue = append(queue, next.String())
			}
		}
		if len(seen) < 20 {
			t.Errorf("%s: only %d pages are reached", base, len(seen))
		}
	}
}

// Looking has no effect, whatever is looked at.
func TestGetChangesNothing(t *testing.T) {
	f := troubled()
	p := New(f, allowing(all), quietLog())
	for _, target := range previews {
		preview := send(p, "GET", target, nil)
		form := hidden(preview.Body.String())
		form.Set("name", "gone")
		path, _, _ := strings.Cut(target, "?")
		send(p, "GET", path+"?"+form.Encode(), nil)
		send(p, "HEAD", path+"?"+form.Encode(), nil)
	}
	for _, rt := range p.routes() {
		send(p, "GET", "/"+rt.path+"?c=billing&id=98&expected=1", nil)
	}
	if len(f.changed) > 0 {
		t.Errorf("did %q", f.changed)
	}
}

// Ten viewers cost what one costs; without viewers the backend is left alone.
func TestTenViewersCostOnePoll(t *testing.T) {
	polls := func(viewers int) (calls map[string]int) {
		synctest.Test(t, func(t *testing.T) {
			f := world()
			s := newShared(f)
			time.Sleep(10 * time.Minute)
			if n := f.called(""); n != 0 {
				t.Errorf("%d calls without a viewer", n)
			}
			var open []*viewer
			for range viewers {
				v, ok := s.follow("billing", true)
				if !ok {
					t.Fatal("refused")
				}
				open = append(open, v)
				go func() { // a page fetches itself again after each hint
					for range v.hint {
						_, _ = s.statuses.get(t.Context(), pace)
						_, _ = s.detail("billing").get(t.Context(), pace)
					}
				}()
			}
			time.Sleep(time.Minute)
			for _, v := range open {
				s.leave(v)
				close(v.hint)
			}
			time.Sleep(2 * pace)
			f.mu.Lock()
			calls = map[string]int{"Status": f.calls["Status"], "Members": f.calls["Members"], "Leases": f.calls["Leases"]}
			f.mu.Unlock()
			time.Sleep(time.Hour)
			if n := f.called("Status"); n != calls["Status"] {
				t.Errorf("%d calls after the last viewer", n-calls["Status"])
			}
			if v, ok := s.follow("", false); !ok {
				t.Error("a viewer that comes later is refused")
			} else {
				time.Sleep(time.Minute)
				s.leave(v)
				time.Sleep(2 * pace)
				if n := f.called("Status") - calls["Status"]; n < 20 {
					t.Errorf("%d calls for a viewer that came later", n)
				}
			}
		})
		return calls
	}
	one, ten := polls(1), polls(10)
	if one["Status"] < 25 || one["Status"] > 35 || ten["Status"] > one["Status"]+1 || ten["Members"] > one["Members"]+1 || ten["Leases"] > one["Leases"]+1 {
		t.Errorf("in a minute one viewer costs %v, ten cost %v", one, ten)
	}
}

// Viewers of one list share its answers, each filter has its own, and an action makes them fresh.
func TestSharedLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // answers are shared for a while, which is not the machine's
		f := world()
		p := New(f, allowing(all), quietLog())
		for range 10 {
			time.Sleep(50 * time.Millisecond)
			for _, target := range []string{"/dead?c=billing", "/parked?c=billing", "/cursors?c=billing"} {
				send(p, "GET", target, nil)
			}
		}
		for _, name := range []string{"DeadLetters", "DeadLetterGroups", "Parked", "Cursors", "Members", "Status"} {
			if n := f.called(name); n != 1 {
				t.Errorf("%d calls of %s", n, name)
			}
		}
		if page := send(p, "GET", "/dead?c=billing&key=cust-1", nil).Body.String(); !strings.Contains(page, "2 dead letters") {
			t.Errorf("another filter has the same answer:\n%s", page)
		}
		for age, want := range map[string]string{"1m": "5 dead letters", "8m": "3 dead letters", "1h": "None match"} {
			if page := send(p, "GET", "/dead?c=billing&min="+age, nil).Body.String(); !strings.Contains(page, want) {
				t.Errorf("dead for %s: want %s in\n%s", age, want, page)
			}
		}
		send(p, "POST", "/purge", hidden(send(p, "GET", "/purge?c=billing&key=cust-1", nil).Body.String()))
		if page := send(p, "GET", "/dead?c=billing", nil).Body.String(); !strings.Contains(page, "3 dead letters") {
			t.Errorf("the page after a purge:\n%s", page)
		}
		for i := range 1000 {
			send(p, "GET", fmt.Sprintf("/dead?c=billing&key=%d", i), nil)
		}
		if n := len(p.shared.lists); n > mostLists {
			t.Errorf("%d answers are kept", n)
		}
	})
}

// Viewers are notified soon of changes, and seldom without one.
func TestHints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := world()
		s := newShared(f)
		hints := func(consumer string, detail bool) (*viewer, *int) {
			v, _ := s.follow(consumer, detail)
			n := new(int)
			go func() {
				for range v.hint {
					*n++
				}
			}()
			return v, n
		}
		quietOne, quietHints := hints("quiet", false)
		billing, billingHints := hints("billing", true)
		overview, overviewHints := hints("", false)
		defer func() {
			for _, v := range []*viewer{quietOne, billing, overview} {
				s.leave(v)
				close(v.hint)
			}
			time.Sleep(2 * pace)
		}()
		time.Sleep(3 * pace)
		synctest.Wait()
		before := [3]int{*quietHints, *billingHints, *overviewHints}
		f.mu.Lock()
		f.leases[0].Session = f.leases[1].Session
		f.mu.Unlock()
		time.Sleep(pace)
		synctest.Wait()
		if *billingHints != before[1]+1 || *quietHints != before[0] || *overviewHints != before[2] {
			t.Errorf("a lease changes hands: %d %d %d after %v", *quietHints, *billingHints, *overviewHints, before)
		}
		s.past("billing", func(h *history) {
			if len(h.handovers) != 1 || h.handovers[0].From != "web-1:4077" || h.handovers[0].To != "web-2:4078" || h.handovers[0].Resource != "0" {
				t.Errorf("handovers %+v", h.handovers)
			}
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := *quietHints - before[0]; n < 4 || n > 7 {
			t.Errorf("%d hints in a minute in which nothing changed", n)
		}
	})
}

// An answer that takes long is asked for more rarely, and once by all who wait.
func TestSlowBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := world()
		f.slowness = time.Second
		s := newShared(f)
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() { _, _ = s.statuses.get(t.Context(), pace) })
		}
		wg.Wait()
		for range 8 {
			time.Sleep(time.Second)
			_, _ = s.statuses.get(t.Context(), pace)
		}
		if n := f.called("Status"); n != 1 {
			t.Errorf("%d calls", n)
		}
		time.Sleep(10 * time.Second)
		_, _ = s.statuses.get(t.Context(), pace)
		if n := f.called("Status"); n != 2 {
			t.Errorf("%d calls", n)
		}
	})
}

// A backend that answers again is seen at once, however long it was frozen.
func TestFailureIsNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := world()
		f.slowness, f.err = 14*time.Second, context.DeadlineExceeded
		s := newShared(f)
		if _, err := s.statuses.get(t.Context(), pace); err == nil {
			t.Error("no error")
		}
		time.Sleep(12 * time.Second)
		f.mu.Lock()
		f.slowness, f.err = 0, nil
		f.mu.Unlock()
		time.Sleep(pace)
		if _, err := s.statuses.get(t.Context(), pace); err != nil {
			t.Error(err)
		}
	})
}

// A backend that does not answer costs a page three seconds, once. Then there is what was known, with its age.
func TestSilentBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := world()
		p := New(f, allowing(all), quietLog())
		took := func(method, target string, form url.Values) (int, string, time.Duration) {
			began := time.Now()
			got := send(p, method, target, form)
			return got.Code, got.Body.String(), time.Since(began)
		}
		for _, target := range []string{"/", "/consumer?c=billing", "/dead?c=billing", "/parked?c=billing", "/cursors?c=billing", "/letter?c=billing&id=98"} {
			if code, page, _ := took("GET", target, nil); code != 200 || strings.Contains(page, "does not answer") {
				t.Fatalf("%s: %d\n%s", target, code, page)
			}
		}
		form := hidden(send(p, "GET", "/pause?c=billing", nil).Body.String())
		v, _ := p.shared.follow("quiet", false)
		time.Sleep(20 * time.Second)
		synctest.Wait()
		select {
		case <-v.hint: // as now and then
		default:
		}
		calls := f.called("Status")
		thaw := f.freeze()
		time.Sleep(pace + patience)
		synctest.Wait()
		select {
		case <-v.hint:
		default:
			t.Error("viewers are not told that there is no answer")
		}
		for _, target := range []string{"/", "/consumer?c=billing", "/dead?c=billing", "/parked?c=billing", "/cursors?c=billing", "/letter?c=billing&id=98"} {
			code, page, after := took("GET", target, nil)
			if code != 200 || after > 3*time.Second || !regexp.MustCompile(`As of \d+ s ago, since the backend does not answer: it was asked `).MatchString(page) {
				t.Errorf("%s: %d after %v\n%s", target, code, after, page)
			}
		}
		for _, target := range []string{"/dead?c=billing&key=unknown", "/letter?c=billing&id=99", "/letter?c=billing&id=98&payload=1", "/replay?c=billing", "/pause?c=billing"} {
			code, page, after := took("GET", target, nil)
			if code != 504 || after > 3*time.Second || !strings.Contains(page, "The backend does not answer: it was asked ") || !strings.Contains(page, `http-equiv="refresh"`) {
				t.Errorf("%s: %d after %v\n%s", target, code, after, page)
			}
		}
		if code, page, after := took("POST", "/pause", form); code != 504 || after > 3*time.Second || strings.Contains(page, `http-equiv="refresh"`) || len(f.changed) > 0 {
			t.Errorf("pause: %d after %v, did %q\n%s", code, after, f.changed, page)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := f.called("Status"); n > calls+1 {
			t.Errorf("%d calls of a backend that does not answer", n-calls)
		}
		select {
		case <-v.hint:
		default:
		}
		thaw()
		time.Sleep(2 * pace)
		synctest.Wait()
		select {
		case <-v.hint:
		default:
			t.Error("viewers are not told that there are answers again")
		}
		if code, page, _ := took("GET", "/", nil); code != 200 || strings.Contains(page, "does not answer") {
			t.Errorf("%d\n%s", code, page)
		}
		p.shared.leave(v)
		time.Sleep(2 * pace)
	})
}

// Before the first answer the page is empty.
func TestSilentFromTheBeginning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := world()
		thaw := f.freeze()
		p := New(f, quietLog())
		began := time.Now()
		got := send(p, "GET", "/", nil)
		if took := time.Since(began); got.Code != 504 || took > 3*time.Second || got.Header().Get("Retry-After") == "" || !strings.Contains(got.Body.String(), "does not answer") {
			t.Errorf("%d after %v\n%s", got.Code, took, got.Body)
		}
		thaw() // it was slow: the answer is there when the page is loaded again
		synctest.Wait()
		if got := send(p, "GET", "/", nil); got.Code != 200 || f.called("Status") != 1 {
			t.Errorf("%d after %d calls", got.Code, f.called("Status"))
		}
	})
}

// changing is an operator whose consumers change.
type changing struct {
	*fake
	status func() operate.ConsumerStatus
}

func (c *changing) Status(ctx context.Context) ([]operate.ConsumerStatus, error) {
	all := []operate.ConsumerStatus{c.status()}
	_, err := c.fake.Status(ctx)
	return all, err
}

// An answer from before an action is not shown after it.
func TestAnswerFromBeforeAnAction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var paused atomic.Bool
		f := world()
		f.slowness = 2 * time.Second
		s := newShared(&changing{f, func() operate.ConsumerStatus {
			return operate.ConsumerStatus{Consumer: "billing", Paused: paused.Load()}
		}})
		go func() { _, _ = s.statuses.get(t.Context(), pace) }()
		time.Sleep(time.Second)
		paused.Store(true)
		s.changed("billing")
		if all, err := s.statuses.get(t.Context(), pace); err != nil || all.old != nil || !all.value[0].Paused {
			t.Errorf("%+v, %v", all, err)
		}
	})
}

// Others may write to a backend: a consumer without a name does not end the process that shows it.
func TestConsumerWithoutName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lag atomic.Int64
		s := newShared(&changing{world(), func() operate.ConsumerStatus { return operate.ConsumerStatus{LagTotal: lag.Add(1)} }})
		v, _ := s.follow("billing", true)
		time.Sleep(pace + time.Second)
		s.leave(v)
		time.Sleep(pace)
	})
}

// Each page asks the operator three times at most, however much there is.
func TestPagesCostThreeCalls(t *testing.T) {
	for _, target := range []string{"/", "/consumer?c=billing", "/dead?c=billing", "/dead?c=billing&text=carrier&after=99", "/letter?c=billing&id=98", "/parked?c=billing", "/cursors?c=billing",
		"/replay?c=billing", "/purge?c=billing&reason=*", "/retry?c=billing", "/move?c=billing", "/move?c=billing&r=1&to=now", "/pause?c=billing"} {
		f := world()
		if got := send(New(f, allowing(all), quietLog()), "GET", target, nil); got.Code != 200 {
			t.Errorf("%s: %d", target, got.Code)
		}
		if n := f.called(""); n > 3 {
			t.Errorf("%s: %d calls: %v", target, n, f.calls)
		}
	}
}

// With 40,000 resources and 100,000 dead letters pages stay small.
func TestManyRows(t *testing.T) {
	f := world()
	for i := range 40_000 {
		f.leases = append(f.leases, operate.LeaseStatus{Resource: fmt.Sprint("topic-", i), Session: f.members[i%2].Session, Lag: 1})
		f.cursors = append(f.cursors, operate.CursorStatus{Resource: fmt.Sprint("topic-", i), Lag: 1})
	}
	f.all[0].Resources = len(f.leases)
	letter, parked := f.letters[0], f.parked[0]
	for i := range 100_000 {
		letter.ID, parked.MessageID, parked.Place = fmt.Sprint(1000+i), fmt.Sprint(1000+i), fmt.Sprint("p", i)
		f.letters, f.parked = append(f.letters, letter), append(f.parked, parked)
	}
	p := New(f, allowing(all), quietLog())
	for _, target := range []string{"/", "/consumer?c=billing", "/dead?c=billing", "/parked?c=billing", "/cursors?c=billing", "/replay?c=billing", "/retry?c=billing"} {
		got := shownAt(p, target)
		if got.Code != 200 || got.Body.Len() > 120_000 {
			t.Errorf("%s: %d, %d bytes", target, got.Code, got.Body.Len())
		}
		rows := strings.Count(got.Body.String(), "<tr")
		if target != "/" && rows > 2*listed+10 {
			t.Errorf("%s: %d rows", target, rows)
		}
	}
	// All pages of them, by their links, each letter once.
	seen, next := map[string]bool{}, "/dead?c=billing&key=cust-0"
	ids, link := regexp.MustCompile(`name="id" value="(\d+)"`), regexp.MustCompile(`rel="next" href="([^"]*)"`)
	for pages := 0; next != "" && pages < 5; pages++ {
		body := shownAt(p, next).Body.String()
		for _, m := range ids.FindAllStringSubmatch(body, -1) {
			if seen[m[1]] {
				t.Fatalf("%s is listed twice", m[1])
			}
			seen[m[1]] = true
		}
		m := link.FindStringSubmatch(body)
		if m == nil {
			break
		}
		next = "/" + strings.ReplaceAll(m[1], "&amp;", "&")
	}
	if len(seen) != 500 {
		t.Errorf("five pages have %d", len(seen))
	}
}

// shownAt looks at a page again, as its browser does, where a slow machine has no answer yet.
func shownAt(h http.Handler, target string) *httptest.ResponseRecorder {
	got := send(h, "GET", target, nil)
	for end := time.Now().Add(time.Minute); got.Code == http.StatusGatewayTimeout && time.Now().Before(end); {
		got = send(h, "GET", target, nil)
	}
	return got
}

func TestBounds(t *testing.T) {
	f := world()
	p := New(f, allowing(all), quietLog())
	for _, c := range []struct {
		method, target string
		form           url.Values
		want           int
	}{
		{"GET", "/dead?c=billing&key=" + strings.Repeat("k", maxQuery), nil, 414},
		{"GET", "/dead?c=billing&key=" + strings.Repeat("k", maxField+1), nil, 400},
		{"GET", "/dead?c=billing&key=%00", nil, 400},
		{"GET", "/dead?c=billing&key=%zz", nil, 400},
		{"GET", "/dead?c=billing&min=soon", nil, 400},
		{"GET", "/dead?c=billing&min=-5m", nil, 400},
		{"GET", "/replay?c=billing" + strings.Repeat("&id=1", listed+1), nil, 400},
		{"GET", "/dead?c=nobody", nil, 404},
		{"GET", "/letter?c=billing&id=1", nil, 404},
		{"GET", "/letter?c=billing", nil, 404},
		{"GET", "/nowhere", nil, 404},
		{"POST", "/replay", url.Values{"c": {"billing"}}, 400},
		{"POST", "/replay", url.Values{"c": {"billing"}, "expected": {"many"}}, 400},
		{"POST", "/replay", url.Values{"c": {"billing"}, "id": {strings.Repeat("i", maxForm)}}, 413},
		{"POST", "/replay", url.Values{"c": {"billing"}, "of": {"%zz"}}, 400},
		{"POST", "/replay", url.Values{"c": {"billing"}, "of": {"key=" + strings.Repeat("k", maxField+1)}}, 400},
		{"GET", "/events?c=" + strings.Repeat("k", maxField+1), nil, 400},
		{"GET", "/events?c=%00", nil, 400},
		{"GET", "/move?c=billing&r=1&to=elsewhere", nil, 400},
		{"GET", "/move?c=billing&r=1&to=after", nil, 400},
		{"POST", "/events", url.Values{}, 405},
	} {
		if got := send(p, c.method, c.target, c.form); got.Code != c.want {
			t.Errorf("%s %.60s: %d, want %d", c.method, c.target, got.Code, c.want)
		}
	}
	f.err = fmt.Errorf("status: <b>refused</b>")
	f.all = nil
	if got := send(New(f, quietLog()), "GET", "/", nil); got.Code != 503 || !strings.Contains(got.Body.String(), "status: &lt;b&gt;refused&lt;/b&gt;") {
		t.Errorf("%d\n%s", got.Code, got.Body)
	}
}

// Streams of hints end with the handler, so that a server can be shut down.
func TestStream(t *testing.T) {
	p := New(world(), quietLog())
	server := httptest.NewServer(p)
	defer server.Close()
	resp, err := http.Get(server.URL + "/events?c=billing")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.Header.Get("Content-Type") != "text/event-stream" || resp.Header.Get("X-Accel-Buffering") != "no" {
		t.Errorf("%v", resp.Header)
	}
	p.shared.changed("billing")
	buffer := make([]byte, 1000)
	for text := ""; !strings.Contains(text, "event: changed\ndata: \"billing\"\n\n"); {
		n, err := resp.Body.Read(buffer)
		if err != nil {
			t.Fatalf("%v after %q", err, text)
		}
		text += string(buffer[:n])
	}
	p.Close()
	if _, err := io.ReadAll(resp.Body); err != nil {
		t.Error(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		p.shared.mu.Lock()
		n := len(p.shared.viewers)
		p.shared.mu.Unlock()
		if n == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the viewer is still there")
		}
	}
}

// No page has markup from names, keys, reasons or payloads.
func FuzzEscaping(f *testing.F) {
	for _, s := range []string{`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `javascript:alert(1)`, `' onmouseover='x`, "a\x00b", "\xff\xfe", `{{.}}`, "</pre><h1>", "\u202e", `\"`, "%3Cb%3E", "&lt;", "../../x?y#z", "*"} {
		f.Add(s)
	}
	tags := regexp.MustCompile(`<[a-zA-Z!/][^>]*`)
	f.Fuzz(func(t *testing.T, s string) {
		shape := func(s string) (pages []string) {
			w := world()
			w.all[0].Consumer, w.all[0].Note = "billing", s+"."
			for i := range w.letters {
				l := &w.letters[i]
				l.Topic, l.Key, l.Kind, l.Reason, l.Resource, l.MessageID, l.Payload, l.Headers = s, s, s, s, s, s, []byte(s), map[string]string{s: s}
			}
			for i := range w.parked {
				m := &w.parked[i]
				m.Resource, m.Topic, m.Key, m.Error, m.Place, m.Kind = s, s, s, s, s, s
			}
			for i := range w.leases {
				w.leases[i].Resource, w.cursors[i].Resource, w.cursors[i].Position = s+fmt.Sprint(i), s+fmt.Sprint(i), s
			}
			for i := range w.members {
				w.members[i].Host = s
			}
			p := New(w, allowing(all), quietLog(), WithTarget(s), WithActor(func(*http.Request) string { return s }))
			q := url.QueryEscape(s)
			for _, target := range []string{"/", "/consumer?c=billing", "/dead?c=billing", "/dead?c=billing&topic=" + q + "&key=" + q, "/letter?c=billing&id=98&payload=1", "/parked?c=billing",
				"/cursors?c=billing", "/purge?c=billing&key=" + q, "/retry?c=billing&key=" + q, "/move?c=billing&r=" + q + "0&to=after&message=" + q, "/dead?c=" + q} {
				r := send(p, "GET", target, nil)
				if r.Code == 500 {
					t.Errorf("%s: 500", target)
				}
				pages = append(pages, r.Body.String())
			}
			return pages
		}
		names := regexp.MustCompile(`^<[a-zA-Z!/][^ >]*`)
		elements := func(page string) (list []string) {
			for _, tag := range tags.FindAllString(page, -1) {
				if regexp.MustCompile(`(?i)[\s"'](on[a-z]+|style)\s*=`).MatchString(regexp.MustCompile(`"[^"]*"`).ReplaceAllString(tag, `""`)) {
					t.Errorf("%q: %s", s, tag)
				}
				if regexp.MustCompile(`(?i)(href|src|action)="\s*(javascript|data):`).MatchString(tag) {
					t.Errorf("%q: %s", s, tag)
				}
				list = append(list, names.FindString(tag))
			}
			return list
		}
		if len(s) > maxField/4 || s == "" || strings.ContainsRune(s, 0) || strings.TrimSpace(s) == "" {
			return
		}
		harmless, hostile := shape("x"), shape(s)
		for i := range hostile {
			if got, want := elements(hostile[i]), elements(harmless[i]); strings.Contains(harmless[i], "<table") && !slices.Equal(got, want) && !strings.Contains(s, "*") {
				t.Errorf("%q makes other elements on page %d:\n%q\n%q", s, i, got, want)
			}
		}
	})
}

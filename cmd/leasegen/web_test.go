package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	neturl "net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

// printed collects what a command that runs prints.
type printed struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (p *printed) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.b.Write(b)
}

func (p *printed) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.b.String()
}

// runWeb runs leasegen web until stop is called, which returns the exit code.
func runWeb(t *testing.T, vars map[string]string, args ...string) (base string, out, errs *printed, stop func() int) {
	t.Helper()
	out, errs = &printed{}, &printed{}
	e := &env{Stdin: strings.NewReader(""), Stdout: out, Stderr: errs, Dir: t.TempDir(), Getenv: func(k string) string { return vars[k] }}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, e, append([]string{"web", "-listen", "127.0.0.1:0"}, args...)) }()
	stop = sync.OnceValue(func() int {
		cancel()
		select {
		case code := <-ended:
			return code
		case <-time.After(time.Minute):
			t.Error("it does not end")
			return -1
		}
	})
	t.Cleanup(func() { stop() })
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if m := regexp.MustCompile(`^http://127\.0\.0\.1:\d+/`).FindString(out.String()); m != "" {
			return m, out, errs, stop
		}
		if time.Now().After(deadline) {
			t.Fatalf("it does not say where it is: %s%s", out, errs)
		}
	}
}

// get asks with headers, given by name and value.
func get(t *testing.T, url string, headers ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	if h := r.Header.Get("Host"); h != "" {
		r.Host = h
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestWeb(t *testing.T) {
	dsn := pgtest.DB(t)
	vars := map[string]string{"LEASEGEN_DSN": dsn}
	mustRun(t, vars, "migrate")
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	deadLetter(t, leasepg.New(pool))

	pause := neturl.Values{"c": {"mailing"}, "expected": {"1"}}
	for _, c := range []struct {
		args     []string
		says     string
		operates bool
		payloads bool
	}{
		{nil, "to look at; -operate lets you change something, -payloads shows payloads", false, false},
		{[]string{"-payloads"}, "to look at, with payloads", false, true},
		{[]string{"-operate"}, "to operate; -payloads shows payloads", true, false},
		{[]string{"-operate", "-payloads"}, "to operate, with payloads", true, true},
	} {
		base, out, errs, stop := runWeb(t, vars, c.args...)
		if !strings.Contains(out.String(), c.says) || !strings.Contains(out.String(), " shows schema leasegen of database ") {
			t.Errorf("%q: %s", c.args, out)
		}
		if code, page := get(t, base); code != 200 || !strings.Contains(page, "mailing") || !strings.Contains(page, "schema leasegen of database ") {
			t.Errorf("%q: %d\n%s", c.args, code, page)
		}
		_, page := get(t, base+"dead?c=mailing")
		id := regexp.MustCompile(`href="(letter\?[^"]*)"`).FindStringSubmatch(page)
		if id == nil {
			t.Fatalf("no dead letter: %s", page)
		}
		if code, page := get(t, base+strings.ReplaceAll(id[1], "&amp;", "&")+"&payload=1"); (code == 200) != c.payloads {
			t.Errorf("%q: a payload: %d\n%s", c.args, code, page)
		}
		resp, err := http.PostForm(base+"pause", pause)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		_, status := get(t, base)
		if paused := strings.Contains(status, "It is paused"); paused != c.operates || (resp.StatusCode == 403) == c.operates {
			t.Errorf("%q: pause: %s, paused %v", c.args, resp.Status, paused)
		}
		if c.operates {
			if line := errs.String(); !strings.Contains(line, "action=pause") || !strings.Contains(line, "consumer=mailing") {
				t.Errorf("not in the log: %s", line)
			}
			mustRun(t, vars, "resume", "mailing")
		}
		// A name of another site that leads here is not answered to.
		for host, want := range map[string]int{"evil.example": 421, "evil.example:8077": 421, "localhost": 200, "127.0.0.1:1": 200, "[::1]:8077": 200} {
			if code, _ := get(t, base, "Host", host); code != want {
				t.Errorf("Host: %s: %d, want %d", host, code, want)
			}
		}
		// It ends though a page listens.
		stream, err := http.Get(base + "events?")
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if code := stop(); code != exitOK || time.Since(began) > 4*time.Second {
			t.Errorf("%q: exit %d after %v\n%s", c.args, code, time.Since(began), errs)
		}
		stream.Body.Close()
	}
}

func TestWebPassword(t *testing.T) {
	dsn := pgtest.DB(t)
	vars := map[string]string{"LEASEGEN_DSN": dsn, passwordVariable: "s3cret"}
	mustRun(t, vars, "migrate")
	base, out, errs, _ := runWeb(t, vars, "-operate")
	for _, c := range []struct {
		authorization string
		want          int
	}{{"", 401}, {"Basic YW5uOndyb25n", 401}, {"Basic YW5uOnMzY3JldA==", 200}} { // ann:wrong, ann:s3cret
		code, page := get(t, base, "Authorization", c.authorization, "Host", "web.example")
		if code != c.want || (code == 200) != strings.Contains(page, "as ann") {
			t.Errorf("%q: %d, want %d\n%s", c.authorization, code, c.want, page)
		}
	}
	if all := out.String() + errs.String(); strings.Contains(all, "s3cret") {
		t.Errorf("the password is shown: %s", all)
	}
}

func TestWebArguments(t *testing.T) {
	for _, c := range []struct {
		listen, password string
		rest             []string
		want             string
	}{
		{"127.0.0.1:8077", "", nil, ""}, {"localhost:0", "", nil, ""}, {"[::1]:8077", "", nil, ""}, {":8077", "s3cret", nil, ""},
		{":8077", "", nil, "-listen :8077 can be reached from other machines: set LEASEGEN_WEB_PASSWORD to a password that users have to give"},
		{"0.0.0.0:8077", "", nil, "-listen 0.0.0.0:8077 can be reached from other machines: set LEASEGEN_WEB_PASSWORD to a password that users have to give"},
		{"10.0.0.7:8077", "", nil, "-listen 10.0.0.7:8077 can be reached from other machines: set LEASEGEN_WEB_PASSWORD to a password that users have to give"},
		{"8077", "", nil, `-listen "8077": want host:port, as 127.0.0.1:8077`},
		{"127.0.0.1:8077", "", []string{"billing"}, `it takes flags only, not ["billing"]`},
	} {
		got := ""
		if err := (&web{listen: c.listen, password: c.password}).arguments(c.rest); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

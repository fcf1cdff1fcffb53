package diag

import (
	"encoding/json"
	"errors"
	"go/token"
	"strings"
	"testing"
)

func at(file string, line, col int) token.Position {
	return token.Position{Filename: file, Line: line, Column: col}
}

func source(text string) func(string) ([]byte, error) {
	return func(name string) ([]byte, error) {
		if strings.HasSuffix(name, "missing.go") {
			return nil, errors.New("no such file")
		}
		return []byte(text), nil
	}
}

func TestText(t *testing.T) {
	long := strings.Repeat("x", 300)
	for name, tc := range map[string]struct {
		src, want string
		d         Diagnostic
	}{
		"caret and hint": {"package a\n\t//x:y tll=1\n", "a.go:2:8: unknown (LG0104)\n\t//x:y tll=1\n\t      ^~~ did you mean\n",
			Diagnostic{Code: "LG0104", Pos: at("/w/a.go", 2, 8), End: at("/w/a.go", 2, 11), Message: "unknown", Hint: "did you mean"}},
		"no end, no excerpt": {"package a\n", "a.go:1:1: bad (LG0302)\n\twrite this\n\thave a\n\tfirst at b.go:3:4\n",
			Diagnostic{Code: "LG0302", Pos: at("/w/a.go", 1, 1), Message: "bad", Hint: "write this", Detail: []string{"have a"},
				Related: []Related{{at("/w/b.go", 3, 4), "first at"}}}},
		"outside the directory": {"", "/v/a.go:1:1: bad (LG0302)\n", Diagnostic{Code: "LG0302", Pos: at("/v/a.go", 1, 1), Message: "bad"}},
		"no position":           {"", "bad (LG0302)\n", Diagnostic{Code: "LG0302", Message: "bad"}},
		"file alone":            {"", "a.go: warning: bad (LG0302)\n", Diagnostic{Code: "LG0302", Pos: at("/w/a.go", 0, 0), Message: "bad", Warning: true}},
		"file that cannot be read": {"", "missing.go:1:1: bad (LG0302)\n\thint\n",
			Diagnostic{Code: "LG0302", Pos: at("/w/missing.go", 1, 1), End: at("/w/missing.go", 1, 2), Message: "bad", Hint: "hint"}},
		"line that is not there": {"a\n", "a.go:9:1: bad (LG0302)\n", Diagnostic{Code: "LG0302", Pos: at("/w/a.go", 9, 1), End: at("/w/a.go", 9, 2), Message: "bad"}},
		"column that is not there": {"a\n", "a.go:1:9: bad (LG0302)\n",
			Diagnostic{Code: "LG0302", Pos: at("/w/a.go", 1, 9), End: at("/w/a.go", 1, 10), Message: "bad"}},
		"at the end of the line": {"abc\n", "a.go:1:4: bad (LG0302)\n\tabc\n\t   ^\n",
			Diagnostic{Code: "LG0302", Pos: at("/w/a.go", 1, 4), End: at("/w/a.go", 1, 4), Message: "bad"}},
		"end on a later line": {"abc\ndef\n", "a.go:1:2: bad (LG0302)\n\tabc\n\t ^~\n",
			Diagnostic{Code: "LG0302", Pos: at("/w/a.go", 1, 2), End: at("/w/a.go", 2, 2), Message: "bad"}},
		"CRLF and BOM": {"\ufeff//x y\r\n", "a.go:1:8: bad (LG0302)\n\t//x y\n\t    ^\n",
			Diagnostic{Code: "LG0302", Pos: at("/w/a.go", 1, 8), End: at("/w/a.go", 1, 9), Message: "bad"}},
		"hidden characters": {"a\u202eb\tc\xff d\n", "a.go:1:6: bad\\u202e\\n (LG0302)\n\ta\\u202eb\\tc\\xff d\n\t        ^~ \\x1b[31m\n",
			Diagnostic{Code: "LG0302", Pos: at("/w/a.go", 1, 6), End: at("/w/a.go", 1, 7), Message: "bad\u202e\n", Hint: "\x1b[31m"}},
		"wide characters": {"ä ö x\n", "a.go:1:7: bad (LG0302)\n\tä ö x\n\t    ^\n",
			Diagnostic{Code: "LG0302", Pos: at("/w/a.go", 1, 7), End: at("/w/a.go", 1, 8), Message: "bad"}},
		"long line": {long + "!" + long + "\n", "a.go:1:301: bad (LG0302)\n\t…" + long[:79] + "!" + long[:78] + "…\n\t" + strings.Repeat(" ", 80) + "^\n",
			Diagnostic{Code: "LG0302", Pos: at("/w/a.go", 1, 301), End: at("/w/a.go", 1, 302), Message: "bad"}},
	} {
		t.Run(name, func(t *testing.T) {
			var l List
			l.Add(tc.d)
			var b strings.Builder
			if err := (Printer{Dir: "/w", Source: source(tc.src)}).Print(&b, &l); err != nil {
				t.Fatal(err)
			}
			if b.String() != tc.want {
				t.Errorf("got\n%s\nwant\n%s", b.String(), tc.want)
			}
		})
	}
}

func TestList(t *testing.T) {
	var l List
	l.Add(
		Diagnostic{Code: "LG0302", Pos: at("b.go", 1, 1), Message: "z"},
		Diagnostic{Code: "LG0302", Pos: at("a.go", 10, 1), Message: "z"},
		Diagnostic{Code: "LG0302", Pos: at("a.go", 9, 2), Message: "z"},
		Diagnostic{Code: "LG0302", Pos: at("a.go", 9, 1), Message: "z"},
		Diagnostic{Code: "LG0101", Pos: at("a.go", 9, 1), Message: "z", Warning: true},
		Diagnostic{Code: "LG0302", Pos: at("b.go", 1, 1), Message: "z"},
	)
	var got []string
	for _, d := range l.All() {
		got = append(got, d.Pos.String()+" "+d.Code)
	}
	want := "a.go:9:1 LG0101, a.go:9:1 LG0302, a.go:9:2 LG0302, a.go:10:1 LG0302, b.go:1:1 LG0302"
	if strings.Join(got, ", ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
	if l.Len() != 5 || l.Errors() != 4 || l.Summary() != "4 findings, 1 warning" || l.Err() == nil {
		t.Errorf("%d findings, %d errors, %q, %v", l.Len(), l.Errors(), l.Summary(), l.Err())
	}
	warning := List{}
	warning.Add(Diagnostic{Warning: true})
	if warning.Err() != nil || warning.Summary() != "1 warning" {
		t.Errorf("%v, %q", warning.Err(), warning.Summary())
	}
	var none *List
	if none.Len() != 0 || none.Err() != nil {
		t.Error("a nil list is not empty")
	}
}

func TestFormats(t *testing.T) {
	var l List
	l.Add(Diagnostic{Code: "LG0104", Pos: at("/w/a,b:c%.go", 2, 3), End: at("/w/a,b:c%.go", 2, 5), Message: "50%\r\n::error::x", Hint: "h", Detail: []string{"d"},
		Related: []Related{{at("/w/b.go", 3, 4), "first at"}}, Warning: true})
	var b strings.Builder
	if err := (Printer{Dir: "/w", Format: "github"}).Print(&b, &l); err != nil {
		t.Fatal(err)
	}
	if want := "::warning file=a%2Cb%3Ac%25.go,line=2,col=3,title=LG0104::50%25\\r\\n::error::x%0Ah%0Ad%0Afirst at b.go:3:4\n"; b.String() != want {
		t.Errorf("got  %swant %s", b.String(), want)
	}
	b.Reset()
	if err := (Printer{Dir: "/w", Format: "json"}).Print(&b, &l); err != nil {
		t.Fatal(err)
	}
	var out []map[string]any
	if err := json.Unmarshal([]byte(b.String()), &out); err != nil || len(out) != 1 {
		t.Fatalf("%v: %s", err, b.String())
	}
	if out[0]["file"] != "a,b:c%.go" || out[0]["message"] != "50%\r\n::error::x" || out[0]["severity"] != "warning" || out[0]["column"] != 3.0 {
		t.Errorf("%v", out[0])
	}
	if err := (Printer{Format: "xml"}).Print(&b, &l); err == nil {
		t.Error("an unknown format is accepted")
	}
}

func TestSuggest(t *testing.T) {
	known := []string{"ttl", "margin", "grace"}
	for word, want := range map[string]string{
		"tll":      `did you mean "ttl"? known: grace, margin, ttl`,
		"TTL":      `did you mean "ttl"? known: grace, margin, ttl`,
		"lttl":     `did you mean "ttl"? known: grace, margin, ttl`,
		"tl":       `did you mean "ttl"? known: grace, margin, ttl`,
		"t":        `known: grace, margin, ttl`,
		"mragin":   `did you mean "margin"? known: grace, margin, ttl`,
		"marginss": `did you mean "margin"? known: grace, margin, ttl`,
		"min":      `known: grace, margin, ttl`,
		"":         `known: grace, margin, ttl`,
	} {
		if got := Suggest(word, known); got != want {
			t.Errorf("Suggest(%q) = %q, want %q", word, got, want)
		}
	}
	if got := Suggest("x", nil); got != "" {
		t.Errorf("nothing known gives %q", got)
	}
	for _, tc := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"abc", "", 3}, {"abc", "acb", 1}, {"kitten", "sitting", 3}, {"ab", "ba", 1}, {"abcd", "badc", 2}} {
		if got := distance(tc.a, tc.b); got != tc.want || distance(tc.b, tc.a) != tc.want {
			t.Errorf("distance(%q, %q) = %d, want %d", tc.a, tc.b, got, tc.want)
		}
	}
}

// TestGitHubSteersNoTerminal: a log that is shown in a terminal is not steered by names of files.
func TestGitHubSteersNoTerminal(t *testing.T) {
	const steer = "\x1b[2J\u009b\u202ex"
	f := &List{}
	f.Add(Diagnostic{Code: "LG0001", Message: steer, Hint: steer, Detail: []string{steer},
		Pos: token.Position{Filename: "/m/" + steer + ".go", Line: 1, Column: 1}, Related: []Related{{Message: steer, Pos: token.Position{Filename: steer, Line: 1}}}})
	for _, format := range []string{"github", "text"} {
		var out strings.Builder
		if err := (Printer{Dir: "/m", Format: format}).Print(&out, f); err != nil {
			t.Fatal(err)
		}
		if strings.ContainsAny(out.String(), "\x1b\u009b\u202e") {
			t.Errorf("%s: %q", format, out.String())
		}
	}
}

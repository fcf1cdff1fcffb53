package main

import (
	"strings"
	"testing"
)

func TestTableFits(t *testing.T) {
	tab := newTable("name", "?spare", ">n", "text")
	tab.add("a", "sparse", mark("12", true), strings.Repeat("word ", 8)+"end")
	tab.add("日本語", "", "3", "é\u0301.")
	for columns, want := range map[int]string{
		0: `
name    spare    n  text
a       sparse  12  word word word word word word word word end
日本語           3  é́.
`,
		60: `
name     n  text
a       12  word word word word word word word word end
日本語   3  é́.
not shown on a terminal this narrow: spare
`,
		30: `
name     n  text
a       12  word word word wo…
日本語   3  é́.
not shown on a terminal this narrow: spare
`,
		1: `
name     n  text
a       12  word wo…
日本語   3  é́.
not shown on a terminal this narrow: spare
`,
	} {
		var b strings.Builder
		if err := tab.print(&output{Writer: &b, width: columns}); err != nil {
			t.Fatal(err)
		}
		expect(t, b.String(), want)
	}
	var b strings.Builder
	if err := tab.print(&output{Writer: &b, colour: true}); err != nil || !strings.Contains(b.String(), "sparse  \x1b[31m12\x1b[m  word") {
		t.Errorf("%v: %q", err, b.String())
	}
}

func TestCut(t *testing.T) {
	for _, c := range []struct {
		text  string
		cells int
		want  string
	}{
		{"plain", 5, "plain"}, {"plain", 4, "pla…"}, {"日本語", 6, "日本語"}, {"日本語", 5, "日本…"}, {"日本語", 4, "日…"},
		{attention + "alarm", 5, attention + "alarm"}, {attention + "alarm", 3, attention + "al…"}, {"e\u0301e\u0301", 2, "e\u0301e\u0301"},
	} {
		if got := cut(c.text, c.cells); got != c.want || cells(got) > c.cells {
			t.Errorf("cut(%q, %d) = %q, want %q", c.text, c.cells, got, c.want)
		}
	}
}

package directive

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"

	"github.com/leasegen/leasegen/generator/internal/diag"
)

// collect parses src and returns its directives and its findings, one a line:
// "line:col-col code message | hint".
func collect(t testing.TB, src string, dropBodies bool) (File, []string) {
	t.Helper()
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "x.go", src, parser.ParseComments|parser.SkipObjectResolution)
	if f == nil {
		t.Fatal(err)
	}
	if dropBodies {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				fn.Body = nil
			}
		}
	}
	var diags diag.List
	out := Collect(fset, f, []byte(src), &diags)
	var lines []string
	for _, d := range diags.All() {
		line := fmt.Sprintf("%d:%d-%d %s %s | %s", d.Pos.Line, d.Pos.Column, d.End.Column, d.Code, d.Message, d.Hint)
		for _, r := range d.Related {
			line += fmt.Sprintf(" | %s %d:%d", r.Message, r.Pos.Line, r.Pos.Column)
		}
		lines = append(lines, line)
	}
	return out, lines
}

// on puts a comment above a struct, on line 3.
func on(comment string) string {
	return "package x\n\n" + comment + "\ntype T struct{}\n"
}

func TestCollect(t *testing.T) {
	src := "\ufeff// Package x.\r\n//\r\n//leasegen:defaults lease_ttl=15s\r\npackage x\r\n\r\n" +
		"const s = \"//leasegen:consumer\" + `\r\n//leasegen:consumer\r\n`\r\n\r\n" +
		"// T is.\r\n//\r\n//leasegen:consumer name=t   \"topics=a b\" flag \r\n//leasegen:lease ttl=15s\r\ntype T struct{}\r\n\r\n" +
		"type (\r\n\t//leasegen:event\r\n\tA struct{}\r\n\tB struct{}\r\n\t//leasegen:event key=ID\r\n\tC[X any] struct{}\r\n)\r\n"
	got, findings := collect(t, src, false)
	if len(findings) > 0 {
		t.Fatal(findings)
	}
	var b strings.Builder
	show := func(d Directive) {
		p := d.Position(d.Pos)
		fmt.Fprintf(&b, "%d:%d %s", p.Line, p.Column, d.Name)
		for _, a := range d.Args {
			fmt.Fprintf(&b, " [%s|%s|%v %d %d %d %d]", a.Key, a.Value, a.Flag,
				d.Position(a.Pos).Column, d.Position(a.KeyPos).Column, d.Position(a.ValuePos).Column, d.Position(a.End).Column)
		}
		b.WriteString("\n")
	}
	for _, d := range got.Package {
		show(d)
	}
	for _, td := range got.Types {
		fmt.Fprintf(&b, "%s:\n", td.Spec.Name.Name)
		for _, d := range td.Directives {
			show(d)
		}
	}
	want := `3:1 defaults [lease_ttl|15s|false 21 21 31 34]
T:
12:1 consumer [name|t|false 21 21 26 27] [topics|a b|false 30 31 38 42] [flag||true 43 43 43 47]
13:1 lease [ttl|15s|false 18 18 22 25]
A:
17:2 event
C:
20:2 event [key|ID|false 19 19 23 25]
`
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", &b, want)
	}
}

func TestFindings(t *testing.T) {
	for name, tc := range map[string]struct {
		src  string
		want string // findings, one a line
	}{
		"space":          {on("// leasegen:consumer per=group"), `3:1-21 LG0105 "// leasegen:consumer" is a comment, not a directive | write //leasegen:consumer per=group`},
		"capital":        {on("//Leasegen:lease ttl=1s"), `3:1-17 LG0105 "//Leasegen:lease" is a comment, not a directive | write //leasegen:lease ttl=1s`},
		"all capitals":   {on("//LEASEGEN:LEASE"), `3:1-17 LG0105 "//LEASEGEN:LEASE" is a comment, not a directive | write //leasegen:lease`},
		"hyphen":         {on("//lease-gen:event"), `3:1-18 LG0105 "//lease-gen:event" is a comment, not a directive | write //leasegen:event`},
		"space after":    {on("//leasegen: event"), `3:1-18 LG0105 "//leasegen: event" is a comment, not a directive | write //leasegen:event`},
		"gofmt of that":  {on("// leasegen: event"), `3:1-19 LG0105 "// leasegen: event" is a comment, not a directive | write //leasegen:event`},
		"space before":   {on("//leasegen :event"), `3:1-18 LG0105 "//leasegen :event" is a comment, not a directive | write //leasegen:event`},
		"capital name":   {on("//leasegen:Event name=a"), `3:1-17 LG0105 "//leasegen:Event" is a comment, not a directive | write //leasegen:event name=a`},
		"no name":        {on("//leasegen:"), `3:1-12 LG0105 "//leasegen:" names no directive | write //leasegen:NAME; leasegen explain lists the names`},
		"misspelt tool":  {on("//leasgen:event key=ID"), `3:1-16 LG0105 "//leasgen:event" is a directive of another tool, "leasgen" | write //leasegen:event key=ID`},
		"other tools":    {on("//nolint:all\n//go:generate leasegen\n//legend:x\n//release:x"), ""},
		"marker":         {on("// +leasegen:event"), `3:1-19 LG0105 "// +leasegen:event" is a comment, not a directive | write //leasegen:event`},
		"at sign":        {on("//@leasegen:event"), `3:1-18 LG0105 "//@leasegen:event" is a comment, not a directive | write //leasegen:event`},
		"three slashes":  {on("///leasegen:event"), `3:1-18 LG0105 "///leasegen:event" is a comment, not a directive | write //leasegen:event`},
		"short":          {on("//lease:consumer per=group"), `3:1-17 LG0105 "//lease:consumer" is a directive of another tool, "lease" | write //leasegen:consumer per=group`},
		"short, no more": {on("//lease:event"), `3:1-14 LG0105 "//lease:event" is a directive of another tool, "lease" | write //leasegen:event`},
		"short, spaced":  {on("// lease:retry max=3"), `3:1-15 LG0105 "// lease:retry" is a comment, not a directive | write //leasegen:retry max=3`},
		"short, quoted":  {on("//lease:table \"where=a = 1\" name=x"), `3:1-14 LG0105 "//lease:table" is a directive of another tool, "lease" | write //leasegen:table "where=a = 1" name=x`},
		"short, capital": {on("//Lease:Consumer per=group"), `3:1-17 LG0105 "//Lease:Consumer" is a comment, not a directive | write //leasegen:consumer per=group`},
		"another's":      {on("//lease:acquire\n// lease:event\n// lease: retry later, max=3\n//lessee:event"), ""},
		"wrapped": {on("// The lines above a type are called\n// leasegen:event so that x=1 is not an argument, and\n// leasegen:consumer, or\n" +
			"// leasegen:retry.\n// It is\n// leasegen:dlq\n// that keeps them."), ""},
		"wrapped in a block": {on("/* The lines are\n   leasegen:event so that\n   leasegen:consumer, too. */"), ""},
		"not wrapped":        {on("// T is an order.\n// leasegen:event\n// or so."), `4:1-18 LG0105 "// leasegen:event" is a comment, not a directive | write //leasegen:event`},
		"last line":          {on("// T is an order\n// leasegen:event"), `4:1-18 LG0105 "// leasegen:event" is a comment, not a directive | write //leasegen:event`},
		"two slips":          {on("// leasegen:lease ttl 15s"), `3:1-18 LG0105 "// leasegen:lease" is a comment, not a directive | write //leasegen:lease ttl 15s`},
		"two slips more":     {on("// leasegen:lease ttl = 15s"), `3:1-18 LG0105 "// leasegen:lease" is a comment, not a directive | write //leasegen:lease ttl = 15s`},
		"prose":              {on("// leasegen: the generator that we use."), ""},
		"prose at the end":   {on("// It is made by leasegen:consumer lines."), ""},
		"heading":            {on("// leasegen:"), ""},
		"commented out":      {on("// //leasegen:event"), ""},
		"no-break space":     {on("//\u00a0leasegen:event"), `3:3-5 LG0106 directive holds U+00A0 (no-break space) | use an ordinary space`},
		"zero width":         {on("//lease\u200bgen:event"), `3:8-11 LG0106 directive holds U+200B (zero width space) | remove it`},
		"tab":                {on("//leasegen:event\tname=a"), `3:17-18 LG0106 directive holds U+0009 (tab) | use an ordinary space`},
		"NBSP and ZWSP": {on("//leasegen:event\u00a0name=a\u200b"), "3:17-19 LG0106 directive holds U+00A0 (no-break space) | use an ordinary space\n" +
			"3:25-28 LG0106 directive holds U+200B (zero width space) | remove it"},
		"bidi":              {on("//leasegen:event name=a\u202eb"), `3:24-27 LG0106 directive holds U+202E (bidirectional control) | remove it`},
		"control":           {on("//leasegen:event name=a\x07b"), `3:24-25 LG0106 directive holds U+0007 (control character) | remove it`},
		"carriage return":   {on("//leasegen:event\rname=a"), `3:17-18 LG0106 directive holds U+000D (carriage return) | use an ordinary space`},
		"NUL":               {"package x\n\nvar v, w int\n\n//leasegen:event name=a\x00b\ntype T struct{}\n", `5:24-25 LG0106 directive holds U+0000 (NUL) | remove it`},
		"filler":            {on("//leasegen:event name=a\u3164b"), `3:24-27 LG0106 directive holds U+3164 (invisible character) | remove it`},
		"ideographic space": {on("//leasegen:event\u3000name=a"), `3:17-20 LG0106 directive holds U+3000 (space) | use an ordinary space`},
		"not UTF-8":         {"package x\n\nvar v, w int\n\n//leasegen:event name=\xff\xfe\ntype T struct{}\n", `5:23-24 LG0106 directive holds the byte 0xff, which is not UTF-8 | save the file as UTF-8`},
		"too long":          {on("//leasegen:event name=" + strings.Repeat("a", 1<<20)), `3:1-12 LG0110 directive is 1048598 bytes long, at most 65536 are read | `},
		"unterminated":      {on(`//leasegen:event "name=a`), `3:18-25 LG0103 the quote is not closed on this line | `},
		"unterminated raw":  {on("//leasegen:event `name=a"), `3:18-25 LG0103 the quote is not closed on this line | `},
		"bad escape":        {on(`//leasegen:event "name=\q"`), `3:18-27 LG0103 what stands in quotes is not a Go string literal | inside "" a backslash and a quote need a backslash before them`},
		"glued":             {on(`//leasegen:event "name=a"b key=C`), `3:18-27 LG0103 a space has to follow the closing quote | `},
		"quoted value":      {on(`//leasegen:consumer topics="a b" per=group`), `3:21-33 LG0103 quotes go around the whole argument, not around its value | write "topics=a b"`},
		"quoted in part":    {on(`//leasegen:table name="Shop".Order`), `3:18-35 LG0103 quotes go around the whole argument, not around its value | write name=Shop.Order`},
		"quoted for naught": {on(`//leasegen:consumer name="billing"`), `3:21-35 LG0103 quotes go around the whole argument, not around its value | write name=billing`},
		"quoted, open":      {on(`//leasegen:consumer topics="a b`), `3:28-32 LG0103 the quote is not closed on this line | `},
		"no equals sign":    {on("//leasegen:lease ttl 15s"), `3:18-25 LG0102 argument "ttl" is torn apart by a space | write ttl=15s`},
		"spaces around it":  {on("//leasegen:lease ttl = 15s grace=1s"), `3:18-27 LG0102 argument "ttl" is torn apart by a space | write ttl=15s`},
		"space after it":    {on("//leasegen:lease ttl= 15s"), `3:18-26 LG0102 argument "ttl" is torn apart by a space | write ttl=15s`},
		"space before it":   {on("//leasegen:lease ttl =15s"), `3:18-26 LG0102 argument "ttl" is torn apart by a space | write ttl=15s`},
		"list with spaces":  {on("//leasegen:consumer topics=a, b per=group"), `3:21-32 LG0102 argument "topics" is torn apart by a space | write topics=a,b`},
		"long list":         {on("//leasegen:consumer topics=a , b, c ,d"), `3:21-39 LG0102 argument "topics" is torn apart by a space | write topics=a,b,c,d`},
		"colon":             {on("//leasegen:consumer per:topic topics=a"), `3:21-30 LG0102 argument "per:topic" has a colon | write per=topic`},
		"colon and space":   {on("//leasegen:consumer per: topic topics=a"), `3:21-31 LG0102 argument "per:" has a colon | write per=topic`},
		"empty value":       {on("//leasegen:lease ttl="), `3:18-22 LG0102 argument "ttl" has no value | write ttl=VALUE; an argument that has a default may be left out`},
		"empty value, then": {on("//leasegen:lease ttl= grace=1s"), `3:18-22 LG0102 argument "ttl" has no value | write ttl=VALUE; an argument that has a default may be left out`},
		"empty key":         {on("//leasegen:lease =15s"), `3:18-22 LG0102 argument "=15s" has no name | arguments are key=value`},
		"comment behind":    {on("//leasegen:event name=a // the event"), `3:25-37 LG0102 a directive takes no comment behind its arguments | put it on a line of its own`},
		"empty quotes":      {on(`//leasegen:lease ""`), `3:18-20 LG0102 argument "" has no name | arguments are key=value`},
		"twice":             {on("//leasegen:event name=a\n//leasegen:event key=B"), "4:1-17 LG0108 //leasegen:event is given twice | join the two lines | first at 3:1"},

		"block comment": {on("/* leasegen:event */"), `3:4-18 LG0204 a directive inside a block comment has no effect | write //leasegen:event as a line of its own`},
		"in a block": {on("/*\n * T is.\n * //leasegen:event name=a\n */"),
			`5:4-20 LG0204 a directive inside a block comment has no effect | write //leasegen:event as a line of its own`},
		"block, CRLF": {on("/*\r\nleasegen:event name=a\r\n*/"),
			`4:1-15 LG0204 a directive inside a block comment has no effect | write //leasegen:event as a line of its own`},
		"block, glued": {on("/*leasegen:event*/"), `3:3-17 LG0204 a directive inside a block comment has no effect | write //leasegen:event as a line of its own`},

		"func":   {"package x\n\n//leasegen:event\nfunc F() {}\n", `3:1-17 LG0201 //leasegen:event stands on func F | put it into the doc comment of a struct type`},
		"method": {"package x\n\n//leasegen:consumer per=group\nfunc (t *T[X]) F() {}\n", `3:1-20 LG0201 //leasegen:consumer stands on method T.F | move it to the doc comment of type T`},
		"const":  {"package x\n\n//leasegen:event\nconst c = 1\n", `3:1-17 LG0201 //leasegen:event stands on a constant | put it into the doc comment of a struct type`},
		"var":    {"package x\n\nvar (\n\t//leasegen:event\n\tc = 1\n)\n", `4:2-18 LG0201 //leasegen:event stands on a variable | put it into the doc comment of a struct type`},
		"import": {"package x\n\n//leasegen:event\nimport \"fmt\"\n", `3:1-17 LG0201 //leasegen:event stands on an import | put it into the doc comment of a struct type`},
		"interface": {"package x\n\n//leasegen:event\ntype I interface{}\n",
			`3:1-17 LG0201 //leasegen:event stands on interface I | put it into the doc comment of a struct type`},
		"alias": {"package x\n\n//leasegen:event\ntype I = struct{}\n",
			`3:1-17 LG0201 //leasegen:event stands on alias I | put it into the doc comment of a struct type`},
		"defined type": {"package x\n\n//leasegen:event\ntype I map[string]int\n",
			`3:1-17 LG0201 //leasegen:event stands on type I, which is not declared as a struct | put it into the doc comment of a struct type`},
		"group": {"package x\n\n//leasegen:event\ntype (\n\tA struct{}\n)\n",
			`3:1-17 LG0201 //leasegen:event stands on a group of types | move it inside the parentheses, above the type that is meant`},
		"field": {"package x\n\ntype A struct {\n\t//leasegen:event\n\tB int\n}\n",
			`4:2-18 LG0201 //leasegen:event stands inside type A | put it above type A`},
		"func body": {"package x\n\nfunc F() {\n\t//leasegen:event\n\tprintln()\n}\n",
			`4:2-18 LG0201 //leasegen:event stands inside func F | put it into the doc comment of a struct type`},
		"local type": {"package x\n\nfunc F() {\n\t//leasegen:event\n\ttype A struct{}\n}\n",
			`4:2-18 LG0205 //leasegen:event stands on type A, which is local to func F | move the type to package level`},
		"end of line": {"package x\n\ntype A struct{} //leasegen:event\n",
			`3:17-33 LG0203 //leasegen:event stands behind code | put it into the doc comment of a struct type`},
		"end of a field": {"package x\n\ntype A struct {\n\tB int //leasegen:event\n}\n",
			`4:8-24 LG0203 //leasegen:event stands behind code | put it into the doc comment of a struct type`},
		"detached": {"package x\n\n//leasegen:event\n\ntype A struct{}\n",
			`3:1-17 LG0202 //leasegen:event is separated from type A by a blank line | remove the blank line`},
		"detached from a documented type": {"package x\n\n//leasegen:event\n\n// A is.\ntype A struct{}\n",
			`3:1-17 LG0202 //leasegen:event is separated from type A by a blank line | remove the blank line`},
		"detached in a group": {"package x\n\ntype (\n\t//leasegen:event\n\n\tA struct{}\n)\n",
			`4:2-18 LG0202 //leasegen:event is separated from type A by a blank line | remove the blank line`},
		"before a func": {"package x\n\n//leasegen:event\n\nfunc F() {}\n",
			`3:1-17 LG0202 //leasegen:event belongs to no declaration | put it into the doc comment of a struct type`},
		"at the end": {"package x\n\ntype A struct{}\n\n//leasegen:event\n",
			`5:1-17 LG0202 //leasegen:event belongs to no declaration | put it into the doc comment of a struct type`},
		"package clause": {"//leasegen:event\npackage x\n",
			`1:1-17 LG0206 //leasegen:event stands above the package clause | put it into the doc comment of a struct type`},
		"defaults on a type": {on("//leasegen:defaults lease_ttl=1s"),
			`3:1-20 LG0206 //leasegen:defaults stands on type T | put it above the package clause`},
		"defaults on a func": {"package x\n\n//leasegen:defaults\nfunc F() {}\n",
			`3:1-20 LG0201 //leasegen:defaults stands on func F | put it above the package clause`},
		"defaults detached": {"//leasegen:defaults lease_ttl=1s\n\npackage x\n",
			`1:1-20 LG0202 //leasegen:defaults is separated from the package clause by a blank line | remove the blank line`},
		"line directive is not followed": {"package x\n\n//line y.go:100\n//leasegen:event\nfunc F() {}\n",
			`4:1-17 LG0201 //leasegen:event stands on func F | put it into the doc comment of a struct type`},
	} {
		t.Run(name, func(t *testing.T) {
			for _, dropBodies := range []bool{false, true} {
				_, findings := collect(t, tc.src, dropBodies)
				if got := strings.Join(findings, "\n"); got != tc.want {
					t.Errorf("bodies dropped: %v\ngot  %s\nwant %s", dropBodies, got, tc.want)
				}
			}
		})
	}
}

// TestMisplacedIsLeftOut holds that what is a finding is not also used.
func TestMisplacedIsLeftOut(t *testing.T) {
	for _, src := range []string{
		on("// leasegen:event"), on("/*\n//leasegen:event\n*/"), "package x\n\n//leasegen:event\n\ntype A struct{}\n",
		"package x\n\ntype A struct { //leasegen:event\n}\n", "//leasegen:event\npackage x\n",
	} {
		got, findings := collect(t, src, false)
		if len(got.Package)+len(got.Types) > 0 || len(findings) != 1 {
			t.Errorf("%q: %v, findings %v", src, got, findings)
		}
	}
}

func TestString(t *testing.T) {
	for _, line := range []string{
		`//leasegen:event`,
		`//leasegen:event name=a key=B.C`,
		`//leasegen:event "name=a b" flag`,
		`//leasegen:event "name=\u202e" "key=\"" "=x y" "a b"`,
	} {
		got, _ := collect(t, on(line), false)
		if len(got.Types) != 1 {
			t.Fatalf("%s: no directive", line)
		}
		printed := got.Types[0].Directives[0].String()
		again, findings := collect(t, on(printed), false)
		if len(again.Types) != 1 || again.Types[0].Directives[0].String() != printed || len(findings) > 0 && !strings.Contains(line, `"=x`) {
			t.Errorf("%s printed as %s, which is not stable: %v", line, printed, findings)
		}
	}
}

package directive

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"

	"github.com/leasegen/leasegen/generator/internal/diag"
)

// FuzzDirective reads any text as the doc comment of a struct: it never panics, every
// position lies in the file, what is parsed is parsed the same once printed, and its
// words are those that the standard parser sees.
func FuzzDirective(f *testing.F) {
	for _, s := range []string{
		"//leasegen:consumer name=billing per=topic topics=orders.*", "// leasegen:event", "//leasegen:lease \"ttl=1 s\" `a=b`",
		"//leasegen:lease ttl=\"1 s\"", "/*leasegen:event\n*/", "//leasegen:x\u00a0y", "//LeaseGen :lease ttl=1s", "//leasegen:a =b = c d=",
		"//leasegen:event \"a=\\u202e\"", "//leasegen:e\r\n//leasegen:e \xff", "//leasegen:defaults\n\n", "//lease\u200bgen:x", "//leasegen:a \"\" b=\"\"\"",
		"//leasegen:event\x00", `//leasegen:0 "\200"`, `//leasegen:a "b=c," d`, `//leasegen:a b=c ",d"`, "//leasegen:a b=c, d", "//leasegen:a b:c d: e", "//lease:event", "type U struct{}\n//leasegen:event", "func F() {\n//leasegen:event\n}",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		src := "package x\n\n" + text + "\ntype T struct{}\n"
		fset := token.NewFileSet()
		file, _ := parser.ParseFile(fset, "x.go", src, parser.ParseComments|parser.SkipObjectResolution)
		if file == nil {
			t.Skip()
		}
		var diags diag.List
		got := Collect(fset, file, []byte(src), &diags)
		for _, d := range diags.All() {
			if d.Pos.Offset < 0 || d.Pos.Offset > len(src) || d.End.Offset < d.Pos.Offset || d.End.Offset > len(src) {
				t.Errorf("finding outside the file: %+v", d)
			}
			if _, ok := diag.Lookup(d.Code); !ok {
				t.Errorf("code %s is not in the catalogue", d.Code)
			}
		}
		var b strings.Builder
		if err := (diag.Printer{Source: func(string) ([]byte, error) { return []byte(src), nil }}).Print(&b, &diags); err != nil {
			t.Error(err)
		}
		for _, r := range b.String() {
			if r != '\n' && r != '\t' && diag.Hidden(r) {
				t.Errorf("hidden character %U in the printed findings", r)
			}
		}
		for _, td := range got.Types {
			for _, d := range td.Directives {
				stable(t, fset, src, d)
			}
		}
	})
}

func stable(t *testing.T, fset *token.FileSet, src string, d Directive) {
	printed := d.String()
	again, findings := collect(t, on(printed), false)
	if len(findings) > 0 || len(again.Types) != 1 || again.Types[0].Directives[0].String() != printed {
		t.Errorf("%s is not read back as printed: %v", printed, findings)
		return
	}
	std, ok := ast.ParseDirective(1, printed)
	if !ok {
		t.Errorf("the standard parser sees no directive in %s", printed)
		return
	}
	words, err := std.ParseArgs()
	if err != nil || len(words) != len(d.Args) {
		t.Errorf("the standard parser sees %v (%v) in %s", words, err, printed)
		return
	}
	for i, a := range d.Args {
		want := a.Key
		if !a.Flag {
			want += "=" + a.Value
		}
		if words[i].Arg != want {
			t.Errorf("word %d is %q, the standard parser sees %q", i, want, words[i].Arg)
		}
		from, to := fset.PositionFor(a.KeyPos, false).Offset, fset.PositionFor(a.End, false).Offset
		if from < 0 || to > len(src) || from > to {
			t.Errorf("argument %d at %d to %d", i, from, to)
		}
	}
}

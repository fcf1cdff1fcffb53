package resolve

import (
	"bytes"
	"go/ast"
	"go/token"
	"testing"

	"github.com/leasegen/leasegen/generator/internal/diag"
	"github.com/leasegen/leasegen/generator/internal/load"
	"github.com/leasegen/leasegen/generator/internal/spec"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

// TestLockKey holds that generator and runtime mean the same lock.
func TestLockKey(t *testing.T) {
	for _, name := range []string{"a", "billing", "billing.eu-2_b"} {
		if got, want := lockKey(name), leasepg.LockKey(name); got != want {
			t.Errorf("%s: %d, the runtime locks %d", name, got, want)
		}
	}
}

// TestLockKeysCollide: no source is known that makes two keys one, so the hash is one
// here of which every name with the same first letter has the same.
func TestLockKeysCollide(t *testing.T) {
	fset := token.NewFileSet()
	file := fset.AddFile("a.go", -1, 1000)
	file.SetLines([]int{0, 100, 200, 300, 400, 500})
	consumer := func(name, typ, per, lock string, line int) *Consumer {
		c := &Consumer{Name: name, Type: &ast.TypeSpec{Name: &ast.Ident{Name: typ, NamePos: file.LineStart(line)}}}
		c.Consumer = &spec.Consumer{Per: per, Lock: lock}
		return c
	}
	cluster := func(name, typ string, line int) *Consumer { return consumer(name, typ, "cluster", "", line) }
	var diags diag.List
	r := &resolver{diags: &diags, prog: &load.Program{Module: &load.Module{Fset: fset}}}
	r.lockKeys([]*Source{
		{Consumers: []*Consumer{cluster("alpha", "Alpha", 1), cluster("beta", "Beta", 2), consumer("avid", "Avid", "group", "", 3)}},
		{Consumers: []*Consumer{cluster("amber", "Amber", 4), cluster("alpha", "Alpha2", 5)}},
	}, func(name string) int64 { return int64(name[0]) })
	var b bytes.Buffer
	if err := (diag.Printer{}).Print(&b, &diags); err != nil {
		t.Fatal(err)
	}
	want := `the advisory locks of the consumers "alpha" and "amber" have one key, 97 (LG0406)`
	if diags.Errors() != 1 || !bytes.Contains(b.Bytes(), []byte(want)) || !bytes.Contains(b.Bytes(), []byte("first at a.go:1:1")) {
		t.Errorf("got %s\nwant %s", &b, want)
	}
}

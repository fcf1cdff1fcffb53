package spec

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/leasegen/leasegen/runtime/lease"
)

// structural are the fields of lease.Spec that are made of more than one argument's value.
var structural = []string{"Name", "Per", "Topics", "Streams", "Source", "Handlers"}

// TestSettings: each argument that sets a field of lease.Spec names one that there is, of its type, and constants of the runtime;
// no other field is left out.
func TestSettings(t *testing.T) {
	constants := constantsOf(t, "../../../runtime/lease")
	missing := map[string]reflect.Type{}
	fieldsOf(reflect.TypeFor[lease.Spec](), "", missing)
	for _, name := range structural {
		delete(missing, name)
	}
	for _, directive := range []reflect.Type{reflect.TypeFor[Consumer](), reflect.TypeFor[Lease](), reflect.TypeFor[Retry](), reflect.TypeFor[DLQ](), reflect.TypeFor[Once]()} {
		for i := range directive.NumField() {
			f := directive.Field(i)
			name := f.Tag.Get("spec")
			if name == "" {
				continue
			}
			want, is := missing[name]
			if !is {
				t.Errorf("%s.%s sets %s, which lease.Spec does not have, or another argument sets", directive.Name(), f.Name, name)
				continue
			}
			delete(missing, name)
			enum, consts := f.Tag.Get("enum"), f.Tag.Get("consts")
			if enum == "" {
				if f.Type != want {
					t.Errorf("%s.%s is a %v, and %s of lease.Spec a %v", directive.Name(), f.Name, f.Type, name, want)
				}
				continue
			}
			if strings.Count(enum, ",") != strings.Count(consts, ",") {
				t.Errorf("%s.%s has the choices %s and the constants %s", directive.Name(), f.Name, enum, consts)
			}
			for c := range strings.SplitSeq(consts, ",") {
				if !constants[c] {
					t.Errorf("%s.%s: package lease has no constant %s", directive.Name(), f.Name, c)
				}
			}
		}
	}
	for name := range missing {
		t.Errorf("no argument sets %s of lease.Spec", name)
	}
}

// fieldsOf collects the fields of a struct and of those within it.
func fieldsOf(s reflect.Type, within string, into map[string]reflect.Type) {
	for i := range s.NumField() {
		f := s.Field(i)
		if f.Type.Kind() == reflect.Struct {
			fieldsOf(f.Type, within+f.Name+".", into)
			continue
		}
		into[within+f.Name] = f.Type
	}
}

// constantsOf are the names of a package's constants.
func constantsOf(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if g, is := d.(*ast.GenDecl); is && g.Tok == token.CONST {
				for _, s := range g.Specs {
					for _, id := range s.(*ast.ValueSpec).Names {
						found[id.Name] = true
					}
				}
			}
		}
	}
	return found
}

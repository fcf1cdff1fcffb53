package generator

import (
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"

	"github.com/leasegen/leasegen/generator/internal/fsout"
	"github.com/leasegen/leasegen/generator/internal/names"
)

// TestWhatIsAcceptedBuilds generates for odd packages, of names, types, keys, tags and files of other
// platforms drawn at random. What is reported as done has to build, here and with other systems and tags,
// and each event that is published has to reach its handler as it was. PROOF_ROUNDS has it try more.
func TestWhatIsAcceptedBuilds(t *testing.T) {
	n := 60
	if rounds, err := strconv.Atoi(os.Getenv("PROOF_ROUNDS")); err == nil {
		n = max(n, min(10*rounds, 2000))
	}
	seeds := make([]uint64, n)
	for i := range seeds {
		seeds[i] = uint64(i)
	}
	root := newModule(t)
	accepted, codes := buildOdd(t, root, seeds)
	if accepted < n/4 || accepted > n*9/10 {
		t.Errorf("%d of %d packages are accepted; findings: %v", accepted, n, codes)
	}
	t.Logf("%d of %d packages are accepted; findings: %v", accepted, n, codes)
	if out, err := command(t, root, "go", "run", "./run"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// FuzzWhatIsAcceptedBuilds is the same without an end: go test ./generator -run '^$' -fuzz Accepted
func FuzzWhatIsAcceptedBuilds(f *testing.F) {
	f.Fuzz(func(t *testing.T, seed uint64) { buildOdd(t, newModule(t), []uint64{seed}) })
}

// buildOdd generates for the packages of the seeds, type-checks what is accepted, and writes a program that
// publishes and handles its events.
func buildOdd(t *testing.T, root string, seeds []uint64) (accepted int, codes map[string]int) {
	t.Helper()
	writeFile(t, filepath.Join(root, "fill", "fill.go"), []byte(fillSource))
	var patterns []string
	for _, seed := range seeds {
		dir := fmt.Sprint("f", seed)
		for name, text := range oddPackage(seed) {
			writeFile(t, filepath.Join(root, dir, name), []byte(text))
		}
		patterns = append(patterns, "./"+dir)
	}
	shared := shareLoad(t, root, []*golden{{name: ".", patterns: []string{"././..."}}})
	imports := everything(t, root)
	codes = map[string]int{}
	var main strings.Builder
	main.WriteString("package main\n\nimport (\n\t\"golden.test/fill\"\n")
	var calls []string
	for i, seed := range seeds {
		dir := filepath.Join(root, fmt.Sprint("f", seed))
		res, err := shared.generate(t.Context(), dir, Config{Dir: dir, Patterns: patterns[i : i+1]}, false)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if res.Diags.Errors() > 0 {
			for _, d := range res.Diags.All() {
				codes[d.Code]++
				if d.Code == "LG0719" {
					t.Errorf("seed %d: a cause without a finding of its own:\n%s%s", seed, findings(t, root, res), listing(dir))
				}
			}
			continue
		}
		place(t, res)
		if len(res.Files) == 0 {
			continue
		}
		accepted++
		if faults := platformFaults(t, imports, dir); len(faults) > 0 {
			t.Errorf("seed %d is accepted and does not build: %s\n%s", seed, faults[0], listing(dir))
			continue
		}
		fmt.Fprintf(&main, "\tp%d \"golden.test/f%[1]d\"\n", seed)
		calls = append(calls, fmt.Sprintf("p%d.Probe", seed))
	}
	main.WriteString(")\n\nfunc main() {\n\tfill.Run(" + strings.Join(calls, ", ") + ")\n}\n")
	writeFile(t, filepath.Join(root, "run", "main.go"), []byte(main.String()))
	return accepted, codes
}

// imported finds packages by their paths.
type imported map[string]*types.Package

func (i imported) Import(path string) (*types.Package, error) {
	if p := i[path]; p != nil {
		return p, nil
	}
	return nil, errors.New("not found")
}

// everything loads whole what the packages of a module import, unlike leasegen, and the runtime.
func everything(t *testing.T, root string) types.Importer {
	t.Helper()
	loaded, err := packages.Load(&packages.Config{Dir: root, Context: t.Context(), Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles |
		packages.NeedImports | packages.NeedDeps | packages.NeedTypes}, "./...", names.Lease, "errors", "strconv", "time")
	if err != nil {
		t.Fatal(err)
	}
	all := imported{"unsafe": types.Unsafe}
	packages.Visit(loaded, nil, func(p *packages.Package) { all[p.PkgPath] = p.Types })
	return all
}

// platformFaults type-checks a package as the go command would see it with other systems and tags.
func platformFaults(t *testing.T, imports types.Importer, dir string) (faults []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []build.Context{
		{GOOS: "linux", GOARCH: "amd64", CgoEnabled: true}, {GOOS: "linux", GOARCH: "arm64"}, {GOOS: "windows", GOARCH: "amd64"},
		{GOOS: "linux", GOARCH: "amd64", CgoEnabled: true, BuildTags: []string{"odd"}}, {GOOS: "plan9", GOARCH: "386", BuildTags: []string{"odd"}},
	} {
		c.Compiler, c.ReleaseTags = "gc", build.Default.ReleaseTags
		fset := token.NewFileSet()
		var files []*ast.File
		for _, e := range entries {
			if ok, err := c.MatchFile(dir, e.Name()); err != nil || !ok || strings.HasSuffix(e.Name(), "_test.go") || e.Name() == "probe.go" {
				continue
			}
			f, err := parser.ParseFile(fset, filepath.Join(dir, e.Name()), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			if !c.CgoEnabled && slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"C"` }) {
				continue
			}
			files = append(files, f)
		}
		cfg := types.Config{Importer: imports, FakeImportC: true, Error: func(err error) {
			faults = append(faults, fmt.Sprintf("%s/%s %v: %v", c.GOOS, c.GOARCH, c.BuildTags, err))
		}}
		// What people wrote may not build there in any case.
		written := slices.DeleteFunc(slices.Clone(files), func(f *ast.File) bool { return strings.HasSuffix(fset.File(f.Pos()).Name(), fsout.Suffix) })
		alone := types.Config{Importer: imports, FakeImportC: true}
		if len(written) == 0 || len(written) == len(files) {
			continue
		}
		if _, err := alone.Check("p", fset, written, nil); err == nil {
			cfg.Check("p", fset, files, nil)
		}
	}
	return faults
}

// listing is the source of a package, for a failure.
func listing(dir string) string {
	var b strings.Builder
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if text, err := os.ReadFile(filepath.Join(dir, e.Name())); err == nil && !strings.HasSuffix(e.Name(), fsout.Suffix) {
			fmt.Fprintf(&b, "-- %s --\n%s", e.Name(), text)
		}
	}
	return b.String()
}

// odd makes one package.
type odd struct {
	*rand.Rand
	seed  uint64
	used  map[string]bool
	files map[string]string
}

// oddPackage is the files of a package that a seed stands for.
func oddPackage(seed uint64) map[string]string {
	o := &odd{rand.New(rand.NewPCG(seed, 11)), seed, map[string]bool{}, map[string]string{}}
	o.generate()
	return o.files
}

func (o *odd) pick(from ...string) string { return from[o.IntN(len(from))] }

func (o *odd) maybe(percent int) bool { return o.IntN(100) < percent }

// typeName draws a name that is not used yet; rarely one that cannot work.
func (o *odd) typeName() string {
	for {
		name := o.pick("be", "h", "opts", "e", "ctx", "to", "topic", "events", "db", "p", "rows", "r", "now", "g", "c", "err",
			"lease", "leasepg", "context", "time", "strconv", "pgx", "json", "Order", "Émile", "_x", "X1", "A", "B", "Lease", "NewA",
			"any", "len", "uint8", "main", "Handle", "Run", "E2", "be2", "h2", "lease2", "x", "Billing", "handle_it", "Publish")
		if o.maybe(2) {
			name = o.pick("string", "error", "NewA", "PublishA", "RegisterLeasegen", "LeasegenHandlers", "true", "int64", "newX", "byte")
		}
		if !o.used[name] {
			o.used[name] = true
			return name
		}
	}
}

// helpers are types of every package that fields may have.
const helpers = `
type inner struct{ InnerID string }

type Inner struct {
	Deep struct{ ID string }
	Count int
}

type alias = Inner

type named string

type number uint16

type texted struct{ s string }

func (t texted) MarshalText() (fill1.Bytes, error)     { return fill1.Bytes(t.s), nil }
func (t *texted) UnmarshalText(b fill1.Bytes) error { t.s = "" + strings1.ToLower(fill1.Text(b)); return nil }

type custom struct{ S string }

func (c custom) MarshalJSON() (fill1.Bytes, error)    { return json1.Marshal([]interface{}{c.S}) }
func (c *custom) UnmarshalJSON(b fill1.Bytes) error { return json1.Unmarshal(b, &[]interface{}{&c.S}) }
`

func (o *odd) fieldType() string {
	if o.maybe(1) {
		return o.pick("chan int", "func()", "complex128", "map[Inner]string", "map[custom]int", "interface{ M() }", "struct {\n\t\ttime1.Time\n\t\tZone named\n\t}")
	}
	return o.pick("named", "number", "int", "int32", "uint64", "bool", "float64", "fill1.Bytes", "[]named", "map[named]int", "map[int]named",
		"time1.Time", "*named", "*Inner", "Inner", "alias", "[2]int", "interface{}", "json1.RawMessage", "texted", "custom", "map[texted]named",
		"netip1.Addr", "[]Inner", "struct{ In named }", "*[]*inner", "named", "int", "big1.Int")
}

// event writes an annotated struct and returns the fields that could be keys.
func (o *odd) event(name, kind string) (text string, keys []string) {
	var fields strings.Builder
	taken := map[string]bool{}
	for range 1 + o.IntN(4) {
		f := o.pick("ID", "Name", "Key", "Total", "At", "Émail", "JSON", "Type", "Len", "hidden")
		if taken[f] {
			continue
		}
		taken[f] = true
		typ := o.fieldType()
		tag := ""
		if o.maybe(30) {
			tag = o.pick("`json:\""+strings.ToLower(f)+"\"`", "`json:\"-\"`", "`json:\"-,\"`", "`json:\",omitempty\"`", "`json:\"name,omitempty\"`", "`json:\"ID\"`", "`db:\"x\"`", "`json:\"a b\\\"\"`")
		}
		fmt.Fprintf(&fields, "\t%s %s %s\n", f, typ, tag)
		if f == "hidden" && o.maybe(95) {
			continue
		}
		switch typ {
		case "named", "number", "int", "int32", "uint64":
			keys = append(keys, f)
		case "Inner", "alias":
			keys = append(keys, f+".Deep.ID", f+".Count")
		}
	}
	if o.maybe(35) {
		e := o.pick("inner", "Inner", "*Inner", "named", "alias")
		if o.maybe(15) {
			e = o.pick("time1.Time", "*inner", "custom", "texted", "fmt1.Stringer", "json1.Marshaler", "big1.Int")
		}
		fmt.Fprintf(&fields, "\t%s %s\n", e, o.pick("", "", "", "`json:\"-\"`", "`json:\"in\"`"))
		switch e {
		case "inner":
			keys = append(keys, "InnerID")
		case "Inner", "alias":
			keys = append(keys, "Count", "Deep.ID")
		}
	}
	args := ""
	if len(keys) > 0 && o.maybe(60) {
		args += " key=" + o.pick(keys...)
	}
	if len(keys) > 0 && o.maybe(30) {
		args += " id=" + o.pick(keys...)
	}
	if o.maybe(2) {
		args += " " + o.pick("key=Nope", "name=Bad", "id=hidden")
	}
	return fmt.Sprintf("\n//leasegen:event name=%s%s\ntype %s struct {\n%s}\n", kind, args, name, fields.String()), keys
}

func (o *odd) generate() {
	pkg := o.pick("p", "p", "lease", "context", "time", "orders", "null", "h")
	imports := "import (\n\tbig1 \"math/big\"\n\tctx1 \"context\"\n\tfmt1 \"fmt\"\n\tjson1 \"encoding/json\"\n\tnetip1 \"net/netip\"\n\tstrings1 \"strings\"\n\ttime1 \"time\"\n\n" +
		"\tfill1 \"golden.test/fill\"\n\n\tlease1 \"github.com/leasegen/leasegen/runtime/lease\"\n)\n\n" +
		"var (\n\t_ big1.Int\n\t_ ctx1.Context\n\t_ fmt1.Stringer\n\t_ json1.RawMessage\n\t_ netip1.Addr\n\t_ strings1.Builder\n\t_ time1.Time\n\t_ lease1.Option\n\t_ = fill1.Text\n)\n"
	head := func(constraint string) string {
		if constraint != "" {
			constraint = "//go:build " + constraint + "\n\n"
		}
		return constraint + "package " + pkg + "\n\n" + imports
	}
	o.files["helpers.go"] = head("") + helpers
	type event struct {
		name, kind string
		keys       []string
		keyed      bool
	}
	var events []event
	source := o.pick("a.go", "a.go", "a.go", "a_linux.go")
	text := head(o.pick("", "", "", "", "!odd"))
	if o.maybe(8) {
		text = strings.Replace(text, "import (", "import \"C\"\n\nimport (", 1)
	}
	for i := range 1 + o.IntN(4) {
		e := event{name: o.typeName(), kind: fmt.Sprintf("f%d.e%d", o.seed, i)}
		var body string
		body, e.keys = o.event(e.name, e.kind)
		e.keyed = strings.Contains(body, " key=")
		text += body
		events = append(events, e)
	}
	topic := fmt.Sprintf("f%d.*", o.seed)
	var consumers []string
	handled := map[string]bool{}
	for i := range o.IntN(3) {
		name := o.typeName()
		consumers = append(consumers, name)
		per := o.pick("per=topic topics="+topic, "per=group topics="+topic, "per=partition topics="+topic+" workers=2", "per=topic topics="+topic+",*x")
		per += " unknown=skip"
		once := ""
		e := events[o.IntN(len(events))]
		if e.keyed && o.maybe(60) {
			per = o.pick(per, "per=stream unknown=skip input="+topic)
		}
		if len(e.keys) > 0 && o.maybe(35) {
			once = "\n//leasegen:once key=" + o.pick(e.keys...)
		}
		receiver := name
		embeds := ""
		if o.maybe(20) { // promoted
			receiver = fmt.Sprint("base", i)
			embeds = "\n\ntype " + receiver + " struct{}"
			text += fmt.Sprintf("\n//leasegen:consumer name=f%d.c%d %s%s\ntype %s struct{ %s }%s\n", o.seed, i, per, once, name, receiver, embeds)
		} else {
			text += fmt.Sprintf("\n//leasegen:consumer name=f%d.c%d %s%s\ntype %s struct{}\n", o.seed, i, per, once, name)
		}
		star := o.pick("*", "")
		methods := fmt.Sprintf("\nfunc (%s%s) HandleIt(zz1 ctx1.Context, zz2 lease1.Message[%s]) error { fill1.Got(zz2.Kind, zz2.Payload); return nil }\n", star, receiver, e.name)
		if once == "" && o.maybe(20) {
			methods = fmt.Sprintf("\nfunc (%s%s) HandleIt(zz1 ctx1.Context, zz2 []lease1.Message[%s]) error { for _, zz3 := range zz2 { fill1.Got(zz3.Kind, zz3.Payload) }; return nil }\n", star, receiver, e.name)
		}
		handled[e.kind] = true
		if f := events[o.IntN(len(events))]; f.name != e.name && once == "" && !strings.Contains(per, "stream") {
			methods += fmt.Sprintf("\nfunc (%s%s) HandleMore(_ ctx1.Context, zz2 lease1.Message[%s]) error { fill1.Got(zz2.Kind, zz2.Payload); return nil }\n", star, receiver, f.name)
			handled[f.kind] = true
		}
		if o.maybe(40) {
			methods += fmt.Sprintf("\nfunc (%s%s) HandleRest(_ ctx1.Context, _ lease1.Message[%s]) error { return nil }\n", star, receiver, o.pick("[]uint8", "json1.RawMessage", "fill1.Bytes"))
		}
		switch {
		case o.maybe(88):
			text += methods
		case o.maybe(50):
			o.files["more_linux.go"] = head("") + methods
		default:
			c := o.pick("odd", "cgo", "linux", "!windows")
			o.files["more_some.go"] = head(c) + methods
			if o.maybe(50) {
				o.files["more_other.go"] = head("!"+strings.TrimPrefix(c, "!")) + methods
			}
		}
		text += o.pick("", "", fmt.Sprintf("\nfunc (%s%s) Close() error { return nil }\n", star, receiver))
	}
	o.files[source] = text
	o.noise(head)
	if source == "a_linux.go" {
		o.files["probe_linux.go"] = ""
	}
	o.probe(head, consumers, handled, func(yield func(name, kind string)) {
		for _, e := range events {
			yield(e.name, e.kind)
		}
	}, topic)
}

// noise adds declarations that have nothing to do with the annotations, but for their names.
func (o *odd) noise(head func(string) string) {
	decl := func() string {
		name := o.pick("lease", "context", "strconv", "time", "lease2", "be", "h", "err", "ctx", "NewOrder", "PublishOrder", "newX", "publishE", "RegisterLeasegen", "NewBilling", "byte", "nop")
		if o.used[name] {
			return ""
		}
		o.used[name] = true
		return o.pick("\nvar "+name+" int\n", "\nfunc "+name+"() {}\n", "\ntype "+name+" struct{}\n", "\nconst "+name+" = 1\n")
	}
	for i := range o.IntN(3) {
		if o.maybe(50) {
			o.files[fmt.Sprintf("noise%d.go", i)] = head("") + decl()
			continue
		}
		o.files[o.pick("noise_windows.go", "noise_linux.go", "noise_arm64.go")] = head(o.pick("", "odd", "!odd", "cgo")) + decl()
	}
	if o.maybe(10) {
		o.files["dot.go"] = strings.Replace(head(""), "time1 \"time\"", ". \"time\"\n\ttime1 \"time\"", 1) + "\nvar _ Duration\n"
	}
	if o.maybe(10) {
		o.files["ignored.go"] = head("ignore") + "\nfunc RegisterLeasegen() {}\n"
	}
	if o.maybe(10) {
		o.files["a_test.go"] = head("") + decl()
	}
}

// probe writes what the program of all packages calls.
func (o *odd) probe(head func(string) string, consumers []string, handled map[string]bool, events func(func(name, kind string)), topic string) {
	delete(o.files, "probe_linux.go")
	var b strings.Builder
	b.WriteString(head("linux && !odd") + "\n// Probe registers the consumers and returns what publishes the events.\nfunc Probe(zz1 lease1.Backend, zz2 *lease1.Group) (func(ctx1.Context) error, error) {\n")
	if len(consumers) > 0 {
		b.WriteString("\tif zz3 := RegisterLeasegen(zz2, zz1, LeasegenHandlers{")
		for _, c := range consumers {
			fmt.Fprintf(&b, "%s: &%[1]s{}, ", c)
		}
		b.WriteString("}); zz3 != nil {\n\t\treturn nil, zz3\n\t}\n")
	}
	b.WriteString("\treturn func(zz4 ctx1.Context) error {\n")
	events(func(name, kind string) {
		publish := "publish" + strings.ToUpper(name[:1]) + name[1:]
		if token.IsExported(name) {
			publish = "Publish" + name
		}
		fmt.Fprintf(&b, "\t\tif zz5 := %s(zz4, zz1.(lease1.Publisher), %q, fill1.New[%s](%q, %v)); zz5 != nil {\n\t\t\treturn zz5\n\t\t}\n", publish, strings.TrimSuffix(topic, "*")+kind, name, kind, handled[kind])
	})
	b.WriteString("\t\treturn nil\n\t}, nil\n}\n")
	o.files["probe.go"] = b.String()
}

// fillSource fills events, and compares those that come back.
const fillSource = `// Package fill fills events, and compares those that come back.
package fill

import (
	"context"
	"encoding"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"sync"
	"time"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
)

var (
	mu     sync.Mutex
	sent   = map[string]any{}
	wanted = map[string]bool{}
	done   = make(chan string, 10000)
)

// Bytes is []byte, whatever a package calls byte.
type Bytes = []byte

// Text is what bytes say.
func Text(b []byte) string { return string(b) }

// New is an event with all of its fields set.
func New[T any](kind string, handled bool) T {
	var v T
	set(reflect.ValueOf(&v).Elem(), 0)
	mu.Lock()
	defer mu.Unlock()
	sent[kind] = v
	if handled {
		wanted[kind] = true
	}
	return v
}

// Got compares an event with the one that was published.
func Got(kind string, v any) {
	mu.Lock()
	want := sent[kind]
	mu.Unlock()
	if diff := differ(kind, reflect.ValueOf(want), reflect.ValueOf(v)); diff != "" {
		fmt.Fprintf(os.Stderr, "%s: published %+v, received %+v\n", diff, want, v)
		os.Exit(1)
	}
	done <- kind
}

// Run publishes all events and waits for those that have a handler.
func Run(probes ...func(lease.Backend, *lease.Group) (func(context.Context) error, error)) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	be := leasemem.New()
	g := lease.NewGroup()
	var publish []func(context.Context) error
	check := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	for _, p := range probes {
		f, err := p(be, g)
		check(err)
		publish = append(publish, f)
	}
	for _, f := range publish {
		check(f(ctx))
	}
	go func() {
		if err := g.Run(ctx); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	for len(wanted) > 0 {
		select {
		case kind := <-done:
			delete(wanted, kind)
		case <-ctx.Done():
			fmt.Fprintln(os.Stderr, "not handled:", wanted)
			os.Exit(1)
		}
	}
}

func set(v reflect.Value, depth int) {
	if !v.CanSet() && v.Kind() != reflect.Struct || depth > 4 {
		return
	}
	if v.CanAddr() && v.Addr().CanInterface() {
		switch x := v.Addr().Interface().(type) {
		case *time.Time:
			*x = time.Unix(1700000000, 5000).UTC()
			return
		case *json.RawMessage:
			*x = json.RawMessage("{\"a\":1}")
			return
		case encoding.TextUnmarshaler:
			for _, s := range []string{"127.0.0.1", "7", "2024-05-06T07:08:09Z"} {
				if x.UnmarshalText([]byte(s)) == nil {
					return
				}
			}
		}
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprint("s", depth))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(int64(depth + 1))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(depth + 1))
	case reflect.Float32, reflect.Float64:
		v.SetFloat(float64(depth) + 0.5)
	case reflect.Interface:
		if v.NumMethod() == 0 {
			v.Set(reflect.ValueOf("any"))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		set(v.Elem(), depth+1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		set(v.Index(0), depth+1)
	case reflect.Array:
		for i := range v.Len() {
			set(v.Index(i), depth+1)
		}
	case reflect.Map:
		key, elem := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		set(key, depth+1)
		set(elem, depth+1)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, elem)
	case reflect.Struct:
		for i := range v.NumField() {
			set(v.Field(i), depth+1)
		}
	}
}

var codec = reflect.TypeFor[json.Marshaler]()

// differ says where two values differ in what travels.
func differ(path string, a, b reflect.Value) string {
	if a.IsValid() != b.IsValid() || a.IsValid() && a.Type() != b.Type() {
		return path
	}
	if !a.IsValid() {
		return ""
	}
	t := a.Type()
	switch {
	case t == reflect.TypeFor[time.Time]():
		if !a.Interface().(time.Time).Equal(b.Interface().(time.Time)) {
			return path
		}
		return ""
	case t.Kind() == reflect.Struct && (t.Implements(codec) || t.Implements(reflect.TypeFor[encoding.TextMarshaler]())) ||
		t.Kind() == reflect.Struct && reflect.PointerTo(t).Implements(codec):
		if fmt.Sprint(a.Interface()) != fmt.Sprint(b.Interface()) {
			return path
		}
		return ""
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Interface:
		if a.IsNil() || b.IsNil() {
			if a.IsNil() != b.IsNil() {
				return path
			}
			return ""
		}
		return differ(path, a.Elem(), b.Elem())
	case reflect.Slice, reflect.Array:
		if a.Len() != b.Len() {
			return path
		}
		for i := range a.Len() {
			if d := differ(fmt.Sprint(path, "[", i, "]"), a.Index(i), b.Index(i)); d != "" {
				return d
			}
		}
		return ""
	case reflect.Map:
		if fmt.Sprintf("%v", a) != fmt.Sprintf("%v", b) {
			return path
		}
		return ""
	case reflect.Struct:
		for _, f := range reflect.VisibleFields(t) {
			g, ok := t.FieldByName(f.Name)
			if !ok || !reflect.DeepEqual(g.Index, f.Index) || !f.IsExported() || dropped(t, f.Index) {
				continue
			}
			if f.Anonymous && f.Tag.Get("json") == "" && plain(f.Type) {
				continue // its fields follow
			}
			x, err1 := a.FieldByIndexErr(f.Index)
			y, err2 := b.FieldByIndexErr(f.Index)
			if err1 != nil || err2 != nil {
				if (err1 == nil) != (err2 == nil) {
					return path + "." + f.Name
				}
				continue
			}
			if d := differ(path+"."+f.Name, x, y); d != "" {
				return d
			}
		}
		return ""
	}
	if !reflect.DeepEqual(a.Interface(), b.Interface()) {
		return path
	}
	return ""
}

// plain reports whether a type is a struct that JSON takes apart.
func plain(t reflect.Type) bool {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Kind() == reflect.Struct && !reflect.PointerTo(t).Implements(codec)
}

// dropped reports whether a json:"-" is on the way to a field.
func dropped(t reflect.Type, index []int) bool {
	for _, i := range index {
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		f := t.Field(i)
		if f.Tag.Get("json") == "-" {
			return true
		}
		t = f.Type
	}
	return false
}
`

package generator

import (
	"fmt"
	"go/token"
	"math/rand/v2"
	"strings"
)

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

// noise adds declarations that are unrelated to the annotations, but for their names.
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

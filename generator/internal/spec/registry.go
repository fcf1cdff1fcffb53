package spec

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/leasegen/leasegen/generator/internal/diag"
)

// Info describes a directive.
type Info struct {
	Name string
	// Place is where it stands: "struct type" or "package clause".
	Place   string
	Help    string // one or two sentences
	Example string // directive lines
	Args    []ArgInfo

	typ reflect.Type
}

// ArgInfo describes an argument.
type ArgInfo struct {
	Key      string
	Type     string // name, duration, integer, number, list, path, or the choices
	Required bool
	Default  string
	Min, Max string
	Enum     []string
	Help     string

	form  string
	index []int // of the field, below Info.typ
	kind  reflect.Type
}

// bounds says what values are allowed, or "".
func (a ArgInfo) bounds() string {
	switch {
	case a.Min == "1ns":
		return "more than 0"
	case a.Min != "" && a.Max != "":
		return a.Min + " to " + a.Max
	case a.Min != "":
		return "at least " + a.Min
	}
	return ""
}

// Directives returns all directives in the order in which they are taught.
func Directives() []Info { return slices.Clone(directives()) }

var directives = sync.OnceValue(func() []Info {
	infos := table()
	for i := range infos {
		infos[i].Args = argsOf(infos[i].typ, nil, "")
	}
	return infos
})

// table is Directives without their arguments.
func table() []Info {
	return []Info{
		{Name: "consumer", Place: "struct type", typ: reflect.TypeFor[Consumer](),
			Help:    "Makes the struct a consumer: its Handle methods take messages, or Run does the work; each resource has one owner.",
			Example: "//leasegen:consumer name=billing per=topic topics=orders.*"},
		{Name: "event", Place: "struct type", typ: reflect.TypeFor[Event](),
			Help:    "Makes the struct an event: it gets a Publish function, and handlers may take it.",
			Example: "//leasegen:event name=order.placed key=CustomerID"},
		{Name: "lease", Place: "struct type", typ: reflect.TypeFor[Lease](),
			Help:    "Beside consumer: how long a silent process keeps what it owns.",
			Example: "//leasegen:lease ttl=15s"},
		{Name: "retry", Place: "struct type", typ: reflect.TypeFor[Retry](),
			Help:    "Beside consumer: how failed messages are retried. The wait before attempt n+1 is min·2^(n-1), at most cap.",
			Example: "//leasegen:retry max=8 min=200ms cap=1m order=key"},
		{Name: "dlq", Place: "struct type", typ: reflect.TypeFor[DLQ](),
			Help:    "Beside consumer: how long and how many dead letters are kept.",
			Example: "//leasegen:dlq keep=720h"},
		{Name: "once", Place: "struct type", typ: reflect.TypeFor[Once](),
			Help:    "Beside consumer: each item is executed once, however many messages bring it. With handlers that take one message.",
			Example: "//leasegen:once key=PaymentID on_unknown=park keep=720h"},
		{Name: "table", Place: "struct type", typ: reflect.TypeFor[Table](),
			Help:    "Beside consumer: the messages are the rows of your own table; the handler takes sqlc's type for them.",
			Example: "//leasegen:table name=app.outbox key=customer_id \"where=status = 'ready'\" schema=db/migrations"},
		{Name: "redis", Place: "struct type", typ: reflect.TypeFor[Redis](),
			Help:    "Beside consumer: the messages are the entries of Redis streams that others write to.",
			Example: "//leasegen:redis streams=orders:eu,orders:us kind=event key=customer payload=body"},
		{Name: "defaults", Place: "package clause", typ: reflect.TypeFor[Defaults](),
			Help:    "Above one package clause: values for all consumers of the package that they mean something to. The consumer's own win.",
			Example: "//leasegen:defaults lease_ttl=30s retry_max=5"},
	}
}

// Names returns the names of all directives.
func Names() []string {
	var names []string
	for _, d := range directives() {
		names = append(names, d.Name)
	}
	return names
}

// Lookup returns the directive of that name.
func Lookup(name string) (Info, bool) {
	i := slices.IndexFunc(directives(), func(d Info) bool { return d.Name == name })
	if i < 0 {
		return Info{}, false
	}
	return directives()[i], true
}

// suggest says what was probably meant by an argument that d does not have: one of
// another directive, or of d but for a slip.
func (d Info) suggest(key string) string {
	known := diag.Suggest(key, d.keys())
	for _, other := range directives() {
		if _, ok := other.arg(key); !ok || other.Name == d.Name {
			continue
		}
		if whole := other.Name + "_" + key; d.Name == "defaults" && slices.Contains(d.keys(), whole) {
			return fmt.Sprintf("did you mean %q? %s", whole, known)
		}
		if d.Name != "defaults" && d.Place == other.Place {
			return fmt.Sprintf("%s is an argument of //leasegen:%s; %s", key, other.Name, known)
		}
	}
	return known
}

func (d Info) arg(key string) (ArgInfo, bool) {
	for _, a := range d.Args {
		if a.Key == key {
			return a, true
		}
	}
	return ArgInfo{}, false
}

func (d Info) keys() []string {
	var keys []string
	for _, a := range d.Args {
		keys = append(keys, a.Key)
	}
	return keys
}

// argsOf reads the tags of t. Fields with a prefix are directives within defaults.
func argsOf(t reflect.Type, index []int, prefix string) []ArgInfo {
	var args []ArgInfo
	for i := range t.NumField() {
		f := t.Field(i)
		at := append(append([]int{}, index...), i)
		if p := f.Tag.Get("prefix"); p != "" {
			args = append(args, argsOf(f.Type, at, p+"_")...)
			continue
		}
		key := f.Tag.Get("arg")
		if key == "" || prefix != "" && f.Tag.Get("nodefault") != "" {
			continue
		}
		a := ArgInfo{
			Key: prefix + key, Required: f.Tag.Get("required") != "", Default: f.Tag.Get("default"),
			Min: f.Tag.Get("min"), Max: f.Tag.Get("max"), Help: f.Tag.Get("help"),
			form: f.Tag.Get("form"), index: at, kind: f.Type,
		}
		if e := f.Tag.Get("enum"); e != "" {
			a.Enum = strings.Split(e, ",")
		}
		a.Type = typeName(a)
		args = append(args, a)
	}
	return args
}

func typeName(a ArgInfo) string {
	switch {
	case a.Enum != nil:
		return strings.Join(a.Enum, " or ")
	case a.form != "":
		return formOf(a.form).typ
	case a.kind == reflect.TypeFor[time.Duration]():
		return "duration"
	case a.kind.Kind() == reflect.Float64:
		return "number"
	}
	return "integer"
}

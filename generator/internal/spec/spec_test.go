package spec

import (
	"flag"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/leasegen/leasegen/generator/internal/diag"
	"github.com/leasegen/leasegen/generator/internal/directive"
)

var update = flag.Bool("update", false, "write docs/directives.md")

// TestDocs holds that the documentation is what the structs say.
func TestDocs(t *testing.T) {
	const file = "../../../docs/directives.md"
	if *update {
		if err := os.WriteFile(file, []byte(Markdown()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != Markdown() {
		t.Errorf("%s is out of date; run go test ./generator/internal/spec -update", file)
	}
}

// TestKnown: package directive tells directives of leasegen from those of others by their names.
func TestKnown(t *testing.T) {
	for _, name := range Names() {
		if !directive.Known(name) {
			t.Errorf("%s is not known", name)
		}
	}
	if directive.Known("acquire") {
		t.Error("acquire is known")
	}
}

// TestTags holds that every tag can be read, so that no limit is silently zero.
func TestTags(t *testing.T) {
	for _, d := range Directives() {
		for _, a := range d.Args {
			if a.Help == "" || a.Default == "" && !a.Required {
				t.Errorf("%s %s lacks help or default", d.Name, a.Key)
			}
			for _, limit := range []string{a.Min, a.Max} {
				if limit == "" {
					continue
				}
				if _, bad := (ArgInfo{kind: a.kind, Min: limit, Max: limit}).parse(limit); bad != nil {
					t.Errorf("%s %s: limit %s: %s", d.Name, a.Key, limit, bad.message)
				}
			}
			if number := a.kind.Kind() == reflect.Int || a.kind.Kind() == reflect.Float64; number && (a.Min == "" || a.Max == "") {
				t.Errorf("%s %s lacks a limit", d.Name, a.Key)
			}
		}
	}
}

// decode reads directive lines above one struct and, for defaults, above the package.
func decode(t *testing.T, above, on string) (values []any, findings []string, diags *diag.List) {
	t.Helper()
	src := above + "\npackage x\n\n" + on + "\ntype OrderPlaced struct{}\n"
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "x.go", src, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	diags = &diag.List{}
	file := directive.Collect(fset, f, []byte(src), diags)
	ds := file.Package
	for _, td := range file.Types {
		ds = append(ds, td.Directives...)
	}
	for _, d := range ds {
		v, ok := Decode(d, diags)
		if ok != (diags.Len() == 0) && len(ds) == 1 {
			t.Errorf("ok is %v, findings are %v", ok, diags.All())
		}
		values = append(values, v)
	}
	return values, lines(diags), diags
}

func lines(diags *diag.List) []string {
	var out []string
	for _, d := range diags.All() {
		line := fmt.Sprintf("%d:%d-%d %s %s | %s", d.Pos.Line, d.Pos.Column, d.End.Column, d.Code, d.Message, d.Hint)
		for _, r := range d.Related {
			line += fmt.Sprintf(" | %s %d:%d", r.Message, r.Pos.Line, r.Pos.Column)
		}
		out = append(out, line)
	}
	return out
}

func TestDecode(t *testing.T) {
	values, findings, diags := decode(t, "//leasegen:defaults lease_ttl=30s lease_grace=1s retry_max=5 dlq_keep=720h consumer_batch=500 consumer_unknown=skip retry_jitter=0",
		"//leasegen:consumer name=billing-2.eu per=topic \"topics=orders.*,pay?ments/{a}\" workers=4 batch=10 drain=1m lock=session unknown=deadletter\n"+
			"//leasegen:lease ttl=20s margin=10s\n//leasegen:retry min=1s cap=1s order=block\n//leasegen:event name=order.placed key=Customer.ID")
	if len(findings) > 0 {
		t.Fatal(findings)
	}
	a, d := annotations(values)
	c, l, r, q, e := a.Consumer, a.Lease, a.Retry, a.DLQ, values[4].(*Event)
	d.Fill(a)
	if !Check(a, diags) {
		t.Error(lines(diags))
	}
	if c.Name != "billing-2.eu" || c.Per != "topic" || strings.Join(c.Topics, " ") != "orders.* pay?ments/{a}" || c.Lock != "session" ||
		c.Workers != 4 || c.Batch != 10 || c.Drain != time.Minute || c.Unknown != "deadletter" {
		t.Errorf("consumer %+v", c)
	}
	if l.TTL != 20*time.Second || l.Margin != 10*time.Second || l.Grace != time.Second {
		t.Errorf("lease %+v", l)
	}
	if r.Max != 5 || r.Min != time.Second || r.Cap != time.Second || r.Jitter != 0 || r.Order != "block" {
		t.Errorf("retry %+v", r)
	}
	if q.Keep != 720*time.Hour || q.Max != 0 || q.Has("max") || !q.Has("keep") || !r.Has("jitter") {
		t.Errorf("dlq %+v", q)
	}
	if e.Name != "order.placed" || e.Key != "Customer.ID" {
		t.Errorf("event %+v", e)
	}
	for key, want := range map[string]string{"ttl": "5:22", "grace": "1:47", "": "5:1"} {
		if pos, _ := l.Span(key); fmt.Sprintf("%d:%d", pos.Line, pos.Column) != want {
			t.Errorf("lease %q is at %v, want %s", key, pos, want)
		}
	}
}

// annotations sorts decoded directives; a consumer that is missing is one of per=topic.
func annotations(values []any) (a Annotations, d *Defaults) {
	a = Annotations{Consumer: &Consumer{Per: "topic"}, Lease: &Lease{}, Retry: &Retry{}, DLQ: &DLQ{}, Once: &Once{}}
	a.Consumer.put("topics", origin{})
	for _, v := range values {
		switch v := v.(type) {
		case *Consumer:
			a.Consumer = v
		case *Lease:
			a.Lease = v
		case *Retry:
			a.Retry = v
		case *DLQ:
			a.DLQ = v
		case *Once:
			a.Once = v
		case *Defaults:
			d = v
		}
	}
	return a, d
}

// TestDefaultsWhereTheyApply: a value of defaults reaches the consumers that it means
// something to, and no other.
func TestDefaultsWhereTheyApply(t *testing.T) {
	const above = "//leasegen:defaults consumer_lock=row consumer_poll=1s consumer_idle=2s consumer_capacity=3 consumer_from=now consumer_workers=4 dlq_keep=5h once_keep=6h once_on_unknown=park"
	for on, want := range map[string]string{
		"//leasegen:consumer per=topic topics=a":                        "session 0s 0s 3 now 4 5h0m0s 0s ",
		"//leasegen:consumer per=group topics=a":                        "session 0s 0s 0 now 4 5h0m0s 0s ",
		"//leasegen:consumer per=partition topics=a workers=1":          "session 0s 0s 3 now 1 5h0m0s 0s ",
		"//leasegen:consumer per=stream input=a":                        "row 0s 2s 3 now 0 5h0m0s 0s ",
		"//leasegen:consumer per=stream":                                "row 1s 0s 3  0 0s 0s ",
		"//leasegen:consumer per=stream lock=session capacity=9":        "session 1s 0s 9  0 0s 0s ",
		"//leasegen:consumer per=cluster":                               "advisory 0s 0s 0  0 0s 0s ",
		"//leasegen:consumer per=group topics=a\n//leasegen:once key=A": "session 0s 0s 0 now 4 5h0m0s 6h0m0s park",
	} {
		values, findings, diags := decode(t, above, on)
		a, d := annotations(values)
		d.Fill(a)
		if !Check(a, diags) || len(findings) > 0 {
			t.Errorf("%s: %v", on, lines(diags))
		}
		c := a.Consumer
		got := fmt.Sprint(c.EffectiveLock(), " ", c.Poll, " ", c.Idle, " ", c.Capacity, " ", c.From, " ", c.Workers, " ", a.DLQ.Keep, " ", a.Once.Keep, " ", a.Once.OnUnknown)
		if got != want {
			t.Errorf("%s\ngot  %s\nwant %s", on, got, want)
		}
	}
}

func TestFindings(t *testing.T) {
	long := strings.Repeat("a", 64)
	for _, tc := range []struct{ on, want string }{
		// P: names of directives and arguments
		{"//leasegen:consumr per=group", `4:12-19 LG0101 unknown directive "//leasegen:consumr" | did you mean "consumer"? known: consumer, defaults, dlq, event, lease, once, redis, retry, table`},
		{"//leasegen:queue", `4:12-17 LG0101 unknown directive "//leasegen:queue" | known: consumer, defaults, dlq, event, lease, once, redis, retry, table`},
		{"//leasegen:lease tll=30s", `4:18-21 LG0104 unknown argument "tll" for //leasegen:lease | did you mean "ttl"? known: grace, margin, ttl`},
		{"//leasegen:lease TTL=30s", `4:18-21 LG0104 unknown argument "TTL" for //leasegen:lease | did you mean "ttl"? known: grace, margin, ttl`},
		{"//leasegen:consumer ttl=30s per=cluster", `4:21-24 LG0104 unknown argument "ttl" for //leasegen:consumer | ttl is an argument of //leasegen:lease; known: batch, capacity, constructor, drain, from, idle, input, lock, name, per, poll, topics, unknown, unknown_wait, workers`},
		{`//leasegen:lease "tll x=30s"`, `4:19-24 LG0104 unknown argument "tll x" for //leasegen:lease | known: grace, margin, ttl`},
		{"//leasegen:lease ttl", `4:18-21 LG0102 argument "ttl" has no value | write ttl=TTL`},
		{"//leasegen:retry order", `4:18-23 LG0102 argument "order" has no value | write order=key|block|none`},
		{"//leasegen:lease ttl=15s ttl=30s", `4:26-29 LG0107 argument "ttl" is given twice | keep one | first at 4:18`},
		{"//leasegen:consumer name=a", `4:1-20 LG0109 //leasegen:consumer needs the argument per | write per=topic|group|partition|stream|cluster`},
		{"//leasegen:once keep=1h", `4:1-16 LG0109 //leasegen:once needs the argument key | write key=KEY`},

		// V: values
		{"//leasegen:lease ttl=0s", `4:22-24 LG0502 ttl: "0s" is out of range | allowed: 1s to 24h`},
		{"//leasegen:lease ttl=0", `4:22-23 LG0502 ttl: "0" is out of range | allowed: 1s to 24h`},
		{"//leasegen:lease ttl=-1s", `4:22-25 LG0502 ttl: "-1s" is out of range | allowed: 1s to 24h`},
		{"//leasegen:lease ttl=30", `4:22-24 LG0501 ttl: "30" has no unit | write 30s for seconds`},
		{"//leasegen:lease ttl=1e3s", `4:22-26 LG0501 ttl: "1e3s" is not a duration | write a number with a unit: 200ms, 15s, 1m30s, 720h`},
		{"//leasegen:lease ttl=９s", `4:22-26 LG0501 ttl: "９s" is not a duration | write a number with a unit: 200ms, 15s, 1m30s, 720h`},
		{`//leasegen:lease "ttl=30 s"`, `4:23-28 LG0501 ttl: "30 s" is not a duration | write a number with a unit: 200ms, 15s, 1m30s, 720h`},
		{"//leasegen:lease ttl=9999999h", `4:22-30 LG0502 ttl: "9999999h" is out of range | allowed: 1s to 24h`},
		{"//leasegen:lease grace=99999999999999999999h", `4:24-45 LG0502 grace: "99999999999999999999h" is out of range | allowed: at least 0s`},
		{"//leasegen:lease ttl=1ns", `4:22-25 LG0502 ttl: "1ns" is out of range | allowed: 1s to 24h`},
		{"//leasegen:lease ttl=24h1ns", `4:22-28 LG0502 ttl: "24h1ns" is out of range | allowed: 1s to 24h`},
		{"//leasegen:lease ttl=NaN", `4:22-25 LG0501 ttl: "NaN" is not a duration | write a number with a unit: 200ms, 15s, 1m30s, 720h`},
		{"//leasegen:lease margin=0s", `4:25-27 LG0502 margin: "0s" is out of range | allowed: at least 1ms`},
		{"//leasegen:retry max=-2", `4:22-24 LG0502 max: "-2" is out of range | allowed: 1 to 2147483647`},
		{"//leasegen:retry max=0", `4:22-23 LG0502 max: "0" is out of range | allowed: 1 to 2147483647`},
		{"//leasegen:retry max=2147483648", `4:22-32 LG0502 max: "2147483648" is out of range | allowed: 1 to 2147483647`},
		{"//leasegen:retry max=99999999999999999999", `4:22-42 LG0502 max: "99999999999999999999" is out of range | allowed: 1 to 2147483647`},
		{"//leasegen:retry max=1.5", `4:22-25 LG0501 max: "1.5" is not a whole number | write plain digits, such as 100`},
		{"//leasegen:retry max=+5", `4:22-24 LG0501 max: "+5" is not a whole number | write plain digits, such as 100`},
		{"//leasegen:retry max=1_000", `4:22-27 LG0501 max: "1_000" is not a whole number | write plain digits, such as 100`},
		{"//leasegen:retry min=0s", `4:22-24 LG0502 min: "0s" is out of range | allowed: more than 0`},
		{"//leasegen:retry jitter=1.1", `4:25-28 LG0502 jitter: "1.1" is out of range | allowed: 0 to 1`},
		{"//leasegen:retry jitter=-0.1", `4:25-29 LG0502 jitter: "-0.1" is out of range | allowed: 0 to 1`},
		{"//leasegen:retry jitter=NaN", `4:25-28 LG0501 jitter: "NaN" is not a number | write plain digits, such as 0.2`},
		{"//leasegen:retry jitter=1e-1", `4:25-29 LG0501 jitter: "1e-1" is not a number | write plain digits, such as 0.2`},
		{"//leasegen:retry jitter=0x1p-2", `4:25-31 LG0501 jitter: "0x1p-2" is not a number | write plain digits, such as 0.2`},
		{"//leasegen:retry order=keys", `4:24-28 LG0503 order: unknown value "keys" | did you mean "key"? known: block, key, none`},
		{"//leasegen:consumer per=group topics=a batch=0", `4:46-47 LG0502 batch: "0" is out of range | allowed: 1 to 10000`},
		{"//leasegen:consumer per=group topics=a batch=1000000000", `4:46-56 LG0502 batch: "1000000000" is out of range | allowed: 1 to 10000`},
		{"//leasegen:consumer per=group topics=a workers=0", `4:48-49 LG0502 workers: "0" is out of range | allowed: 1 to 1024`},
		{"//leasegen:consumer per=group topics=a unknown=yes", `4:48-51 LG0503 unknown: unknown value "yes" | known: deadletter, skip`},
		{"//leasegen:consumer per=group topics=a lock=table", `4:45-50 LG0503 lock: unknown value "table" | known: advisory, row, session`},
		{"//leasegen:consumer per=partitions topics=a", `4:25-35 LG0503 per: unknown value "partitions" | did you mean "partition"? known: cluster, group, partition, stream, topic`},
		{"//leasegen:consumer per=group topics=a from=start", `4:45-50 LG0503 from: unknown value "start" | known: beginning, now`},
		{"//leasegen:consumer per=topic topics=a capacity=0", `4:49-50 LG0502 capacity: "0" is out of range | allowed: 1 to 2147483647`},
		{"//leasegen:once key=ID on_unknown=skip", `4:35-39 LG0503 on_unknown: unknown value "skip" | known: park, retry`},
		{"//leasegen:once key=id", `4:21-23 LG0507 key: field "id" is not exported | write the name that the field has in Go, which begins with a capital`},
		{"//leasegen:event id=OrderID.", `4:21-29 LG0507 id: "OrderID." has an empty field name | write a field, or a path such as Customer.ID`},
		{"//leasegen:consumer per=stream input=a,a", `4:38-41 LG0506 input: topic pattern "a" is given twice | keep one`},

		// I: names that mean something elsewhere
		{`//leasegen:event "name=x\"; DROP TABLE t; --"`, `4:24-46 LG0504 name: "x\"; DROP TABLE t; --" holds "\"" | allowed: a-z, 0-9, dot, hyphen, underscore`},
		{`//leasegen:event "name=a\n-- name: Evil :exec"`, `4:24-47 LG0504 name: "a\n-- name: Evil :exec" holds "\n" | allowed: a-z, 0-9, dot, hyphen, underscore`},
		{"//leasegen:event name=a*/b", `4:23-27 LG0504 name: "a*/b" holds "*" | allowed: a-z, 0-9, dot, hyphen, underscore`},
		{"//leasegen:event name=a`b", "4:23-26 LG0504 name: \"a`b\" holds \"`\" | allowed: a-z, 0-9, dot, hyphen, underscore"},
		{"//leasegen:event name=${x}", `4:23-27 LG0504 name: "${x}" does not start with a letter | a name starts with a lower-case letter`},
		{"//leasegen:event name=a%s", `4:23-26 LG0504 name: "a%s" holds "%" | allowed: a-z, 0-9, dot, hyphen, underscore`},
		{"//leasegen:event name=a$1", `4:23-26 LG0504 name: "a$1" holds "$" | allowed: a-z, 0-9, dot, hyphen, underscore`},
		{`//leasegen:event "name=a\u2028b"`, `4:24-33 LG0504 name: "a\u2028b" holds "\u2028" (U+2028) | names are ASCII: a-z, 0-9, dot, hyphen, underscore`},
		{`//leasegen:event "name=a\u202eb"`, `4:24-33 LG0504 name: "a\u202eb" holds "\u202e" (U+202E) | names are ASCII: a-z, 0-9, dot, hyphen, underscore`},
		{"//leasegen:event name=b\u0430nk", `4:23-28 LG0504 name: "bаnk" holds "а" (U+0430) | names are ASCII: a-z, 0-9, dot, hyphen, underscore`},
		{"//leasegen:event name=OrderPlaced", `4:23-34 LG0504 name: "OrderPlaced" holds an upper-case letter | names are lower case: orderplaced`},
		{"//leasegen:event name=1a", `4:23-25 LG0504 name: "1a" does not start with a letter | a name starts with a lower-case letter`},
		{"//leasegen:event name=.a", `4:23-25 LG0504 name: ".a" does not start with a letter | a name starts with a lower-case letter`},
		{"//leasegen:consumer per=cluster name=" + long, `4:38-102 LG0504 name: the name is 64 bytes long | at most 63 are allowed`},
		{"//leasegen:event name=" + long + long, `4:23-151 LG0504 name: the name is 128 bytes long | at most 100 are allowed`},
		{"//leasegen:consumer per=cluster name=" + long[:63], ""},
		{"//leasegen:event name=" + long + long[:36], ""},
		{"//leasegen:event key=id", `4:22-24 LG0507 key: field "id" is not exported | write the name that the field has in Go, which begins with a capital`},
		{"//leasegen:event key=Customer.", `4:22-31 LG0507 key: "Customer." has an empty field name | write a field, or a path such as Customer.ID`},
		{"//leasegen:event key=A[0]", `4:22-26 LG0507 key: "A[0]" is not the name of a field | write a field, or a path such as Customer.ID`},
		{"//leasegen:event key=ID()", `4:22-26 LG0507 key: "ID()" is not the name of a field | write a field, or a path such as Customer.ID`},
		{"//leasegen:consumer per=group topics=a,,b", `4:38-42 LG0506 topics: a topic pattern is empty | write patterns separated by single commas`},
		{`//leasegen:consumer per=group "topics=a, b"`, `4:39-44 LG0506 topics: topic pattern " b" holds " " (U+0020) | patterns are printable ASCII without spaces and quotes`},
		{"//leasegen:consumer per=group topics=a,b,a", `4:38-43 LG0506 topics: topic pattern "a" is given twice | keep one`},
		{"//leasegen:consumer per=group topics=bestellungen.ä", `4:38-53 LG0506 topics: topic pattern "bestellungen.ä" holds "ä" (U+00E4) | patterns are printable ASCII without spaces and quotes`},
		{"//leasegen:consumer per=group topics=it's", `4:38-42 LG0506 topics: topic pattern "it's" holds "'" (U+0027) | patterns are printable ASCII without spaces and quotes`},
		{"//leasegen:consumer per=cluster name=" + strings.Repeat("A", 500), `4:38-538 LG0504 name: "` + strings.Repeat("A", 80) + `…" holds an upper-case letter | names are lower case: ` + strings.Repeat("a", 80) + `…`},
	} {
		_, findings, _ := decode(t, "", tc.on)
		if got := strings.Join(findings, "\n"); got != tc.want {
			t.Errorf("%s\ngot  %s\nwant %s", tc.on, got, tc.want)
		}
	}
}

// TestForeignWildcards: what stands for many topics elsewhere would stand for itself here, and match no topic.
func TestForeignWildcards(t *testing.T) {
	const star = "* is the only wildcard, for any run of characters, dots and slashes included"
	for list, want := range map[string]string{
		"orders.>":              `topic pattern "orders.>" holds >, which is no wildcard here | ` + star + ": write orders.*",
		">":                     `topic pattern ">" holds >, which is no wildcard here | ` + star + ": write *",
		"orders.#":              `topic pattern "orders.#" holds #, which is no wildcard here | ` + star + ": write orders.*",
		"#.orders":              `topic pattern "#.orders" holds #, which is no wildcard here | ` + star + ": write *.orders",
		"orders.+.paid":         `topic pattern "orders.+.paid" holds +, which is no wildcard here | ` + star + ": write orders.*.paid",
		"orders/+/paid":         `topic pattern "orders/+/paid" holds +, which is no wildcard here | ` + star + ": write orders/*/paid",
		"orders/#":              `topic pattern "orders/#" holds #, which is no wildcard here | ` + star + ": write orders/*",
		"x,orders.{a,b,c}.paid": `topic pattern "orders.{a" begins alternatives in braces, which have no meaning here | write them out: orders.a.paid,orders.b.paid,orders.c.paid`,
		"orders.?":              `topic pattern "orders.?" holds ?, which is no wildcard here | ` + star + ": write orders.*",
		"orders.%":              `topic pattern "orders.%" holds %, which is no wildcard here | ` + star,
		"orders.[ab]":           `topic pattern "orders.[ab]" holds [, which is no wildcard here | ` + star,
		`orders\..*`:            `topic pattern "orders\\..*" holds \., which is no wildcard here | ` + star,
		"^orders":               `topic pattern "^orders" holds ^, which is no wildcard here | ` + star,
		"!orders.test":          `topic pattern "!orders.test" holds !, which is no wildcard here | patterns only add topics: name those that are meant`,
		// Topics may have such signs in their names.
		"orders.*": "", "*": "", "a>b": "", "c#": "", "g++": "", "a+b.c": "", "{user}.orders": "", "a:b,c/d": "", "orders.**": "", "a-b_c~1": "", "pay?ments": "", "a|b": "", "a$": "", "%a": "", "a[]": "",
	} {
		got := ""
		if p := topicsProblem(strings.Split(list, ",")); p != nil {
			got = p.message + " | " + p.hint
		}
		if got != want {
			t.Errorf("%s\ngot  %s\nwant %s", list, got, want)
		}
	}
}

func TestDefaultsFindings(t *testing.T) {
	for _, tc := range []struct{ above, want string }{
		{"//leasegen:defaults lease_tll=1s", `1:21-30 LG0104 unknown argument "lease_tll" for //leasegen:defaults | did you mean "lease_ttl"?`},
		{"//leasegen:defaults ttl=1s", `1:21-24 LG0104 unknown argument "ttl" for //leasegen:defaults | did you mean "lease_ttl"?`},
		{"//leasegen:defaults consumer_name=a", `1:21-34 LG0104 unknown argument "consumer_name" for //leasegen:defaults`},
		{"//leasegen:defaults lease_ttl=1ms", `1:31-34 LG0502 lease_ttl: "1ms" is out of range | allowed: 1s to 24h`},
	} {
		_, findings, _ := decode(t, tc.above, "")
		if len(findings) != 1 || !strings.HasPrefix(findings[0], tc.want) {
			t.Errorf("%s\ngot  %s\nwant %s", tc.above, findings, tc.want)
		}
	}
}

func TestCheck(t *testing.T) {
	for _, tc := range []struct{ above, on, want string }{
		{"", "//leasegen:lease ttl=10s margin=5s", ""},
		{"", "//leasegen:lease ttl=10s margin=5001ms", "4:33-39 LG0505 margin=5.001s is more than half of ttl=10s | at most 5s | ttl at 4:22"},
		{"", "//leasegen:lease margin=8s", "4:25-27 LG0505 margin=8s is more than half of the default ttl of 15s | at most 7.5s"},
		{"//leasegen:defaults lease_ttl=2m", "//leasegen:lease margin=60s", ""},
		{"//leasegen:defaults lease_ttl=1m", "//leasegen:lease margin=31s", "4:25-28 LG0505 margin=31s is more than half of ttl=1m | at most 30s | ttl at 1:31"},
		{"//leasegen:defaults lease_margin=31s", "//leasegen:lease ttl=1m", "1:34-37 LG0505 margin=31s is more than half of ttl=1m | at most 30s | ttl at 4:22"},
		{"", "//leasegen:retry min=2s cap=1s", "4:29-31 LG0505 cap=1s is below min=2s | the longest wait is at least the shortest | min at 4:22"},
		{"", "//leasegen:retry cap=100ms", "4:22-27 LG0505 cap=100ms is below the default min of 200ms | the longest wait is at least the shortest"},
		{"", "//leasegen:retry min=2h", ""},
		{"", "//leasegen:consumer per=cluster workers=2", "4:41-42 LG0505 per=cluster has no messages, so workers has no effect | remove it"},
		{"//leasegen:defaults consumer_batch=5 dlq_keep=1h", "//leasegen:consumer per=cluster", ""},
		{"", "//leasegen:consumer per=cluster\n//leasegen:dlq keep=1h", "5:1-15 LG0505 per=cluster has no messages, so //leasegen:dlq has no effect | remove the line"},
		{"", "//leasegen:consumer per=topic", "4:1-20 LG0109 //leasegen:consumer with per=topic needs the argument topics | write topics=PATTERN[,PATTERN…]"},
		{"", "//leasegen:consumer per=partition", "4:1-20 LG0109 //leasegen:consumer with per=partition needs the argument topics | write topics=PATTERN[,PATTERN…]"},
		{"", "//leasegen:consumer per=cluster topics=a", "4:40-41 LG0505 per=cluster has no message source, but topics are given | remove topics, or write per=topic or per=group"},
		{"", "//leasegen:consumer per=cluster input=a", "4:39-40 LG0505 per=cluster has no message source, but input is given | remove input, or write per=stream"},
		{"", "//leasegen:consumer per=stream topics=a", "4:39-40 LG0505 per=stream does not take topics | write input=PATTERN[,PATTERN…]: the keys of the messages are the streams"},
		{"", "//leasegen:consumer per=group input=a topics=b", "4:37-38 LG0505 per=group does not take input | write topics=PATTERN[,PATTERN…], or per=stream"},

		// locks, and which of them goes with what
		{"", "//leasegen:consumer per=topic topics=a lock=session", ""},
		{"", "//leasegen:consumer per=topic topics=a lock=advisory", "4:45-53 LG0505 lock=advisory does not go with per=topic | per=topic takes lock=session"},
		{"", "//leasegen:consumer per=topic topics=a lock=row", "4:45-48 LG0505 lock=row does not go with per=topic | per=topic takes lock=session"},
		{"", "//leasegen:consumer per=group topics=a lock=advisory", ""},
		{"", "//leasegen:consumer per=group topics=a lock=row", "4:45-48 LG0505 lock=row does not go with per=group | per=group takes lock=session or lock=advisory"},
		{"", "//leasegen:consumer per=partition topics=a lock=advisory", "4:49-57 LG0505 lock=advisory does not go with per=partition | per=partition takes lock=session"},
		{"", "//leasegen:consumer per=partition topics=a lock=row", "4:49-52 LG0505 lock=row does not go with per=partition | per=partition takes lock=session"},
		{"", "//leasegen:consumer per=stream input=a lock=row", ""},
		{"", "//leasegen:consumer per=stream lock=row", ""},
		{"", "//leasegen:consumer per=stream lock=advisory", "4:37-45 LG0505 lock=advisory does not go with per=stream | per=stream takes lock=session or lock=row"},
		{"", "//leasegen:consumer per=cluster lock=session", ""},
		{"", "//leasegen:consumer per=cluster lock=row", "4:38-41 LG0505 lock=row does not go with per=cluster | per=cluster takes lock=advisory or lock=session"},
		{"//leasegen:defaults consumer_lock=row", "//leasegen:consumer per=cluster", ""}, // passed over

		// what has no effect to some consumers
		{"", "//leasegen:consumer per=stream input=a idle=1m capacity=5 batch=5 from=now unknown=skip", ""},
		{"", "//leasegen:consumer per=stream poll=1s capacity=5 drain=1s", ""},
		{"", "//leasegen:consumer per=partition topics=a capacity=5 workers=2", ""},
		{"", "//leasegen:consumer per=stream input=a poll=1s", "4:45-47 LG0505 per=stream with input has no method Streams to ask, so poll has no effect | remove it"},
		{"", "//leasegen:consumer per=topic topics=a poll=1s", "4:45-47 LG0505 per=topic has no method Streams to ask, so poll has no effect | remove it"},
		{"", "//leasegen:consumer per=stream idle=1s", "4:37-39 LG0505 a stream is given back when Run returns, so idle has no effect | remove it"},
		{"", "//leasegen:consumer per=group topics=a idle=1s", "4:45-47 LG0505 per=group keeps what it owns while it is idle, so idle has no effect | remove it"},
		{"", "//leasegen:consumer per=group topics=a capacity=2", "4:49-50 LG0505 per=group has one resource, so capacity has no effect | remove it"},
		{"", "//leasegen:consumer per=stream input=a workers=2", "4:48-49 LG0505 per=stream handles the messages of a stream one after the other, so workers has no effect | remove it"},
		{"", "//leasegen:consumer per=stream from=now", "4:37-40 LG0505 per=stream without input has no messages, so from has no effect | remove it"},
		{"", "//leasegen:consumer per=stream\n//leasegen:once key=ID", "5:1-16 LG0505 per=stream without input has no messages, so //leasegen:once has no effect | remove the line"},
		{"//leasegen:defaults consumer_poll=1s consumer_idle=1s consumer_capacity=2 consumer_from=now consumer_workers=2 once_keep=1h", "//leasegen:consumer per=stream input=a", ""},
	} {
		values, findings, diags := decode(t, tc.above, tc.on)
		if len(findings) > 0 {
			t.Fatal(findings)
		}
		a, d := annotations(values)
		ok := a.Consumer.CheckSource(false, false, diags)
		d.Fill(a)
		ok = Check(a, diags) && ok
		if got := strings.Join(lines(diags), "\n"); got != tc.want || ok != (tc.want == "") {
			t.Errorf("%s %s\ngot  %s\nwant %s", tc.above, tc.on, got, tc.want)
		}
	}
}

func TestEffectiveName(t *testing.T) {
	for typeName, want := range map[string][2]string{
		"Billing":          {"billing", "billing"},
		"OrderPlaced":      {"order_placed", "order.placed"},
		"HTTPRequest":      {"http_request", "http.request"},
		"OrderV2":          {"order_v2", "order.v2"},
		"V2Order":          {"v2_order", "v2.order"},
		"Order_Placed":     {"order_placed", "order.placed"},
		"orderPlaced":      {"order_placed", "order.placed"},
		"X":                {"x", "x"},
		"APIKeyRotatedURL": {"api_key_rotated_url", "api.key.rotated.url"},
	} {
		var diags diag.List
		c, ok := (&Consumer{}).EffectiveName(typeName, &diags)
		e, ok2 := (&Event{}).EffectiveName(typeName, &diags)
		if c != want[0] || e != want[1] || !ok || !ok2 || diags.Len() > 0 {
			t.Errorf("%s gives %q and %q, want %q: %v", typeName, c, e, want, diags.All())
		}
	}
	for _, typeName := range []string{"Größe", "Bаnk", "_", strings.Repeat("Aa", 40)} {
		values, _, diags := decode(t, "", "//leasegen:consumer per=cluster")
		if _, ok := values[0].(*Consumer).EffectiveName(typeName, diags); ok || diags.Errors() != 1 || diags.All()[0].Code != "LG0504" {
			t.Errorf("%s: ok is %v, findings %v", typeName, ok, diags.All())
		}
	}
}

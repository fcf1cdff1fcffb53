package generator

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDeterministic: neither the order of patterns nor the number of processors changes
// a byte of the output or of the findings.
func TestDeterministic(t *testing.T) {
	root := newModule(t)
	var patterns []string
	for i := range 6 {
		name := fmt.Sprintf("p%d", i)
		patterns = append(patterns, "./"+name)
		for file := range 3 {
			writeFile(t, filepath.Join(root, name, fmt.Sprintf("f%d.go", file)), handlerFile(name, i*3+file, 3))
		}
		// A warning in each package, so that findings have an order too.
		writeFile(t, filepath.Join(root, name, "x_plan9.go"), []byte("package "+name+"\n\n//leasegen:event\ntype X struct{}\n"))
	}
	shared := shareLoad(t, root, []*golden{{name: ".", patterns: []string{"././..."}}})
	procs := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(procs)
	var first *Result
	runs := 24
	if testing.Short() {
		runs = 8
	}
	for run := range runs {
		runtime.GOMAXPROCS([]int{1, 8}[run%2])
		shuffled := slices.Clone(patterns)
		rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		generate := func() (*Result, error) { return Generate(t.Context(), Config{Dir: root, Patterns: shuffled}) }
		if run >= 2 { // finding and checking packages takes nearly all the time
			rand.Shuffle(len(shared.module.Packages), func(i, j int) {
				ps := shared.module.Packages
				ps[i], ps[j] = ps[j], ps[i]
			})
			generate = func() (*Result, error) { return shared.generate(t.Context(), root, Config{Dir: root}, false) }
		}
		res, err := generate()
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			if first = res; len(res.Files) != 24 || res.Diags.Len() != 6 {
				t.Fatalf("%d files, %d findings", len(res.Files), res.Diags.Len())
			}
			continue
		}
		if d := cmp.Diff(first.Files, res.Files, asText); d != "" {
			t.Fatalf("run %d with %v differs from the first:\n%s", run, shuffled, d)
		}
		if d := cmp.Diff(first.Diags.All(), res.Diags.All()); d != "" {
			t.Fatalf("run %d with %v: findings differ from the first:\n%s", run, shuffled, d)
		}
	}
}

// handlerFile is a file with one consumer of that many handlers and their events.
func handlerFile(pkg string, id, handlers int) []byte {
	b := fmt.Appendf(nil, "package %s\n\nimport (\n\t\"context\"\n\n\t\"github.com/leasegen/leasegen/runtime/lease\"\n)\n\n", pkg)
	b = fmt.Appendf(b, "// Consumer%d works.\n//\n//leasegen:consumer name=consumer.%d per=topic topics=a.*,b.%d\n//leasegen:retry max=5 min=1s cap=1m\n//leasegen:dlq keep=24h\ntype Consumer%d struct{}\n", id, id, id, id)
	for h := range handlers {
		b = fmt.Appendf(b, "\n//leasegen:event name=event.%d.%d key=Customer.ID\ntype Event%dX%d struct {\n\tCustomer struct{ ID string }\n\tCents int64\n}\n", id, h, id, h)
		b = fmt.Appendf(b, "\nfunc (c *Consumer%d) HandleEvent%d(ctx context.Context, m lease.Message[Event%dX%d]) error {\n\treturn ctx.Err()\n}\n", id, h, id, h)
	}
	return b
}

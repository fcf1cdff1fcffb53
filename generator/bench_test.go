package generator

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// manyHandlers makes a module with 500 handlers, ten packages of ten consumers of five.
func manyHandlers(tb testing.TB) string {
	root := newModule(tb)
	for p := range 10 {
		pkg := fmt.Sprintf("p%d", p)
		for f := range 10 {
			writeFile(tb, filepath.Join(root, pkg, fmt.Sprintf("f%d.go", f)), handlerFile(pkg, p*10+f, 5))
		}
		// Applications import more than the runtime.
		writeFile(tb, filepath.Join(root, pkg, "deps.go"), []byte("package "+pkg+"\n\nimport (\n\t_ \"net/http\"\n\n\t_ \"github.com/jackc/pgx/v5/pgxpool\"\n)\n"))
	}
	return root
}

// BenchmarkGenerate500 generates 500 handlers. vs-load is the whole time over that of
// finding and loading the packages. "cold" is the same with an empty build cache each time;
// no package is compiled, so it is close to warm. Run it with
//
//	go test ./generator -run '^$' -bench Generate500 -benchtime 5x
func BenchmarkGenerate500(b *testing.B) {
	root := manyHandlers(b)
	for _, cold := range []bool{false, true} {
		b.Run(map[bool]string{false: "warm", true: "cold"}[cold], func(b *testing.B) {
			var all, load time.Duration
			for b.Loop() {
				if cold {
					b.StopTimer()
					dir, err := os.MkdirTemp(b.TempDir(), "cache")
					if err != nil {
						b.Fatal(err)
					}
					b.Setenv("GOCACHE", dir)
					b.StartTimer()
				}
				res, err := Generate(b.Context(), Config{Dir: root, Patterns: []string{"./..."}})
				if err != nil || len(res.Files) != 110 { // one more for each package
					b.Fatal(len(res.Files), err, res.Diags.All())
				}
				for _, t := range res.Timings {
					all += t.Took
					if t.Name == "scan" || t.Name == "load" {
						load += t.Took
					}
				}
			}
			b.ReportMetric(all.Seconds()/load.Seconds(), "vs-load")
		})
	}
}

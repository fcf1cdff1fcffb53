// Package compared holds docs/compared.md to its word: index.md names the tests that show each feature, and each
// scenario that the compared systems test, and all of these exist. It has the tests of scenarios, too, that have no
// other place.
package compared

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const root = "../.."

// features are the lines of the page's table, and of the first one of the index.
var features = []string{
	"Postgres backend",
	"Redis backend",
	"Redis Cluster",
	"Keyspace/topology reset API",
	"In-memory backend for tests",
	"Same contract suite over several backends",
	"Exclusive owner per resource/topic",
	"TTL lease (not tied to a connection)",
	"Advisory-lock election",
	"Works behind transaction pooler",
	"One heartbeat for many leases (session)",
	"Cheap standby (no per-resource polling writes)",
	"Heartbeat isolated from handler pool",
	"Heartbeat jitter",
	"Local deadline self-fencing",
	"Handler cancelled on lease loss",
	"Monotonic fencing token/epoch",
	"Fence inside work transaction",
	"Single clock for grant and check",
	"Explicit release / step down",
	"Immediate graceful handover",
	"Release of idle ownership",
	"Automatic re-acquire after loss",
	"Crash takeover bound",
	"Push wake on release/expiry",
	"Slow-but-alive protected from theft",
	"Stuck-but-heartbeating detected",
	"Balanced/fair-share ownership",
	"Rebalance on join",
	"Partitioning within a topic",
	"Ordered delivery guaranteed",
	"Gap-safe cursor",
	"Transactional enqueue in caller's tx",
	"Atomic handler effect + ack",
	"Wake by NOTIFY/pubsub + poll fallback",
	"Retry with backoff per message",
	"Persistent attempt count",
	"DLQ persisted",
	"DLQ bound/retention",
	"DLQ replay/redrive",
	"Poison decode isolated",
	"Checkpoint only after effect",
	"Concurrency cap / backpressure",
	"Retention / cleanup",
	"Reaper of dead sessions/consumers",
	"Orphan (delivered, never locked) recovery",
	"Metrics interface",
	"Lease introspection (who/when)",
	"Structured logging hook",
	"Schema migrations shipped",
	"Rolling-upgrade compatibility",
	"sqlc-backed typed queries",
	"Typed payloads / generated code",
	"Declarative consumers",
	"Option validation",
	"Fault-injection tests (kill/partition/skew/freeze)",
	"Published benchmark",
}

// scenarios are the lines of the index's other tables: T000-01 to T000-45, and so on.
var scenarios = []struct {
	prefix string
	count  int
}{{"T000", 45}, {"T001", 17}, {"T002", 35}, {"T003", 67}, {"T004", 22}, {"X", 25}}

// row is a line of a table: its first cell, and its last, which names tests or, after a
// dash, says why there are none.
type row struct {
	line        int
	first, last string
}

// rows are the lines of the tables of a file that have features or scenarios.
func rows(t *testing.T, path string) (rs []row) {
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	ours := false
	for i, line := range strings.Split(string(page), "\n") {
		switch {
		case strings.HasPrefix(line, "| feature |"), strings.HasPrefix(line, "| scenario |"):
			ours = true
			continue
		case !strings.HasPrefix(line, "|"):
			ours = false
		}
		if !ours || strings.HasPrefix(line, "|-") {
			continue
		}
		cells := strings.Split(strings.TrimSuffix(strings.TrimPrefix(line, "| "), " |"), " | ")
		if len(cells) < 2 || slices.Contains(cells, "") {
			t.Errorf("%s:%d: an empty cell", path, i+1)
			continue
		}
		rs = append(rs, row{i + 1, cells[0], cells[len(cells)-1]})
	}
	return rs
}

const (
	page  = root + "/docs/compared.md"
	index = "index.md"
)

func TestEveryFeatureAndScenarioHasALine(t *testing.T) {
	inIndex := slices.Clone(features)
	for _, s := range scenarios {
		for n := 1; n <= s.count; n++ {
			inIndex = append(inIndex, fmt.Sprintf("%s-%02d", s.prefix, n))
		}
	}
	for path, want := range map[string][]string{page: features, index: inIndex} {
		var got []string
		for _, r := range rows(t, path) {
			got = append(got, r.first)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s has the lines %q, want %q", path, got, want)
		}
	}
}

var (
	span   = regexp.MustCompile("`([^`]+)`")
	goTest = regexp.MustCompile(`^(\w+)\.((?:Test|Benchmark|Fuzz)\w*)$`)
)

func TestEveryTestThatIsNamedExists(t *testing.T) {
	tests, checks := testFunctions(t), suite(t)
	if len(tests) < 100 || len(checks) < 50 {
		t.Fatalf("found only %d test functions and %d checks of the suite", len(tests), len(checks))
	}
	for _, r := range rows(t, index) {
		names := span.FindAllStringSubmatch(r.last, -1)
		reason, none := strings.CutPrefix(r.last, "— ")
		switch {
		case none && len(reason) < 20:
			t.Errorf("index.md:%d: %s has no test, and no reason that says why", r.line, r.first)
		case !none && len(names) == 0:
			t.Errorf("index.md:%d: %s names no test", r.line, r.first)
		}
		for _, name := range names {
			n := name[1]
			switch {
			case goTest.MatchString(n):
				if !tests[n] {
					t.Errorf("index.md:%d: there is no test function %s", r.line, n)
				}
			case strings.HasPrefix(n, "testdata/"):
				if _, err := os.Stat(filepath.Join(root, n)); err != nil {
					t.Errorf("index.md:%d: %v", r.line, err)
				}
			case !none && !checks[n]:
				t.Errorf("index.md:%d: the conformance suite has no check %s", r.line, n)
			}
		}
	}
}

// testFunctions are the test functions of the module, as directory.TestName.
func testFunctions(t *testing.T) map[string]bool {
	found := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || d.Name() != ".." && strings.HasPrefix(d.Name(), ".")) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir, err := filepath.Abs(filepath.Dir(path))
		for _, d := range file.Decls {
			if f, is := d.(*ast.FuncDecl); is && f.Recv == nil {
				found[filepath.Base(dir)+"."+f.Name.Name] = true
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// suite are the names of the checks of the conformance suite: the first field of the
// elements of its lists.
func suite(t *testing.T) map[string]bool {
	found := map[string]bool{}
	files, err := filepath.Glob(root + "/runtime/leasetest/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			list, is := n.(*ast.CompositeLit)
			if !is {
				return true
			}
			if of, is := list.Type.(*ast.ArrayType); !is || fmt.Sprint(of.Elt) != "check" {
				return true
			}
			for _, e := range list.Elts {
				c, is := e.(*ast.CompositeLit)
				if !is || len(c.Elts) == 0 {
					continue
				}
				if name, is := c.Elts[0].(*ast.BasicLit); is && name.Kind == token.STRING {
					s, err := strconv.Unquote(name.Value)
					if err != nil {
						t.Fatal(err)
					}
					found[s] = true
				}
			}
			return true
		})
	}
	return found
}

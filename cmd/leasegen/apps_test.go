//go:build apps

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// appBytes is how large an application may be that is copied.
const appBytes = 64 << 20

// TestApps runs testdata/apps, one application after the other: make apps. Each is fetched as a module, annotated
// as it is, generated for, vetted and checked. A script has these commands beside those of TestScript:
//
//	app MODULE@VERSION         fetch a module, and go on in a copy of it
//	above FILE LINE TEXT...    put lines of text above the line of a file
//	requires PACKAGE...        have go.mod and go.sum name what packages of the application need
//	generate PATTERN           run leasegen, and log what it took
//
// wild-workouts-go-ddd-example and the order service of kratos' beer-shop are not among them: at their latest versions they could
// not be had as modules. testdata/script/as_they_are.txtar has reduced copies of these two.
func TestApps(t *testing.T) {
	_, vars := scriptEnv(t)
	var took []string
	generate := func(ts *testscript.TestScript, neg bool, args []string) {
		if neg || len(args) != 1 {
			ts.Fatalf("usage: generate PATTERN")
		}
		began := time.Now()
		ts.Check(ts.Exec("leasegen", "-timings", args[0]))
		checked := regexp.MustCompile(`(?m)^packages +(\d+)$`).FindStringSubmatch(ts.ReadFile("stderr"))
		if checked == nil {
			ts.Fatalf("leasegen -timings does not say how many packages were type-checked")
		}
		took = append(took, fmt.Sprintf("%-18s leasegen %-30s %6.2f s %6s packages",
			ts.Name(), args[0], time.Since(began).Seconds(), checked[1]))
	}
	scripts, err := filepath.Glob("../../testdata/apps/*.txtar")
	if err != nil || len(scripts) == 0 {
		t.Fatal("there is no script in testdata/apps: ", err)
	}
	for _, script := range scripts {
		// A run of its own for each: those of one are run at once.
		t.Run(strings.TrimSuffix(filepath.Base(script), ".txtar"), func(t *testing.T) {
			testscript.Run(t, testscript.Params{
				Files:               []string{script},
				RequireExplicitExec: true,
				RequireUniqueNames:  true,
				Deadline:            time.Now().Add(15 * time.Minute),
				Setup: func(e *testscript.Env) error {
					// All that needs the network is done once requires is.
					e.Vars = append(e.Vars, vars...)
					return nil
				},
				Cmds: map[string]func(*testscript.TestScript, bool, []string){
					"code": code, "app": app, "above": above, "requires": requires, "generate": generate,
				},
			})
		})
	}
	t.Logf("what generating took:\n%s", strings.Join(took, "\n"))
}

// online runs the go command in dir with the network that the test has.
func online(ts *testscript.TestScript, dir string, args ...string) []byte {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOTOOLCHAIN=local", "GOWORK=off")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		ts.Fatalf("go %s: %v\n%s%s", strings.Join(args, " "), err, out, &stderr)
	}
	return out
}

func app(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: app MODULE@VERSION")
	}
	var module struct{ Dir string }
	ts.Check(json.Unmarshal(online(ts, ts.MkAbs("."), "mod", "download", "-json", args[0]), &module))
	to := ts.MkAbs("app")
	var bytes int64
	ts.Check(filepath.Walk(module.Dir, func(_ string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			if bytes += info.Size(); bytes > appBytes {
				return fmt.Errorf("copy %s: it has more than %d bytes; choose a smaller application", args[0], appBytes)
			}
		}
		return err
	}))
	ts.Check(os.CopyFS(to, os.DirFS(module.Dir)))
	ts.Check(filepath.Walk(to, func(path string, info os.FileInfo, err error) error { // the cache is read-only
		if err != nil {
			return err
		}
		return os.Chmod(path, info.Mode()|0o200)
	}))
	ts.Check(ts.Chdir("app"))
	ts.Logf("%s: %d bytes", args[0], bytes)
}

func above(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: above FILE LINE TEXT...")
	}
	file := ts.MkAbs(args[0])
	lines := strings.Split(ts.ReadFile(args[0]), "\n")
	i := slices.Index(lines, args[1])
	if i < 0 || slices.Contains(lines[i+1:], args[1]) {
		ts.Fatalf("above: %s does not have this line once: %s", args[0], args[1])
	}
	ts.Check(os.WriteFile(file, []byte(strings.Join(slices.Insert(lines, i, args[2:]...), "\n")), 0o644))
}

func requires(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: requires PACKAGE...")
	}
	const runtime = "github.com/leasegen/leasegen"
	dir := ts.MkAbs(".")
	online(ts, dir, "mod", "edit", "-require="+runtime+"@v0.0.0", "-replace="+runtime+"="+ts.Getenv("ROOT"))
	// As go mod tidy, but for a few packages, and for the tests of those that go vet looks at.
	online(ts, dir, "list", "-mod=mod", "-deps", runtime+"/runtime/lease", runtime+"/runtime/leasepg")
	online(ts, dir, append([]string{"list", "-mod=mod", "-deps", "-test"}, args...)...)
}

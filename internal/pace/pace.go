// Package pace says how many tests run at once, and judges how long something took, where that can be judged: in make
// proof, which has the machine to itself. In make test other tests, and whatever else runs, share it.
package pace

import (
	"flag"
	"os"
	"strconv"
	"testing"
	"time"
)

// Judged reports whether bounds on time count.
func Judged() bool { return os.Getenv("PROOF_ROUNDS") != "" }

// Within fails a test where bounds count and what took longer than limit; elsewhere it logs that.
func Within(t testing.TB, what string, took, limit time.Duration) {
	t.Helper()
	switch {
	case took <= limit:
	case Judged():
		t.Errorf("%s took %v, want at most %v", what, took, limit)
	default:
		t.Logf("%s took %v; make proof wants at most %v", what, took, limit)
	}
}

// Parallel lets n tests run at once, unless the command line says how many. Tests that mostly wait are over sooner when
// there are many more than cores. Call it in TestMain.
func Parallel(n int) {
	if !flag.Parsed() {
		flag.Parse()
	}
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		flag.Set("test.parallel", strconv.Itoa(n))
	}
}

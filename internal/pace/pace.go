// Package pace judges how long something took, where that can be judged: in make proof, which
// has the machine to itself. In make test other tests, and whatever else runs, share it.
package pace

import (
	"os"
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

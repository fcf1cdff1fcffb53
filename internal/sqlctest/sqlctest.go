// Package sqlctest finds the sqlc that sqlc/go.mod pins, for tests that generate code for tables.
package sqlctest

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// Path is the program: the one that LEASEGEN_SQLC names, as make sets it, or else the one that the go command
// builds, which takes two minutes the first time.
func Path(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("LEASEGEN_SQLC"); path != "" {
		return path
	}
	_, here, _, _ := runtime.Caller(0)
	out, err := exec.Command("go", "-C", filepath.Join(filepath.Dir(here), "../../sqlc"), "tool", "-n", "sqlc").Output()
	if err != nil {
		t.Fatalf("build sqlc: %v; run make tools", err)
	}
	return strings.TrimSpace(string(out))
}

package testmodule

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The build cache knows a package by its directory, too: the next run has the same, and runs at the same time have others.
func TestDirectories(t *testing.T) {
	if in, err := folder("../.."); err != nil || !strings.HasPrefix(filepath.Base(in), ".") {
		t.Errorf("tests that read all sources enter %s (error %v)", in, err)
	}
	in := t.TempDir()
	made := func() string {
		t.Helper()
		dir, err := create(in, t.Name())
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}
	first, beside := made(), made()
	if first == beside {
		t.Errorf("two tests have %s at once", first)
	}
	if err := os.RemoveAll(first); err != nil {
		t.Fatal(err)
	}
	if next := made(); next != first {
		t.Errorf("the next test has %s, want %s again", next, first)
	}
}

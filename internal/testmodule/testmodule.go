// Package testmodule makes modules for tests that generate code, compile it and run it.
package testmodule

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const own = "module github.com/leasegen/leasegen\n"

// New makes a module of the given path that uses the clone at repo and requires what that requires. Its directory goes with the test; the
// next run has one of the same name, so that the build cache knows what is compiled in it. It is in a hidden folder of the clone, which
// neither Go nor the tests that read all sources enter.
func New(t testing.TB, repo, path string) (dir string) {
	t.Helper()
	in, err := folder(repo)
	if err != nil {
		t.Fatal(err)
	}
	if dir, err = create(in, strings.NewReplacer("/", "-", "\\", "-", ":", "-").Replace(t.Name())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := Require(dir, repo, path); err != nil {
		t.Fatal(err)
	}
	return dir
}

// folder makes the folder of a clone where modules are.
func folder(repo string) (string, error) {
	repo, err := filepath.Abs(repo)
	if err != nil {
		return "", err
	}
	if repo, err = filepath.EvalSymlinks(repo); err != nil {
		return "", err
	}
	in := filepath.Join(repo, "bin", ".modules")
	return in, os.MkdirAll(in, 0o755)
}

// create makes the first directory of that name that is free: tests at the same time, and ones that were killed, may have some.
func create(in, name string) (string, error) {
	for n := 1; ; n++ {
		dir := filepath.Join(in, fmt.Sprintf("%s-%d", name, n))
		if err := os.Mkdir(dir, 0o755); !errors.Is(err, fs.ErrExist) {
			return dir, err
		}
	}
}

// Require gives dir the go.mod and go.sum of a module that requires the clone at repo and what that requires, so that no module has to be
// looked up.
func Require(dir, repo, path string) error {
	repo, err := filepath.Abs(repo)
	if err != nil {
		return err
	}
	mod, err := os.ReadFile(filepath.Join(repo, "go.mod"))
	if err != nil {
		return err
	}
	sum, err := os.ReadFile(filepath.Join(repo, "go.sum"))
	if err != nil {
		return err
	}
	mod = bytes.Replace(mod, []byte(own), []byte("module "+path+"\n"), 1)
	mod = fmt.Appendf(mod, "\nrequire github.com/leasegen/leasegen v0.0.0\n\nreplace github.com/leasegen/leasegen => %s\n", repo)
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "go.mod"), mod, 0o644),
		os.WriteFile(filepath.Join(dir, "go.sum"), sum, 0o644),
	)
}

package sqlc

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestFindRunsNoCodeOfTheModule: a module names a tool of its own sqlc, with a replacement in its own tree. It is run only
// where that is asked for.
func TestFindRunsNoCodeOfTheModule(t *testing.T) {
	root, ran := t.TempDir(), filepath.Join(t.TempDir(), "ran")
	for name, text := range map[string]string{
		"go.mod":                "module example.com/m\n\ngo 1.24\n\ntool example.com/fake/cmd/sqlc\n\nrequire example.com/fake v0.0.0\n\nreplace example.com/fake => ./fake\n",
		"fake/go.mod":           "module example.com/fake\n\ngo 1.24\n",
		"fake/cmd/sqlc/main.go": "package main\n\nimport (\n\t\"fmt\"\n\t\"os\"\n)\n\nfunc main() {\n\t_ = os.WriteFile(" + `"` + ran + `"` + ", nil, 0o600)\n\tfmt.Println(\"v1.31.1\")\n}\n",
	} {
		path := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	bin := t.TempDir()
	gocmd, err := exec.LookPath("go")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(gocmd, filepath.Join(bin, "go")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin) // go, and no sqlc
	if _, err := Find(t.Context(), "", root); !errors.Is(err, ErrMissing) {
		t.Errorf("without an sqlc in PATH: %v", err)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Fatal("the module's own sqlc was run")
	}
	if _, err := Find(t.Context(), Tool, root); err != nil {
		t.Errorf("where it is asked for: %v", err)
	}
	if _, err := os.Stat(ran); err != nil {
		t.Error("the module's own sqlc was not run")
	}
}

// TestPinned: error messages and docs name the version that this repository is tested with.
func TestPinned(t *testing.T) {
	mod, err := os.ReadFile("../../../sqlc/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(mod), "github.com/sqlc-dev/sqlc "+Pinned+" ") {
		t.Errorf("sqlc/go.mod does not require sqlc %s", Pinned)
	}
}

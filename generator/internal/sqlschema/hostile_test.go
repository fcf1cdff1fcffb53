//go:build unix

package sqlschema

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A repository that is checked may hold anything: what is outside of it is not read, and nothing is waited for.
func TestReadStaysInside(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "secret.sql")
	if err := os.WriteFile(outside, []byte("CREATE TABLE secret ();"), 0o600); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	inside := filepath.Join(root, "real")
	if err := os.Mkdir(inside, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(inside, "1.sql"), []byte("CREATE TABLE t ();"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		make func(at string) error
		want string
	}{
		{"a link to a file outside", func(at string) error { return os.Symlink(outside, filepath.Join(at, "1.sql")) }, "escapes"},
		{"a link to a folder outside", func(at string) error {
			if err := os.Remove(at); err != nil {
				return err
			}
			return os.Symlink(filepath.Dir(outside), at)
		}, "escapes"},
		{"a device", func(at string) error { return os.Symlink("/dev/zero", filepath.Join(at, "1.sql")) }, "escapes"},
		{"a pipe", func(at string) error { return syscall.Mkfifo(filepath.Join(at, "1.sql"), 0o600) }, "not a regular file"},
		{"a file that is too large", func(at string) error {
			f, err := os.Create(filepath.Join(at, "1.sql"))
			if err != nil {
				return err
			}
			defer f.Close()
			return f.Truncate(64<<20 + 1)
		}, "larger than 64 MB"},
		{"a link that stays inside", func(at string) error { return os.Symlink("../real/1.sql", filepath.Join(at, "1.sql")) }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			at := filepath.Join(root, "migrations")
			if err := os.RemoveAll(at); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(at, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := c.make(at); err != nil {
				t.Fatal(err)
			}
			files, err := Read(root, []string{"migrations"})
			switch {
			case c.want == "" && (err != nil || len(files) != 1):
				t.Errorf("%d files, %v", len(files), err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("%d files, error %v; want one that says %q", len(files), err, c.want)
			}
		})
	}
}

//go:build unix

package sqlschema

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// A repository that is checked may hold anything: files outside of it are not read, and no pipe is waited for.
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
		{"a link to a folder below", func(at string) error {
			if err := os.WriteFile(filepath.Join(at, "1.sql"), nil, 0o600); err != nil {
				return err
			}
			return os.Symlink("../real", filepath.Join(at, "more"))
		}, "is a link to a folder"},
		{"a link to a folder outside below", func(at string) error { return os.Symlink(filepath.Dir(outside), filepath.Join(at, "more")) }, "escapes"},
		{"a pipe in a folder below", func(at string) error {
			if err := os.Mkdir(filepath.Join(at, "more"), 0o700); err != nil {
				return err
			}
			return syscall.Mkfifo(filepath.Join(at, "more", "1.sql"), 0o600)
		}, "not a regular file"},
		{"a folder that is too large", func(at string) error {
			for i := range mostEntries/100 + 1 {
				folder := filepath.Join(at, strconv.Itoa(i))
				if err := os.Mkdir(folder, 0o700); err != nil {
					return err
				}
				for j := range 100 {
					if err := os.Link(filepath.Join(inside, "1.sql"), filepath.Join(folder, strconv.Itoa(j))); err != nil {
						return err
					}
				}
			}
			return nil
		}, "entries together"},
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

// Migrations may lie beside the module, in the repository around it, and nowhere else.
func TestReadStaysInRepository(t *testing.T) {
	for _, c := range []struct{ name, sign, path, want string }{
		{"git", ".git", "../../db", ""},
		{"a workspace", "go.work", "../../db", ""},
		{"a file", ".git", "../../db/1.sql", ""},
		{"no repository", "", "../../db", "lies outside of the"},
		{"a repository of its own", "services/a/.git", "../../db", "outside of the repository"},
		{"a workspace below", "services/go.work", "../../db", "outside of the repository"},
		{"above it", ".git", "../../../outside", "outside of the repository"},
		{"a link out of it", ".git", "../../link", "escapes"},
		{"a device", ".git", "../../device.sql", "escapes"},
		{"a pipe", ".git", "../../pipe.sql", "not a regular file"},
		{"what is not there", ".git", "../../gone", "no such file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			top := t.TempDir()
			repo := filepath.Join(top, "repo")
			module := filepath.Join(repo, "services", "a")
			for _, dir := range []string{module, filepath.Join(repo, "db"), filepath.Join(top, "outside")} {
				if err := os.MkdirAll(dir, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			for _, file := range []string{filepath.Join(repo, "db", "1.sql"), filepath.Join(top, "outside", "1.sql")} {
				if err := os.WriteFile(file, []byte("CREATE TABLE t ();"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if c.sign != "" {
				if err := os.WriteFile(filepath.Join(repo, c.sign), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for _, err := range []error{
				os.Symlink(filepath.Join(top, "outside"), filepath.Join(repo, "link")),
				os.Symlink("/dev/zero", filepath.Join(repo, "device.sql")),
				syscall.Mkfifo(filepath.Join(repo, "pipe.sql"), 0o600),
			} {
				if err != nil {
					t.Fatal(err)
				}
			}
			files, err := Read(module, []string{c.path})
			switch {
			case c.want == "" && (err != nil || len(files) != 1 || files[0].Path != "../../db/1.sql"):
				t.Errorf("%v, %v", files, err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("%v, error %v; want one that says %q", files, err, c.want)
			}
		})
	}
}

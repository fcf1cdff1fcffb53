// Package sqlschema reads a user's migrations: which files there are, in which order they
// run, and what they say of a table that decides whether a cursor can rely on it.
package sqlschema

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// File is a migration, as it is applied.
type File struct {
	Path    string // relative to the module's root, with slashes
	Content []byte
}

// Read returns the .sql files at paths, which are folders or files, in the order in which they are applied. Paths are
// relative to root, the module's directory, and lie below it, or begin with .. and lie in the repository around it.
// Parts that roll back are left out, whole files and parts of files. Only regular files are read, and none outside, wherever
// links lead: a repository that is checked may hold anything.
func Read(root string, paths []string) ([]File, error) {
	var files []File
	r := &reader{left: mostBytes, entries: mostEntries, read: map[string]bool{}}
	for _, p := range paths {
		found, err := r.path(root, p)
		if err != nil {
			return nil, err
		}
		files = append(files, found...)
	}
	return files, nil
}

// reader reads no more than it may of all paths together.
type reader struct {
	dir     fs.FS
	prefix  string // of the module's directory, below dir
	left    int64  // bytes
	entries int    // of folders
	read    map[string]bool
}

func (r *reader) path(root, p string) ([]File, error) {
	base, prefix := root, ""
	if !filepath.IsLocal(filepath.FromSlash(p)) {
		var err error
		if base, prefix, err = repository(root, p); err != nil {
			return nil, err
		}
	}
	in, err := os.OpenRoot(base)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	r.dir, r.prefix = in.FS(), prefix
	info, err := fs.Stat(r.dir, r.name(p))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p, reason(err))
	}
	if info.IsDir() {
		files, err := r.folder(p)
		if err == nil && len(files) == 0 {
			err = fmt.Errorf("%s: holds no .sql file", p)
		}
		return plain(ordered(files)), err
	}
	if !strings.HasSuffix(p, ".sql") {
		return nil, fmt.Errorf("%s: is not an .sql file", p)
	}
	if rollsBack(path.Base(p)) {
		return nil, fmt.Errorf("%s: rolls back, by its name", p)
	}
	files, err := r.files([]string{p})
	return plain(files), err
}

// name is where a path lies below dir.
func (r *reader) name(p string) string { return path.Join(r.prefix, p) }

// migration is a file and what is known of the tool that applies it.
type migration struct {
	File
	tools []tool
}

func plain(migrations []migration) []File {
	var files []File
	for _, m := range migrations {
		files = append(files, m.File)
	}
	return files
}

// files reads those that were not read before.
func (r *reader) files(names []string) ([]migration, error) {
	var out []migration
	for _, name := range names {
		if r.read[name] {
			continue
		}
		r.read[name] = true
		content, err := readFile(r.dir, r.name(name), r.left)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, reason(err))
		}
		r.left -= int64(len(content))
		kept, tools, err := up(content)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		out = append(out, migration{File{name, kept}, tools})
	}
	return out, nil
}

// folder reads a folder, and those below it unless the tool that has written its files does not.
func (r *reader) folder(p string) ([]migration, error) {
	names, folders, sum, err := r.list(p)
	if err != nil {
		return nil, err
	}
	files, err := r.files(names)
	if err != nil {
		return nil, err
	}
	if sum {
		for i := range files {
			files[i].tools = append(files[i].tools, atlas)
		}
	}
	if flat(files) {
		return files, nil
	}
	for _, sub := range folders {
		below, err := r.folder(sub)
		if err != nil {
			return nil, err
		}
		files = append(files, below...)
	}
	return files, nil
}

// mostEntries is how many entries folders may have together.
const mostEntries = 20_000

// list returns the migrations of a folder and the folders below it. sum says that Atlas keeps it.
func (r *reader) list(p string) (names, folders []string, sum bool, err error) {
	f, err := r.dir.Open(r.name(p))
	if err != nil {
		return nil, nil, false, fmt.Errorf("%s: %w", p, reason(err))
	}
	defer f.Close()
	d, ok := f.(fs.ReadDirFile)
	if !ok {
		return nil, nil, false, fmt.Errorf("%s: is not a folder", p)
	}
	entries, err := d.ReadDir(r.entries + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, false, fmt.Errorf("%s: %w", p, reason(err))
	}
	if r.entries -= len(entries); r.entries < 0 {
		return nil, nil, false, fmt.Errorf("%s: folders have more than %d entries together; name the folders of migrations", p, mostEntries)
	}
	for _, e := range entries {
		name := path.Join(p, e.Name())
		switch {
		case strings.HasPrefix(e.Name(), "."):
		case e.Name() == "atlas.sum":
			sum = true
		case e.IsDir():
			folders = append(folders, name)
		case strings.HasSuffix(e.Name(), ".sql"):
			if !rollsBack(e.Name()) {
				names = append(names, name)
			}
		case e.Type()&fs.ModeSymlink != 0:
			info, err := fs.Stat(r.dir, r.name(name))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, nil, false, fmt.Errorf("%s: %w", name, reason(err))
			}
			if err == nil && info.IsDir() {
				return nil, nil, false, fmt.Errorf("%s: is a link to a folder; name the folder itself", name)
			}
		}
	}
	all := map[string]bool{}
	for _, name := range names {
		all[name] = true
	}
	names = slices.DeleteFunc(names, func(name string) bool { return rollsBackBeside(name, all) })
	slices.SortFunc(names, natural)
	slices.SortFunc(folders, natural)
	return names, folders, sum, nil
}

// repository finds the folder with .git, or else go.work, around the module, and where in it the module lies.
func repository(root, p string) (base, prefix string, err error) {
	if root, err = filepath.EvalSymlinks(root); err != nil {
		return "", "", err
	}
	for _, sign := range []string{".git", "go.work"} {
		for dir := root; ; dir = filepath.Dir(dir) {
			if _, err := os.Lstat(filepath.Join(dir, sign)); err == nil {
				rel, err := filepath.Rel(dir, root)
				if err != nil {
					return "", "", err
				}
				rel = filepath.ToSlash(rel)
				if !filepath.IsLocal(filepath.FromSlash(path.Join(rel, p))) {
					return "", "", fmt.Errorf("%s: lies outside of the repository, which is the folder with %s", p, sign)
				}
				return dir, rel, nil
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return "", "", fmt.Errorf("%s: lies outside of the module, which lies in no repository: no folder above it has .git or go.work", p)
}

// mostBytes is how large migrations may be together.
const mostBytes = 64 << 20

func readFile(dir fs.FS, name string, most int64) ([]byte, error) {
	// Before it is opened: that would wait at a pipe.
	if info, err := fs.Stat(dir, name); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file; name a file or folder of migrations")
	}
	f, err := dir.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(content)) > most {
		err = fmt.Errorf("migrations are larger than %d MB together; name the files that make the table", mostBytes>>20)
	}
	return content, err
}

func reason(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}

// natural orders names as people count: 2 before 10.
func natural(a, b string) int {
	for a != "" && b != "" {
		da, db := digits(a), digits(b)
		if da > 0 && db > 0 {
			if c := compareNumbers(a[:da], b[:db]); c != 0 {
				return c
			}
			a, b = a[da:], b[db:]
			continue
		}
		if a[0] != b[0] {
			return cmp.Compare(a[0], b[0])
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(a, b)
}

// compareNumbers compares digits as the numbers that they are, however long.
func compareNumbers(a, b string) int {
	a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

func digits(s string) int { return len(s) - len(strings.TrimLeft(s, "0123456789")) }

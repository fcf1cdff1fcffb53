// Package sqlschema reads a user's migrations: which files there are, in which order they
// run, and what they say of a table that decides whether a cursor can rely on it.
package sqlschema

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// File is a migration, as it is applied.
type File struct {
	Path    string // relative to the module's root, with slashes
	Content []byte
}

// Read returns the .sql files at paths, which are folders or files below root, in the order
// in which they are applied: by the numbers in their names. What rolls back is left out,
// whole files and the lower parts of files. Only regular files are read, and none outside of root, wherever links
// lead: a repository that is checked may hold anything.
func Read(root string, paths []string) ([]File, error) {
	in, err := os.OpenRoot(root)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	dir := in.FS()
	var files []File
	left := int64(mostBytes)
	for _, p := range paths {
		names, err := list(dir, p)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			content, err := readFile(dir, name, left)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, reason(err))
			}
			left -= int64(len(content))
			files = append(files, File{name, up(content)})
		}
	}
	return files, nil
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

func list(dir fs.FS, p string) ([]string, error) {
	info, err := fs.Stat(dir, p)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p, reason(err))
	}
	if !info.IsDir() {
		return []string{p}, nil
	}
	entries, err := fs.ReadDir(dir, p)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p, reason(err))
	}
	var names []string
	for _, e := range entries {
		name := e.Name()
		if !e.IsDir() && strings.HasSuffix(name, ".sql") && !strings.HasSuffix(name, ".down.sql") && !strings.HasPrefix(name, ".") {
			names = append(names, path.Join(p, name))
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s: holds no .sql file", p)
	}
	slices.SortFunc(names, natural)
	return names, nil
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
			na, nb := strings.TrimLeft(a[:da], "0"), strings.TrimLeft(b[:db], "0")
			if c := cmp.Or(cmp.Compare(len(na), len(nb)), cmp.Compare(na, nb)); c != 0 {
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

func digits(s string) int {
	n := 0
	for n < len(s) && '0' <= s[n] && s[n] <= '9' {
		n++
	}
	return n
}

// downMarks begin the part of a file that rolls back: goose, dbmate, sql-migrate, tern.
var downMarks = []string{"-- +goose down", "-- migrate:down", "-- +migrate down", "---- create above / drop below ----"}

// up cuts off what rolls back.
func up(content []byte) []byte {
	kept := 0
	for line := range bytes.Lines(content) {
		text := strings.ToLower(string(bytes.TrimSpace(line)))
		if slices.ContainsFunc(downMarks, func(mark string) bool { return strings.HasPrefix(text, mark) }) {
			return content[:kept]
		}
		kept += len(line)
	}
	return content
}

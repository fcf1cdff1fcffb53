package load

import (
	"context"
	"go/build"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/leasegen/leasegen/generator/internal/scan"
)

// furthest is how many files of the module are read beyond the packages that match.
const furthest = 20_000

// Others returns the files of the module that may hold directives and are in none of its
// packages here, because no pattern matches theirs: names are compared with those in them.
// They are found by reading, the first 20,000 files in the order of their paths; the go
// command is not asked.
func (m *Module) Others(ctx context.Context) ([]File, error) {
	if m.alone {
		return nil, nil
	}
	here := map[string]bool{}
	for _, p := range m.Packages {
		here[p.Dir] = true
	}
	tags := build.Default
	tags.BuildTags = strings.Split(m.config.Tags, ",")
	var found []File
	read := 0
	err := filepath.WalkDir(m.Root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil // what cannot be read is not compared
		case ctx.Err() != nil:
			return ctx.Err()
		case e.IsDir() && path != m.Root && hidden(path, e.Name()):
			return filepath.SkipDir
		case e.IsDir() || !e.Type().IsRegular() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || here[filepath.Dir(path)]:
			return nil
		}
		if read++; read > furthest {
			return filepath.SkipAll
		}
		src, err := os.ReadFile(path)
		if err != nil || !scan.HasDirective(src) {
			return nil
		}
		if ok, err := tags.MatchFile(filepath.Split(path)); ok && err == nil {
			found = append(found, File{Path: path, Src: src})
		}
		return nil
	})
	return found, err
}

// Alone returns the module with those of its packages for which keep is true, and as if it
// had no others.
func (m *Module) Alone(keep func(*Package) bool) *Module {
	out := *m
	out.alone = true
	out.Packages = slices.DeleteFunc(slices.Clone(m.Packages), func(p *Package) bool { return !keep(p) })
	return &out
}

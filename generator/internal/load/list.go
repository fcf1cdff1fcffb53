// Package load finds packages, reads their files, and type-checks those that matter,
// once and from source. It runs the go command and none of the user's code.
package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/tools/go/packages"

	"github.com/leasegen/leasegen/generator/internal/diag"
	"github.com/leasegen/leasegen/generator/internal/fsout"
	"github.com/leasegen/leasegen/generator/internal/scan"
)

// Config says what to load.
type Config struct {
	Dir      string   // of the go command
	Patterns []string // of packages
	Tags     string   // build tags, separated by commas
}

// Module is the main module's packages that match the patterns.
type Module struct {
	Root     string // absolute
	Packages []*Package
	Fset     *token.FileSet
	// GoMod is the module's go.mod, and GoVersion what its go line says.
	GoMod, GoVersion string

	config Config
	alone  bool // see Alone
}

// Package is one package and what its files hold.
type Package struct {
	// Path and Name are empty if build constraints exclude all files.
	Path, Name, Dir string
	// Files are compiled on this platform, Excluded on others only; Tests are the
	// _test.go files. Outputs of leasegen are in Outputs and nowhere else.
	Files, Excluded, Tests []File
	Outputs                []Output
	// Tables are the files in folders below that hold what was generated for tables.
	Tables []string
}

// File is a hand-written Go file.
type File struct {
	Path string // absolute
	// Src is the content, if it may hold directives; else nil.
	Src []byte
}

// Output is a file that leasegen wrote.
type Output struct {
	Path   string // absolute
	Source string // the name in its second line
}

// List finds the packages and reads their files. An error says that the go command
// could not do its work at all; what is wrong with a pattern is added to diags.
func List(ctx context.Context, c Config, diags *diag.List) (*Module, error) {
	m := &Module{Fset: token.NewFileSet(), config: c}
	found, err := packages.Load(m.packagesConfig(ctx, packages.NeedName|packages.NeedFiles|packages.NeedModule), c.Patterns...)
	if err != nil {
		return nil, fmt.Errorf("list packages: %w", goError(err))
	}
	slices.SortFunc(found, func(a, b *packages.Package) int { return strings.Compare(a.PkgPath, b.PkgPath) })
	for _, p := range found {
		if len(p.GoFiles) == 0 && len(p.IgnoredFiles) == 0 && len(p.Errors) > 0 {
			// Not a package at all: the pattern is wrong, or go.mod does not provide it.
			for _, e := range p.Errors {
				diags.Add(finding(c.Dir, p.PkgPath, e))
			}
			continue
		}
		if err := m.add(p); err != nil {
			return nil, err
		}
	}
	if len(m.Packages) == 0 && diags.Len() == 0 {
		return nil, fmt.Errorf("no package matches %s", strings.Join(c.Patterns, " "))
	}
	if err := m.addExcluded(); err != nil {
		return nil, err
	}
	if m.Root == "" {
		m.Root = moduleRoot(c.Dir)
	}
	return m, m.read()
}

// add takes a package of the main module into m.
func (m *Module) add(p *packages.Package) error {
	switch {
	case p.PkgPath == "command-line-arguments":
		return fmt.Errorf("%s: leasegen works on whole packages: name packages, not files", strings.Join(m.config.Patterns, " "))
	case p.Module == nil:
		return fmt.Errorf("%s is not in a Go module: run leasegen where go.mod is, or below", p.PkgPath)
	case !p.Module.Main:
		return fmt.Errorf("%s belongs to module %s: leasegen writes to the main module only", p.PkgPath, p.Module.Path)
	case m.Root != "" && m.Root != p.Module.Dir:
		return fmt.Errorf("the patterns span the modules in %s and %s: run leasegen once in each", m.Root, p.Module.Dir)
	}
	m.Root, m.GoMod, m.GoVersion = p.Module.Dir, p.Module.GoMod, p.Module.GoVersion
	dir := p.Dir
	if dir == "" && len(p.GoFiles) > 0 {
		dir = filepath.Dir(p.GoFiles[0])
	}
	pkg := &Package{Path: p.PkgPath, Name: p.Name, Dir: dir}
	for _, f := range p.GoFiles {
		pkg.Files = append(pkg.Files, File{Path: f})
	}
	m.Packages = append(m.Packages, pkg)
	return nil
}

// addExcluded adds the directories below ./... patterns that hold Go files, of which
// build constraints exclude every one: the go command passes them over in silence.
func (m *Module) addExcluded() error {
	listed := map[string]bool{}
	for _, p := range m.Packages {
		listed[p.Dir] = true
	}
	for _, pattern := range m.config.Patterns {
		top, below := strings.CutSuffix(filepath.ToSlash(pattern), "/...")
		if !below || top != "." && !strings.HasPrefix(top, "./") && !strings.HasPrefix(top, "../") && !filepath.IsAbs(top) {
			continue
		}
		if !filepath.IsAbs(top) {
			top = filepath.Join(m.config.Dir, top)
		}
		err := filepath.WalkDir(top, func(path string, e fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return nil // the go command has the last word on what cannot be read
			case e.IsDir() && path != top && hidden(path, e.Name()):
				return filepath.SkipDir
			case !e.IsDir() && strings.HasSuffix(path, ".go") && !listed[filepath.Dir(path)]:
				listed[filepath.Dir(path)] = true
				m.Packages = append(m.Packages, &Package{Dir: filepath.Dir(path)})
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// moduleRoot is the nearest directory with a go.mod, for when no package says.
func moduleRoot(dir string) string {
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.mod")); err == nil {
			return d
		}
		if d == filepath.Dir(d) {
			return dir
		}
	}
}

// hidden reports whether ... does not match a directory.
func hidden(path, name string) bool {
	if name == "testdata" || name == "vendor" || strings.HasPrefix(name, "_") || strings.HasPrefix(name, ".") {
		return true
	}
	_, err := os.Stat(filepath.Join(path, "go.mod"))
	return err == nil
}

// read loads the text of all files that may hold directives, and tells leasegen's
// outputs from what people wrote.
func (m *Module) read() error {
	errs := make([]error, len(m.Packages))
	var group sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i, p := range m.Packages {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			errs[i] = p.read()
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

func (p *Package) read() error {
	entries, err := os.ReadDir(p.Dir)
	if err != nil {
		return err
	}
	compiled := map[string]bool{}
	for _, f := range p.Files {
		compiled[f.Path] = true
	}
	for _, e := range entries {
		path := filepath.Join(p.Dir, e.Name())
		switch {
		case !strings.HasSuffix(path, ".go") || compiled[path] || !regular(path):
		case strings.HasSuffix(path, "_test.go"):
			p.Tests = append(p.Tests, File{Path: path})
		default:
			p.Excluded = append(p.Excluded, File{Path: path})
		}
	}
	for _, files := range []*[]File{&p.Files, &p.Excluded, &p.Tests} {
		kept := (*files)[:0]
		for _, f := range *files {
			src, err := os.ReadFile(f.Path)
			if err != nil {
				return fmt.Errorf("read %s: %w", f.Path, err)
			}
			if source, ok := outputSource(f.Path, src); ok {
				p.Outputs = append(p.Outputs, Output{Path: f.Path, Source: source})
				continue
			}
			if scan.HasDirective(src) {
				f.Src = src
			}
			kept = append(kept, f)
		}
		*files = kept
		slices.SortFunc(kept, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	}
	if err := p.readTables(entries); err != nil {
		return err
	}
	slices.SortFunc(p.Outputs, func(a, b Output) int { return strings.Compare(a.Path, b.Path) })
	return nil
}

// readTables finds the folders that hold queries of leasegen's.
func (p *Package) readTables(entries []fs.DirEntry) error {
	for _, e := range entries {
		queries := filepath.Join(p.Dir, e.Name(), fsout.Queries)
		if !e.IsDir() || !regular(queries) {
			continue
		}
		content, err := os.ReadFile(queries)
		if err != nil {
			return fmt.Errorf("read %s: %w", queries, err)
		}
		if !fsout.Owned(content) {
			continue
		}
		p.Tables = append(p.Tables, queries)
		for _, name := range fsout.FromQueries() {
			if path := filepath.Join(p.Dir, e.Name(), name); regular(path) {
				p.Tables = append(p.Tables, path)
			}
		}
	}
	return nil
}

// outputSource reports whether a file is an output of leasegen, and of which source.
func outputSource(path string, src []byte) (source string, ok bool) {
	if !strings.HasSuffix(path, fsout.Suffix) || !fsout.Owned(src) {
		return "", false
	}
	_, rest, _ := bytes.Cut(src, []byte("\n"))
	second, _, _ := bytes.Cut(rest, []byte("\n"))
	source, _ = strings.CutPrefix(strings.TrimSuffix(string(second), "\r"), "// source: ")
	return source, true
}

// packagesConfig is what all calls of packages.Load share.
func (m *Module) packagesConfig(ctx context.Context, mode packages.LoadMode) *packages.Config {
	c := &packages.Config{
		Context: ctx, Mode: mode, Dir: m.config.Dir, Fset: m.Fset,
		// A driver is a program of the user's choice; only the go command is run.
		Env: append(os.Environ(), "GOPACKAGESDRIVER=off"),
	}
	if m.config.Tags != "" {
		c.BuildFlags = []string{"-tags=" + m.config.Tags}
	}
	return c
}

// regular reports whether a file, or what a link leads to, can be read without waiting.
func regular(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// goError is what the go command wrote, or why it did not run.
func goError(err error) error {
	text := strings.TrimPrefix(strings.TrimSpace(err.Error()), "err: ")
	if status, stderr, ok := strings.Cut(text, ": stderr:"); ok {
		text = strings.TrimSpace(stderr)
		if text == "" {
			text = status
		}
	}
	if text == "" {
		return err
	}
	return errors.New(text)
}

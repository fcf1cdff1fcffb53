// Package load finds packages, reads their files, and type-checks those that matter,
// once and from source. It runs the go command and nothing of the user's code.
package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/token"
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

	config Config
}

// Package is one package and what its files hold.
type Package struct {
	Path, Name, Dir string
	// Files are compiled on this platform, Excluded on others only; Tests are the
	// _test.go files. Outputs of leasegen are in Outputs and nowhere else.
	Files, Excluded, Tests []File
	Outputs                []Output
	// Broken are the go command's complaints about the package.
	Broken []packages.Error
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
// could not do its work at all; what is wrong with one package is in its Broken.
func List(ctx context.Context, c Config, diags *diag.List) (*Module, error) {
	m := &Module{Fset: token.NewFileSet(), config: c}
	found, err := packages.Load(m.packagesConfig(ctx, packages.NeedName|packages.NeedFiles|packages.NeedModule), c.Patterns...)
	if err != nil {
		return nil, fmt.Errorf("list packages: %w", firstLine(err))
	}
	slices.SortFunc(found, func(a, b *packages.Package) int { return strings.Compare(a.PkgPath, b.PkgPath) })
	for _, p := range found {
		if err := m.add(p); err != nil {
			return nil, err
		}
	}
	if m.Root == "" {
		if err := m.unlisted(found, diags); err != nil {
			return nil, err
		}
		return m, nil
	}
	return m, m.read()
}

// add takes a package of the main module into m.
func (m *Module) add(p *packages.Package) error {
	if p.PkgPath == "command-line-arguments" {
		return fmt.Errorf("%s: name packages, not files: leasegen works on whole packages, for example ./...", strings.Join(m.config.Patterns, " "))
	}
	if p.Module == nil {
		if len(p.Errors) > 0 && len(p.GoFiles) == 0 {
			return nil // nothing but a complaint; see unlisted
		}
		return fmt.Errorf("%s is not in a Go module: run leasegen where go.mod is, or below", p.PkgPath)
	}
	if !p.Module.Main {
		return fmt.Errorf("%s belongs to module %s: leasegen writes to the main module only", p.PkgPath, p.Module.Path)
	}
	if m.Root != "" && m.Root != p.Module.Dir {
		return fmt.Errorf("the patterns span the modules in %s and %s: run leasegen once in each", m.Root, p.Module.Dir)
	}
	m.Root = p.Module.Dir
	dir := p.Dir
	if dir == "" && len(p.GoFiles) > 0 {
		dir = filepath.Dir(p.GoFiles[0])
	}
	pkg := &Package{Path: p.PkgPath, Name: p.Name, Dir: dir, Broken: p.Errors}
	for _, f := range p.GoFiles {
		pkg.Files = append(pkg.Files, File{Path: f})
	}
	for _, f := range p.IgnoredFiles {
		if strings.HasSuffix(f, ".go") {
			pkg.Excluded = append(pkg.Excluded, File{Path: f})
		}
	}
	m.Packages = append(m.Packages, pkg)
	return nil
}

// unlisted says why the patterns gave no package at all.
func (m *Module) unlisted(found []*packages.Package, diags *diag.List) error {
	for _, p := range found {
		for _, e := range p.Errors {
			diags.Add(finding(m.config.Dir, p.PkgPath, e))
		}
	}
	if diags.Len() == 0 {
		return fmt.Errorf("no package matches %s", strings.Join(m.config.Patterns, " "))
	}
	return nil
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
	tests, err := filepath.Glob(filepath.Join(escape(p.Dir), "*_test.go"))
	if err != nil {
		return err
	}
	for _, t := range tests {
		p.Tests = append(p.Tests, File{Path: t})
	}
	// The go command lists a test that build constraints exclude as an ignored file.
	p.Excluded = slices.DeleteFunc(p.Excluded, func(f File) bool { return strings.HasSuffix(f.Path, "_test.go") })
	for _, files := range []*[]File{&p.Files, &p.Excluded, &p.Tests} {
		kept := (*files)[:0]
		for _, f := range *files {
			src, err := os.ReadFile(f.Path)
			if err != nil {
				return fmt.Errorf("read %s: %w", f.Path, err)
			}
			if source, ours := Ours(f.Path, src); ours {
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
	slices.SortFunc(p.Outputs, func(a, b Output) int { return strings.Compare(a.Path, b.Path) })
	return nil
}

// Annotated reports whether any file may hold directives.
func (p *Package) Annotated() bool {
	has := func(f File) bool { return f.Src != nil }
	return slices.ContainsFunc(p.Files, has) || slices.ContainsFunc(p.Excluded, has) || slices.ContainsFunc(p.Tests, has)
}

// Ours reports whether a file is an output of leasegen, and of which source.
func Ours(path string, src []byte) (source string, ok bool) {
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

// escape makes a directory a pattern that matches itself.
func escape(dir string) string {
	if runtime.GOOS == "windows" {
		return dir // no escapes there
	}
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(dir)
}

func firstLine(err error) error {
	text := strings.TrimSpace(err.Error())
	if first, _, more := strings.Cut(text, "\n"); more {
		return errors.New(first)
	}
	return err
}

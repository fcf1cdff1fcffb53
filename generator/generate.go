package generator

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/leasegen/leasegen/generator/internal/diag"
	"github.com/leasegen/leasegen/generator/internal/emit"
	"github.com/leasegen/leasegen/generator/internal/fsout"
	"github.com/leasegen/leasegen/generator/internal/ir"
	"github.com/leasegen/leasegen/generator/internal/load"
	"github.com/leasegen/leasegen/generator/internal/resolve"
	"github.com/leasegen/leasegen/generator/internal/table"
	"github.com/leasegen/leasegen/generator/internal/verify"
)

// Generate computes the files that belong to the annotated packages of a module. It
// writes and prints no file. Errors of the source are in Result.Diags; an error
// means that the source could not be looked at.
func Generate(ctx context.Context, cfg Config) (*Result, error) {
	res := &Result{Diags: &diag.List{}}
	step := res.stopwatch()

	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, err
	}
	if len(cfg.Patterns) == 0 {
		cfg.Patterns = []string{"."}
	}
	module, err := load.List(ctx, load.Config{Dir: dir, Patterns: cfg.Patterns, Tags: cfg.Tags}, res.Diags)
	if err != nil {
		return nil, err
	}
	step("scan")
	if err := res.generate(ctx, cfg, module, module.Check, step); err != nil {
		return nil, err
	}
	return res, nil
}

// checker type-checks packages, see load.Module.Check.
type checker func(ctx context.Context, pkgs []*load.Package, overlay map[string][]byte, also []string) (load.Checked, error)

// generate computes the files that belong to the packages of a module.
func (r *Result) generate(ctx context.Context, cfg Config, module *load.Module, check checker, step func(name string)) error {
	r.Root = module.Root
	diags := r.Diags
	sources := resolve.Parse(module, diags)
	step("parse")

	if len(sources) == 0 && diags.Len() == 0 {
		diags.Add(diag.Diagnostic{Code: "LG0706", Warning: true,
			Message: "no //leasegen: directive in the packages that match " + strings.Join(cfg.Patterns, " ")})
	}
	if len(sources) > 0 && !verify.Language(module, diags) {
		return nil
	}
	tables, err := table.Generate(ctx, module, sources, cfg.SQLC, diags)
	if err != nil {
		return err
	}
	overlay := map[string][]byte{}
	for _, f := range tables.Files {
		if strings.HasSuffix(f.Path, ".go") {
			overlay[filepath.Join(module.Root, filepath.FromSlash(f.Path))] = f.Content
		}
	}
	step("sql")

	annotated := map[*load.Package]bool{}
	for _, s := range sources {
		annotated[s.Pkg] = true
	}
	matter := slices.DeleteFunc(slices.Clone(module.Packages), func(p *load.Package) bool {
		return p.Path == "" || tables.Failed[p] || !annotated[p] && len(p.Outputs)+len(p.Tables) == 0
	})
	also := verify.Imports(sources, tables.Files)
	checked, err := check(ctx, matter, overlay, also)
	if err != nil {
		return err
	}
	program := module.Types(checked, matter, resolve.Generated(sources), diags)
	step("load")

	others, err := module.Others(ctx)
	if err != nil {
		return err
	}
	files := resolve.Resolve(program, sources, resolve.Others(module, others), diags)
	step("resolve")

	resolve.Names(program, sources, files, diags)
	step("name")

	if diags.Err() != nil {
		return nil
	}
	if r.Files, err = render(files); err != nil {
		return err
	}
	r.Files = append(r.Files, tables.Files...)
	slices.SortFunc(r.Files, func(a, b fsout.File) int { return cmp.Compare(a.Path, b.Path) })
	step("emit")

	plan := verify.Plan{Module: module, Sources: sources, Files: files, Outputs: r.Files}
	if missing := plan.Check(ctx, checked, diags); len(missing) > 0 {
		if checked, err = check(ctx, matter, overlay, append(also, missing...)); err != nil {
			return err
		}
		plan.Check(ctx, checked, diags)
	}
	r.Packages = checked.Packages()
	step("verify")
	if diags.Err() != nil {
		r.Files = nil
		return nil
	}

	written := map[string]bool{}
	for _, f := range r.Files {
		written[f.Path] = true
	}
	r.Stale = program.Stale(written)
	return nil
}

// render emits all files.
func render(files []*ir.File) ([]fsout.File, error) {
	var out []fsout.File
	for _, f := range files {
		content, err := emit.File(f)
		if err != nil {
			return nil, fmt.Errorf("internal error, please report it: %s: %w", path.Join(f.Dir, f.Source), err)
		}
		out = append(out, fsout.File{Path: path.Join(f.Dir, f.Output), Content: content})
	}
	return out, nil
}

// stopwatch returns a function that ends a step and records it.
func (r *Result) stopwatch() func(name string) {
	last := time.Now()
	return func(name string) {
		now := time.Now()
		r.Timings = append(r.Timings, Timing{name, now.Sub(last)})
		last = now
	}
}

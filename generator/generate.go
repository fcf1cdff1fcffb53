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
)

// Generate computes the files that belong to the annotated packages of a module. It
// writes and prints nothing. What is wrong with the source is in Result.Diags; an error
// means that the source could not be looked at.
func Generate(ctx context.Context, cfg Config) (*Result, error) {
	diags := &diag.List{}
	res := &Result{Diags: diags}
	step := res.stopwatch()

	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, err
	}
	patterns := cfg.Patterns
	if len(patterns) == 0 {
		patterns = []string{"."}
	}
	module, err := load.List(ctx, load.Config{Dir: dir, Patterns: patterns, Tags: cfg.Tags}, diags)
	if err != nil {
		return nil, err
	}
	res.Root = module.Root
	step("scan")

	sources := resolve.Parse(module, diags)
	step("parse")

	if len(sources) == 0 && diags.Len() == 0 {
		diags.Add(diag.Diagnostic{Code: "LG0706", Warning: true,
			Message: "no //leasegen: directive in the packages that match " + strings.Join(patterns, " ")})
	}
	tables, err := table.Generate(ctx, module, sources, cfg.SQLC, diags)
	if err != nil {
		return nil, err
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
	program, err := module.Types(ctx, matter, resolve.Generated(sources), overlay, diags)
	if err != nil {
		return nil, err
	}
	step("load")

	files := resolve.Resolve(program, sources, diags)
	step("resolve")

	resolve.Names(program, sources, files, diags)
	step("name")

	if diags.Err() != nil {
		return res, nil
	}
	if res.Files, err = render(files); err != nil {
		return nil, err
	}
	res.Files = append(res.Files, tables.Files...)
	slices.SortFunc(res.Files, func(a, b fsout.File) int { return cmp.Compare(a.Path, b.Path) })
	step("emit")

	written := map[string]bool{}
	for _, f := range res.Files {
		written[f.Path] = true
	}
	res.Stale = program.Stale(written)
	return res, nil
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

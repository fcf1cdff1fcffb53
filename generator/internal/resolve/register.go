package resolve

import (
	"fmt"
	"go/token"
	"path"
	"slices"
	"strings"

	"github.com/leasegen/leasegen/generator/internal/diag"
	"github.com/leasegen/leasegen/generator/internal/ir"
	"github.com/leasegen/leasegen/generator/internal/load"
	"github.com/leasegen/leasegen/generator/internal/names"
)

// registers makes the files with RegisterLeasegen: in a package one for each build
// constraint that consumers are under. All files of a constraint are compiled together or
// not at all, so that what such a file refers to is there wherever it is compiled, and its
// content is the same on all systems.
func (r *resolver) registers(loaded []*Source) (out []*ir.File) {
	byPkg := map[*load.Package]map[string][]*ir.File{}
	var order []*load.Package
	for _, s := range loaded {
		f := r.files[s.Path]
		if f == nil || len(f.Consumers) == 0 {
			continue
		}
		if byPkg[s.Pkg] == nil {
			byPkg[s.Pkg] = map[string][]*ir.File{}
			order = append(order, s.Pkg)
		}
		byPkg[s.Pkg][s.Constraint] = append(byPkg[s.Pkg][s.Constraint], f)
	}
	for _, pkg := range order {
		constraints := sortedKeys(byPkg[pkg])
		all := slices.Compact(slices.Sorted(slices.Values(append(r.elsewhere(pkg), constraints...))))
		suffix := func(constraint string) string {
			if len(all) == 1 {
				return ""
			}
			return names.Suffix(constraint)
		}
		if !r.distinct(pkg, all) {
			continue
		}
		for _, c := range constraints {
			file := register(c, suffix(c), byPkg[pkg][c])
			for _, other := range all {
				if other != c {
					file.Register.Others = append(file.Register.Others, ir.Other{Func: names.Register + suffix(other), Constraint: other})
				}
			}
			r.ownName(loaded, pkg, file)
			out = append(out, file)
		}
	}
	return out
}

// register is the file for the consumers of files, which are under one constraint.
func register(constraint, suffix string, files []*ir.File) *ir.File {
	reg := &ir.Register{Func: names.Register + suffix, Handlers: names.Handlers + suffix}
	var sources []string
	for _, f := range files {
		sources = append(sources, f.Source)
		reg.Consumers = append(reg.Consumers, f.Consumers...)
	}
	first := files[0]
	return &ir.File{Dir: first.Dir, Source: strings.Join(sources, ", "), Output: names.RegisterFile(suffix),
		PkgPath: first.PkgPath, PkgName: first.PkgName, Constraint: constraint, Register: reg}
}

// elsewhere are the constraints of consumers in files that are not compiled here. They are looked
// at so that names do not depend on the system on which leasegen runs.
func (r *resolver) elsewhere(pkg *load.Package) (constraints []string) {
	for _, f := range pkg.Excluded {
		if f.Src == nil || load.Ignored(f.Path) {
			continue
		}
		file := parseFile(r.prog.Module.Fset, f, &diag.List{})
		if file.syntax == nil {
			continue
		}
		for _, t := range file.directives.Types {
			if has(t, "consumer") {
				constraints = append(constraints, load.Constraint(file.syntax, f.Path))
				break
			}
		}
	}
	return constraints
}

// distinct refuses constraints that would give one name.
func (r *resolver) distinct(pkg *load.Package, constraints []string) bool {
	by := map[string]string{}
	for _, c := range constraints {
		name := strings.ToLower(names.Suffix(c))
		if other, ok := by[name]; ok {
			r.add(diag.Diagnostic{Code: "LG0410", Pos: token.Position{Filename: pkg.Dir},
				Message: fmt.Sprintf("consumers under //go:build %s and under //go:build %s would be registered by one function", other, c),
				Hint:    "move the consumers of one of the two to a package of their own"})
			return false
		}
		by[name] = c
	}
	return true
}

// ownName refuses a source whose output is the register's file.
func (r *resolver) ownName(loaded []*Source, pkg *load.Package, register *ir.File) {
	for _, s := range loaded {
		if f := r.files[s.Path]; s.Pkg == pkg && f != nil && strings.EqualFold(f.Output, register.Output) {
			r.add(diag.Diagnostic{Code: "LG0411", Pos: token.Position{Filename: s.Path},
				Message: fmt.Sprintf("the output of %s would be %s, which holds %s", path.Base(f.Source), register.Output, register.Register.Func),
				Hint:    "rename it"})
		}
	}
}

package load

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/tools/go/packages"
)

// Incomplete names a package that p needs, and that go.mod and go.sum do not provide, and says why. If go.sum has all that the
// module of p requires, the go command is not asked.
func (m *Module) Incomplete(ctx context.Context, p *packages.Package) (needs, why string) {
	if p == nil || p.Module == nil || p.Module.Main || m.summed(p.Module) {
		return "", ""
	}
	loaded, err := packages.Load(m.packagesConfig(ctx, packages.NeedName|packages.NeedImports|packages.NeedDeps), p.PkgPath)
	if err != nil {
		return p.PkgPath, goError(err).Error()
	}
	packages.Visit(loaded, nil, func(p *packages.Package) {
		if needs == "" && len(p.Errors) > 0 {
			needs, why = p.PkgPath, p.Errors[0].Msg
		}
	})
	return needs, why
}

// summed reports whether go.sum has the content of every module that another one requires, in whatever version.
func (m *Module) summed(other *packages.Module) bool {
	required, err := os.ReadFile(other.GoMod)
	if err != nil {
		return false
	}
	sums, err := os.ReadFile(filepath.Join(filepath.Dir(m.GoMod), "go.sum"))
	if err != nil {
		return false
	}
	has := map[string]bool{}
	for line := range strings.Lines(string(sums)) {
		if f := strings.Fields(line); len(f) == 3 && !strings.HasSuffix(f[1], "/go.mod") {
			has[f[0]] = true
		}
	}
	file, err := modfile.ParseLax(other.GoMod, required, nil)
	return err == nil && !slices.ContainsFunc(file.Require, func(r *modfile.Require) bool { return !has[r.Mod.Path] })
}

package load

import (
	"go/ast"
	"go/build"
	"go/build/constraint"
	"go/parser"
	"maps"
	"os"
	"slices"
	"strings"
)

// Platform is one way to build a module: a system, with or without cgo, and tags.
type Platform struct {
	goos, goarch string
	cgo          bool
	tags         []string
	here         bool
	known        map[string]bool // which tags hold by the system alone, as far as they were asked for
	asked        bool            // this run has tags
}

// ports are what the go command builds for, as go tool dist list has them.
const ports = `linux/amd64 darwin/arm64 windows/amd64 linux/arm64 freebsd/amd64 plan9/amd64 js/wasm
aix/ppc64 android/386 android/amd64 android/arm android/arm64 darwin/amd64 dragonfly/amd64
freebsd/386 freebsd/arm freebsd/arm64 illumos/amd64 ios/amd64 ios/arm64 linux/386 linux/arm
linux/loong64 linux/mips linux/mips64 linux/mips64le linux/mipsle linux/ppc64 linux/ppc64le linux/riscv64 linux/s390x
netbsd/386 netbsd/amd64 netbsd/arm netbsd/arm64 openbsd/386 openbsd/amd64 openbsd/arm openbsd/arm64 openbsd/ppc64
openbsd/riscv64 plan9/386 plan9/arm solaris/amd64 wasip1/wasm windows/386 windows/arm64`

// maxTags is of how many tags all combinations are tried; of more, each alone and all together.
const maxTags = 6

// Platforms returns ways to build that differ in which of the constraints hold, that of this
// run first. A tag that no build is meant to have, such as ignore, holds in none.
func (m *Module) Platforms(constraints []string) []Platform {
	here := Platform{goos: build.Default.GOOS, goarch: build.Default.GOARCH, cgo: build.Default.CgoEnabled, here: true,
		tags: m.tags()}
	here.asked = len(here.tags) > 0
	var exprs []constraint.Expr
	mentioned := map[string]bool{}
	for _, c := range constraints {
		if e := expression(c); e != nil {
			exprs = append(exprs, e)
			tagsOf(e, mentioned)
		}
	}
	tags := slices.Sorted(maps.Keys(mentioned))
	var systems []Platform // that differ in one of the tags
	distinct, fixed := map[string]bool{}, map[string]bool{}
	for port := range strings.FieldsSeq(here.goos + "/" + here.goarch + " " + ports) {
		p := here
		p.goos, p.goarch, _ = strings.Cut(port, "/")
		p.here = len(systems) == 0
		p.known = map[string]bool{}
		key := ""
		for _, tag := range tags {
			if p.known[tag] = p.system(tag); p.known[tag] {
				key += tag + " "
				fixed[tag] = true
			}
		}
		if !distinct[key] || p.here {
			distinct[key] = true
			systems = append(systems, p)
		}
	}
	custom := slices.DeleteFunc(tags, func(tag string) bool {
		return fixed[tag] || slices.Contains([]string{"cgo", "ignore", "gccgo"}, tag) || strings.HasPrefix(tag, "go1.")
	})
	asked := slices.DeleteFunc(slices.Clone(custom), func(tag string) bool { return !slices.Contains(here.tags, tag) })
	combinations := slices.DeleteFunc(subsets(custom), func(tags []string) bool { return slices.Equal(tags, asked) })
	combinations = slices.Insert(combinations, 0, asked) // that of this run first
	var out []Platform
	seen := map[string]bool{}
	for _, s := range systems {
		for _, cgo := range []bool{here.cgo, !here.cgo} {
			for i, tags := range combinations {
				p := s
				p.cgo, p.tags = cgo, tags
				p.here = s.here && cgo == here.cgo && i == 0
				holds := make([]byte, len(exprs))
				for i, e := range exprs {
					if p.eval(e) {
						holds[i] = 1
					}
				}
				if !seen[string(holds)] {
					seen[string(holds)] = true
					out = append(out, p)
				}
			}
		}
	}
	return out
}

// tags are those of this run, by its arguments and by GOFLAGS.
func (m *Module) tags() []string {
	list := m.config.Tags
	for flag := range strings.FieldsSeq(os.Getenv("GOFLAGS")) {
		if tags, ok := strings.CutPrefix(strings.TrimLeft(flag, "-"), "tags="); ok && list == "" {
			list = tags
		}
	}
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

// tagsOf collects the tags that an expression names: Eval asks for all of them, whatever the answers.
func tagsOf(e constraint.Expr, into map[string]bool) {
	e.Eval(func(tag string) bool {
		into[tag] = true
		return true
	})
}

// subsets are combinations of tags, each in their order, the empty one first.
func subsets(tags []string) [][]string {
	out := [][]string{nil}
	if len(tags) > maxTags {
		for _, t := range tags {
			out = append(out, []string{t})
		}
		return append(out, tags)
	}
	for _, t := range tags {
		for _, o := range slices.Clone(out) {
			out = append(out, append(slices.Clone(o), t))
		}
	}
	return out
}

// Together reports whether two constraints can both hold.
func (m *Module) Together(a, b string) bool {
	return slices.ContainsFunc(m.Platforms([]string{a, b}), func(p Platform) bool { return p.Holds(a) && p.Holds(b) })
}

// Here reports whether p is how this run was asked to build.
func (p Platform) Here() bool { return p.here }

// Holds reports whether a constraint holds; the empty one does.
func (p Platform) Holds(c string) bool {
	e := expression(c)
	return e == nil || p.eval(e)
}

func (p Platform) eval(e constraint.Expr) bool {
	return e.Eval(func(tag string) bool {
		switch {
		case tag == "cgo":
			return p.cgo
		case tag == "ignore":
			return false
		}
		holds, known := p.known[tag]
		return slices.Contains(p.tags, tag) || holds || !known && p.system(tag)
	})
}

// system reports whether a tag holds by the system alone. go/build knows what implies what.
func (p Platform) system(tag string) bool {
	c := build.Context{GOOS: p.goos, GOARCH: p.goarch, Compiler: "gc", ReleaseTags: build.Default.ReleaseTags, ToolTags: build.Default.ToolTags}
	return evaluates(&c, tag)
}

// String tells how to build so, as one would say it to the go command.
func (p Platform) String() string {
	var words []string
	if p.goos != build.Default.GOOS {
		words = append(words, "GOOS="+p.goos)
	}
	if p.goarch != build.Default.GOARCH {
		words = append(words, "GOARCH="+p.goarch)
	}
	if p.cgo != build.Default.CgoEnabled {
		words = append(words, map[bool]string{true: "CGO_ENABLED=1", false: "CGO_ENABLED=0"}[p.cgo])
	}
	switch {
	case len(p.tags) > 0:
		words = append(words, "-tags="+strings.Join(p.tags, ","))
	case p.asked && !p.here:
		words = append(words, "no -tags")
	}
	return strings.Join(words, " ")
}

// expression reads a constraint; it is nil if there is none.
func expression(c string) constraint.Expr {
	e, err := constraint.Parse("//go:build " + c)
	if err != nil {
		return nil
	}
	return e
}

// Elsewhere are the files of a package that builds of another kind than this run's have.
func (m *Module) Elsewhere(p *Package) []Syntax {
	var out []Syntax
	for _, f := range p.Excluded {
		if Ignored(f.Path) {
			continue
		}
		if s, ok := m.syntax(f.Path, p.clause()); ok && slices.ContainsFunc(m.Platforms([]string{s.Constraint}), func(pl Platform) bool { return pl.Holds(s.Constraint) }) {
			out = append(out, s)
		}
	}
	return out
}

// Syntax is a file without function bodies.
type Syntax struct {
	Path, Constraint string
	File             *ast.File
}

// syntax parses a file of the package of that name.
func (m *Module) syntax(path, pkg string) (Syntax, bool) {
	f, err := parser.ParseFile(m.Fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil || f.Name.Name != pkg {
		return Syntax{}, false
	}
	dropBodies(f)
	return Syntax{path, Constraint(f, path), f}, true
}

package load

import (
	"go/ast"
	"go/build"
	"go/build/constraint"
	"io"
	"path/filepath"
	"slices"
	"strings"
)

// Constraint returns what has to hold for a file to be compiled, by its //go:build line,
// by its name, and by its use of cgo, as one expression; empty if none is needed.
func Constraint(f *ast.File, path string) string {
	var line constraint.Expr
	for _, group := range f.Comments {
		if group.Pos() > f.Package {
			break
		}
		for _, c := range group.List {
			if constraint.IsGoBuild(c.Text) {
				if e, err := constraint.Parse(c.Text); err == nil {
					line = e
				}
			}
		}
	}
	tags := nameTags(filepath.Base(path))
	if slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return strings.Trim(i.Path.Value, "\"`") == "C" }) {
		tags = append(tags, "cgo")
	}
	for _, tag := range tags {
		e := constraint.Expr(&constraint.TagExpr{Tag: tag})
		if line != nil {
			e = &constraint.AndExpr{X: e, Y: line}
		}
		line = e
	}
	if line == nil {
		return ""
	}
	return line.String()
}

// nameTags are the operating system and architecture that a file name such as
// orders_linux_amd64.go demands, the last one first.
func nameTags(base string) []string {
	words := strings.Split(strings.TrimSuffix(base, ".go"), "_")
	if len(words) < 2 {
		return nil
	}
	words = words[1:]
	last := words[len(words)-1]
	if matches("x_"+last+".go", "", "") {
		return nil // no system has that name
	}
	if len(words) > 1 && !matches("x_"+words[len(words)-2]+"_"+last+".go", last, last) {
		return []string{last, words[len(words)-2]}
	}
	return []string{last}
}

// matches asks go/build, which knows the names of all systems, whether it would
// compile a file of that name.
func matches(name, goos, goarch string) bool {
	c := build.Context{GOOS: goos, GOARCH: goarch, Compiler: "gc"}
	return matchFile(&c, name, "package x\n")
}

// evaluates asks go/build whether a tag holds.
func evaluates(c *build.Context, tag string) bool {
	return matchFile(c, "x.go", "//go:build "+tag+"\n\npackage x\n")
}

func matchFile(c *build.Context, name, src string) bool {
	c.OpenFile = func(string) (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(src)), nil
	}
	ok, err := c.MatchFile(string(filepath.Separator), name)
	return ok && err == nil
}

// Ignored reports whether a file is of no build, by its name.
func Ignored(path string) bool {
	return strings.HasPrefix(filepath.Base(path), "_") || strings.HasPrefix(filepath.Base(path), ".")
}

// Excluder names what keeps a file from being compiled, for a message.
func Excluder(f *ast.File, path string) string {
	if Ignored(path) {
		return "its name begins with " + filepath.Base(path)[:1]
	}
	if c := Constraint(f, path); c != "" {
		return "//go:build " + c
	}
	return "the go command ignores it"
}

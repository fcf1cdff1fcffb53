// Package emit writes Go. Values from annotations enter the output as literals
// only, and every rendered file is parsed again before it leaves this package.
package emit

import (
	"bytes"
	"fmt"
	"go/parser"
	"go/token"
	"slices"
	"strings"

	"github.com/dave/jennifer/jen"

	"github.com/leasegen/leasegen/generator/internal/diag"
	"github.com/leasegen/leasegen/generator/internal/fsout"
	"github.com/leasegen/leasegen/generator/internal/ir"
	"github.com/leasegen/leasegen/generator/internal/names"
)

// File renders one output file.
func File(f *ir.File) ([]byte, error) {
	g := jen.NewFilePathName(f.PkgPath, f.PkgName)
	for _, i := range f.Imports {
		if i.Alias {
			g.ImportAlias(i.Path, i.Name)
		} else {
			g.ImportName(i.Path, i.Name)
		}
	}
	head := fsout.Header + "\n// source: " + f.Source
	if f.Constraint != "" {
		head += "\n\n//go:build " + f.Constraint
	}
	g.HeaderComment(head)

	comment(g, "The runtime this file was generated for. If the next line does not compile, "+
		"the runtime has changed since: run leasegen again, and commit what it writes.")
	g.Const().Id("_").Op("=").Qual(names.Lease, names.ABI).Line()
	for i := range f.Events {
		publish(g, &f.Events[i])
	}
	for i := range f.Consumers {
		methods(g, &f.Consumers[i])
		constructor(g, &f.Consumers[i])
	}
	if f.Register != nil {
		register(g, f.Register)
	}

	var out bytes.Buffer
	if err := g.Render(&out); err != nil {
		// The error carries the whole source; its first line says what is wrong.
		first, _, _ := strings.Cut(err.Error(), "\n")
		return nil, fmt.Errorf("render %s: %s", f.Output, first)
	}
	content := splitImports(out.Bytes())
	if _, err := parser.ParseFile(token.NewFileSet(), f.Output, content, parser.SkipObjectResolution); err != nil {
		return nil, fmt.Errorf("render %s: %w", f.Output, err)
	}
	return content, nil
}

// splitImports groups imports as goimports does: the standard library's and what looks like
// it, then the others, with a blank line between. It relies on what jennifer writes: one
// import a line.
func splitImports(src []byte) []byte {
	const open, close = "\nimport (\n", "\n)\n"
	head, rest, ok := bytes.Cut(src, []byte(open))
	block, rest, ok2 := bytes.Cut(rest, []byte(close))
	if !ok || !ok2 {
		return src
	}
	groups := make([][]string, 3)
	for line := range strings.SplitSeq(string(block), "\n") {
		_, path, _ := strings.Cut(line, `"`)
		first, _, _ := strings.Cut(path, "/")
		group := 0
		switch {
		case strings.HasPrefix(path, "appengine"): // goimports's own exception
			group = 2
		case strings.Contains(first, "."):
			group = 1
		}
		groups[group] = append(groups[group], line)
	}
	var lines []string
	for _, g := range groups {
		if len(lines) > 0 && len(g) > 0 {
			lines = append(lines, "")
		}
		lines = append(lines, g...)
	}
	return slices.Concat(head, []byte(open+strings.Join(lines, "\n")+close), rest)
}

// comment adds text as a comment of lines that fit a page.
func comment(g *jen.File, text string) {
	g.Comment("// " + strings.Join(diag.Wrap(text, 89), "\n// "))
}

// lines is a list in the given brackets with one item a line.
func lines(open, close string, items ...jen.Code) *jen.Statement {
	return jen.Custom(jen.Options{Open: open, Close: close, Separator: ",", Multi: true}, items...)
}

// named refers to a type from anywhere in the output.
func named(t ir.Type) *jen.Statement {
	if t.Path == "" {
		return jen.Id(t.Name)
	}
	return jen.Qual(t.Path, t.Name)
}

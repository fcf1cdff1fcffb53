// Package resolve turns directives and types into what is to be emitted, and reports
// every declaration for which that cannot be done.
package resolve

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"

	"github.com/leasegen/leasegen/generator/internal/diag"
	"github.com/leasegen/leasegen/generator/internal/directive"
	"github.com/leasegen/leasegen/generator/internal/ir"
	"github.com/leasegen/leasegen/generator/internal/load"
	"github.com/leasegen/leasegen/generator/internal/names"
	"github.com/leasegen/leasegen/generator/internal/spec"
)

// Source is one annotated file.
type Source struct {
	Pkg        *load.Package
	Path       string
	Constraint string
	Events     []*Event
	Consumers  []*Consumer
	// Doubtful are struct types that may be events or consumers: a directive of theirs is misspelt.
	Doubtful []string
}

// Event is an annotated payload struct, as written.
type Event struct {
	Type *ast.TypeSpec
	Spec *spec.Event
	Kind string
}

// Consumer is an annotated handler struct, as written and with the package's defaults.
type Consumer struct {
	Type *ast.TypeSpec
	spec.Annotations
	Name string
	SQL  *ir.Table // set once the table is made out
	// Unsound says that the directives have findings.
	Unsound bool
	// Unsourced says that where the messages come from has findings, so that what the methods are for is not known.
	Unsourced bool
}

// publish is the name of the function that publishes the event.
func (e *Event) publish() string { return cmp.Or(e.Spec.Publish, names.Publish(e.Type.Name.Name)) }

// constructor is the name of the function that makes the consumer.
func (c *Consumer) constructor() string {
	return cmp.Or(c.Consumer.Constructor, names.Constructor(c.Type.Name.Name))
}

// Parse reads the directives of all packages. Sources come in the order of packages and files.
func Parse(m *load.Module, diags *diag.List) []*Source {
	var sources []*Source
	for _, pkg := range m.Packages {
		p := &pkgParser{fset: m.Fset, pkg: pkg, diags: diags}
		var files []parsed
		for _, f := range pkg.Files {
			if f.Src != nil {
				files = append(files, parseFile(m.Fset, f, p.diags))
			}
		}
		for _, f := range files {
			p.packageDefaults(f)
		}
		for _, f := range files {
			if s := p.source(f); s != nil {
				sources = append(sources, s)
			}
		}
		p.ineffective()
	}
	return sources
}

// Others reads the directives of files that this run leaves alone. Their errors are
// reported where leasegen runs for their package.
func Others(m *load.Module, files []load.File) []*Source {
	var others []*Source
	for _, f := range files {
		p := &pkgParser{fset: m.Fset, pkg: &load.Package{}, diags: &diag.List{}}
		if s := p.source(parseFile(m.Fset, f, p.diags)); s != nil {
			others = append(others, s)
		}
	}
	return others
}

// Generated returns the identifiers that the outputs for sources will declare.
func Generated(sources []*Source) map[string]bool {
	g := map[string]bool{names.Handlers: true, names.Register: true}
	for _, s := range sources {
		if suffix := names.Suffix(s.Constraint); len(s.Consumers) > 0 {
			g[names.Handlers+suffix], g[names.Register+suffix] = true, true
		}
		for _, e := range s.Events {
			g[e.publish()] = true
		}
		for _, c := range s.Consumers {
			g[c.constructor()] = true
		}
	}
	return g
}

type pkgParser struct {
	fset     *token.FileSet
	pkg      *load.Package
	diags    *diag.List
	defaults *spec.Defaults
}

type parsed struct {
	path       string
	syntax     *ast.File // nil if the file has syntax errors
	directives directive.File
}

func parseFile(fset *token.FileSet, f load.File, diags *diag.List) parsed {
	syntax, err := parser.ParseFile(fset, f.Path, f.Src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		diags.Add(load.SyntaxErrors(err)...)
		return parsed{path: f.Path}
	}
	return parsed{f.Path, syntax, directive.Collect(fset, syntax, f.Src, diags)}
}

// packageDefaults takes the one //leasegen:defaults of the package.
func (p *pkgParser) packageDefaults(f parsed) {
	for _, d := range f.directives.Package {
		if p.defaults != nil {
			first := p.defaults.Directive
			p.diags.Add(diag.Diagnostic{
				Code: "LG0108", Pos: d.Position(d.Pos), End: d.Position(d.End),
				Message: "//leasegen:defaults is given twice in package " + p.pkg.Name, Hint: "join the two lines",
				Related: []diag.Related{{Pos: first.Position(first.Pos), Message: "first at"}},
			})
			continue
		}
		if v, _ := spec.Decode(d, p.diags); v != nil {
			p.defaults, _ = v.(*spec.Defaults)
		}
	}
}

// source decodes the directives of one file.
func (p *pkgParser) source(f parsed) *Source {
	if f.syntax == nil {
		return nil
	}
	s := &Source{Pkg: p.pkg, Path: f.path, Constraint: load.Constraint(f.syntax, f.path)}
	for spec := range f.directives.Doubtful {
		s.Doubtful = append(s.Doubtful, spec.Name.Name)
	}
	for _, t := range f.directives.Types {
		p.declaration(s, t)
	}
	if len(s.Events)+len(s.Consumers)+len(s.Doubtful) == 0 {
		return nil
	}
	return s
}

// declaration decodes the directives of one struct.
func (p *pkgParser) declaration(s *Source, t directive.TypeDirectives) {
	c := &Consumer{Type: t.Spec, Annotations: spec.Annotations{
		Lease: &spec.Lease{}, Retry: &spec.Retry{}, DLQ: &spec.DLQ{}, Once: &spec.Once{}}}
	name := t.Spec.Name.Name
	ok := true
	var event *spec.Event
	var modifiers []directive.Directive
	for _, d := range t.Directives {
		v, good := spec.Decode(d, p.diags)
		ok = ok && good
		switch v := v.(type) {
		case *spec.Consumer:
			c.Consumer = v
			c.Unsourced = !good && v.Per == "stream" // input decides what its methods are for
			if good {
				sound := v.CheckSource(has(t, "table"), has(t, "redis"), p.diags)
				c.Unsourced = !sound && (v.Has("topics") || v.Has("input"))
				ok = ok && sound
			}
		case *spec.Event:
			event = v
		case *spec.Lease:
			c.Lease = v
		case *spec.Retry:
			c.Retry = v
		case *spec.DLQ:
			c.DLQ = v
		case *spec.Once:
			c.Once = v
		case *spec.Table:
			c.Table = v
		case *spec.Redis:
			c.Redis = v
		case nil:
			if !slices.Contains(s.Doubtful, name) {
				s.Doubtful = append(s.Doubtful, name)
			}
		}
		if slices.Contains([]string{"lease", "retry", "dlq", "once", "table", "redis"}, d.Name) {
			modifiers = append(modifiers, d)
		}
	}
	if c.Consumer == nil && !has(t, "consumer") && !slices.Contains(s.Doubtful, name) {
		for _, d := range modifiers {
			p.diags.Add(diag.Diagnostic{
				Code: "LG0301", Pos: d.Position(d.Pos), End: d.Position(d.End),
				Message: fmt.Sprintf("//leasegen:%s on %s, which is not a consumer", d.Name, name),
				Hint:    "add //leasegen:consumer to the same struct, or remove this line",
			})
		}
	}
	if name == "_" && (c.Consumer != nil || event != nil) {
		p.diags.Add(diag.Diagnostic{
			Code: "LG0405", Pos: p.fset.PositionFor(t.Spec.Name.Pos(), false), End: p.fset.PositionFor(t.Spec.Name.End(), false),
			Message: "a struct named _ cannot be referred to", Hint: "give it a name",
		})
		return
	}
	// A declaration with a finding stays known by its name, so that what refers to it
	// is not reported as well; no file is written in any case.
	if event != nil {
		kind, _ := event.EffectiveName(name, p.diags)
		s.Events = append(s.Events, &Event{Type: t.Spec, Spec: event, Kind: kind})
	}
	if c.Consumer != nil {
		p.defaults.Fill(c.Annotations)
		c.Unsound = !ok || !spec.Check(c.Annotations, p.diags)
		c.Name, _ = c.Consumer.EffectiveName(name, p.diags)
		s.Consumers = append(s.Consumers, c)
	}
}

func has(t directive.TypeDirectives, name string) bool {
	return slices.ContainsFunc(t.Directives, func(d directive.Directive) bool { return d.Name == name })
}

// ineffective reports directives in files that are not compiled here, or not with the package: one for each file.
func (p *pkgParser) ineffective() {
	report := func(files []load.File, finding func(path string, f parsed) diag.Diagnostic) {
		for _, f := range files {
			if f.Src == nil {
				continue
			}
			file := parseFile(p.fset, f, &diag.List{})
			if d, ok := first(file); ok {
				x := finding(f.Path, file)
				x.Pos, x.End = d.Position(d.Pos), d.Position(d.End)
				p.diags.Add(x)
			}
		}
	}
	report(p.pkg.Excluded, func(path string, f parsed) diag.Diagnostic {
		return diag.Diagnostic{Code: "LG0704", Warning: true,
			Message: fmt.Sprintf("%s is left out here (%s), and its directives with it", filepath.Base(path), load.Excluder(f.syntax, path)),
			Hint:    "pass -tags, or generate where the file is compiled"}
	})
	report(p.pkg.Tests, func(string, parsed) diag.Diagnostic {
		return diag.Diagnostic{Code: "LG0705",
			Message: "a directive in a _test.go file has no effect", Hint: "move the declaration to a file that is not a test"}
	})
}

// first is the first directive of a file.
func first(f parsed) (directive.Directive, bool) {
	for _, d := range f.directives.Package {
		return d, true
	}
	for _, t := range f.directives.Types {
		return t.Directives[0], true
	}
	return directive.Directive{}, false
}

package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/leasegen/leasegen/generator"
)

// mode says what becomes of what was generated; without either it is written.
type mode struct{ check, diff bool }

func generateCommand(name, short string, m mode) command {
	examples := []string{name + " ./...", name + " -tags integration ./orders ./billing", name + " -C ../shop ./..."}
	if m.check {
		examples = append(examples, name+" -format github ./...")
	}
	return command{
		usage: name + " [flags] [packages]", short: short, examples: examples, flagsFirst: true,
		notes: "Packages are patterns as go build takes them; default is the one in the current directory.",
		set: func(e *env, fs *flag.FlagSet) work {
			g := generation{mode: m}
			fs.StringVar(&g.dir, "C", "", "change to this directory first")
			fs.StringVar(&g.tags, "tags", "", "build tags, with commas between")
			fs.StringVar(&g.sqlc, "sqlc", e.Getenv("LEASEGEN_SQLC"), "the sqlc to run for tables; default $LEASEGEN_SQLC, or the one in PATH; 'go tool sqlc' runs the one that the module names, which is code of the module")
			fs.StringVar(&g.format, "format", "text", "how findings are printed: text, json or github")
			fs.BoolVar(&g.timings, "timings", false, "print how long each step took, and how many packages were type-checked")
			if m == (mode{}) {
				fs.BoolVar(&g.check, "check", false, "write no file; exit 1 if a generated file is out of date")
				fs.BoolVar(&g.diff, "diff", false, "write no file; print what would change, and exit 1 if anything would")
			}
			return func(ctx context.Context, e *env, rest []string) error {
				g.patterns = rest
				if err := g.arguments(e); err != nil {
					return err
				}
				return exit(g.run(ctx, e))
			}
		},
	}
}

// generation is one run of generate, check or diff.
type generation struct {
	mode
	dir, tags, format string
	sqlc              string
	timings           bool
	patterns          []string
}

func (g *generation) arguments(e *env) error {
	if !slices.Contains(generator.Formats(), g.format) {
		return fmt.Errorf("-format %q is unknown; known: %s", g.format, strings.Join(generator.Formats(), ", "))
	}
	if g.dir != "" {
		if !filepath.IsAbs(g.dir) {
			g.dir = filepath.Join(e.Dir, g.dir)
		}
		info, err := os.Stat(g.dir)
		if err != nil {
			return fmt.Errorf("-C: %w", err)
		}
		if !info.IsDir() {
			return fmt.Errorf("-C: %s is not a directory", g.dir)
		}
	} else {
		g.dir = e.Dir
	}
	for _, p := range g.patterns {
		if strings.HasPrefix(p, "-") {
			return fmt.Errorf("flag %s stands behind a package; flags come first", p)
		}
		if _, ok := lookup(p); ok {
			return fmt.Errorf("%q stands behind flags or packages; a command comes first, and a package of that name is written ./%s", p, p)
		}
	}
	if len(g.patterns) == 0 {
		g.patterns = []string{"."}
	}
	return nil
}

func (g *generation) run(ctx context.Context, e *env) int {
	res, err := generator.Generate(ctx, generator.Config{Dir: g.dir, Patterns: g.patterns, Tags: g.tags, SQLC: g.sqlc})
	if ctx.Err() != nil {
		return exitInterrupted
	}
	if err != nil {
		fmt.Fprintf(e.Stderr, "leasegen: %s\n", err)
		if g.format != "text" { // readers of stdout have to see it too
			_ = g.print(e, generator.Failure(err))
		}
		return exitError
	}
	if g.timings {
		for _, t := range res.Timings {
			fmt.Fprintf(e.Stderr, "%-8s %8.1f ms\n", t.Name, float64(t.Took.Microseconds())/1000)
		}
		fmt.Fprintf(e.Stderr, "%-8s %8d\n", "packages", res.Packages)
	}
	changes, refused := generator.Plan(res)
	findings := res.Diags
	findings.Add(refused.All()...)
	code := exitOK
	switch {
	case findings.Errors() > 0:
		code = exitError
	case (g.check || g.diff) && !changes.Empty():
		code = exitDiffers
		if g.diff {
			if err := changes.Diff(e.Stdout); err != nil {
				return exitError
			}
		}
		if g.check {
			findings.Add(changes.Findings().All()...)
		}
	case !g.check && !g.diff:
		// A file is reported as written only once it is.
		failed := changes.Apply(ctx)
		findings.Add(failed.All()...)
		if ctx.Err() != nil {
			return exitInterrupted
		}
		if failed.Errors() > 0 {
			code = exitError
		}
	}
	if err := g.print(e, findings); err != nil {
		return exitError
	}
	if code == exitError {
		g.hintPatterns(e, findings)
	}
	g.conclude(e, code, res.Root, findings, changes)
	return code
}

// print writes the findings: text to stderr, what machines read to stdout.
func (g *generation) print(e *env, findings *generator.Findings) error {
	p := generator.Printer{Dir: g.dir, Format: g.format, Source: os.ReadFile}
	switch {
	case g.format == "text":
		return p.Print(e.Stderr, findings)
	case g.format == "github" && e.Getenv("GITHUB_WORKSPACE") != "":
		p.Dir = e.Getenv("GITHUB_WORKSPACE") // annotations are placed relative to the checkout
	}
	return p.Print(e.Stdout, findings)
}

// hintPatterns helps with the commonest slips in a pattern: to the go command a/b is an
// import path, and the directory is ./a/b; and a misspelt command is taken for a package.
func (g *generation) hintPatterns(e *env, findings *generator.Findings) {
	unloaded := false
	for _, d := range findings.All() {
		unloaded = unloaded || d.Code == "LG0703"
	}
	for _, p := range g.patterns {
		if filepath.IsAbs(p) || strings.HasPrefix(p, ".") {
			continue
		}
		dir := filepath.Join(g.dir, strings.TrimSuffix(p, "..."))
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			fmt.Fprintf(e.Stderr, "note: %s is an import path to the go command; the directory is written ./%s\n", p, p)
		} else if c, like := generator.Closest(p, commandNames()); like {
			fmt.Fprintf(e.Stderr, "note: %s is taken for a package; did you mean the command %q?\n", p, c)
		} else if !strings.ContainsAny(p, `/\.`) && unloaded {
			fmt.Fprintf(e.Stderr, "note: there is no command %s, and no such package; commands are %s\n", printable(p, 80), strings.Join(commandNames(), ", "))
		}
	}
}

// conclude says in one line what came of the run.
func (g *generation) conclude(e *env, code int, root string, findings *generator.Findings, changes *generator.Changes) {
	switch {
	case code == exitError && (g.check || g.diff):
		fmt.Fprintln(e.Stderr, findings.Summary())
	case code == exitError:
		fmt.Fprintf(e.Stderr, "%s; no file written\n", findings.Summary())
	case code == exitDiffers && g.check:
		fmt.Fprintf(e.Stderr, "%s; to fix: %s\n", findings.Summary(), g.fix(e, root))
	case g.check || g.diff:
	default:
		if g.format == "text" {
			for _, c := range changes.List() {
				fmt.Fprintln(e.Stdout, c)
			}
		}
	}
}

// fix is the command that brings the files up to date.
func (g *generation) fix(e *env, root string) string {
	words := []string{"leasegen"}
	if mod, err := os.ReadFile(filepath.Join(root, "go.mod")); err == nil {
		const module, tool = "github.com/leasegen/leasegen", "github.com/leasegen/leasegen/cmd/leasegen"
		switch {
		case strings.Contains(string(mod), tool): // a tool of the module
			words = []string{"go", "tool", "leasegen"}
		case strings.HasPrefix(string(mod), "module "+module+"\n"): // leasegen's own repository
			words = []string{"go", "run", tool}
		}
	}
	if g.dir != e.Dir {
		words = append(words, "-C", g.dir)
	}
	if g.tags != "" {
		words = append(words, "-tags", g.tags)
	}
	if g.sqlc != "" && g.sqlc != e.Getenv("LEASEGEN_SQLC") {
		words = append(words, "-sqlc", g.sqlc)
	}
	words = append(words, g.patterns...)
	for i, w := range words {
		if strings.ContainsAny(w, " \t\"'$&|;<>()*?`\\") {
			words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

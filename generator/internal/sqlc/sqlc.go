// Package sqlc runs sqlc, a program of its own, in a scratch directory. It is the only
// place in the generator that starts a program other than the go command.
package sqlc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Pinned is the version that leasegen is tested with. Others, from Oldest on, may write
// other bytes.
const (
	Pinned = "v1.31.1"
	Oldest = "v1.31"
)

// ErrMissing is that there is no sqlc to run, or one that is too old.
var ErrMissing = errors.New("no sqlc")

// Runner runs one sqlc.
type Runner struct {
	command []string
	dir     string // where it is run
}

// Tool is the path that stands for the sqlc which the module has as a tool. It is never the default: what go tool
// runs is what the module names, in its own tree if it says so.
const Tool = "go tool sqlc"

// Find returns the sqlc at path, or, when that is empty, the one in PATH.
func Find(ctx context.Context, path, root string) (*Runner, error) {
	r := &Runner{dir: root}
	switch {
	case path == Tool:
		r.command = strings.Fields(Tool)
	case path != "":
		r.command = []string{path}
	default:
		found, err := exec.LookPath("sqlc")
		if err != nil {
			return nil, fmt.Errorf("%w: sqlc is not in PATH; -sqlc names another one, or '%s', which runs the one that this module has as a tool", ErrMissing, Tool)
		}
		r.command = []string{found}
	}
	out, err := r.run(ctx, "version")
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		if len(r.command) > 1 {
			return nil, fmt.Errorf("%w: sqlc is no tool of this module", ErrMissing)
		}
		return nil, fmt.Errorf("%w: %s version: %w", ErrMissing, r.command[0], err)
	}
	version := strings.TrimSpace(string(out))
	if !recent(version) {
		return nil, fmt.Errorf("%w: %s is version %s; %s or newer is needed", ErrMissing, strings.Join(r.command, " "), version, Oldest)
	}
	return r, nil
}

// recent reports whether a version is Oldest or newer. One that is no version was built by
// someone who knows what it is.
func recent(version string) bool {
	m := regexp.MustCompile(`^v?1\.(\d+)\.`).FindStringSubmatch(version)
	if m == nil {
		return true
	}
	minor, err := strconv.Atoi(m[1])
	return err != nil || minor >= 31
}

func (r *Runner) run(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, r.command[0], append(r.command[1:len(r.command):len(r.command)], args...)...)
	cmd.Dir = r.dir
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if text := strings.TrimSpace(stderr.String()); text != "" {
			return nil, errors.New(text)
		}
		return nil, err
	}
	return stdout.Bytes(), nil
}

// Job is one run: all files lie in one directory, under the names given.
type Job struct {
	Config  string            // sqlc.yaml, whose output directory is "out"
	Schema  map[string][]byte // below "schema"
	Queries []byte            // in "queries.sql"
}

// Problem is a line of sqlc's findings.
type Problem struct {
	File    string // relative to the job's directory, with slashes; empty if it names none
	Line    int    // from 1; 0 if unknown
	Column  int
	Message string
}

// Problems are why sqlc refused a job.
type Problems []Problem

func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, x := range p {
		lines[i] = x.Message
	}
	return strings.Join(lines, "; ")
}

// Generate runs a job and returns the files written, by name. An error that is Problems is
// about the job; any other is about running sqlc at all.
func (r *Runner) Generate(ctx context.Context, job Job) (map[string][]byte, error) {
	dir, err := os.MkdirTemp("", "leasegen-sqlc-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	files := map[string][]byte{"sqlc.yaml": []byte(job.Config), "queries.sql": job.Queries}
	for name, content := range job.Schema {
		files["schema/"+name] = content
	}
	if err := os.Mkdir(filepath.Join(dir, "schema"), 0o700); err != nil {
		return nil, err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, filepath.FromSlash(name)), content, 0o600); err != nil {
			return nil, err
		}
	}
	if _, err := r.run(ctx, "generate", "-f", filepath.Join(dir, "sqlc.yaml")); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, problems(dir, err.Error())
	}
	out := filepath.Join(dir, "out")
	entries, err := os.ReadDir(out)
	if err != nil {
		return nil, err
	}
	written := map[string][]byte{}
	for _, e := range entries {
		if written[e.Name()], err = os.ReadFile(filepath.Join(out, e.Name())); err != nil {
			return nil, err
		}
	}
	return written, nil
}

var located = regexp.MustCompile(`^(.+?\.sql):(\d+):(\d+): (.*)$`)

// problems reads what sqlc printed.
func problems(dir, text string) Problems {
	var out Problems
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "# package") {
			continue
		}
		m := located.FindStringSubmatch(line)
		if m == nil {
			out = append(out, Problem{Message: strings.ReplaceAll(line, dir+string(filepath.Separator), "")})
			continue
		}
		p := Problem{File: filepath.ToSlash(strings.TrimPrefix(m[1], dir+string(filepath.Separator))), Message: m[4]}
		p.Line, _ = strconv.Atoi(m[2])
		p.Column, _ = strconv.Atoi(m[3])
		out = append(out, p)
	}
	return out
}

// Catalog is what sqlc has understood of the schema.
type Catalog struct {
	tables map[string][]Column
}

// Column is a column as sqlc has it.
type Column struct {
	Name    string
	Type    string // as int8, text, app.status
	NotNull bool
	Array   bool
	Values  []string // of an enum
}

// ReadCatalog reads the file that sqlc's json generator writes.
func ReadCatalog(file []byte) (*Catalog, error) {
	var request struct {
		Catalog struct {
			Schemas []struct {
				Name  string
				Enums []struct {
					Name string
					Vals []string
				}
				Tables []struct {
					Rel     struct{ Name string }
					Columns []struct {
						Name    string
						NotNull bool `json:"not_null"`
						IsArray bool `json:"is_array"`
						Type    struct{ Schema, Name string }
					}
				}
			}
		}
	}
	if err := json.Unmarshal(file, &request); err != nil {
		return nil, fmt.Errorf("sqlc's catalog: %w", err)
	}
	values := map[string][]string{}
	for _, s := range request.Catalog.Schemas {
		for _, e := range s.Enums {
			values[s.Name+"."+e.Name] = e.Vals
		}
	}
	c := &Catalog{map[string][]Column{}}
	for _, s := range request.Catalog.Schemas {
		if s.Name == "pg_catalog" || s.Name == "information_schema" {
			continue
		}
		for _, t := range s.Tables {
			columns := []Column{}
			for _, x := range t.Columns {
				typ := x.Type.Name
				if x.Type.Schema != "" && x.Type.Schema != "pg_catalog" {
					typ = x.Type.Schema + "." + typ
				}
				of := typ
				if !strings.Contains(of, ".") {
					of = "public." + of
				}
				columns = append(columns, Column{x.Name, typ, x.NotNull, x.IsArray, values[of]})
			}
			c.tables[s.Name+"."+t.Rel.Name] = columns
		}
	}
	return c, nil
}

// Columns returns the columns of a table, nil if there is none.
func (c *Catalog) Columns(schema, table string) []Column { return c.tables[schema+"."+table] }

// Tables returns the names of all tables, qualified.
func (c *Catalog) Tables() []string { return slices.Collect(maps.Keys(c.tables)) }

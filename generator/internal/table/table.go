// Package table makes the queries of consumers that read a table of the application, and
// has sqlc check them against the application's migrations and turn them into Go.
package table

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"text/template"

	"github.com/leasegen/leasegen/generator/internal/diag"
	"github.com/leasegen/leasegen/generator/internal/fsout"
	"github.com/leasegen/leasegen/generator/internal/ir"
	"github.com/leasegen/leasegen/generator/internal/load"
	"github.com/leasegen/leasegen/generator/internal/names"
	"github.com/leasegen/leasegen/generator/internal/resolve"
	"github.com/leasegen/leasegen/generator/internal/sqlc"
	"github.com/leasegen/leasegen/generator/internal/sqlschema"
)

// Result is what was generated.
type Result struct {
	// Files are the contents of the folders, as they should be on disk.
	Files []fsout.File
	// Failed are packages of which a table could not be made out. Their types are not known.
	Failed map[*load.Package]bool
}

// Generate makes the folders of all consumers with a table, and notes at each of them what
// there is. sqlcPath names the sqlc to run; empty: see sqlc.Find. Errors of a
// directive or a migration is added to diags.
func Generate(ctx context.Context, module *load.Module, sources []*resolve.Source, sqlcPath string, diags *diag.List) (*Result, error) {
	result := &Result{Failed: map[*load.Package]bool{}}
	folders := foldersOf(module, sources, result.Failed)
	if len(folders) == 0 {
		return result, nil
	}
	runner, err := sqlc.Find(ctx, sqlcPath, module.Root)
	if errors.Is(err, sqlc.ErrMissing) {
		for _, f := range folders {
			result.Failed[f.pkg] = true
			f.bad(diags, f.consumers[0], "LG0801", "", err.Error(),
				"install it (go install github.com/sqlc-dev/sqlc/cmd/sqlc@"+sqlc.Pinned+"), or name it: -sqlc PATH")
		}
		return result, nil
	}
	if err != nil {
		return nil, err
	}
	// sqlc takes nearly all the time. Findings and files are put together in the order of folders.
	schemas, templates := map[string]*schemaRun{}, parsed() // the folders of a schema share one run of sqlc over it
	runs := make([]*generation, len(folders))
	var group sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i, f := range folders {
		g := &generation{ctx: ctx, diags: &diag.List{}, templates: templates, runner: runner, sql: map[*resolve.Consumer][]byte{}}
		key := strings.Join(f.schema(), ",") // no path has a comma
		if schemas[key] == nil {
			schemas[key] = &schemaRun{}
		}
		g.schema = schemas[key]
		runs[i] = g
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			g.ok, g.err = g.folder(module.Root, f)
		})
	}
	group.Wait()
	for i, g := range runs {
		if g.err != nil {
			return nil, g.err
		}
		if !g.ok {
			result.Failed[folders[i].pkg] = true
		}
		diags.Add(g.diags.All()...)
		result.Files = append(result.Files, g.files...)
	}
	return result, nil
}

// folder is one package of generated queries and the consumers that it serves.
type folder struct {
	pkg       *load.Package
	dir       string // relative to the module's root
	name      string
	consumers []*resolve.Consumer
}

// foldersOf leaves consumers with findings out, and notes their packages in failed.
func foldersOf(module *load.Module, sources []*resolve.Source, failed map[*load.Package]bool) []*folder {
	byDir := map[string]*folder{}
	for c, s := range resolve.Consumers(sources) {
		if c.Table == nil {
			continue
		}
		if c.Unsound {
			failed[s.Pkg] = true
			continue
		}
		dir := path.Join(module.Rel(s.Pkg.Dir), c.Table.Folder())
		f := byDir[dir]
		if f == nil {
			f = &folder{pkg: s.Pkg, dir: dir, name: c.Table.Folder()}
			byDir[dir] = f
		}
		f.consumers = append(f.consumers, c)
	}
	var out []*folder
	for _, dir := range slices.Sorted(maps.Keys(byDir)) {
		out = append(out, byDir[dir])
	}
	return out
}

// schema is where the migrations are that its consumers name.
func (f *folder) schema() (paths []string) {
	for _, c := range f.consumers {
		for _, p := range c.Table.Schema {
			if !slices.Contains(paths, p) {
				paths = append(paths, p)
			}
		}
	}
	return paths
}

// bad adds a finding at the value of an argument of a consumer's //leasegen:table.
func (f *folder) bad(diags *diag.List, c *resolve.Consumer, code, key, message, hint string, detail ...string) {
	d := c.Table.Finding(code, key, message, hint)
	d.Detail = detail
	diags.Add(d)
}

// generation is the work on one folder.
type generation struct {
	ctx       context.Context
	diags     *diag.List
	templates *template.Template
	runner    *sqlc.Runner
	schema    *schemaRun
	sql       map[*resolve.Consumer][]byte // each consumer's queries

	files []fsout.File
	ok    bool
	err   error
}

// schemaRun is a run of sqlc over a schema. Its fields are set once once is done.
type schemaRun struct {
	once       sync.Once
	migrations []sqlschema.File
	unreadable error
	catalog    *sqlc.Catalog
	err        error // sqlc.Problems, if the schema is why
}

// header is the first line of a file of queries.
const header = "-- Code generated by leasegen. DO NOT EDIT.\n"

func (g *generation) folder(root string, f *folder) (ok bool, err error) {
	before := g.diags.Errors()
	migrations, catalog, err := g.catalog(root, f)
	if catalog == nil {
		return false, err
	}
	schema := sqlschema.Parse(migrations)
	var (
		rows []row
		text bytes.Buffer
		of   = map[string]*resolve.Consumer{}
	)
	for _, c := range f.consumers {
		t := g.check(f, c, catalog, schema)
		if t == nil {
			continue
		}
		schemaName, model := c.Table.Qualified()
		if schemaName != "public" {
			model = schemaName + "_" + model
		}
		if other := of[t.Row.Name]; other != nil && other.SQL.Name != t.Name {
			f.bad(g.diags, c, "LG0807", "name", fmt.Sprintf("the row of %s would be %s.%s, as that of %s", t.Name, f.name, t.Row.Name, other.SQL.Name),
				"write package=NAME at one of the two")
			continue
		}
		if of[t.Row.Name] == nil {
			rows = append(rows, row{model, t.Row.Name})
		}
		of[t.Row.Name] = c
		c.SQL = t
		where := strings.TrimSpace(c.Table.Where)
		sql, err := queriesOf(t, c.Name, c.Table.Key, c.Table.Kind, c.Table.Topic, where, g.cast(t, c, catalog)).render(g.templates)
		if err != nil {
			return false, fmt.Errorf("internal error, please report it: %w", err)
		}
		g.sql[c] = sql
		text.Write(sql)
		text.WriteByte('\n')
	}
	cfg, err := config(g.templates, f.name, rows)
	if err != nil {
		return false, fmt.Errorf("internal error, please report it: %w", err)
	}
	if g.diags.Errors() > before {
		_, err := g.conditions(f, cfg, migrations) // of the others
		return false, err
	}
	content := bytes.TrimRight(text.Bytes(), "\n")
	content = append(content, '\n')
	written, err := g.runner.Generate(g.ctx, sqlc.Job{Config: cfg, Schema: scratch(migrations), Queries: content})
	if problems, refused := errors.AsType[sqlc.Problems](err); refused {
		return false, g.refused(f, problems, cfg, migrations)
	}
	if err != nil {
		return false, fmt.Errorf("run sqlc: %w", err)
	}
	queries := path.Join(f.dir, fsout.Queries)
	g.files = append(g.files, fsout.File{Path: queries, Content: slices.Concat([]byte(header), []byte("\n"), content)})
	for from, to := range map[string]string{"db.go": "db.go", "models.go": "models.go", "queries.sql.go": fsout.Queries + ".go"} {
		code, ok := written[from]
		if !ok {
			return false, fmt.Errorf("sqlc has not written %s", from)
		}
		code = bytes.Replace(code, []byte("// source: queries.sql\n"), []byte("// source: "+fsout.Queries+"\n"), 1)
		g.files = append(g.files, fsout.File{Path: path.Join(f.dir, to), Content: code, Beside: queries})
	}
	return true, nil
}

// scratch gives migrations names that sort in the order in which they are applied.
func scratch(migrations []sqlschema.File) map[string][]byte {
	out := map[string][]byte{}
	for i, m := range migrations {
		out[fmt.Sprintf("%06d.sql", i)] = m.Content
	}
	return out
}

// original gives a file of scratch its own name back.
func original(migrations []sqlschema.File, name string) string {
	var i int
	if _, err := fmt.Sscanf(name, "schema/%06d.sql", &i); err == nil && i < len(migrations) {
		return migrations[i].Path
	}
	return name
}

// catalog reads a folder's migrations and has sqlc make out the schema.
func (g *generation) catalog(root string, f *folder) ([]sqlschema.File, *sqlc.Catalog, error) {
	first, r := f.consumers[0], g.schema
	r.once.Do(func() { g.read(root, f.schema(), r) })
	if r.unreadable != nil {
		f.bad(g.diags, first, "LG0802", "schema", "the schema cannot be read: "+r.unreadable.Error(),
			"name folders of migrations or .sql files, from the module's root")
		return nil, nil, nil
	}
	if problems, refused := errors.AsType[sqlc.Problems](r.err); refused {
		var detail []string
		for _, p := range problems {
			line := p.Message
			if p.File != "" {
				line = fmt.Sprintf("%s:%d:%d: %s", original(r.migrations, p.File), p.Line, p.Column, p.Message)
			}
			detail = append(detail, line)
		}
		f.bad(g.diags, first, "LG0802", "schema", "sqlc cannot make out the schema", "", detail...)
		return nil, nil, nil
	}
	return r.migrations, r.catalog, r.err
}

// read has sqlc make out the schema at paths.
func (g *generation) read(root string, paths []string, r *schemaRun) {
	if r.migrations, r.unreadable = sqlschema.Read(root, paths); r.unreadable != nil {
		return
	}
	cfg, err := config(g.templates, "", nil)
	if err != nil {
		r.err = fmt.Errorf("internal error, please report it: %w", err)
		return
	}
	written, err := g.runner.Generate(g.ctx, sqlc.Job{Config: cfg, Schema: scratch(r.migrations), Queries: []byte("-- name: Probe :one\nSELECT 1::int AS one;\n")})
	if err != nil {
		r.err = fmt.Errorf("run sqlc: %w", err)
		return
	}
	r.catalog, r.err = sqlc.ReadCatalog(written["catalog.json"])
}

// refused tells what sqlc has against the queries. Tables and columns are known by then, so
// what is left is a condition.
func (g *generation) refused(f *folder, problems sqlc.Problems, cfg string, migrations []sqlschema.File) error {
	told, err := g.conditions(f, cfg, migrations)
	if err == nil && !told {
		f.bad(g.diags, f.consumers[0], "LG0801", "", "sqlc refuses the queries: "+problems.Error(), "please report it, with the migrations")
	}
	return err
}

// conditions tells what sqlc has against the conditions, one by one: it stops at the first
// syntax error.
func (g *generation) conditions(f *folder, cfg string, migrations []sqlschema.File) (told bool, err error) {
	for _, c := range f.consumers {
		if c.SQL == nil || !c.SQL.Filtered {
			continue
		}
		_, err := g.runner.Generate(g.ctx, sqlc.Job{Config: cfg, Schema: scratch(migrations), Queries: g.sql[c]})
		if problems, refused := errors.AsType[sqlc.Problems](err); refused {
			told = true
			f.bad(g.diags, c, "LG0806", "where", "where: "+problems[0].Message, "it is a condition on columns of "+c.Table.Name)
		} else if err != nil {
			return told, fmt.Errorf("run sqlc: %w", err)
		}
	}
	return told, nil
}

// rowType is the name of a table's struct: app.order_events gives OrderEventsRow.
func rowType(table string) string {
	var b strings.Builder
	for word := range strings.SplitSeq(table, "_") {
		if word != "" {
			b.WriteString(names.Title(word))
		}
	}
	b.WriteString("Row")
	return b.String()
}

// irTable is a consumer's table, without a look at the schema.
func irTable(f *folder, c *resolve.Consumer) *ir.Table {
	columns := c.Table.Columns()
	schema, name := c.Table.Qualified()
	t := &ir.Table{
		Query: names.Title(c.Type.Name.Name), Name: schema + "." + name, Position: columns["position"], XID: columns["xid"],
		Filtered: strings.TrimSpace(c.Table.Where) != "",
		Row:      ir.Type{Path: path.Join(f.pkg.Path, f.name), PkgName: f.name, Name: rowType(name)},
	}
	switch c.Consumer.Per {
	case "topic":
		t.Topic = columns["topic"]
	case "partition":
		t.Slots = c.Table.Partitions()
		t.Key = c.Table.Key
		t.Slot = slotOf(ident(c.Table.Key), ident(t.Position), t.Slots)("")
	}
	return t
}

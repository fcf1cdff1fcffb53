package spec

import (
	"cmp"
	"fmt"
	"go/token"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/leasegen/leasegen/generator/internal/diag"
	"github.com/leasegen/leasegen/generator/internal/sqltext"
)

// Qualified returns the table's schema and name.
func (t *Table) Qualified() (schema, name string) {
	if schema, name, ok := strings.Cut(t.Name, "."); ok {
		return schema, name
	}
	return "public", t.Name
}

// Columns returns the columns that t names, by argument, defaults included.
func (t *Table) Columns() map[string]string {
	c := map[string]string{
		"position": cmp.Or(t.Position, "id"), "xid": cmp.Or(t.XID, "xid"), "topic": t.Topic, "key": t.Key, "kind": t.Kind}
	maps.DeleteFunc(c, func(_, name string) bool { return name == "" })
	return c
}

// Folder is the name of the package of generated queries.
func (t *Table) Folder() string { return cmp.Or(t.Package, "leasedb") }

// Partitions is how many slots a consumer with per=partition has.
func (t *Table) Partitions() int { return cmp.Or(t.Slots, 256) }

// checkTable holds //leasegen:table against its consumer.
func (c *Consumer) checkTable(t *Table, diags *diag.List) bool {
	ok := true
	bad := func(s *Source, code, key, message, hint string) {
		ok = false
		diags.Add(s.Finding(code, key, message, hint))
	}
	switch c.Per {
	case "stream", "cluster":
		bad(&c.Source, "LG0505", "per", fmt.Sprintf("per=%s does not read a table", c.Per), "write per=group, per=topic or per=partition")
	case "topic":
		if t.Topic == "" {
			bad(&t.Source, "LG0109", "", "//leasegen:table with per=topic needs the argument topic", "write topic=COLUMN: each of its values is a topic")
		}
	case "partition":
		if t.Key == "" {
			bad(&t.Source, "LG0109", "", "//leasegen:table with per=partition needs the argument key", "write key=COLUMN: rows with one key are handled in order")
		}
	}
	if t.Has("slots") && c.Per != "partition" {
		bad(&t.Source, "LG0505", "slots", fmt.Sprintf("per=%s has no partitions, so slots has no effect", c.Per), "remove it")
	}
	for _, key := range []string{"unknown", "unknown_wait"} {
		if c.Has(key) {
			bad(&c.Source, "LG0505", key, "rows of a table all have one handler, so "+key+" has no effect", "remove it")
		}
	}
	return ok
}

func tableProblem(s string) *problem {
	schema, name, qualified := strings.Cut(s, ".")
	if p := columnProblem(schema); p != nil {
		return p
	}
	if qualified {
		return columnProblem(name)
	}
	return nil
}

// unquoted is a name without the quotes that it has in SQL.
func unquoted(s string) string {
	parts := strings.Split(s, ".")
	for i, p := range parts {
		if len(p) > 2 && strings.HasPrefix(p, `"`) && strings.HasSuffix(p, `"`) {
			parts[i] = p[1 : len(p)-1]
		}
	}
	return strings.Join(parts, ".")
}

// columnProblem holds the names of tables and columns to letters, digits and underscores. They are quoted where
// they need it.
func columnProblem(s string) *problem {
	const hint = "write the name as the database stores it: letters, digits and underscores, at most 63"
	if s == "" {
		return &problem{"LG0504", "the name is empty", hint}
	}
	for i, r := range s {
		if !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || r == '_' || i > 0 && '0' <= r && r <= '9') {
			return &problem{"LG0504", fmt.Sprintf("%s holds %s", show(s), show(string(r))), hint}
		}
	}
	if len(s) > 63 {
		return &problem{"LG0504", fmt.Sprintf("the name is %d bytes long", len(s)), hint}
	}
	if strings.HasPrefix(s, sqltext.Reserved) {
		return &problem{"LG0504", fmt.Sprintf("names that begin with %s are leasegen's own", sqltext.Reserved), "rename the column"}
	}
	return nil
}

func packageProblem(s string) *problem {
	p := columnProblem(s)
	if i := strings.IndexFunc(s, func(r rune) bool { return 'A' <= r && r <= 'Z' }); p == nil && i >= 0 {
		p = &problem{"LG0504", fmt.Sprintf("%s holds %s", show(s), show(s[i:i+1])), ""}
	}
	if p != nil {
		return &problem{p.code, p.message, "a package's name is lower-case letters and digits, as in leasedb"}
	}
	if token.IsKeyword(s) || s == "main" || s == "init" || s == "documentation" || strings.HasSuffix(s, "_test") || s == "internal" || s == "vendor" || s == "testdata" || strings.HasPrefix(s, "_") {
		return &problem{"LG0504", fmt.Sprintf("%s cannot be the name of an imported package", show(s)), "write another name, such as leasedb"}
	}
	return nil
}

func filesProblem(files []string) *problem {
	for i, f := range files {
		switch {
		case f == "" || path.Clean(f) != f || !filepath.IsLocal(filepath.FromSlash(below(f))):
			return &problem{"LG0507", fmt.Sprintf("%s is no path from the module's root", show(f)), "write a path such as db/migrations, or ../db, with slashes and no other dots"}
		case slices.Contains(files[:i], f):
			return &problem{"LG0507", fmt.Sprintf("%s is given twice", show(f)), "keep one"}
		}
	}
	return nil
}

// below is a path without the leading .. that lead out of the module.
func below(f string) string {
	for f == ".." || strings.HasPrefix(f, "../") {
		f = strings.TrimPrefix(strings.TrimPrefix(f, ".."), "/")
	}
	return cmp.Or(f, ".")
}

func whereProblem(s string) *problem {
	if why := sqltext.ConditionProblem(s); why != "" {
		return &problem{"LG0806", why, "write one SQL condition, as behind WHERE: status = 'ready' AND amount > 0"}
	}
	return nil
}

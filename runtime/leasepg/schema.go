package leasepg

import (
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
)

const defaultSchema = "leasegen"

var (
	schemaName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)
	schemaUse  = regexp.MustCompile(`\bleasegen(\.|;| TO )`)
	// Functions of pg_catalog that statements call. Operators are written so that they fit one signature of
	// pg_catalog exactly, or with their schema.
	calls = regexp.MustCompile(`\b(array_agg|array_append|array_cat|array_remove|array_to_json|bool_and|cardinality|ceil|clock_timestamp|count|current_schemas|current_setting|` +
		`format|format_type|generate_series|generate_subscripts|has_\w+_privilege|hashtextextended|left|max|md5|min|octet_length|pg_\w+|random|` +
		`row_number|row_security_active|set_config|string_agg|to_jsonb|to_regclass|unnest)\(`)
)

// schema puts names into SQL that was written, and checked, without: the schema's own into what is written for
// the default one, and pg_catalog before its functions. So search_path never matters, and what another role puts
// into a schema on it is not called instead.
type schema struct {
	name    string
	written *sync.Map // SQL as compiled → SQL as sent
}

func newSchema(name string) schema { return schema{name, &sync.Map{}} }

func (s schema) valid() error {
	if !schemaName.MatchString(s.name) || strings.HasPrefix(s.name, "pg_") {
		return fmt.Errorf("leasepg: schema name %q: use lower-case letters, digits and underscores, "+
			"at most 63, not beginning with a digit or pg_", s.name)
	}
	return nil
}

func (s schema) ident() string { return pgx.Identifier{s.name}.Sanitize() }

// rewrite is for a script of SQL, which fixes search_path itself.
func (s schema) rewrite(sql string) string {
	if s.name == defaultSchema {
		return sql
	}
	return schemaUse.ReplaceAllString(sql, strings.ReplaceAll(s.ident(), "$", "$$")+"$1")
}

// statement is for one statement of many.
func (s schema) statement(sql string) string {
	if w, ok := s.written.Load(sql); ok {
		return w.(string)
	}
	w := qualify(s.rewrite(sql))
	s.written.Store(sql, w)
	return w
}

func qualify(sql string) string {
	var b strings.Builder
	done := 0
	for _, at := range calls.FindAllStringIndex(sql, -1) {
		if at[0] > 0 && sql[at[0]-1] == '.' {
			continue // it has a schema
		}
		b.WriteString(sql[done:at[0]])
		b.WriteString("pg_catalog.")
		done = at[0]
	}
	b.WriteString(sql[done:])
	return b.String()
}

package leasepg

import (
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
)

const defaultSchema = "leasegen"

var schemaName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

// Functions of pg_catalog that statements call, beside pg_* and has_*_privilege. Operators are written so that they fit one
// signature of pg_catalog exactly, or with their schema.
var functions = wordSet(`array_agg array_append array_cat array_remove array_to_json bool_and cardinality ceil clock_timestamp count
	current_schemas current_setting format format_type generate_series generate_subscripts hashtextextended left max md5 min
	octet_length random row_number row_security_active set_config string_agg to_jsonb to_regclass unnest`)

func wordSet(words string) map[string]bool {
	set := map[string]bool{}
	for w := range strings.FieldsSeq(words) {
		set[w] = true
	}
	return set
}

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
func (s schema) rewrite(sql string) string { return eachWord(sql, s.own) }

// statement is for one statement of many.
func (s schema) statement(sql string) string {
	if w, ok := s.written.Load(sql); ok {
		return w.(string)
	}
	w := eachWord(sql, s.qualified)
	s.written.Store(sql, w)
	return w
}

// own is a word of SQL with the schema's name in place of the default one's.
func (s schema) own(_ byte, word, rest string) string {
	if word == defaultSchema && s.name != defaultSchema && (strings.HasPrefix(rest, ".") || strings.HasPrefix(rest, ";") || strings.HasPrefix(rest, " TO ")) {
		return s.ident()
	}
	return word
}

// qualified is own, with pg_catalog before what is called without a schema.
func (s schema) qualified(before byte, word, rest string) string {
	called := before != '.' && strings.HasPrefix(rest, "(")
	if called && (functions[word] || strings.HasPrefix(word, "pg_") || strings.HasPrefix(word, "has_") && strings.HasSuffix(word, "_privilege")) {
		return "pg_catalog." + word
	}
	return s.own(before, word, rest)
}

// eachWord replaces the words of SQL. The function gets the byte before a word (0 at the beginning), the word, and what follows.
func eachWord(sql string, by func(before byte, word, rest string) string) string {
	var b strings.Builder
	b.Grow(len(sql) + len(sql)/8)
	before := byte(0)
	for at := 0; at < len(sql); {
		end := at
		for end < len(sql) && inWord(sql[end]) {
			end++
		}
		if end > at {
			b.WriteString(by(before, sql[at:end], sql[end:]))
		} else {
			end = at + 1
			b.WriteByte(sql[at])
		}
		before, at = sql[end-1], end
	}
	return b.String()
}

func inWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

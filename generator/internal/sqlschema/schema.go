package sqlschema

import (
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/leasegen/leasegen/generator/internal/sqltext"
)

// Schema is what the statements of migrations leave behind, of what leasegen asks for.
// Statements that it does not understand have no effect; the server has the last word.
type Schema struct {
	tables    map[string]*Table // by schema.name
	sequences map[string]int    // CACHE by schema.name
}

// Table is a table as the migrations leave it.
type Table struct {
	Columns []Column // in the order of the table
	// Triggers are those that run before the first row of an insert is made.
	Triggers []string
}

// Column is a column and where its values come from.
type Column struct {
	Name string
	// Default is the words of the expression, joined by spaces, without brackets, casts and pg_catalog around it; empty
	// if it has none.
	Default  string
	Identity bool
	Serial   bool
	cache    int
}

// Parse reads migrations in their order.
func Parse(files []File) *Schema {
	s := &Schema{map[string]*Table{}, map[string]int{}}
	for _, f := range files {
		var statement []sqltext.Token
		for _, t := range sqltext.Tokens(string(f.Content)) {
			if t.Is(";") {
				s.apply(&words{statement, 0})
				statement = nil
				continue
			}
			statement = append(statement, t)
		}
		s.apply(&words{statement, 0})
	}
	return s
}

// Table returns a table, or nil if no CREATE TABLE of it was understood.
func (s *Schema) Table(schema, name string) *Table { return s.tables[schema+"."+name] }

// Column returns a column and its place, or -1.
func (t *Table) Column(name string) (Column, int) {
	i := slices.IndexFunc(t.Columns, func(c Column) bool { return c.Name == name })
	if i < 0 {
		return Column{}, -1
	}
	return t.Columns[i], i
}

// Cache returns how many numbers a session draws ahead for a column; 1 is the default.
func (s *Schema) Cache(schema, table string, c Column) int {
	if c.cache > 1 {
		return c.cache
	}
	name := schema + "." + table + "_" + c.Name + "_seq"
	if words := strings.Fields(c.Default); len(words) > 2 && words[0] == "nextval" {
		name = sequenceName(words[2])
		if !strings.Contains(name, ".") {
			name = "public." + name
		}
	}
	return max(s.sequences[name], 1)
}

// sequenceName reads the name in nextval('app."Own"').
func sequenceName(text string) string {
	var b strings.Builder
	for _, t := range sqltext.Tokens(text) {
		b.WriteString(t.Text)
	}
	return b.String()
}

// words reads a statement from left to right.
type words struct {
	tokens []sqltext.Token
	at     int
}

func (w *words) peek() sqltext.Token {
	if w.at >= len(w.tokens) {
		return sqltext.Token{}
	}
	return w.tokens[w.at]
}

func (w *words) next() sqltext.Token {
	t := w.peek()
	w.at++
	return t
}

// rest is what was not read.
func (w *words) rest() []sqltext.Token { return w.tokens[min(w.at, len(w.tokens)):] }

// skip passes the words if they come next, all of them.
func (w *words) skip(texts ...string) bool {
	for i, text := range texts {
		if w.at+i >= len(w.tokens) || !w.tokens[w.at+i].Is(text) {
			return false
		}
	}
	w.at += len(texts)
	return true
}

// name reads a name, qualified by public if by no other schema.
func (w *words) name() string {
	name := w.next().Text
	if w.skip(".") {
		return name + "." + w.next().Text
	}
	return "public." + name
}

func (s *Schema) apply(w *words) {
	switch {
	case w.skip("create"):
		for w.skip("or") || w.skip("replace") || w.skip("unlogged") || w.skip("constraint") {
		}
		switch {
		case w.skip("table"):
			s.createTable(w)
		case w.skip("trigger"):
			s.createTrigger(w)
		case w.skip("sequence"):
			w.skip("if", "not", "exists")
			name := w.name()
			s.sequences[name] = cache(w.rest(), 1)
		}
	case w.skip("alter", "sequence"):
		w.skip("if", "exists")
		name := w.name()
		s.sequences[name] = cache(w.rest(), s.sequences[name])
	case w.skip("alter", "table"):
		w.skip("if", "exists")
		w.skip("only")
		s.alterTable(w)
	case w.skip("drop", "table"):
		w.skip("if", "exists")
		delete(s.tables, w.name())
	case w.skip("drop", "trigger"):
		w.skip("if", "exists")
		trigger := w.next().Text
		if w.skip("on") {
			if t := s.tables[w.name()]; t != nil {
				t.Triggers = slices.DeleteFunc(t.Triggers, func(n string) bool { return n == trigger })
			}
		}
	}
}

func cache(tokens []sqltext.Token, otherwise int) int {
	for i, t := range tokens {
		if t.Is("cache") && i+1 < len(tokens) {
			if n, err := strconv.Atoi(tokens[i+1].Text); err == nil {
				return n
			}
		}
	}
	return otherwise
}

func (s *Schema) createTable(w *words) {
	exists := w.skip("if", "not", "exists")
	name := w.name()
	if !w.skip("(") || exists && s.tables[name] != nil {
		return
	}
	t := &Table{}
	for _, part := range parts(w) {
		if c, ok := column(part); ok {
			t.Columns = append(t.Columns, c)
		}
	}
	s.tables[name] = t
}

// parts splits what follows at the commas outside brackets, up to the closing bracket.
func parts(w *words) (out [][]sqltext.Token) {
	depth, start := 0, w.at
	for ; w.at < len(w.tokens); w.at++ {
		switch t := w.tokens[w.at]; {
		case t.Is("(", "["):
			depth++
		case t.Is(")", "]"):
			if depth--; depth < 0 {
				out = append(out, w.tokens[start:w.at])
				w.at++
				return out
			}
		case t.Is(",") && depth == 0:
			out = append(out, w.tokens[start:w.at])
			start = w.at + 1
		}
	}
	return append(out, w.tokens[start:])
}

// column reads the definition of a column; constraints and LIKE are none.
func column(tokens []sqltext.Token) (Column, bool) {
	if len(tokens) < 2 || tokens[0].Is("constraint", "primary", "unique", "check", "foreign", "exclude", "like") {
		return Column{}, false
	}
	c := Column{Name: tokens[0].Text, Serial: tokens[1].Is("serial", "serial4", "serial8", "serial2", "bigserial", "smallserial")}
	for i := 2; i < len(tokens); i++ {
		switch t := tokens[i]; {
		case t.Is("default"):
			c.Default = expression(tokens[i+1:])
		case t.Is("as") && i+1 < len(tokens) && tokens[i+1].Is("identity"):
			c.Identity = true
			c.cache = cache(tokens[i:], 1)
		}
	}
	return c, true
}

// expression joins the words of a default up to the next clause of the column.
func expression(tokens []sqltext.Token) string {
	for i, t := range outside(tokens) {
		if i > 0 && t.Is("not", "null", "primary", "unique", "check", "references", "constraint", "collate", "generated", "deferrable") {
			return bare(tokens[:i])
		}
	}
	return bare(tokens)
}

// outside are the tokens that stand in no round brackets, and their places.
func outside(tokens []sqltext.Token) iter.Seq2[int, sqltext.Token] {
	return func(yield func(int, sqltext.Token) bool) {
		depth := 0
		for i, t := range tokens {
			switch {
			case t.Is("("):
				depth++
			case t.Is(")"):
				depth--
			case depth == 0 && !yield(i, t):
				return
			}
		}
	}
}

// bare is an expression without parts that have no effect: brackets and casts around it, and the schema of a function of
// PostgreSQL's own.
func bare(tokens []sqltext.Token) string {
	for {
		n := len(tokens)
		tokens = uncast(unbracket(tokens))
		if n > 2 && len(tokens) > 2 && tokens[0].Is("pg_catalog") && tokens[1].Is(".") {
			tokens = tokens[2:]
		}
		if len(tokens) == n {
			break
		}
	}
	var text []string
	for _, t := range tokens {
		text = append(text, t.Text)
	}
	return strings.Join(text, " ")
}

func unbracket(tokens []sqltext.Token) []sqltext.Token {
	if len(tokens) < 2 || !tokens[0].Is("(") || closing(tokens, 0) != len(tokens)-1 {
		return tokens
	}
	return tokens[1 : len(tokens)-1]
}

// uncast takes off x::type and CAST (x AS type).
func uncast(tokens []sqltext.Token) []sqltext.Token {
	if len(tokens) > 4 && tokens[0].Is("cast") && tokens[1].Is("(") && closing(tokens, 1) == len(tokens)-1 {
		for i := len(tokens) - 2; i > 2; i-- {
			if tokens[i].Is("as") {
				return tokens[2:i]
			}
		}
	}
	for i, t := range outside(tokens) {
		if i > 0 && t.Is(":") && i+1 < len(tokens) && tokens[i+1].Is(":") {
			if isType(tokens[i+2:]) {
				return tokens[:i]
			}
			return tokens
		}
	}
	return tokens
}

// isType reports whether tokens are the name of one type.
func isType(tokens []sqltext.Token) bool {
	for i, t := range tokens {
		if (i%2 == 0) != (t.Kind == sqltext.Word) || i%2 == 1 && !t.Is(".") {
			return false
		}
	}
	return len(tokens)%2 == 1
}

// closing returns where the bracket at i is closed, or -1.
func closing(tokens []sqltext.Token, i int) int {
	depth := 0
	for ; i < len(tokens); i++ {
		switch {
		case tokens[i].Is("("):
			depth++
		case tokens[i].Is(")"):
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return -1
}

func (s *Schema) alterTable(w *words) {
	name := w.name()
	t := s.tables[name]
	if t == nil {
		return
	}
	switch {
	case w.skip("rename", "to"):
		schema, _, _ := strings.Cut(name, ".")
		delete(s.tables, name)
		s.tables[schema+"."+w.next().Text] = t
		return
	case w.skip("set", "schema"):
		_, table, _ := strings.Cut(name, ".")
		delete(s.tables, name)
		s.tables[w.next().Text+"."+table] = t
		return
	case w.skip("rename"):
		w.skip("column")
		from := w.next().Text
		if _, i := t.Column(from); i >= 0 && w.skip("to") {
			t.Columns[i].Name = w.next().Text
		}
		return
	}
	for _, part := range parts(w) {
		t.alter(&words{part, 0})
	}
}

func (t *Table) alter(w *words) {
	switch {
	case w.skip("add"):
		w.skip("column")
		exists := w.skip("if", "not", "exists")
		c, ok := column(w.rest())
		if _, i := t.Column(c.Name); ok && !(exists && i >= 0) {
			t.Columns = append(t.Columns, c)
		}
	case w.skip("drop", "constraint"):
	case w.skip("drop"):
		w.skip("column")
		w.skip("if", "exists")
		name := w.next().Text
		t.Columns = slices.DeleteFunc(t.Columns, func(c Column) bool { return c.Name == name })
	case w.skip("alter"):
		w.skip("column")
		_, i := t.Column(w.next().Text)
		if i < 0 {
			return
		}
		c := &t.Columns[i]
		switch {
		case w.skip("set", "default"):
			c.Default = expression(w.tokens[w.at:])
		case w.skip("drop", "default"):
			c.Default, c.Serial = "", false
		case w.skip("drop", "identity"):
			c.Identity = false
		case w.skip("add", "generated"):
			c.Identity = true
			c.cache = cache(w.tokens[w.at:], 1)
		default:
			c.cache = cache(w.tokens[w.at:], c.cache)
		}
	}
}

// createTrigger notes triggers that run once before the rows of an insert.
func (s *Schema) createTrigger(w *words) {
	trigger := w.next().Text
	if !w.skip("before") {
		return
	}
	insert := false
	for w.at < len(w.tokens) && !w.peek().Is("on") {
		insert = w.next().Is("insert") || insert
	}
	w.skip("on")
	t := s.tables[w.name()]
	if t == nil || !insert {
		return
	}
	for w.at < len(w.tokens) && !w.peek().Is("execute") {
		if w.next().Is("row") {
			return
		}
	}
	t.Triggers = append(t.Triggers, trigger)
}

package table

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/leasegen/leasegen/generator/internal/diag"
	"github.com/leasegen/leasegen/generator/internal/resolve"
	"github.com/leasegen/leasegen/generator/internal/sqlc"
)

// condition holds the condition of a directive against the columns of its table, and reports whether it may stand.
// PostgreSQL decides on its meaning: the grammar is PostgreSQL's own, and conditions whose types are not known are left to the server.
func (g *generation) condition(f *folder, c *resolve.Consumer, table string, columns []sqlc.Column) bool {
	text := strings.TrimSpace(c.Table.Where)
	if text == "" {
		return true
	}
	tree, err := g.runner.Condition(g.ctx, text)
	if problems, refused := errors.AsType[sqlc.Problems](err); refused {
		f.bad(g.diags, c, "LG0806", "where", "where: "+problems[0].Message, "it is a condition on columns of "+table)
		return false
	}
	if err != nil {
		f.bad(g.diags, c, "LG0801", "where", "sqlc cannot parse the condition: "+err.Error(), "update sqlc, or name another one: -sqlc PATH")
		return false
	}
	found := wrong(tree, table, columns)
	for _, p := range found {
		f.bad(g.diags, c, "LG0806", "where", "where: "+p.message, p.hint)
	}
	return len(found) == 0
}

// wrong says what is wrong with a condition.
func wrong(tree sqlc.Node, table string, columns []sqlc.Column) []found {
	j := &judge{table: table, columns: map[string]sqlc.Column{}}
	for _, column := range columns {
		j.columns[column.Name] = column
	}
	j.walk(tree)
	if len(j.found) == 0 {
		j.boolean(tree)
	}
	if len(j.found) == 0 && !j.named {
		j.bad("the condition names no column of "+table+", so that it is the same for every row", "remove it, or name what rows differ in")
	}
	return j.found
}

type found struct{ message, hint string }

// judge looks at the syntax tree of a condition.
type judge struct {
	table   string
	columns map[string]sqlc.Column
	named   bool // a column was named
	found   []found
}

func (j *judge) bad(message, hint string) {
	if p := (found{message, hint}); !slices.Contains(j.found, p) {
		j.found = append(j.found, p)
	}
}

// manyRows are functions of PostgreSQL's own that are not about one row, or make more than one of it.
var manyRows = []string{"array_agg", "avg", "bit_and", "bit_or", "bool_and", "bool_or", "count", "every", "json_agg", "json_object_agg",
	"jsonb_agg", "jsonb_object_agg", "max", "min", "string_agg", "sum", "xmlagg", "generate_series", "generate_subscripts", "unnest",
	"json_array_elements", "jsonb_array_elements", "json_array_elements_text", "jsonb_array_elements_text", "json_each", "jsonb_each",
	"json_object_keys", "jsonb_object_keys", "regexp_matches", "regexp_split_to_table", "string_to_table", "row_number", "rank",
	"dense_rank", "lag", "lead", "first_value", "last_value", "nth_value", "ntile", "percent_rank", "cume_dist"}

// walk looks at what an expression names, down to its last part.
func (j *judge) walk(v any) {
	switch v := v.(type) {
	case []any:
		for _, x := range v {
			j.walk(x)
		}
	case sqlc.Node:
		switch {
		case v["Fields"] != nil:
			j.column(texts(v["Fields"]), len(items(v["Fields"])))
			return
		case v["Subselect"] != nil:
			j.bad("the condition holds a subquery: it is about the row alone", "name columns of "+j.table)
			return
		case v["Funcname"] != nil:
			name := texts(v["Funcname"])
			own := len(name) == 1 || len(name) == 2 && name[0] == "pg_catalog"
			if over, _ := v["Over"].(sqlc.Node); over != nil || own && slices.Contains(manyRows, name[len(name)-1]) {
				j.bad(strings.Join(name, ".")+" is not about one row", "name columns of "+j.table+", and functions of one row")
			}
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if key != "TypeName" {
				j.walk(v[key])
			}
		}
	}
}

// column takes a reference to a column of so many parts.
func (j *judge) column(name []string, parts int) {
	if parts != 1 || len(name) != 1 {
		j.bad(fmt.Sprintf("the condition names %s", strings.Join(append(name, []string{"*"}[:parts-len(name)]...), ".")),
			"write the columns of "+j.table+" alone; a field of one is (column).field")
		return
	}
	j.named = true
	if _, ok := j.columns[name[0]]; !ok {
		hint := diag.Suggest(name[0], slices.Sorted(maps.Keys(j.columns)))
		for known := range j.columns {
			if known != name[0] && strings.EqualFold(known, name[0]) {
				hint = fmt.Sprintf(`names without quotes are lower case to PostgreSQL: write "%s"`, known)
			}
		}
		j.bad(fmt.Sprintf("table %s has no column %s", j.table, name[0]), hint)
	}
}

// items is what a list holds, and texts are those of its items that are names.
func items(list any) []any {
	m, _ := list.(sqlc.Node)
	out, _ := m["Items"].([]any)
	return out
}

func texts(list any) []string {
	var out []string
	for _, x := range items(list) {
		m, _ := x.(sqlc.Node)
		if s, ok := m["Str"].(string); ok {
			out = append(out, s)
		}
	}
	return out
}

// Operators as the tree numbers them.
const (
	opPlain, opAny, opAll, opDistinct, opNotDistinct, opNullIf, opIn = 1, 2, 3, 4, 5, 6, 7
	opLike, opBetween, opNotBetweenSymmetric                         = 8, 11, 14
)

func kindOf(n sqlc.Node) int {
	k, _ := n["Kind"].(float64)
	if n["Lexpr"] == nil && n["Rexpr"] == nil {
		return 0
	}
	return int(k)
}

var comparisons = []string{"=", "<>", "!=", "<", ">", "<=", ">="}

// boolean reports an expression that is no condition, and comparisons within one that PostgreSQL refuses or that are
// never true.
func (j *judge) boolean(v any) {
	n, _ := v.(sqlc.Node)
	if n["Boolop"] != nil {
		for _, x := range items(n["Args"]) {
			j.boolean(x)
		}
		return
	}
	if t := j.typeOf(n); t != "" && t != "bool" {
		j.bad("the condition, or a part of it, is of type "+t+", not boolean", "compare it with something: status = 'ready'")
		return
	}
	kind := kindOf(n)
	if kind == 0 {
		return
	}
	op := strings.Join(texts(n["Name"]), ".")
	compared := kind == opPlain && slices.Contains(comparisons, op) || kind == opDistinct || kind == opNotDistinct || kind == opIn ||
		kind >= opBetween && kind <= opNotBetweenSymmetric
	if !compared {
		return
	}
	others := []any{n["Rexpr"]}
	if list := items(n["Rexpr"]); list != nil {
		others = list
	}
	for _, x := range others {
		if kind == opPlain && (isNull(n["Lexpr"]) || isNull(x)) {
			j.bad("a comparison with NULL is never true", "write IS NULL or IS NOT NULL")
			continue
		}
		j.compare(n["Lexpr"], x)
	}
}

// isNull reports whether an expression is NULL.
func isNull(v any) bool {
	n, _ := v.(sqlc.Node)
	value, constant := n["Val"].(sqlc.Node)
	_, typed := n["TypeName"]
	return constant && len(value) == 0 && !typed
}

// typeOf is the type of an expression as a group of types that compare with each other; "" if it cannot be determined.
func (j *judge) typeOf(v any) string {
	n, _ := v.(sqlc.Node)
	switch kind := kindOf(n); {
	case n == nil:
		return ""
	case n["Fields"] != nil:
		if c, ok := j.columns[strings.Join(texts(n["Fields"]), ".")]; ok {
			if c.Array {
				return "array"
			}
			return group(c.Type)
		}
	case n["Nulltesttype"] != nil, n["Booltesttype"] != nil, n["Boolop"] != nil:
		return "bool"
	case n["TypeName"] != nil && n["Arg"] != nil:
		name, _ := n["TypeName"].(sqlc.Node)
		if names := texts(name["Names"]); len(names) > 0 && items(name["ArrayBounds"]) == nil {
			return group(names[len(names)-1])
		}
	case n["Val"] != nil:
		switch value, _ := n["Val"].(sqlc.Node); {
		case value["Ival"] != nil:
			return "number"
		case value["Boolval"] != nil:
			return "bool"
		}
	case kind == opPlain:
		switch op := strings.Join(texts(n["Name"]), "."); {
		case slices.Contains(comparisons, op):
			return "bool"
		case (op == "->" || op == "#>") && j.typeOf(n["Lexpr"]) == "json":
			return "json"
		case op == "->>" || op == "#>>" || op == "||" && j.typeOf(n["Lexpr"]) == "text":
			return "text"
		case slices.Contains([]string{"+", "-", "*", "/", "%"}, op) && j.typeOf(n["Lexpr"]) == "number":
			return "number"
		}
	case kind == opNullIf:
		return j.typeOf(n["Lexpr"])
	case kind == opAny, kind == opAll, kind >= opDistinct:
		return "bool"
	}
	return ""
}

// group is the group of a type; "" for those that others compare with in ways of their own.
func group(typ string) string {
	if slices.Contains(integerTypes, typ) {
		return "number"
	}
	return map[string]string{
		"numeric": "number", "decimal": "number", "float4": "number", "float8": "number", "real": "number",
		"text": "text", "varchar": "text", "bpchar": "text", "bool": "bool", "boolean": "bool", "uuid": "uuid",
		"timestamp": "time", "timestamptz": "time", "date": "time", "json": "json", "jsonb": "json",
	}[typ]
}

var uuids = regexp.MustCompile(`(?i)^\{?([0-9a-f]{4}-?){8}\}?$`)

// compare holds the two sides of a comparison against each other.
func (j *judge) compare(a, b any) {
	x, y := j.typeOf(a), j.typeOf(b)
	if x != "" && y != "" && x != y {
		j.bad(fmt.Sprintf("the condition compares %s with %s", with(x), with(y)), "compare values of one type, or cast one of the two")
		return
	}
	for _, pair := range [][2]any{{a, b}, {b, a}} {
		n, _ := pair[1].(sqlc.Node)
		value, _ := n["Val"].(sqlc.Node)
		s, literal := value["Str"].(string)
		if !literal {
			continue
		}
		column, _ := pair[0].(sqlc.Node)
		if c := j.columns[strings.Join(texts(column["Fields"]), ".")]; len(c.Values) > 0 && !c.Array && !slices.Contains(c.Values, s) {
			j.bad(fmt.Sprintf("the condition compares column %s with '%s', which is none of its values", c.Name, s), diag.Suggest(s, c.Values))
		}
		if t := j.typeOf(pair[0]); !fits(t, s) {
			j.bad(fmt.Sprintf("the condition compares %s with '%s'", with(t), s), "write a value that is one")
		}
	}
}

func with(group string) string {
	if group == "array" {
		return "an array"
	}
	return "a " + group
}

// fits reports whether a literal can be of a type.
func fits(typ, s string) bool {
	s = strings.ToLower(strings.TrimSpace(s))
	switch typ {
	case "number":
		_, err := strconv.ParseFloat(strings.ReplaceAll(s, "_", ""), 64)
		_, base := strconv.ParseInt(s, 0, 64)
		return err == nil || base == nil || errors.Is(err, strconv.ErrRange)
	case "bool":
		return s == "on" || s == "of" || s == "off" || s == "0" || s == "1" ||
			s != "" && (strings.HasPrefix("true", s) || strings.HasPrefix("false", s) || strings.HasPrefix("yes", s) || strings.HasPrefix("no", s))
	case "uuid":
		return uuids.MatchString(s)
	}
	return true
}

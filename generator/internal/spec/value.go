package spec

import (
	"errors"
	"fmt"
	"go/token"
	"go/types"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/leasegen/leasegen/generator/internal/diag"
)

// problem is why a value is refused.
type problem struct{ code, message, hint string }

// parse turns the text of a value into the argument's type and checks its limits.
func (a ArgInfo) parse(s string) (reflect.Value, *problem) {
	if a.Enum != nil {
		if !slices.Contains(a.Enum, s) {
			return reflect.Value{}, &problem{"LG0503", fmt.Sprintf("unknown value %s", show(s)), diag.Suggest(s, a.Enum)}
		}
		return reflect.ValueOf(s), nil
	}
	if a.form != "" {
		return formOf(a.form).parse(s)
	}
	switch {
	case a.kind == reflect.TypeFor[time.Duration]():
		d, p := a.duration(s)
		return reflect.ValueOf(d), p
	case a.kind.Kind() == reflect.Float64:
		f, p := a.number(s)
		return reflect.ValueOf(f), p
	}
	n, p := a.integer(s)
	return reflect.ValueOf(n), p
}

// form is a kind of string: what it is called, and how one is read and checked.
type form struct {
	typ   string
	parse func(s string) (reflect.Value, *problem)
}

// formOf returns the form that a tag names.
func formOf(tag string) form {
	text := func(typ string, check func(string) *problem) form {
		return form{typ, func(s string) (reflect.Value, *problem) { return reflect.ValueOf(s), check(s) }}
	}
	inSQL := func(check func(string) *problem) form {
		return form{"name", func(s string) (reflect.Value, *problem) { return reflect.ValueOf(unquoted(s)), check(unquoted(s)) }}
	}
	list := func(check func([]string) *problem) form {
		return form{"list", func(s string) (reflect.Value, *problem) {
			parts := strings.Split(s, ",")
			return reflect.ValueOf(parts), check(parts)
		}}
	}
	return map[string]form{
		"consumer": text("name", func(s string) *problem { return nameProblem(s, 63) }),
		"event":    text("name", func(s string) *problem { return nameProblem(s, 100) }),
		"path":     text("path", pathProblem),
		"function": text("name", functionProblem),
		"package":  text("name", packageProblem),
		"field":    text("name", fieldProblem),
		"where":    text("SQL condition", whereProblem),
		"table":    inSQL(tableProblem),
		"column":   inSQL(columnProblem),
		"files":    list(filesProblem),
		"streams":  list(streamsProblem),
		"topics":   list(topicsProblem),
	}[tag]
}

func (a ArgInfo) duration(s string) (time.Duration, *problem) {
	d, err := time.ParseDuration(s)
	if err != nil {
		hint := "write a number with a unit: 200ms, 15s, 1m30s, 720h"
		switch {
		case plainNumber(strings.TrimPrefix(s, "-")):
			return 0, &problem{"LG0501", fmt.Sprintf("%s has no unit", show(s)), "write " + s + "s for seconds"}
		case strings.HasSuffix(s, "d") && plainNumber(s[:len(s)-1]):
			hint = "a day is 24h"
		case tooLong(s):
			return 0, a.outOfRange(s)
		}
		return 0, &problem{"LG0501", show(s) + " is not a duration", hint}
	}
	least, _ := time.ParseDuration(a.Min) // tags are checked by a test
	most := time.Duration(math.MaxInt64)
	if a.Max != "" {
		most, _ = time.ParseDuration(a.Max)
	}
	if d < least || d > most {
		return 0, a.outOfRange(s)
	}
	return d, nil
}

// tooLong reports whether s is a duration but for its size.
func tooLong(s string) bool {
	i := strings.IndexFunc(strings.TrimPrefix(s, "-"), func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if i < 1 {
		return false
	}
	i += len(s) - len(strings.TrimPrefix(s, "-"))
	_, err := time.ParseDuration("1" + s[i:])
	return err == nil && plainNumber(strings.TrimPrefix(s[:i], "-"))
}

func (a ArgInfo) integer(s string) (int, *problem) {
	n, err := strconv.Atoi(s)
	if errors.Is(err, strconv.ErrRange) {
		return 0, a.outOfRange(s)
	}
	if err != nil || s[0] == '+' {
		return 0, &problem{"LG0501", show(s) + " is not a whole number", "write plain digits, such as 100"}
	}
	least, _ := strconv.Atoi(a.Min)
	most, _ := strconv.Atoi(a.Max)
	if n < least || n > most {
		return 0, a.outOfRange(s)
	}
	return n, nil
}

func (a ArgInfo) number(s string) (float64, *problem) {
	if !plainNumber(strings.TrimPrefix(s, "-")) {
		return 0, &problem{"LG0501", show(s) + " is not a number", "write plain digits, such as 0.2"}
	}
	f, err := strconv.ParseFloat(s, 64)
	least, _ := strconv.ParseFloat(a.Min, 64)
	most, _ := strconv.ParseFloat(a.Max, 64)
	if err != nil || f < least || f > most || s[0] == '-' {
		return 0, a.outOfRange(s)
	}
	return f, nil
}

// plainNumber reports whether s is digits with at most one dot between them.
func plainNumber(s string) bool {
	whole, fraction, dot := strings.Cut(s, ".")
	return digits(whole) && (!dot || digits(fraction))
}

func digits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

func (a ArgInfo) outOfRange(s string) *problem {
	hint := ""
	if r := a.bounds(); r != "" {
		hint = "allowed: " + r
	} else if a.kind == reflect.TypeFor[time.Duration]() {
		hint = "the longest duration is 2540400h"
	}
	return &problem{"LG0502", show(s) + " is out of range", hint}
}

// nameProblem holds names to an allow-list, so that no two look alike, none is cut off
// by a database, and none means anything to SQL, to a shell or to a file system.
func nameProblem(s string, longest int) *problem {
	if s == "" {
		return &problem{"LG0504", "the name is empty", "a name starts with a lower-case letter"}
	}
	for i, r := range s {
		switch {
		case 'a' <= r && r <= 'z':
		case i > 0 && ('0' <= r && r <= '9' || r == '_' || r == '.' || r == '-'):
		case 'A' <= r && r <= 'Z':
			return &problem{"LG0504", show(s) + " holds an upper-case letter", "names are lower case: " + cut(strings.ToLower(s))}
		case r > utf8.RuneSelf:
			return &problem{"LG0504", fmt.Sprintf("%s holds %s (%U)", show(s), show(string(r)), r), "names are ASCII: a-z, 0-9, dot, hyphen, underscore"}
		case i == 0:
			return &problem{"LG0504", show(s) + " does not start with a letter", "a name starts with a lower-case letter"}
		default:
			return &problem{"LG0504", fmt.Sprintf("%s holds %s", show(s), show(string(r))), "allowed: a-z, 0-9, dot, hyphen, underscore"}
		}
	}
	if len(s) > longest {
		return &problem{"LG0504", fmt.Sprintf("the name is %d bytes long", len(s)), fmt.Sprintf("at most %d are allowed", longest)}
	}
	return nil
}

func pathProblem(s string) *problem {
	for field := range strings.SplitSeq(s, ".") {
		switch {
		case field == "":
			return &problem{"LG0507", show(s) + " has an empty field name", "write a field, or a path such as Customer.ID"}
		case !token.IsIdentifier(field):
			return &problem{"LG0507", fmt.Sprintf("%s is not the name of a field", show(field)), "write a field, or a path such as Customer.ID"}
		case !token.IsExported(field):
			return &problem{"LG0507", fmt.Sprintf("field %s is not exported", show(field)), "write the name that the field has in Go, which begins with a capital"}
		}
	}
	return nil
}

// functionProblem allows what a package can declare as a function without taking a name away
// from Go, or from the code that calls it.
func functionProblem(s string) *problem {
	const hint = "write a name such as NewBillingConsumer"
	switch {
	case !token.IsIdentifier(s) || s == "_" || s == "init" || s == "main":
		return &problem{"LG0320", show(s) + " cannot be the name of a function", hint}
	case types.Universe.Lookup(s) != nil:
		return &problem{"LG0320", show(s) + " is a name of Go's own, which generated code needs", hint}
	case slices.Contains([]string{"g", "be", "h", "opts", "c", "err"}, s):
		return &problem{"LG0320", show(s) + " is a name that generated code uses itself", hint}
	}
	return nil
}

func topicsProblem(patterns []string) *problem {
	for i, p := range patterns {
		if p == "" {
			return &problem{"LG0506", "a topic pattern is empty", "write patterns separated by single commas"}
		}
		for _, r := range p {
			if r <= ' ' || r > '~' || r == '"' || r == '\'' || r == '`' {
				return &problem{"LG0506", fmt.Sprintf("topic pattern %s holds %s (%U)", show(p), show(string(r)), r), "patterns are printable ASCII without spaces and quotes"}
			}
		}
		if p := foreignWildcard(p, patterns[i+1:]); p != nil {
			return p
		}
		if slices.Contains(patterns[:i], p) {
			return &problem{"LG0506", fmt.Sprintf("topic pattern %s is given twice", show(p)), "keep one"}
		}
	}
	return nil
}

// foreignWildcard finds what stands for many topics elsewhere (NATS, AMQP, MQTT, shells, SQL, regular expressions) and
// for itself here. rest are the patterns that follow, behind commas.
func foreignWildcard(p string, rest []string) *problem {
	const star = "* is the only wildcard, for any run of characters, dots and slashes included"
	refused := func(sign, hint string) *problem {
		return &problem{"LG0506", fmt.Sprintf("topic pattern %s holds %s, which is no wildcard here", show(p), sign), hint}
	}
	// with puts a star in the place of a word.
	with := func(sep, sign string) string {
		words := strings.Split(p, sep)
		for i, w := range words {
			if w == sign {
				words[i] = "*"
			}
		}
		return star + ": write " + cut(strings.Join(words, sep))
	}
	for _, sep := range []string{".", "/", ":"} {
		for _, sign := range []string{">", "#", "+", "?"} {
			if words := strings.Split(p, sep); slices.Contains(words, sign) && (len(words) > 1 || sep == ".") {
				return refused(sign, with(sep, sign))
			}
		}
	}
	if before, after, ok := strings.Cut(p, "{"); ok && !strings.Contains(after, "}") && slices.ContainsFunc(rest, func(r string) bool { return strings.Contains(r, "}") }) {
		all := []string{before + after}
		for _, r := range rest {
			alternative, behind, last := strings.Cut(r, "}")
			all = append(all, before+alternative)
			if last {
				for i := range all {
					all[i] += behind
				}
				break
			}
		}
		return &problem{"LG0506", fmt.Sprintf("topic pattern %s begins alternatives in braces, which have no meaning here", show(p)),
			"write them out: " + cut(strings.Join(all, ","))}
	}
	_, class, opens := strings.Cut(p, "[")
	switch {
	case opens && strings.Index(class, "]") > 0:
		return refused("[", star)
	case strings.HasSuffix(p, "%"):
		return refused("%", star)
	case strings.Contains(p, `\.`):
		return refused(`\.`, star)
	case strings.HasPrefix(p, "^"):
		return refused("^", star)
	case strings.HasPrefix(p, "!"):
		return refused("!", "patterns only add topics: name those that are meant")
	}
	return nil
}

// show quotes a value for a message, cut to a readable length.
func show(s string) string { return strconv.Quote(cut(s)) }

func cut(s string) string {
	const longest = 80
	if len(s) <= longest {
		return s
	}
	end := longest
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "…"
}

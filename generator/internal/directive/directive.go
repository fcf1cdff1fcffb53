// Package directive finds the //leasegen: lines of a Go file and takes them apart,
// keeping the position of every word. A line that would be read as an ordinary comment
// although it was meant as a directive is a finding, never silence.
package directive

import (
	"go/token"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/leasegen/leasegen/generator/internal/diag"
)

// Prefix begins every directive.
const Prefix = "//leasegen:"

// Defaults is the one directive that stands above a package clause.
const Defaults = "defaults"

// Directive is one //leasegen: line.
type Directive struct {
	Name string
	Pos  token.Pos // of the slashes
	// NamePos is the position of Name, and End one past the last argument.
	NamePos, End token.Pos
	Args         []Arg
	// Incomplete says that arguments were left out because they are malformed.
	Incomplete bool

	fset *token.FileSet
}

// Arg is one argument: key=value, or a key alone.
type Arg struct {
	Key, Value string
	Flag       bool // a key alone
	// Pos and End enclose the whole argument, quotes included.
	Pos, KeyPos, ValuePos, End token.Pos
}

// Position returns where p, a position of this directive, is in the real file:
// //line comments are not followed.
func (d Directive) Position(p token.Pos) token.Position {
	if d.fset == nil {
		return token.Position{}
	}
	return d.fset.PositionFor(p, false)
}

// String returns the directive as gofmt would leave it: single spaces, quotes only
// where they are needed.
func (d Directive) String() string {
	var b strings.Builder
	b.WriteString(Prefix + d.Name)
	for _, a := range d.Args {
		b.WriteString(" " + a.String())
	}
	return b.String()
}

// String returns the argument, quoted if need be.
func (a Arg) String() string {
	if a.Flag {
		return quote(a.Key)
	}
	return quote(a.Key + "=" + a.Value)
}

// quote returns the token that is read back as s.
func quote(s string) string {
	if s != "" && !strings.ContainsAny(s, " \"`") && utf8.ValidString(s) && s[0] != ',' && s[len(s)-1] != ',' &&
		!strings.ContainsFunc(s, diag.Hidden) {
		return s
	}
	return strconv.Quote(s)
}

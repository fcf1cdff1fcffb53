// Package diag holds what the generator has to say about a user's source: findings
// with a stable code, a position to the column and, where possible, the fix.
package diag

import (
	"cmp"
	"fmt"
	"go/token"
	"slices"
)

// Diagnostic is one finding.
type Diagnostic struct {
	// Code is an entry of Codes, for example LG0104.
	Code string
	// Pos is where the finding is. Its file name is absolute; printers make it relative.
	Pos token.Position
	// End is one past the last byte concerned. When it is set (and only then) the text
	// printer shows the source line with a caret under Pos to End.
	End token.Position
	// Message is one line, without the position and the code.
	Message string
	// Hint is the fix or what is allowed, printed after the caret.
	Hint string
	// Detail are further lines, such as the signature found and those accepted.
	Detail []string
	// Related are other places that the finding is about.
	Related []Related
	// Warning marks a finding that does not keep files from being written.
	Warning bool
}

// Related is a second place that a finding is about; Message reads well before the
// position, as in "first at orders.go:12:3".
type Related struct {
	Pos     token.Position
	Message string
}

// After is the position behind a name that stands at pos.
func After(pos token.Position, name string) token.Position {
	pos.Column += len(name)
	pos.Offset += len(name)
	return pos
}

// List collects findings. The zero value is empty and ready for use; a nil List reads
// as empty. A List is not safe for concurrent use.
type List struct {
	all []Diagnostic
}

// Add appends findings.
func (l *List) Add(ds ...Diagnostic) { l.all = append(l.all, ds...) }

// All returns the findings sorted by file, line, column and code, each once.
func (l *List) All() []Diagnostic {
	if l == nil {
		return nil
	}
	sorted := slices.Clone(l.all)
	slices.SortStableFunc(sorted, func(a, b Diagnostic) int {
		return cmp.Or(
			cmp.Compare(a.Pos.Filename, b.Pos.Filename),
			cmp.Compare(a.Pos.Line, b.Pos.Line),
			cmp.Compare(a.Pos.Column, b.Pos.Column),
			cmp.Compare(a.Code, b.Code),
			cmp.Compare(a.Message, b.Message),
		)
	})
	return slices.CompactFunc(sorted, func(a, b Diagnostic) bool {
		return a.Pos == b.Pos && a.Code == b.Code && a.Message == b.Message
	})
}

// Len returns the number of findings, warnings included.
func (l *List) Len() int { return len(l.All()) }

// Errors returns the number of findings that are not warnings.
func (l *List) Errors() int {
	n := 0
	for _, d := range l.All() {
		if !d.Warning {
			n++
		}
	}
	return n
}

// Err returns nil if there are no findings but warnings, else an error that counts them.
func (l *List) Err() error {
	if l.Errors() == 0 {
		return nil
	}
	return fmt.Errorf("%s", l.Summary())
}

// Summary counts the findings, as in "2 findings" or "1 finding, 1 warning".
func (l *List) Summary() string {
	errs := l.Errors()
	warns := l.Len() - errs
	switch {
	case warns == 0:
		return count(errs, "finding")
	case errs == 0:
		return count(warns, "warning")
	}
	return count(errs, "finding") + ", " + count(warns, "warning")
}

func count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

package diag

import (
	"encoding/json"
	"fmt"
	"go/token"
	"io"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// Formats are the names that Printer.Format accepts.
func Formats() []string { return []string{"text", "json", "github"} }

// Printer writes findings.
type Printer struct {
	// Dir is what file names are printed relative to; names outside it stay absolute.
	Dir string
	// Format is one of Formats; "" means text.
	Format string
	// Source returns a file's content, for the excerpts of the text format. Nil means no excerpts.
	Source func(name string) ([]byte, error)
}

// Print writes the findings of l: as lines (text), as one array (json), or as GitHub
// workflow commands (github).
func (p Printer) Print(w io.Writer, l *List) error {
	switch p.Format {
	case "", "text":
		return p.text(w, l.All())
	case "json":
		return p.json(w, l.All())
	case "github":
		return p.github(w, l.All())
	}
	return fmt.Errorf("unknown format %q: %s", p.Format, Suggest(p.Format, Formats()))
}

func (p Printer) text(w io.Writer, ds []Diagnostic) error {
	var b strings.Builder
	files := map[string][]string{}
	for _, d := range ds {
		if at := p.at(d.Pos); at != "" {
			b.WriteString(Escape(at) + ": ")
		}
		if d.Warning {
			b.WriteString("warning: ")
		}
		fmt.Fprintf(&b, "%s (%s)\n", Escape(d.Message), d.Code)
		hint := Escape(d.Hint)
		if line, caret, ok := p.excerpt(files, d); ok {
			fmt.Fprintf(&b, "\t%s\n\t%s\n", line, strings.TrimRight(caret+" "+hint, " "))
		} else if hint != "" {
			fmt.Fprintf(&b, "\t%s\n", hint)
		}
		for _, line := range p.more(d) {
			fmt.Fprintf(&b, "\t%s\n", line)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// more are the lines behind a finding's message and hint.
func (p Printer) more(d Diagnostic) (lines []string) {
	for _, s := range d.Detail {
		lines = append(lines, Escape(s))
	}
	for _, r := range d.Related {
		lines = append(lines, Escape(r.Message+" "+p.at(r.Pos)))
	}
	return lines
}

// excerptWidth is how many columns of a source line are shown at most.
const excerptWidth = 160

// excerpt returns the source line of d and the caret line below it.
func (p Printer) excerpt(files map[string][]string, d Diagnostic) (line, caret string, ok bool) {
	if p.Source == nil || !d.End.IsValid() || d.Pos.Line < 1 || d.Pos.Column < 1 {
		return "", "", false
	}
	lines, seen := files[d.Pos.Filename]
	if !seen {
		if src, err := p.Source(d.Pos.Filename); err == nil {
			lines = strings.Split(string(src), "\n")
		}
		files[d.Pos.Filename] = lines
	}
	if d.Pos.Line > len(lines) {
		return "", "", false
	}
	line = strings.TrimSuffix(lines[d.Pos.Line-1], "\r")
	from := d.Pos.Column - 1
	if from > len(line) {
		return "", "", false
	}
	to := len(line)
	if d.End.Line == d.Pos.Line {
		to = min(to, max(d.End.Column-1, from))
	}
	before := strings.TrimPrefix(line[:from], "\ufeff")
	before = Escape(strings.TrimLeft(before, " \t"))
	marked, after := Escape(line[from:to]), Escape(strings.TrimRight(line[to:], " \t"))

	// A very long line is cut on both sides of what it is about.
	before = cutLeft(before, excerptWidth/2)
	marked = cutRight(marked, excerptWidth/2)
	after = cutRight(after, max(0, excerptWidth-width(before)-width(marked)))
	caret = strings.Repeat(" ", width(before)) + "^" + strings.Repeat("~", max(0, width(marked)-1))
	return before + marked + after, caret, true
}

func width(s string) int { return utf8.RuneCountInString(s) }

func cutLeft(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return "…" + string(r[len(r)-n+1:])
	}
	return s
}

func cutRight(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:max(0, n-1)]) + "…"
	}
	return s
}

// at returns file:line:col, as much of it as is known.
func (p Printer) at(pos token.Position) string {
	pos.Filename = p.rel(pos.Filename)
	if !pos.IsValid() && pos.Filename == "" {
		return ""
	}
	return pos.String()
}

func (p Printer) rel(name string) string {
	if name == "" || p.Dir == "" {
		return name
	}
	if rel, err := filepath.Rel(p.Dir, name); err == nil && filepath.IsLocal(rel) {
		return rel
	}
	return name
}

type jsonPlace struct {
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Message string `json:"message"`
}

type jsonDiagnostic struct {
	Code     string `json:"code"`
	Severity string `json:"severity"` // error or warning
	jsonPlace
	EndLine   int         `json:"endLine,omitempty"`
	EndColumn int         `json:"endColumn,omitempty"`
	Hint      string      `json:"hint,omitempty"`
	Detail    []string    `json:"detail,omitempty"`
	Related   []jsonPlace `json:"related,omitempty"`
}

func (p Printer) place(pos token.Position, message string) jsonPlace {
	return jsonPlace{filepath.ToSlash(p.rel(pos.Filename)), pos.Line, pos.Column, message}
}

func (p Printer) json(w io.Writer, ds []Diagnostic) error {
	out := make([]jsonDiagnostic, len(ds))
	for i, d := range ds {
		out[i] = jsonDiagnostic{
			Code: d.Code, Severity: severity(d), jsonPlace: p.place(d.Pos, d.Message),
			EndLine: d.End.Line, EndColumn: d.End.Column, Hint: d.Hint, Detail: d.Detail,
		}
		for _, r := range d.Related {
			out[i].Related = append(out[i].Related, p.place(r.Pos, r.Message))
		}
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(out)
}

func severity(d Diagnostic) string {
	if d.Warning {
		return "warning"
	}
	return "error"
}

func (p Printer) github(w io.Writer, ds []Diagnostic) error {
	data := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	property := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
	var b strings.Builder
	for _, d := range ds {
		lines := []string{Escape(d.Message)}
		if d.Hint != "" {
			lines = append(lines, Escape(d.Hint))
		}
		lines = append(lines, p.more(d)...)
		fmt.Fprintf(&b, "::%s ", severity(d))
		if d.Pos.Filename != "" {
			fmt.Fprintf(&b, "file=%s,", property.Replace(Escape(filepath.ToSlash(p.rel(d.Pos.Filename)))))
		}
		if d.Pos.IsValid() {
			fmt.Fprintf(&b, "line=%d,col=%d,", d.Pos.Line, d.Pos.Column)
		}
		fmt.Fprintf(&b, "title=%s::%s\n", d.Code, data.Replace(strings.Join(lines, "\n")))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

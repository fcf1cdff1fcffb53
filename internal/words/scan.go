package words

import (
	"go/scanner"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
)

// file finds what the rules forbid in a file: in the prose of Markdown and HTML, in comments of code, and in strings of Go.
func file(name, text string) (found []finding) {
	switch filepath.Ext(name) {
	case ".md":
		return check(markdown(text), 1)
	case ".go":
		return code(text, strings.HasSuffix(name, "_test.go"))
	case ".lua", ".sql":
		return comments(text, "--")
	case ".sh", ".bash", ".zsh", ".fish", ".yaml", ".yml", ".mod", ".js":
		return comments(text, "#", "//")
	case ".html":
		return check(tag.ReplaceAllStringFunc(text, blank), 1)
	}
	if filepath.Base(name) == "Makefile" {
		return append(comments(text, "#"), check(echoed(text), 1)...)
	}
	return nil
}

var (
	fence = regexp.MustCompile("(?ms)^[ \t]*```.*?^[ \t]*```[ \t]*$")
	span  = regexp.MustCompile("`[^`\n]*`")
	link  = regexp.MustCompile(`\]\([^)\n]*\)`)
	tag   = regexp.MustCompile(`(?s)\{\{.*?\}\}|<[^>]*>`)
	echo  = regexp.MustCompile(`echo "[^"\n]*"`)
)

// markdown is the prose of a page: fenced blocks, code and addresses are left out, and lines stay where they are.
func markdown(text string) string {
	text = fence.ReplaceAllStringFunc(text, blank)
	text = span.ReplaceAllString(text, "`x`")
	return link.ReplaceAllString(text, "]")
}

// blank is the ends of lines in a text.
func blank(text string) string { return strings.Repeat("\n", strings.Count(text, "\n")) }

// echoed is what a Makefile prints, with all else left out.
func echoed(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		out.WriteString(strings.Join(echo.FindAllString(line, -1), " ") + "\n")
	}
	return out.String()
}

// code finds what the rules forbid in comments, and unless it is of tests in the string literals of Go.
func code(text string, test bool) (found []finding) {
	src := []byte(text)
	files := token.NewFileSet()
	f := files.AddFile("", -1, len(src))
	var s scanner.Scanner
	s.Init(f, src, nil, scanner.ScanComments)
	var group strings.Builder // comments in lines that follow each other
	first, last := 0, -1
	flush := func() {
		if group.Len() > 0 {
			found = append(found, check(span.ReplaceAllString(group.String(), "`x`"), first)...)
		}
		group.Reset()
	}
	for {
		pos, tok, lit := s.Scan()
		line := f.Line(pos)
		switch tok {
		case token.EOF:
			flush()
			return found
		case token.COMMENT:
			if line != last+1 {
				flush()
				first = line
			}
			lit = strings.TrimPrefix(strings.TrimPrefix(lit, "//"), "/*")
			if group.Len() > 0 {
				group.WriteByte('\n')
			}
			group.WriteString(strings.TrimPrefix(lit, " "))
			last = line + strings.Count(lit, "\n")
		case token.STRING:
			if !test && strings.Contains(lit, " ") { // a single word is a name
				found = append(found, check(strings.Trim(lit, "`\""), line)...)
			}
		}
	}
}

// comments finds what the rules forbid behind marks that begin a comment.
func comments(text string, marks ...string) []finding {
	var out strings.Builder
	for line := range strings.Lines(text) {
		for _, m := range marks {
			if _, after, ok := strings.Cut(" "+line, " "+m+" "); ok {
				out.WriteString(strings.TrimRight(after, "\n"))
				break
			}
		}
		out.WriteByte('\n')
	}
	return check(out.String(), 1)
}

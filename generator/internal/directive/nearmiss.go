package directive

import (
	"fmt"
	"go/ast"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/leasegen/leasegen/generator/internal/diag"
)

// look says what a comment line is to leasegen.
type look int

const (
	prose look = iota
	exact      // a directive in the eyes of Go: //leasegen:name
	near       // was meant as one, but is a comment in the eyes of Go
)

// blank is what may stand between the words of a near miss, seen or not.
const blank = `[\s\pZ\p{Cf}]*`

var nearMiss = regexp.MustCompile(`(?i)^(/*` + blank + `[+@]?)(lease[\p{Cf}_-]*gen)(` + blank + `):(` + blank + `)([^\s\pZ\p{Cf}]*)(.*)$`)

// colonless is a directive whose colon is missing or another sign: the whole line has
// the form of one.
var colonless = regexp.MustCompile(`(?i)^(/*` + blank + `[+@]?lease[\p{Cf}_-]*gen)([\s\pZ\p{Cf}./-]+)([a-z]+)((?:[\s\pZ]+[a-z_]+=\S*)*)[\s\pZ]*$`)

// lookAt decides on one line, which begins with // (or is a line of a block comment,
// without its decoration). For a near miss it returns the word after the colon and
// how far into the line that reaches.
func lookAt(line string) (kind look, name string, end int) {
	if rest, ok := strings.CutPrefix(line, Prefix); ok && rest != "" && isLowerOrDigit(rest[0]) {
		return exact, "", 0
	}
	// A line is judged by its beginning, however long it is.
	if len(line) > 512 {
		line = line[:512]
	}
	m := nearMiss.FindStringSubmatchIndex(line)
	if m == nil {
		if kind, name, end := withoutColon(line); kind == near {
			return kind, name, end
		}
		return misspelt(line)
	}
	group := func(i int) string { return line[m[2*i]:m[2*i+1]] }
	gap, word, rest := group(4), group(5), strings.Fields(group(6))
	switch {
	case strings.HasPrefix(line, Prefix):
		// Prose has a space after the slashes.
	case word == "" || !isLetter(word[0]):
		return prose, "", 0
	case gap != "" && (!isName(word) || len(rest) > 0 && !strings.Contains(rest[0], "=")):
		// "leasegen: the generator" is prose, "leasegen: lease ttl=15s" is not.
		return prose, "", 0
	case gap == "" && spaced(line) && (!isName(word) && !strings.Contains(word, "=") || proseArguments(rest)):
		// "leasegen:event so that" and "leasegen:event." are prose that was wrapped there.
		return prose, "", 0
	}
	end = m[11]
	if word == "" {
		end = m[8]
	}
	return near, strings.ToLower(word), end
}

// withoutColon finds a directive without its colon. Two words alone are prose if there
// is a space after the slashes: "// leasegen retry".
func withoutColon(line string) (kind look, name string, end int) {
	m := colonless.FindStringSubmatchIndex(line)
	if m == nil {
		return prose, "", 0
	}
	gap, arguments := line[m[4]:m[5]], line[m[8]:m[9]]
	if arguments == "" && (!strings.HasPrefix(strings.ToLower(line), "//l") || strings.TrimSpace(gap) != "") {
		return prose, "", 0
	}
	return near, strings.ToLower(line[m[6]:m[7]]), m[7]
}

// spaced reports whether a line is text to Go, which begins with a space.
func spaced(line string) bool {
	text := strings.TrimLeft(line, "/")
	return text == line || text != "" && text[0] == ' '
}

// proseArguments reports whether what follows the name is words, and no arguments with a slip in them.
func proseArguments(rest []string) bool {
	switch {
	case len(rest) == 0, strings.Contains(rest[0], "="), len(rest) > 1 && strings.HasPrefix(rest[1], "="):
		return false
	case len(rest) == 2 && strings.ContainsAny(rest[1], "0123456789"): // ttl 15s
		return false
	}
	return true
}

// Known reports whether name is that of a directive.
func Known(name string) bool {
	switch name {
	case "consumer", "event", "lease", "retry", "dlq", "once", "table", "redis", Defaults:
		return true
	}
	return false
}

// short is a directive under leasegen's first name.
var short = regexp.MustCompile(`(?i)^(/*` + blank + `[+@]?lease:)(` + blank + `)([a-z]+)((?:[\s\pZ]+["` + "`" + `]?[a-z_]+=.*)?)[\s\pZ]*$`)

// misspelt finds a line that Go reads as a directive of another tool, whose name is
// that of leasegen but for a slip or two, or its first word alone.
func misspelt(line string) (kind look, name string, end int) {
	if m := short.FindStringSubmatchIndex(line); m != nil {
		name, arguments := strings.ToLower(line[m[6]:m[7]]), m[8] < m[9]
		if Known(name) && (arguments || !spaced(line) && m[4] == m[5]) {
			return near, name, m[7]
		}
	}
	d, ok := ast.ParseDirective(0, line)
	if !ok {
		return prose, "", 0
	}
	if _, like := diag.Closest(d.Tool, []string{"leasegen"}); !like {
		return prose, "", 0
	}
	return near, d.Name, len("//:") + len(d.Tool) + len(d.Name)
}

func isLowerOrDigit(b byte) bool { return 'a' <= b && b <= 'z' || '0' <= b && b <= '9' }
func isLetter(b byte) bool       { return 'a' <= b|0x20 && b|0x20 <= 'z' }

func isName(s string) bool {
	for i := range len(s) {
		if !isLetter(s[i]) {
			return false
		}
	}
	return s != ""
}

// nearMissFinding reports a line comment that was meant as a directive.
func (p *lineParser) nearMissFinding(name string, end int) {
	for i, r := range p.text[:end] {
		if r != utf8.RuneError && diag.Hidden(r) {
			p.hidden(i, r)
			return
		}
	}
	if name == "" {
		p.report("LG0105", 0, end, fmt.Sprintf("%q names no directive", p.text[:end]), "write //leasegen:NAME; leasegen explain lists the names")
		return
	}
	hint := "write " + Prefix + name
	if rest := p.text[end:]; len(rest) <= 100 {
		hint += rest
	}
	message := "%q is a comment, not a directive"
	if d, ok := ast.ParseDirective(0, p.text); ok {
		message = "%q is a directive of another tool, " + fmt.Sprintf("%q", d.Tool)
	}
	p.report("LG0105", 0, end, fmt.Sprintf(message, p.text[:end]), hint)
}

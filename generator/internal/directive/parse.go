package directive

import (
	"fmt"
	"go/ast"
	"go/token"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/leasegen/leasegen/generator/internal/diag"
)

// maxLine is the longest directive line that is read.
const maxLine = 64 << 10

// lineParser reads one comment line and reports what is wrong with it.
type lineParser struct {
	fset  *token.FileSet
	diags *diag.List
	pos   token.Pos // of text[0]
	text  string    // the line from its slashes, without trailing space
	found int       // findings so far
}

func (p *lineParser) report(code string, from, to int, message, hint string) {
	p.found++
	p.diags.Add(diag.Diagnostic{
		Code: code, Message: message, Hint: hint,
		Pos: p.fset.PositionFor(p.pos+token.Pos(from), false),
		End: p.fset.PositionFor(p.pos+token.Pos(to), false),
	})
}

// directive parses p.text, which begins with Prefix. It reports whether there is a
// directive of that name; arguments that are wrong are reported and left out.
func (p *lineParser) directive() (Directive, bool) {
	if len(p.text) > maxLine {
		p.report("LG0110", 0, len(Prefix), fmt.Sprintf("directive is %d bytes long, at most %d are read", len(p.text), maxLine), "")
		return Directive{}, false
	}
	if !p.readable() {
		return Directive{}, false
	}
	std, ok := ast.ParseDirective(p.pos, p.text)
	if !ok || std.Tool != "leasegen" {
		return Directive{}, false // not reached: look has seen the prefix and a name
	}
	d := Directive{
		Name: std.Name, Pos: p.pos, NamePos: p.pos + token.Pos(len(Prefix)),
		End: p.pos + token.Pos(len(p.text)), fset: p.fset,
	}
	d.Args = p.args(len(Prefix) + len(std.Name))
	d.Incomplete = p.found > 0
	return d, true
}

// readable reports the bytes and characters that no directive may hold, at most ten.
func (p *lineParser) readable() bool {
	for i := 0; i < len(p.text) && p.found < 10; {
		r, n := utf8.DecodeRuneInString(p.text[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			p.report("LG0106", i, i+1, fmt.Sprintf("directive holds the byte 0x%02x, which is not UTF-8", p.text[i]), "save the file as UTF-8")
			return false // what follows is in another encoding too
		case diag.Hidden(r):
			p.hidden(i, r)
		}
		i += n
	}
	return p.found == 0
}

func (p *lineParser) hidden(at int, r rune) {
	hint := "remove it"
	if unicode.IsSpace(r) {
		hint = "use an ordinary space"
	}
	p.report("LG0106", at, at+utf8.RuneLen(r), "directive holds "+runeName(r), hint)
}

// runeName names a hidden character: "U+00A0 (no-break space)".
func runeName(r rune) string {
	name := map[rune]string{
		'\t': "tab", 0: "NUL", '\r': "carriage return", '\u00a0': "no-break space", '\u200b': "zero width space",
		'\u200c': "zero width joiner", '\u200d': "zero width joiner", '\ufeff': "byte order mark",
	}[r]
	switch {
	case name != "":
	case unicode.Is(unicode.Bidi_Control, r):
		name = "bidirectional control"
	case unicode.IsControl(r):
		name = "control character"
	case unicode.IsSpace(r):
		name = "space"
	default:
		name = "invisible character"
	}
	return fmt.Sprintf("%U (%s)", r, name)
}

// word is one space-separated part of the arguments.
type word struct {
	start, end int    // in the line
	text       string // unquoted
	quoted     bool
}

// args parses what follows the name of the directive.
func (p *lineParser) args(from int) []Arg {
	words := p.words(from)
	args := make([]Arg, 0, len(words))
	for i := 0; i < len(words); i++ {
		w := words[i]
		key, value, assigned := strings.Cut(w.text, "=")
		whole, used := mend(words[i:])
		switch {
		case used > 1 && isKey(key):
			i += used - 1
			p.report("LG0102", w.start, words[i].end, fmt.Sprintf("argument %q is torn apart by a space", key), "write "+whole)
		case used > 1 && !assigned && strings.Contains(w.text, ":"):
			i += used - 1
			p.report("LG0102", w.start, words[i].end, fmt.Sprintf("argument %q has a colon", w.text), "write "+whole)
		case !assigned && colon(w.text) != "":
			p.report("LG0102", w.start, w.end, fmt.Sprintf("argument %q has a colon", w.text), "write "+colon(w.text))
		case key == "":
			p.report("LG0102", w.start, w.end, fmt.Sprintf("argument %q has no name", w.text), "arguments are key=value")
		case assigned && value == "":
			p.report("LG0102", w.start, w.end, fmt.Sprintf("argument %q has no value", key), "write "+key+"=VALUE; an argument that has a default may be left out")
		default:
			a := Arg{Key: key, Value: value, Flag: !assigned, Pos: p.pos + token.Pos(w.start), End: p.pos + token.Pos(w.end)}
			a.KeyPos, a.ValuePos = a.Pos, a.Pos
			if w.quoted {
				a.KeyPos++
			}
			if assigned && strings.HasPrefix(p.text[a.KeyPos-p.pos:], key+"=") {
				a.ValuePos = a.KeyPos + token.Pos(len(key)+1)
			}
			args = append(args, a)
		}
	}
	return args
}

// colon returns what ttl:15s should be, or "".
func colon(text string) string {
	key, value, ok := strings.Cut(text, ":")
	if !ok || !isKey(key) || value == "" {
		return ""
	}
	return key + "=" + value
}

// fix joins an argument that spaces have torn apart (ttl = 15s, ttl= 15s, ttl 15s, ttl: 15s, topics=a, b) and
// returns how many words it was; 1 means that it was whole.
func mend(words []word) (text string, used int) {
	text = words[0].text
	if key, _, list := strings.Cut(text, "="); list && isKey(key) && !words[0].quoted {
		for used = 1; used < len(words) && !words[used].quoted && !strings.Contains(words[used].text, "="); used++ {
			if !strings.HasSuffix(text, ",") && !strings.HasPrefix(words[used].text, ",") {
				break
			}
			text += words[used].text
		}
		if used > 1 {
			return text, used
		}
	}
	if key, rest, ok := strings.Cut(text, ":"); ok && rest == "" && isKey(key) && len(words) > 1 && !words[1].quoted && !strings.Contains(words[1].text, "=") {
		return key + "=" + words[1].text, 2
	}
	for used = 1; used < min(3, len(words)) && !words[used-1].quoted && !words[used].quoted; used++ {
		next, complete := words[used].text, strings.Contains(text, "=")
		switch {
		case !complete && strings.HasPrefix(next, "="):
			text += next
		case strings.HasSuffix(text, "=") && !strings.Contains(next, "="):
			return text + next, used + 1
		case !complete && !strings.Contains(next, "=") && !isKey(next):
			return text + "=" + next, used + 1
		default:
			return text, used
		}
	}
	return text, used
}

func isKey(s string) bool {
	for i, r := range s {
		if !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || i > 0 && ('0' <= r && r <= '9' || r == '_')) {
			return false
		}
	}
	return s != ""
}

// words splits the arguments as ast.Directive.ParseArgs does, but says where a bad
// quote is and goes on behind it.
func (p *lineParser) words(from int) []word {
	var words []word
	for i := from; ; {
		for i < len(p.text) && p.text[i] == ' ' {
			i++
		}
		if i == len(p.text) {
			return words
		}
		start := i
		if c := p.text[i]; c == '"' || c == '`' {
			q, err := strconv.QuotedPrefix(p.text[i:])
			if err != nil {
				p.badQuote(start)
				return words
			}
			i += len(q)
			if i < len(p.text) && p.text[i] != ' ' {
				end := p.wordEnd(i)
				p.report("LG0103", start, end, "a space has to follow the closing quote", "")
				i = end
				continue
			}
			text, _ := strconv.Unquote(q) // QuotedPrefix has checked it
			words = append(words, word{start, i, text, true})
			continue
		}
		if strings.HasPrefix(p.text[i:], "//") {
			p.report("LG0102", i, len(p.text), "a directive takes no comment behind its arguments", "put it on a line of its own")
			return words
		}
		i = p.wordEnd(i)
		w := word{start, i, p.text[start:i], false}
		if eq := strings.IndexByte(w.text, '='); eq >= 0 && eq+1 < len(w.text) && (w.text[eq+1] == '"' || w.text[eq+1] == '`') {
			// key="a b" is two words to Go; the quotes belong around the argument.
			quoteAt := start + eq + 1
			q, err := strconv.QuotedPrefix(p.text[quoteAt:])
			if err != nil {
				p.badQuote(quoteAt)
				return words
			}
			value, _ := strconv.Unquote(q)
			i = p.wordEnd(quoteAt + len(q))
			p.report("LG0103", start, i, "quotes go around the whole argument, not around its value", "write "+quote(w.text[:eq+1]+value+p.text[quoteAt+len(q):i]))
			continue
		}
		words = append(words, w)
	}
}

func (p *lineParser) badQuote(at int) {
	if strings.IndexByte(p.text[at+1:], p.text[at]) < 0 {
		p.report("LG0103", at, len(p.text), "the quote is not closed on this line", "")
		return
	}
	p.report("LG0103", at, len(p.text), "what stands in quotes is not a Go string literal", `inside "" a backslash and a quote need a backslash before them`)
}

func (p *lineParser) wordEnd(i int) int {
	if n := strings.IndexByte(p.text[i:], ' '); n >= 0 {
		return i + n
	}
	return len(p.text)
}

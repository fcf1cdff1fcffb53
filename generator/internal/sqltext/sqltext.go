// Package sqltext takes SQL apart as far as is needed to look at migrations: into
// statements and words. Their meaning is left to sqlc and to the server.
package sqltext

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Reserved begins the names that generated SQL uses for itself.
const Reserved = "lg_"

// Kind says what a token is.
type Kind int

const (
	Word   Kind = iota + 1 // an identifier or key word; Text is in lower case unless it was quoted
	String                 // Text is without quotes
	Number
	Punct
	// Unterminated is the rest of a text in which a quote, or a comment, has no end.
	Unterminated
)

// Token is a word of SQL.
type Token struct {
	Kind   Kind
	Text   string
	Quoted bool // a Word in double quotes
	// Comment says that a comment stands before the token.
	Comment bool
}

// Is reports whether the token is one of the key words or punctuation marks given.
func (t Token) Is(texts ...string) bool {
	return (t.Kind == Word && !t.Quoted || t.Kind == Punct) && slices.Contains(texts, t.Text)
}

// Tokens takes text apart. Comments are left out; a last token stands for one at the end
// without text.
func Tokens(text string) []Token {
	var out []Token
	comment := false
	add := func(t Token) {
		t.Comment = comment
		comment = false
		out = append(out, t)
	}
	for i := 0; i < len(text); {
		rest := text[i:]
		r, size := utf8.DecodeRuneInString(rest)
		switch {
		case unicode.IsSpace(r):
			i += size
		case strings.HasPrefix(rest, "--"):
			comment = true
			if n := strings.IndexByte(rest, '\n'); n >= 0 {
				i += n + 1
			} else {
				i = len(text)
			}
		case strings.HasPrefix(rest, "/*"):
			comment = true
			n := blockComment(rest)
			if n < 0 {
				add(Token{Kind: Unterminated, Text: rest})
				return out
			}
			i += n
		case r == '\'' || r == '"' || (r == 'e' || r == 'E') && strings.HasPrefix(rest[1:], "'"):
			t, n := quoted(rest)
			add(t)
			i += n
		case r == '$':
			t, n := dollar(rest)
			add(t)
			i += n
		case unicode.IsLetter(r) || r == '_':
			n := prefix(rest, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' || r == '$' })
			add(Token{Kind: Word, Text: strings.ToLower(rest[:n])})
			i += n
		case '0' <= r && r <= '9':
			n := prefix(rest, func(r rune) bool { return unicode.IsDigit(r) || r == '.' || r == '_' })
			add(Token{Kind: Number, Text: rest[:n]})
			i += n
		default:
			add(Token{Kind: Punct, Text: rest[:size]})
			i += size
		}
	}
	if comment {
		add(Token{Kind: Punct})
	}
	return out
}

// blockComment is the length of a comment, which may hold others; -1 if it has no end.
func blockComment(s string) int {
	depth := 0
	for i := 0; i+1 < len(s); {
		switch s[i : i+2] {
		case "/*":
			depth++
			i += 2
		case "*/":
			depth--
			i += 2
		default:
			i++
		}
		if depth == 0 {
			return i
		}
	}
	return -1
}

// prefix is how many bytes a text begins with whose characters all belong.
func prefix(s string, belongs func(rune) bool) int {
	return len(s) - len(strings.TrimLeftFunc(s, belongs))
}

// quoted reads 'a string', E'one' with escapes, or "a name".
func quoted(s string) (Token, int) {
	escapes := s[0] == 'e' || s[0] == 'E'
	start := strings.IndexAny(s, `'"`) + 1
	quote := s[start-1]
	t := Token{Kind: String}
	if quote == '"' {
		t = Token{Kind: Word, Quoted: true}
	}
	var b strings.Builder
	for i := start; i < len(s); i++ {
		switch {
		case escapes && s[i] == '\\' && i+1 < len(s):
			i++
			b.WriteByte(s[i])
		case s[i] != quote:
			b.WriteByte(s[i])
		case i+1 < len(s) && s[i+1] == quote:
			i++
			b.WriteByte(quote)
		default:
			t.Text = b.String()
			return t, i + 1
		}
	}
	return Token{Kind: Unterminated, Text: s}, len(s)
}

// dollar reads $tag$ a string $tag$, or a lone $.
func dollar(s string) (Token, int) {
	n := strings.IndexByte(s[1:], '$')
	if n >= 0 && strings.IndexFunc(s[1:n+1], func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '_' }) < 0 &&
		(n == 0 || !unicode.IsDigit(rune(s[1]))) {
		tag := s[:n+2]
		if end := strings.Index(s[len(tag):], tag); end >= 0 {
			return Token{Kind: String, Text: s[len(tag) : len(tag)+end]}, end + 2*len(tag)
		}
		return Token{Kind: Unterminated, Text: s}, len(s)
	}
	return Token{Kind: Punct, Text: "$"}, 1
}

// ConditionProblem says why text cannot stand in parentheses behind WHERE; "" if it can, as
// far as can be determined without PostgreSQL's grammar, which judges the rest.
func ConditionProblem(text string) string {
	tokens := Tokens(text)
	if len(tokens) == 0 {
		return "the condition is empty"
	}
	depth := 0
	for i, t := range tokens {
		switch {
		case t.Comment:
			return "the condition holds a comment"
		case t.Kind == Unterminated:
			return "the condition has a quote without an end"
		case t.Is(";"):
			return "the condition holds a semicolon"
		case t.Is("$"), t.Is("@") && i+1 < len(tokens) && tokens[i+1].Kind == Word:
			return fmt.Sprintf("the condition holds %q: it takes no parameters", t.Text)
		case t.Is("sqlc"):
			return "the condition calls sqlc: it takes no parameters"
		case t.Is("(", "["):
			depth++
		case t.Is(")", "]"):
			if depth--; depth < 0 {
				return "the condition has a closing bracket too many"
			}
		case t.Kind == Word && strings.HasPrefix(t.Text, Reserved):
			return fmt.Sprintf("the condition uses %s: names that begin with %s are leasegen's own", t.Text, Reserved)
		case t.Is("select") && (i == 0 || !tokens[i-1].Is(".")):
			return "the condition holds SELECT: it is about the row alone"
		}
	}
	if depth > 0 {
		return "the condition has an opening bracket too many"
	}
	return ""
}

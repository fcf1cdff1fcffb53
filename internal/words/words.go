// Package words holds the words and phrases that the rules for texts in CONTRIBUTING.md forbid, and finds them in pages,
// comments and messages. Its tests, which `make lint` runs, look through the whole tree, and at the lengths and links of pages.
package words

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// rule is a word or phrase that texts do without. A space in the pattern is any run of spaces and ends of lines.
type rule struct {
	pattern string // a regular expression; its first letter may be a capital
	use     string // what stands better there
	but     string // a match of this that overlaps is no finding; "" for none
}

// rules are all that is forbidden. To forbid one more, add a line here, and fix what `go test ./internal/words` finds.
var rules = []rule{
	{`nobody`, `"no process", "no role", or the component and what it does`, `user postgres or nobody`},
	{`nothing`, `what happens: "no message", "is unchanged", "writes no rows", "does not apply"`, ""},
	{`whoever`, `the component: "the process that", "the caller"`, ""},
	{`meanwhile`, `"until then", "by then", or the event that ends the time`, ""},
	{`mend(s|ed|ing)?`, `"fix"`, ""},
	{`heal(s|ed|ing)?`, `"fix"`, `Heal`},
	{`all the same`, `the condition first, then what happens`, "are all the same"},
	{`(is|are) no more`, `"removed"`, `no more than|there (is|are) no more`},
	{`of those with`, `"those with" or "for each"`, ""},
	{`there (is|are) none to`, `"not needed", or what happens instead`, ""},
	{`(is|are|was|were|be|been|being) told`, `"reported", "gets", "sees", or the component that reports it`, `told apart`},
	{`tells? of`, `"reports", "names"`, ""},
	{`gone for good`, `"removed"`, ""},
	{`begins? anew|beginning anew|opened anew|try anew|tried anew`, `"again", "a new one"`, ""},
	{`rob(s|bed)?`, `"loses its leases", "fenced"`, ""},
	{`(keep|keeps|kept|keeping) out`, `"dedupe" an event, "fence" an owner, "refuse" the rest`, ""},
	{`do(es)? not do`, `"is not supported", "does not work"`, ""},
	{`nor what (that|it|they) needs?`, `both, as a list: "neither A nor B"`, ""},
	{`hangs? (all|leases)`, `"ties"`, ""},
	{`cures?`, `"fix"`, ""},
	{`(is|are) for \S+ to (say|decide)`, `the component first: "x decides"`, ""},
}

// openings are sentences that begin with Who or What. A question may.
var (
	openings = regexp.MustCompile(`(?m)(^|[.!:;)] +|\| +)(Who|Whom|Whose|What|Whatever) [^.?!|;…]*[.?!|;…]?`)
	say      = regexp.MustCompile(`,\s+say[.,:;)]|\d \w+ say[.,:;)]|[A-Z` + "`" + `] say[.,:;)]`)
)

// compiled are the rules as one expression each.
var compiled = func() (out []struct{ find, but *regexp.Regexp }) {
	for _, r := range rules {
		first := r.pattern[:1]
		if first != "(" {
			r.pattern = "[" + strings.ToUpper(first) + first + "]" + r.pattern[1:]
		}
		c := struct{ find, but *regexp.Regexp }{find: spaced(`\b(?:` + r.pattern + `)\b`)}
		if r.but != "" {
			c.but = spaced(r.but)
		}
		out = append(out, c)
	}
	return out
}()

func spaced(pattern string) *regexp.Regexp {
	return regexp.MustCompile(strings.ReplaceAll(pattern, " ", `\s+`))
}

// finding is a forbidden word in a text.
type finding struct {
	line      int // from 1
	word, use string
}

func (f finding) String() string { return fmt.Sprintf("%d: %q: use %s", f.line, f.word, f.use) }

// check finds what the rules forbid in a piece of prose that begins in a line of its file. Ends of lines in it are kept.
func check(text string, line int) (found []finding) {
	at := func(begin, end int, use string) {
		word := strings.Join(strings.Fields(text[begin:end]), " ")
		found = append(found, finding{line + strings.Count(text[:begin], "\n"), word, use})
	}
	for i, c := range compiled {
		for _, m := range c.find.FindAllStringIndex(text, -1) {
			if c.but != nil && slices.ContainsFunc(c.but.FindAllStringIndex(text, -1), func(b []int) bool { return b[0] < m[1] && m[0] < b[1] }) {
				continue
			}
			at(m[0], m[1], rules[i].use)
		}
	}
	for _, m := range openings.FindAllStringSubmatchIndex(text, -1) {
		if end := text[m[1]-1]; end == '?' || strings.HasSuffix(text[m[0]:m[1]], "…") {
			continue
		}
		at(m[4], m[5], `the component as the subject, its action as the verb`)
	}
	for _, m := range say.FindAllStringIndex(text, -1) {
		at(m[0], m[1], `"for example"`)
	}
	slices.SortStableFunc(found, func(a, b finding) int { return a.line - b.line })
	return found
}

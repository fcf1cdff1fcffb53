package backend

import (
	"cmp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/leasegen/leasegen/runtime/operate"
)

// Selects reports whether a filter selects a dead letter at the time now. After, Through and Limit are for the caller to keep:
// only a backend knows its order.
func Selects(f operate.DeadLetterFilter, d *operate.DeadLetterInfo, now time.Time) bool {
	match := func(pattern, v string) bool { return pattern == "" || matchOne(pattern, v) }
	return (f.Consumer == "" || f.Consumer == d.Consumer) && (len(f.IDs) == 0 || slices.Contains(f.IDs, d.ID)) &&
		match(f.Topic, d.Topic) && (f.Key == "" || f.Key == d.Key) && (f.Kind == "" || f.Kind == d.Kind) && match(f.Reason, d.Reason) &&
		(f.Text == "" || hasText(d.Reason, f.Text) || hasText(d.Key, f.Text)) &&
		(f.MinAge <= 0 || now.Sub(d.DeadAt) >= f.MinAge) && (f.MaxAge <= 0 || now.Sub(d.DeadAt) <= f.MaxAge)
}

// hasText reports whether s contains text, with A to Z like a to z.
func hasText(s, text string) bool {
	lower := func(s string) string {
		b := []byte(s)
		for i, c := range b {
			if 'A' <= c && c <= 'Z' {
				b[i] = c + 'a' - 'A'
			}
		}
		return string(b)
	}
	return strings.Contains(lower(s), lower(text))
}

const (
	// GroupedDeadLetters is how many dead letters Operator.DeadLetterGroups looks at, at most.
	GroupedDeadLetters = 100_000

	groupsKept     = 1000 // while counting
	groupsAnswered = 100
	patternBytes   = 300
)

// DeadLetterGrouping counts dead letters for Operator.DeadLetterGroups, in memory that does not grow with them. Its zero value is
// ready for use.
type DeadLetterGrouping struct {
	groups   map[groupName]*operate.DeadLetterGroup
	patterns map[string]string // of reasons that came before
	total    int
	more     bool
}

type groupName struct{ consumer, kind, reason string }

// Add counts dead letters: g has their consumer, kind and reason, when they died, and an example. It is called for the newest
// first: of several calls for one group the example of the first stays, unless a later one is newer. The entry of a group that
// comes when there are very many counts in the total alone.
func (c *DeadLetterGrouping) Add(g operate.DeadLetterGroup) {
	pattern, known := c.patterns[g.Reason]
	if !known {
		pattern = ReasonPattern(g.Reason)
		if c.patterns == nil || len(c.patterns) >= groupsKept {
			c.patterns = map[string]string{}
		}
		c.patterns[g.Reason] = pattern
	}
	g.Reason = pattern
	c.total += g.Count
	name := groupName{g.Consumer, g.Kind, g.Reason}
	was := c.groups[name]
	switch {
	case was == nil && len(c.groups) >= groupsKept:
		c.more = true
	case was == nil:
		if c.groups == nil {
			c.groups = map[groupName]*operate.DeadLetterGroup{}
		}
		kept := g
		c.groups[name] = &kept
	default:
		was.Count += g.Count
		if g.Oldest.Before(was.Oldest) {
			was.Oldest = g.Oldest
		}
		if g.Newest.After(was.Newest) {
			was.Newest, was.Example = g.Newest, g.Example
		}
	}
}

// Answer returns the groups. More is whether there were dead letters that Add was not told of.
func (c *DeadLetterGrouping) Answer(more bool) operate.DeadLetterGroups {
	out := operate.DeadLetterGroups{Total: c.total, More: more || c.more || len(c.groups) > groupsAnswered}
	for _, g := range c.groups {
		out.Groups = append(out.Groups, *g)
	}
	slices.SortFunc(out.Groups, func(a, b operate.DeadLetterGroup) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), b.Newest.Compare(a.Newest), cmp.Compare(a.Consumer, b.Consumer),
			cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Reason, b.Reason))
	})
	out.Groups = First(out.Groups, groupsAnswered)
	return out
}

// ReasonPattern is the pattern of a reason, see operate.DeadLetterGroup: MatchTopic matches the reason with it. Runs of digits
// become *, and words of eight or more hexadecimal digits that have a decimal one among them, whole uuids included.
func ReasonPattern(reason string) string {
	var b strings.Builder
	b.Grow(min(len(reason), patternBytes))
	for i := 0; i < len(reason); {
		n, varies := 1, false
		switch c := reason[i]; {
		case c < utf8.RuneSelf && alphanumeric(c):
			for n = 1; i+n < len(reason) && alphanumeric(reason[i+n]); n++ {
			}
			if u := uuidLength(reason[i:]); u > n {
				n, varies = u, true
			} else {
				varies = hexadecimal(reason[i : i+n])
			}
		case c >= utf8.RuneSelf:
			_, n = utf8.DecodeRuneInString(reason[i:])
		}
		word := reason[i : i+n]
		if varies {
			word = "*"
		}
		if i += n; !varies {
			word = withoutDigits(word)
		}
		if b.Len()+len(word) >= patternBytes { // one byte is for the *
			if word[0] < utf8.RuneSelf {
				star(&b, word[:patternBytes-1-b.Len()])
			}
			star(&b, "*")
			break
		}
		star(&b, word)
	}
	return b.String()
}

// star appends a part of a pattern, without a second * behind a *.
func star(b *strings.Builder, part string) {
	if strings.HasSuffix(b.String(), "*") {
		part = strings.TrimLeft(part, "*")
	}
	b.WriteString(part)
}

func alphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

func hexDigit(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// hexadecimal reports that a word is a long hexadecimal number: dictionaries have words of hexadecimal letters, but none with digits.
func hexadecimal(word string) bool {
	if len(word) < 8 {
		return false
	}
	for i := range len(word) {
		if !hexDigit(word[i]) {
			return false
		}
	}
	return strings.ContainsAny(word, "0123456789")
}

// uuidLength is 36 when s begins with a uuid, else 0.
func uuidLength(s string) int {
	const form = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
	if len(s) < len(form) || len(s) > len(form) && alphanumeric(s[len(form)]) {
		return 0
	}
	for i := range len(form) {
		if form[i] == '-' && s[i] != '-' || form[i] == 'x' && !hexDigit(s[i]) {
			return 0
		}
	}
	return len(form)
}

// withoutDigits has a * for each run of digits.
func withoutDigits(word string) string {
	if !strings.ContainsAny(word, "0123456789") {
		return word
	}
	var b strings.Builder
	for i := range len(word) {
		if c := word[i]; c < '0' || c > '9' {
			b.WriteByte(c)
		} else if i == 0 || word[i-1] < '0' || word[i-1] > '9' {
			b.WriteByte('*')
		}
	}
	return b.String()
}

package leaseweb

import (
	"cmp"
	"fmt"
	"html/template"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/leasegen/leasegen/runtime/operate"
)

// words are the functions of the templates.
func words() template.FuncMap {
	return template.FuncMap{
		"age": age, "ago": ago, "count": func(n any) string { return grouped(fmt.Sprint(n)) }, "plural": plural[int], "plural64": plural[int64],
		"link": link, "label": func(field string) string { return cmp.Or(label(field), field) }, "size": size,
		"raw": func(v any) any { return v }, "visible": func(v any) any {
			if s, ok := v.(string); ok {
				return visible(s)
			}
			return v
		},
		"short": func(s string) string { return s[:min(8, len(s))] }, "unix": func(t time.Time) bool { return !t.IsZero() },
		"moment": func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") + " UTC" },
		"stamp":  func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
		"clock":  func(t time.Time) string { return t.UTC().Format(time.TimeOnly) },
	}
}

// visible writes what would steer how text is shown as escapes: controls, what turns its direction, what takes no room. It
// changes no escape that it has written.
func visible(s string) string {
	shown := func(r rune) bool { return r == '\n' || r == '\t' || unicode.IsPrint(r) }
	if utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !shown(r) }) {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		_, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case shown(r):
			b.WriteRune(r)
		default:
			q := strconv.QuoteRuneToASCII(r)
			b.WriteString(q[1 : len(q)-1])
		}
	}
	return b.String()
}

// link is the address of a page with fields, given by name and value. Empty values are left out.
func link(page string, fields ...string) string {
	q := url.Values{}
	for i := 0; i+1 < len(fields); i += 2 {
		if fields[i+1] != "" {
			q.Add(fields[i], fields[i+1])
		}
	}
	return address(page, q)
}

func address(page string, q url.Values) string {
	if page == "" {
		page = "./"
	}
	if len(q) == 0 {
		return page
	}
	return page + "?" + q.Encode()
}

// age is a duration in the units that matter.
func age(d time.Duration) string {
	switch d = max(d, 0); {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return twoUnits(int(d.Minutes()), "min", int(d.Seconds())%60, "s")
	case d < 48*time.Hour:
		return twoUnits(int(d.Hours()), "h", int(d.Minutes())%60, "min")
	}
	return fmt.Sprintf("%d days", int(d.Hours())/24)
}

func twoUnits(large int, unit string, small int, smaller string) string {
	if small == 0 {
		return fmt.Sprintf("%d %s", large, unit)
	}
	return fmt.Sprintf("%d %s %d %s", large, unit, small, smaller)
}

// ago is how long before now a moment was, or how long after, in one unit.
func ago(now, at time.Time) string {
	d := now.Sub(at)
	if d < -500*time.Millisecond {
		return "in " + strings.TrimSuffix(ago(at, now), " ago")
	}
	switch d = max(d, 0); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s ago", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h ago", int(d.Hours()))
	}
	return fmt.Sprintf("%d days ago", int(d.Hours())/24)
}

// label is what the page calls a field of an action.
func label(field string) string {
	return map[string]string{"min": "dead for at least", "max": "dead for at most", "text": "text in reason or key", "r": "resource"}[field]
}

// grouped writes a number with separators.
func grouped(digits string) string {
	sign := ""
	if strings.HasPrefix(digits, "-") {
		sign, digits = "-", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

func plural[N int | int64](n N, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return grouped(strconv.FormatInt(int64(n), 10)) + " " + noun
}

func size(bytes int) string {
	switch {
	case bytes < 1<<10:
		return plural(bytes, "byte")
	case bytes < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(bytes)/(1<<10))
	}
	return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
}

// concern is something that an operator should know of a consumer.
type concern struct {
	Bad    bool   // it stands still; otherwise it waits to be looked at
	State  string // in a word
	Text   string
	Go, To string // page and words of a link
}

// When what is normal for a moment is not normal any more.
const (
	lateAfter    = time.Minute
	unownedAfter = 10 * time.Second
)

// concerns says what needs attention, the worst first. It has the words of the guide for operators.
func concerns(c operate.ConsumerStatus, unownedFor time.Duration) (all []concern) {
	add := func(when, bad bool, state, page, to, format string, args ...any) {
		if when {
			all = append(all, concern{Bad: bad, State: state, Text: fmt.Sprintf(format, args...), Go: page, To: to})
		}
	}
	add(c.Paused, false, "paused", "resume", "Resume…",
		"It is paused, for %s: no lease is granted, and its messages wait, until it is resumed.", age(c.PausedFor))
	if !c.Paused {
		add(c.Members == 0 && c.Resources > 0, true, "no replica", "", "",
			"No replica runs. Start one; or forget the consumer if it was removed, since it holds the log back.")
		lasting := unownedFor >= unownedAfter
		add(c.Members > 0 && c.Unowned > 0 && !lasting, false, "handing over", "consumer", "See the owners",
			"%s no owner. For a moment that is normal.", has(c.Unowned, "resource"))
		add(c.Members > 0 && c.Unowned > 0 && lasting, true, "no owner", "consumer", "See the owners",
			"%s no owner, for %s. Too few replicas run, or WithCapacity is too low.", has(c.Unowned, "resource"), age(unownedFor))
	}
	add(c.OldestUnread >= lateAfter && !c.Paused, true, "late", "cursors", "The furthest behind",
		"The oldest unread message has waited for %s. See who owns the resource that is furthest behind, "+
			"and whether the log there says “handler is stuck”.",
		age(c.OldestUnread))
	add(c.ParkedKeys > 0, false, "retrying", "parked", "Parked messages",
		"%s for a retry, and later messages behind them. The errors say why.", verb(c.ParkedKeys, "key", "waits", "wait"))
	add(c.DeadLetters > 0, false, "dead letters", "dead", "Dead letters",
		"%s given up on. See why, fix the cause, then replay.", verb(c.DeadLetters, "message", "was", "were"))
	add(c.Note != "", false, "not counted", "", "", "%s", c.Note)
	slices.SortStableFunc(all, func(a, b concern) int {
		switch {
		case a.Bad == b.Bad:
			return 0
		case a.Bad:
			return -1
		}
		return 1
	})
	return all
}

func has(n int, noun string) string { return verb(n, noun, "has", "have") }

func verb(n int, noun, one, many string) string {
	if n == 1 {
		return plural(n, noun) + " " + one
	}
	return plural(n, noun) + " " + many
}

// state is a consumer in a word.
func state(c operate.ConsumerStatus, all []concern) string {
	for _, about := range all {
		if about.State != "not counted" {
			return about.State
		}
	}
	return "fine"
}

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// table prints rows in aligned columns. A title that begins with > is of a column of numbers, aligned right; one
// that begins with ? is of a column that a narrow terminal does without, and one with = of names that are to be typed again.
type table struct {
	titles []string
	rows   [][]string
}

func newTable(titles ...string) *table { return &table{titles: titles} }

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// column is one column of a table, and how wide it is.
type column struct {
	title              string
	index, width       int
	right, spare, name bool
}

// room is how much of the column can go: numbers and titles stay whole.
func (c column) room() int {
	if c.right {
		return 0
	}
	return c.width - max(leastText, cells(c.title))
}

const (
	gap       = 2 // cells between columns
	leastText = 8 // cells that a column of text keeps
)

// columns returns the columns that fit into so many cells, 0 for any number, and the titles of the others: first of all
// spare columns are left out, then columns of text are cut, the widest first, and those of names at last.
func (t *table) columns(room int) (shown []column, left []string) {
	total := -gap
	for i, title := range t.titles {
		c := column{index: i}
		title, c.spare = strings.CutPrefix(title, "?")
		title, c.name = strings.CutPrefix(title, "=")
		c.title, c.right = strings.CutPrefix(title, ">")
		c.width = cells(c.title)
		for _, row := range t.rows {
			c.width = max(c.width, cells(row[i]))
		}
		total += c.width + gap
		shown = append(shown, c)
	}
	for room > 0 && total > room {
		i := slices.IndexFunc(shown, func(c column) bool { return c.spare })
		if i >= 0 {
			total -= shown[i].width + gap
			left = append(left, shown[i].title)
			shown = slices.Delete(shown, i, i+1)
			continue
		}
		widest := 0
		for i, c := range shown {
			if w := shown[widest]; c.room() > 0 && (w.room() <= 0 || w.name && !c.name || w.name == c.name && c.width > w.width) {
				widest = i
			}
		}
		if shown[widest].room() <= 0 {
			break // so narrow a terminal wraps
		}
		shown[widest].width--
		total--
	}
	return shown, left
}

func (t *table) print(o *output) error {
	columns, left := t.columns(o.width)
	out := bufio.NewWriter(o)
	write := func(text func(c column) string) {
		var line strings.Builder
		for i, c := range columns {
			text := cut(text(c), c.width)
			pad := strings.Repeat(" ", c.width-cells(text))
			last := i == len(columns)-1
			text = o.paint(text)
			switch {
			case c.right:
				text = pad + text
			case !last:
				text += pad
			}
			line.WriteString(text)
			if !last {
				line.WriteString(strings.Repeat(" ", gap))
			}
		}
		fmt.Fprintln(out, strings.TrimRight(line.String(), " "))
	}
	write(func(c column) string { return c.title })
	for _, row := range t.rows {
		write(func(c column) string { return row[c.index] })
	}
	if len(left) > 0 {
		fmt.Fprintf(out, "not shown on a terminal this narrow: %s\n", strings.Join(left, ", "))
	}
	return out.Flush()
}

// printMore prints a list that -limit may have cut, behind which -after goes on unless it is empty.
func (t *table) printMore(w *output, more bool, after string) error {
	if err := t.print(w); err != nil || !more {
		return err
	}
	next := ""
	if after != "" {
		next = ", -after " + after + " the next"
	}
	_, err := fmt.Fprintf(w, "there are more; -limit n shows n%s\n", next)
	return err
}

// atMost cuts a list, and reports whether there was more.
func atMost[T any](list []T, limit int) ([]T, bool) {
	return list[:min(limit, len(list))], len(list) > limit
}

func printJSON(w io.Writer, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := io.WriteString(w, asciiControls(b.String()))
	return err
}

// asciiControls writes what steers a terminal, or turns the direction of text, as JSON's escapes; the encoder
// does so below U+0020 only. Such runes stand in strings alone.
func asciiControls(doc string) string {
	var b strings.Builder
	for _, r := range doc {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// number writes n with thousands separators.
func number[T int | int64](n T) string {
	s := strconv.FormatInt(int64(n), 10)
	sign := ""
	if n < 0 {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}

// plural is a number with its noun.
func plural[T int | int64](n T, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return number(n) + " " + noun
}

// age writes a duration in the two units that matter.
func age(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
}

// moment writes the time of day, with the date unless that is today's.
func moment(at, now time.Time) string {
	at, now = at.Local(), now.Local()
	if at.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return at.Format(time.TimeOnly)
	}
	return at.Format("2006-01-02 15:04")
}

// named is the name of a consumer, as it is shown: roles that write to the tables can store any.
func named(consumer string) string { return printable(consumer, 63) }

// printable makes s safe for a terminal and a line: what others wrote into it can
// move no cursor. It is cut to at most n runes.
func printable(s string, n int) string {
	var b strings.Builder
	count := 0
	for _, r := range s {
		if count++; count > n {
			b.WriteRune('…')
			break
		}
		switch {
		case r == utf8.RuneError, !unicode.IsPrint(r):
			q := strconv.QuoteRuneToASCII(r)
			b.WriteString(q[1 : len(q)-1])
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

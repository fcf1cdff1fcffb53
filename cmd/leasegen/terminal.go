package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"

	"golang.org/x/text/width"
)

// output is where a command prints, and what that can show. Only a terminal has a width and colours.
type output struct {
	io.Writer
	width, height int  // in cells; 0 where there is no bound
	redraws       bool // a terminal whose cursor can be moved
	colour        bool
	file          *os.File // the terminal
	progress      progress
}

// output looks at what w is.
func (e *env) output(w io.Writer) *output {
	o := &output{Writer: w}
	if file, ok := w.(*os.File); ok {
		if _, _, ok := terminalSize(file); ok {
			term := e.Getenv("TERM")
			o.file = file
			o.redraws = term != "" && term != "dumb"
			o.colour = o.redraws && e.Getenv("NO_COLOR") == ""
			o.resize()
		}
	}
	return o
}

// resize asks a terminal for its size.
func (o *output) resize() {
	if o.file != nil {
		o.width, o.height, _ = terminalSize(o.file)
	}
}

// attention stands before text that asks for attention. No text from elsewhere has it: see printable.
const attention = "\x01"

// mark makes text ask for attention if it should.
func mark(text string, should bool) string {
	if should {
		return attention + text
	}
	return text
}

// paint returns text as it is to be printed: what asks for attention in red, where there are colours.
func (o *output) paint(text string) string {
	text, marked := strings.CutPrefix(text, attention)
	if marked && o.colour {
		return "\x1b[31m" + text + "\x1b[m"
	}
	return text
}

// alarm prints a line that asks for attention.
func (o *output) alarm(format string, args ...any) error {
	_, err := fmt.Fprintln(o, o.paint(attention+fmt.Sprintf(format, args...)))
	return err
}

// cells is how wide a terminal shows text: characters of East Asia and pictures take two cells, accents that stand
// alone none.
func cells(text string) (n int) {
	for _, r := range strings.TrimPrefix(text, attention) {
		n += runeCells(r)
	}
	return n
}

func runeCells(r rune) int {
	if r < 0x300 {
		return 1
	}
	if unicode.In(r, unicode.Mn, unicode.Me) {
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// cut makes text at most n cells wide, with … for what is gone.
func cut(text string, n int) string {
	if cells(text) <= n {
		return text
	}
	var b strings.Builder
	left := n - 1
	for _, r := range text {
		w := runeCells(r)
		if string(r) == attention {
			w = 0
		}
		if w > left {
			break
		}
		left -= w
		b.WriteRune(r)
	}
	return b.String() + "…"
}

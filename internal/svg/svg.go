// Package svg draws static pictures for pages: shapes in the colours of a small palette, written once for light pages and
// once for dark ones. There is no script, no style sheet and no font of its own, so that each viewer shows the same.
package svg

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Drawing is a picture that is being drawn. It has the units of its view box: text of 16 in a width of 640 is 10 pixels
// high where the picture is 400 pixels wide.
type Drawing struct {
	title, desc   string
	width, height float64
	shapes        []shape
}

type shape struct {
	element, text string
	attrs         []Attr
}

// New begins a drawing. The title names it, and desc says in words what it shows, for readers that do not see it.
func New(width, height float64, title, desc string) *Drawing {
	d := &Drawing{title: title, desc: desc, width: width, height: height}
	d.Rect(0, 0, width, height, Fill(Paper), Round(6))
	return d
}

// Rect draws a rectangle from its upper left corner.
func (d *Drawing) Rect(x, y, width, height float64, attrs ...Attr) {
	d.add("rect", "", attrs, num("x", x), num("y", y), num("width", width), num("height", height))
}

// Line draws a line. It is not seen without Stroke.
func (d *Drawing) Line(x1, y1, x2, y2 float64, attrs ...Attr) {
	d.add("line", "", attrs, num("x1", x1), num("y1", y1), num("x2", x2), num("y2", y2))
}

// Circle draws a circle around its centre.
func (d *Drawing) Circle(x, y, radius float64, attrs ...Attr) {
	d.add("circle", "", attrs, num("cx", x), num("cy", y), num("r", radius))
}

// Path draws a path: its commands, as SVG has them.
func (d *Drawing) Path(commands string, attrs ...Attr) {
	d.add("path", "", attrs, Attr{name: "d", value: commands})
}

// Text writes a line of text from x on, with its base line at y.
func (d *Drawing) Text(x, y float64, text string, attrs ...Attr) {
	d.add("text", text, attrs, num("x", x), num("y", y))
}

// Arrow draws a path that ends with an arrow head at x, y, which points along dx, dy: one of them is 1 or -1, and the other 0.
func (d *Drawing) Arrow(commands string, x, y, dx, dy float64, color Color) {
	const long, wide = 9, 5
	d.Path(commands, Fill(None), Stroke(color, 2))
	bx, by := x-dx*long, y-dy*long
	d.Path(fmt.Sprintf("M%s %sL%s %sL%s %sZ", Num(x), Num(y), Num(bx+dy*wide), Num(by+dx*wide), Num(bx-dy*wide), Num(by-dx*wide)), Fill(color))
}

func (d *Drawing) add(element, text string, attrs []Attr, place ...Attr) {
	d.shapes = append(d.shapes, shape{element, text, append(place, attrs...)})
}

// SVG is the picture in a theme. The same drawing gives the same bytes.
func (d *Drawing) SVG(t Theme) []byte {
	var out bytes.Buffer
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" width="%s" height="%s" viewBox="0 0 %[1]s %[2]s" role="img" `+
		`aria-labelledby="title desc" font-family="system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif" font-size="16">`+"\n", Num(d.width), Num(d.height))
	fmt.Fprintf(&out, "<title id=\"title\">%s</title>\n<desc id=\"desc\">%s</desc>\n", escape(d.title), escape(d.desc))
	for _, s := range d.shapes {
		out.WriteString("<" + s.element)
		for _, a := range s.attrs {
			value := a.value
			if a.color != "" {
				value = t.hex(a.color)
			}
			fmt.Fprintf(&out, ` %s="%s"`, a.name, escape(value))
			if a.width != "" {
				fmt.Fprintf(&out, ` %s-width="%s"`, a.name, a.width)
			}
		}
		if s.text == "" {
			out.WriteString("/>\n")
			continue
		}
		fmt.Fprintf(&out, ">%s</%s>\n", escape(s.text), s.element)
	}
	out.WriteString("</svg>\n")
	return out.Bytes()
}

// Files are the picture in both themes by the names of its files, which begin with name.
func (d *Drawing) Files(name string) map[string][]byte {
	return map[string][]byte{name + ".svg": d.SVG(Light), name + dark + ".svg": d.SVG(Dark)}
}

// Write writes files into a directory.
func Write(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, svg := range files {
		if err := os.WriteFile(filepath.Join(dir, name), svg, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Embed is the Markdown that shows a picture's files in the theme of the page. Path is that of its files without an
// ending, and alt says what it shows.
func Embed(path, alt string) string {
	return fmt.Sprintf(`<picture><source media="(prefers-color-scheme: dark)" srcset="%s%s.svg"><img src="%[1]s.svg" alt="%[3]s"></picture>`,
		path, dark, escape(alt))
}

const dark = "-dark"

func escape(text string) string {
	var out strings.Builder
	_ = xml.EscapeText(&out, []byte(text)) // a Builder takes all
	return out.String()
}

// Num is a number as pictures have it: with at most one decimal.
func Num(v float64) string {
	s := strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0")
	if s == "-0" {
		return "0"
	}
	return s
}

package report

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"strings"
)

// bar is one line of a chart: a dot at the median, a line from the least to the most.
type bar struct {
	name   string
	value  Spread
	text   string
	accent bool // leasegen
}

// Sizes of a chart, in units of its view box.
const (
	chartWidth = 860
	nameWidth  = 310
	textWidth  = 120
	lineHeight = 26
	topSpace   = 46
	footSpace  = 34
)

// style has colours for both schemes: the picture follows the reader's, without a script.
const style = `
text{font:13px system-ui,-apple-system,"Segoe UI",sans-serif;fill:#1f2328}
.title{font-weight:600;font-size:14px}.axis{fill:#59636e;font-size:11px}.grid{stroke:#d1d9e0;stroke-width:1}
.line{stroke:#818b98;stroke-width:2}.dot{fill:#818b98}.ours .line{stroke:#0969da}.ours .dot{fill:#0969da}.ours text{font-weight:600}
@media (prefers-color-scheme:dark){text{fill:#f0f6fc}.axis{fill:#9198a1}.grid{stroke:#3d444d}
.line{stroke:#656c76}.dot{fill:#656c76}.ours .line{stroke:#4493f8}.ours .dot{fill:#4493f8}}
`

// chart draws bars on a logarithmic scale: contenders differ by powers of ten.
func chart(title, axis string, bars []bar) []byte {
	low, high := math.Inf(1), math.Inf(-1)
	for _, b := range bars {
		if b.value.Least > 0 {
			low, high = min(low, b.value.Least), max(high, b.value.Most)
		}
	}
	if math.IsInf(low, 0) {
		return nil
	}
	from, to := math.Floor(math.Log10(low)), math.Ceil(math.Log10(high))
	if from == to {
		to++
	}
	left, right := float64(nameWidth), float64(chartWidth-textWidth)
	x := func(v float64) float64 { return left + (math.Log10(v)-from)/(to-from)*(right-left) }
	height := topSpace + len(bars)*lineHeight + footSpace
	var out bytes.Buffer
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="%s"><style>%s</style>`+"\n",
		chartWidth, height, html.EscapeString(title+": "+summary(bars)), style)
	fmt.Fprintf(&out, `<text class="title" x="8" y="20">%s</text>`+"\n", html.EscapeString(title))
	bottom := topSpace + len(bars)*lineHeight
	for e := from; e <= to; e++ {
		v := math.Pow(10, e)
		fmt.Fprintf(&out, `<line class="grid" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/><text class="axis" x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n",
			x(v), x(v), topSpace-8, bottom, x(v), bottom+14, number(v))
	}
	fmt.Fprintf(&out, `<text class="axis" x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", (left+right)/2, bottom+29, html.EscapeString(axis))
	for i, b := range bars {
		y := topSpace + i*lineHeight + lineHeight/2 - 4
		class := ""
		if b.accent {
			class = ` class="ours"`
		}
		fmt.Fprintf(&out, `<g%s><text x="%d" y="%d" text-anchor="end">%s</text>`, class, nameWidth-12, y+5, html.EscapeString(b.name))
		if b.value.Least > 0 {
			fmt.Fprintf(&out, `<line class="line" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/><circle class="dot" cx="%.1f" cy="%d" r="5"/>`,
				x(b.value.Least), x(b.value.Most), y, y, x(b.value.Median), y)
		}
		fmt.Fprintf(&out, `<text x="%d" y="%d">%s</text></g>`+"\n", chartWidth-textWidth+14, y+5, html.EscapeString(b.text))
	}
	out.WriteString("</svg>\n")
	return out.Bytes()
}

// summary says a chart in words, for readers that do not see it.
func summary(bars []bar) string {
	var s []string
	for _, b := range bars {
		s = append(s, b.name+" "+b.text)
	}
	return strings.Join(s, ", ")
}

package svg

// Attr is how a shape looks.
type Attr struct {
	name, value string
	color       Color  // its value in a theme
	width       string // of a stroke
}

func num(name string, v float64) Attr { return Attr{name: name, value: Num(v)} }

// Attributes of all texts.
var (
	Bold   = Attr{name: "font-weight", value: "600"}
	Middle = Attr{name: "text-anchor", value: "middle"}
	End    = Attr{name: "text-anchor", value: "end"}
)

// Fill colours a shape or a text.
func Fill(c Color) Attr { return Attr{name: "fill", color: c} }

// Stroke is a shape's border, or a line.
func Stroke(c Color, width float64) Attr {
	return Attr{name: "stroke", color: c, width: Num(width)}
}

// Dashed breaks a line.
func Dashed() Attr { return Attr{name: "stroke-dasharray", value: "4 4"} }

// Round rounds a rectangle's corners.
func Round(radius float64) Attr { return num("rx", radius) }

// Faint is a shape that others shine through: 0 is not seen, and 1 covers.
func Faint(opacity float64) Attr { return num("opacity", opacity) }

// Size is the height of a text. Without it, it is 16.
func Size(height float64) Attr { return num("font-size", height) }

// Color is a colour of the palette. Each theme has its own shade of it.
type Color string

// The hues begin with blue and orange of Okabe and Ito. They differ in lightness, too, so that the colour-blind tell them
// apart; text of OnHue can be read on each.
const (
	None   Color = "none"
	Paper  Color = "paper"
	Ink    Color = "ink"
	Muted  Color = "muted"
	Grid   Color = "grid"
	Shade  Color = "shade" // of an area that is out of use
	Blue   Color = "blue"
	Orange Color = "orange"
	Green  Color = "green"
	Purple Color = "purple"
	Red    Color = "red"
	OnHue  Color = "on hue" // text on an area of one of the hues
)

// Theme is the page around a picture.
type Theme int

// Light and Dark are the themes.
const (
	Light Theme = iota
	Dark
)

func (t Theme) hex(c Color) string {
	switch c {
	case Paper:
		return [...]string{"#ffffff", "#0d1117"}[t]
	case Ink:
		return [...]string{"#1f2328", "#f0f6fc"}[t]
	case Muted:
		return [...]string{"#59636e", "#9198a1"}[t]
	case Grid:
		return [...]string{"#d1d9e0", "#3d444d"}[t]
	case Shade:
		return [...]string{"#e6eaef", "#262c36"}[t]
	case Blue:
		return [...]string{"#0072b2", "#56b4e9"}[t]
	case Orange:
		return [...]string{"#b06600", "#f0b429"}[t]
	case Green:
		return [...]string{"#2f8068", "#8ff0d4"}[t]
	case Purple:
		return [...]string{"#5c1a5a", "#c05a9c"}[t]
	case Red:
		return [...]string{"#c1121f", "#ff7b72"}[t]
	case OnHue:
		return [...]string{"#ffffff", "#0d1117"}[t]
	}
	return string(c)
}

package svg

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"
)

func drawing() *Drawing {
	d := New(640, 100, "a <title>", "it shows \"this\" & that")
	d.Rect(1, 2.25, 3, 4, Fill(Blue), Faint(0.5))
	d.Line(0, 0, 10, 10, Stroke(Grid, 1.5), Dashed())
	d.Arrow("M0 0L20 0", 20, 0, 1, 0, Red)
	d.Text(10, 20, "a < b", Bold, Middle, Size(14), Fill(Ink))
	return d
}

// Both themes are whole XML with a title and a description, and differ in colours alone.
func TestThemes(t *testing.T) {
	files := drawing().Files("x")
	light, dark := files["x.svg"], files["x-dark.svg"]
	for name, svg := range files {
		var text strings.Builder
		for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
			tok, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v\n%s", name, err, svg)
			}
			if c, ok := tok.(xml.CharData); ok {
				text.Write(c)
			}
		}
		for _, want := range []string{"a <title>", `it shows "this" & that`, "a < b"} {
			if !strings.Contains(text.String(), want) {
				t.Errorf("%s lacks %q", name, want)
			}
		}
	}
	if !bytes.Contains(light, []byte(`<rect x="1" y="2.2" width="3" height="4" fill="#0072b2" opacity="0.5"/>`)) {
		t.Errorf("the rectangle is not there:\n%s", light)
	}
	if !bytes.Contains(light, []byte(`stroke="#d1d9e0" stroke-width="1.5"`)) {
		t.Errorf("the line is not there:\n%s", light)
	}
	if bytes.Equal(light, dark) {
		t.Error("both themes have the same colours")
	}
	color := regexp.MustCompile(`#[0-9a-f]{6}`)
	if string(color.ReplaceAll(light, nil)) != string(color.ReplaceAll(dark, nil)) {
		t.Error("the themes differ in more than colours")
	}
}

func TestNum(t *testing.T) {
	for v, want := range map[float64]string{0: "0", -0.01: "0", 1: "1", 1.26: "1.3", -2.5: "-2.5", 640: "640"} {
		if got := Num(v); got != want {
			t.Errorf("Num(%v) = %s, want %s", v, got, want)
		}
	}
}

func TestEmbed(t *testing.T) {
	want := `<picture><source media="(prefers-color-scheme: dark)" srcset="images/x-dark.svg"><img src="images/x.svg" alt="a &lt; b"></picture>`
	if got := Embed("images/x", "a < b"); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

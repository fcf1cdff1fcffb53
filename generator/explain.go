package generator

import (
	"fmt"
	"slices"
	"strings"

	"github.com/leasegen/leasegen/generator/internal/diag"
	"github.com/leasegen/leasegen/generator/internal/spec"
)

// Explain returns the help of a directive ("lease") or of a code ("LG0104"); for "" a
// list of both.
func Explain(topic string) (string, error) {
	if topic == "" {
		var b strings.Builder
		b.WriteString("directives (leasegen explain NAME):\n")
		for _, d := range spec.Directives() {
			fmt.Fprintf(&b, "  %-9s %s\n", d.Name, d.Help)
		}
		b.WriteString("\ncodes (leasegen explain CODE):\n")
		for _, e := range diag.Codes() {
			fmt.Fprintf(&b, "  %s %s\n", e.Code, e.Title)
		}
		return b.String(), nil
	}
	if d, ok := spec.Lookup(strings.ToLower(topic)); ok {
		return d.Text(), nil
	}
	if e, ok := diag.Lookup(strings.ToUpper(topic)); ok {
		return fmt.Sprintf("%s: %s\n\n%s", e.Code, e.Title, wrap(e.Explain)), nil
	}
	known := spec.Names()
	if strings.HasPrefix(strings.ToUpper(topic), "LG") {
		return "", fmt.Errorf("there is no code %q; leasegen explain lists them", topic)
	}
	slices.Sort(known)
	return "", fmt.Errorf("there is no directive %q: %s", topic, diag.Suggest(topic, known))
}

// wrap breaks text into lines of at most 90 columns, where words allow.
func wrap(text string) string {
	var b strings.Builder
	column := 0
	for _, word := range strings.Fields(text) {
		switch {
		case column == 0:
		case column+1+len(word) > 90:
			b.WriteByte('\n')
			column = 0
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	b.WriteByte('\n')
	return b.String()
}

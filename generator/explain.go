package generator

import (
	"fmt"
	"slices"
	"strings"

	"github.com/leasegen/leasegen/generator/internal/diag"
	"github.com/leasegen/leasegen/generator/internal/spec"
)

// Explained returns what Explain knows: the names of the directives, and the codes.
func Explained() []string {
	known := spec.Names()
	for _, e := range diag.Codes() {
		known = append(known, e.Code)
	}
	return known
}

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
		return fmt.Sprintf("%s: %s\n\n%s", e.Code, e.Title, strings.Join(diag.Wrap(e.Explain, 90), "\n")+"\n"), nil
	}
	known := spec.Names()
	if strings.HasPrefix(strings.ToUpper(topic), "LG") {
		return "", fmt.Errorf("there is no code %q; leasegen explain lists them", topic)
	}
	slices.Sort(known)
	return "", fmt.Errorf("there is no directive %q: %s", topic, diag.Suggest(topic, known))
}

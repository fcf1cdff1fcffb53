package emit

import (
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/dave/jennifer/jen"

	"github.com/leasegen/leasegen/generator/internal/ir"
)

// unit is a unit of durations: what Go calls it, and how annotations spell it.
type unit struct {
	name  string
	texts []string
	size  time.Duration
}

// units begin with the largest.
func units() []unit {
	return []unit{
		{"Hour", []string{"h"}, time.Hour}, {"Minute", []string{"m"}, time.Minute}, {"Second", []string{"s"}, time.Second},
		{"Millisecond", []string{"ms"}, time.Millisecond},
		{"Microsecond", []string{"us", "\u00b5s", "\u03bcs"}, time.Microsecond}, // both letters that look like a mu
		{"Nanosecond", []string{"ns"}, time.Nanosecond},
	}
}

// duration writes d as it is spelt: 90*time.Second for 90s, time.Minute + 30*time.Second for
// 1m30s. A fraction is written in the largest unit that divides all of it.
func duration(d ir.Duration) *jen.Statement {
	var sum time.Duration
	var terms *jen.Statement
	add := func(n int64, u unit) {
		sum += time.Duration(n) * u.size
		term := jen.Qual("time", u.name)
		if n != 1 {
			term = jen.Lit(int(n)).Op("*").Add(term)
		}
		if terms != nil {
			term = terms.Op("+").Add(term)
		}
		terms = term
	}
	for _, m := range regexp.MustCompile(`(\d+)(\D+)`).FindAllStringSubmatch(d.Text, -1) {
		n, err := strconv.ParseInt(m[1], 10, 64)
		i := slices.IndexFunc(units(), func(u unit) bool { return slices.Contains(u.texts, m[2]) })
		if err == nil && i >= 0 && n > 0 {
			add(n, units()[i])
		}
	}
	if sum != d.Duration {
		i := slices.IndexFunc(units(), func(u unit) bool { return d.Duration%u.size == 0 })
		sum, terms = 0, nil
		add(int64(d.Duration/units()[i].size), units()[i])
	}
	return terms
}

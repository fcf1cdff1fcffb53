package report

import (
	"fmt"
	"math"
	"strings"
)

// Growth is a run that measured how figures change with what there is. Its JSON is the raw results.
type Growth struct {
	Tier       string      `json:"tier"`
	Rounds     int         `json:"rounds"`
	Took       string      `json:"took"`
	Conditions []Condition `json:"conditions"`
	Figures    []Figure    `json:"figures"`
	Curves     []Curve     `json:"curves"`
}

// Figure is what is measured at each point of each curve.
type Figure struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	Unit  string `json:"unit"`
	Rate  bool   `json:"rate,omitempty"`  // more is better
	Aside bool   `json:"aside,omitempty"` // in the table alone
}

// Curve is one thing that grows, all else being the same.
type Curve struct {
	ID     string  `json:"id"`
	Title  string  `json:"title"`
	Of     string  `json:"of"` // what there is more of
	What   string  `json:"what,omitempty"`
	Points []Point `json:"points"`
}

// Point is one size.
type Point struct {
	Size    float64              `json:"size"`
	Samples map[string][]float64 `json:"samples"` // by figure, one for each round
	// Statements took most of the server's time while leases were acquired and the backlog was drained, in the last round.
	Statements []Statement `json:"statements,omitempty"`
	Words      string      `json:"words,omitempty"` // instead of figures
	Failed     bool        `json:"failed,omitempty"`
}

// Statement is what one statement cost the server.
type Statement struct {
	Name  string  `json:"name"`
	Calls float64 `json:"calls"`
	Mean  float64 `json:"mean"`  // milliseconds a call
	Share float64 `json:"share"` // of the time of all statements
}

// LoadGrowth reads raw results.
func LoadGrowth(path string) (*Growth, error) { return load[Growth](path) }

// Save writes raw results.
func (g *Growth) Save(path string) error { return save(path, g) }

// Failures names the points that failed.
func (g *Growth) Failures() (all []string) {
	for _, c := range g.Curves {
		for _, p := range c.Points {
			if p.Failed {
				all = append(all, fmt.Sprintf("%s %s: %s", number(p.Size), c.Of, p.Words))
			}
		}
	}
	return all
}

// known are the points that have a figure.
func (c *Curve) known(f Figure) (all []Point) {
	for _, p := range c.Points {
		if s := spread(p.Samples[f.ID]); s.Known() && s.Median > 0 {
			all = append(all, p)
		}
	}
	return all
}

// worse is how many times as slow, or as costly, a figure is at one point as at another: above 1 is worse.
func worse(f Figure, at, than Point) float64 {
	a, b := spread(at.Samples[f.ID]).Median, spread(than.Samples[f.ID]).Median
	if f.Rate {
		return b / a
	}
	return a / b
}

// apart reports whether no round at one point was like any at the other.
func apart(f Figure, a, b Point) bool {
	x, y := spread(a.Samples[f.ID]), spread(b.Samples[f.ID])
	return x.Least > y.Most || y.Least > x.Most
}

// bendAt is how many times as slow, or as costly, as at the smallest size a figure is where it has bent.
const bendAt = 2

// bend is where a figure bends: behind a size.
type bend struct {
	before, last Point
	worse        float64 // at the last size
	steepness    float64 // from before to the last size: 1 is in proportion
}

// bends returns where a figure bends, if it does and stays so.
func (c *Curve) bends(f Figure) (b bend, ok bool) {
	ps := c.known(f)
	i := len(ps)
	for i > 1 && worse(f, ps[i-1], ps[0]) >= bendAt && apart(f, ps[i-1], ps[0]) {
		i--
	}
	if i == len(ps) {
		return b, false
	}
	before, last := ps[i-1], ps[len(ps)-1]
	return bend{before, last, worse(f, last, ps[0]), math.Log(worse(f, last, before)) / math.Log(last.Size/before.Size)}, true
}

// Where says in words where a curve bends, from its figures.
func (c *Curve) Where(figures []Figure) string {
	var flat, bent, better []string
	for _, f := range figures {
		ps := c.known(f)
		if f.Aside || len(ps) < 2 {
			continue
		}
		first, last := ps[0], ps[len(ps)-1]
		switch b, ok := c.bends(f); {
		case ok:
			bent = append(bent, fmt.Sprintf("%s after %s (%s at %s, %s)",
				f.Name, number(b.before.Size), times(b.worse, f), number(b.last.Size), steep(b.steepness)))
		case worse(f, last, first) <= 1.0/bendAt && apart(f, last, first):
			better = append(better, fmt.Sprintf("%s (%s of it at %s)", f.Name, number(worse(f, last, first)), number(last.Size)))
		default:
			flat = append(flat, f.Name)
		}
	}
	var all []string
	if len(bent) > 0 {
		all = append(all, "It bends: "+strings.Join(bent, "; ")+".")
	}
	if len(flat) > 0 {
		all = append(all, "Within a factor of two, or of what rounds differ: "+strings.Join(flat, "; ")+".")
	}
	if len(better) > 0 {
		all = append(all, "Less time or cost: "+strings.Join(better, "; ")+".")
	}
	return strings.Join(all, " ")
}

func times(worse float64, f Figure) string {
	if f.Rate {
		return number(worse) + " times as slow"
	}
	return number(worse) + " times as much"
}

// steep says how a figure grows with a size, of which it is a power.
func steep(power float64) string {
	switch {
	case power < 0.85:
		return "less than in proportion"
	case power <= 1.15:
		return "in proportion"
	}
	return "more than in proportion"
}

// Why says what was seen on the server while leases were acquired and the backlog was drained, where one of both bends. Other
// bends were not looked into.
func (c *Curve) Why(figures []Figure) string {
	var unseen []string
	seen := ""
	for _, f := range figures {
		b, ok := c.bends(f)
		if f.Aside || !ok {
			continue
		}
		if (f.ID == "drain" || f.ID == "acquire") && len(b.last.Statements) > 0 {
			top := b.last.Statements[0]
			seen = fmt.Sprintf("While leases were acquired and the backlog was drained with %s %s, %s took %s %% of the server's time in statements, in %s calls of %s ms; ",
				number(b.last.Size), c.Of, top.Name, number(math.Round(100*top.Share)), number(top.Calls), number(top.Mean))
			if then, ok := statement(c.Points[0].Statements, top.Name); ok {
				seen += fmt.Sprintf("with %s it took %s %%, in calls of %s ms.", number(c.Points[0].Size), number(math.Round(100*then.Share)), number(then.Mean))
			} else {
				seen += fmt.Sprintf("with %s it was not among the first three.", number(c.Points[0].Size))
			}
			continue
		}
		unseen = append(unseen, f.Name)
	}
	if len(unseen) > 0 {
		seen += " The cause was not examined for: " + strings.Join(unseen, "; ") + "."
	}
	return strings.TrimSpace(seen)
}

func statement(all []Statement, name string) (Statement, bool) {
	for _, s := range all {
		if s.Name == name {
			return s, true
		}
	}
	return Statement{}, false
}

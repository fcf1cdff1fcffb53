package rows

import (
	"maps"
	"slices"
	"time"
)

// patternsKept is how long a pattern counts beyond the time when a member was last noted to have it: a process that crashed
// has come back by then. Housekeeping notes it anew when patternsNoted has passed.
const (
	patternsKept  = 10 * time.Minute
	patternsNoted = time.Minute
)

// want adds to what the members of a consumer read. Those of another version read by their own patterns.
func (r *Rows) want(c *Consumer, patterns []string) (changed bool) {
	for _, p := range patterns {
		if r.At.Sub(c.Wanted[p]) > patternsNoted {
			c.Wanted[p], changed = r.At, true
		}
	}
	c.Topics = slices.Sorted(maps.Keys(c.Wanted))
	return changed
}

// forgetPatterns drops what no session has had for long, unless that is all: then there was no member to say.
func (r *Rows) forgetPatterns(c *Consumer) {
	changed := false
	for _, s := range r.Sessions {
		if s.Live(r.At) {
			had := slices.DeleteFunc(slices.Clone(s.Topics[c.Name]), func(p string) bool { return c.Wanted[p].IsZero() })
			changed = r.want(c, had) || changed
		}
	}
	left := maps.Clone(c.Wanted)
	maps.DeleteFunc(left, func(_ string, at time.Time) bool { return r.At.Sub(at) > patternsKept })
	if len(left) > 0 && len(left) < len(c.Wanted) {
		c.Wanted, c.Topics, changed = left, slices.Sorted(maps.Keys(left)), true
	}
	if changed {
		r.saveConsumer(c)
	}
}

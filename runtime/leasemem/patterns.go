package leasemem

import (
	"maps"
	"slices"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// patternsKept is how long a pattern counts beyond the last session that had it: a process that
// crashed has come back by then.
const patternsKept = 10 * time.Minute

// want adds to what a consumer reads. Members of another version read by their own patterns.
func (c *consumer) want(patterns []string, now time.Time) {
	for _, p := range patterns {
		if _, ok := c.wanted[p]; !ok {
			c.info.Topics = append(c.info.Topics, p)
			slices.Sort(c.info.Topics)
		}
		c.wanted[p] = now
	}
}

// forgetPatterns drops what no session has had for long, unless that is all: then nobody was there to say.
func (s *store) forgetPatterns(c *consumer, now time.Time) {
	for _, se := range s.sessions {
		if se.alive(now) {
			for _, p := range se.spec.Topics[c.info.Name] {
				if _, ok := c.wanted[p]; ok {
					c.wanted[p] = now
				}
			}
		}
	}
	gone := func(p string) bool { return now.Sub(c.wanted[p]) > patternsKept }
	left := slices.DeleteFunc(slices.Clone(c.info.Topics), gone)
	if len(left) > 0 {
		c.info.Topics = left
		maps.DeleteFunc(c.wanted, func(p string, _ time.Time) bool { return gone(p) })
	}
}

// reading is info with the patterns of all its members.
func (s *store) reading(info backend.ConsumerInfo) backend.ConsumerInfo {
	if c := s.consumers[info.Name]; c != nil {
		info.Topics = c.info.Topics
	}
	return info
}

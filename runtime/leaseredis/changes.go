package leaseredis

import "sync"

// changes counts the changes of ownership that registering has told of, by tag. A feed may not have looked since: a
// server that tells it of fewer has lost registrations.
type changes struct {
	mu sync.Mutex
	of map[int]int64
}

// seen notes that there were n changes.
func (c *changes) seen(tag int, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.of[tag] = max(c.of[tag], n)
}

// known returns how many changes there were at least.
func (c *changes) known(tag int) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.of[tag]
}

// lost notes that the server has n changes in place of known ones, unless it told of more in between.
func (c *changes) lost(tag int, known, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of[tag] <= known {
		c.of[tag] = n
	}
}
